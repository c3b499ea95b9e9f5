"""A LangGraph thread that goes on in the next process: run this twice."""

from langgraph.graph import StateGraph

from scrubjay.adapters.langgraph import ScrubjaySaver, ScrubjayStore

graph = StateGraph(int)
graph.add_node("add_one", lambda number: number + 1)
graph.set_entry_point("add_one")
agent = graph.compile(checkpointer=ScrubjaySaver(), store=ScrubjayStore())
thread = {"configurable": {"thread_id": "sarah"}}
before = agent.get_state(thread).values or 0
print(agent.invoke(before, thread))
