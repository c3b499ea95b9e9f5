"""A session of Google ADK that goes on in the next process: run this twice."""

import asyncio

from google.adk.events.event import Event

from scrubjay.adapters.adk import ScrubjaySessionService

# With a model: Runner(app_name="app", agent=agent, session_service=service).run_async(user_id="sarah", ...)
service, here = ScrubjaySessionService(), {"app_name": "app", "user_id": "sarah", "session_id": "today"}
with asyncio.Runner() as runner:
    session = runner.run(service.get_session(**here)) or runner.run(service.create_session(**here))
    print(len(session.events), "events before this one")
    runner.run(service.append_event(session, Event(author="user")))
