"""A history of Microsoft Agent Framework that survives the process: run this twice."""

import asyncio

from agent_framework import AgentSession, Message, SessionContext

from scrubjay.adapters.agent_framework import ScrubjayHistory

# With a model: agent = Agent(client=client, context_providers=[history]); await agent.run("Hi", session=session)
history, session = ScrubjayHistory(), AgentSession(session_id="sarah")
context = SessionContext(session_id="sarah", input_messages=[Message("user", ["I prefer Python."])])
asyncio.run(history.before_run(agent=None, session=session, context=context, state={}))
asyncio.run(history.after_run(agent=None, session=session, context=context, state={}))
print(len(context.get_messages()), "messages before this one")
