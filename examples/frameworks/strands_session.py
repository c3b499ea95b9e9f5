"""A session of Strands Agents that goes on in the next process: run this twice."""

from strands.session import RepositorySessionManager
from strands.types.session import SessionAgent, SessionMessage

from scrubjay.adapters.strands import ScrubjaySessionRepository

# With a model: Agent(agent_id="assistant", session_manager=RepositorySessionManager("sarah", repository))("Hi")
repository = ScrubjaySessionRepository()
RepositorySessionManager("sarah", repository)
if repository.read_agent("sarah", "assistant") is None:
    repository.create_agent("sarah", SessionAgent("assistant", {}, {}))
count = len(repository.list_messages("sarah", "assistant"))
repository.create_message("sarah", "assistant", SessionMessage({"role": "user", "content": [{"text": "Hi"}]}, count))
print(count, "messages before this one")
