"""A flow of CrewAI that goes on in another process: run this twice."""

from crewai.flow import Flow, persist, start

from scrubjay.adapters.crewai import ScrubjayFlowPersistence


class Report(Flow[dict]):
    @start()
    def count(self) -> None:
        self.state["runs"] = self.state.get("runs", 0) + 1
        print(f"run {self.state['runs']}")


persist(ScrubjayFlowPersistence("reports"))(Report)().kickoff(inputs={"id": "weekly"})
