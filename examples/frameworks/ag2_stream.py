"""A stream of ag2 1.x that goes on in the next process: run this twice."""

import asyncio

from ag2 import Agent
from ag2.stream import MemoryStream
from ag2.testing import TestConfig

from scrubjay.adapters.ag2 import ScrubjayStorage

agent = Agent("Assistant", config=TestConfig("Hello, Sarah"))  # or a real model
stream = MemoryStream(ScrubjayStorage(), id="sarah")
print(len(list(asyncio.run(stream.history.get_events()))), "events before this turn")
asyncio.run(agent.ask("Hi", stream=stream))
