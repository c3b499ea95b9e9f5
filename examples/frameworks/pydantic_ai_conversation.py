"""A conversation of Pydantic AI that goes on in the next process: run this twice."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.models.test import TestModel

from scrubjay.adapters.pydantic_ai import ScrubjayConversations

store = ScrubjayConversations()
conversation = asyncio.run(store.load("sarah")) or Conversation(conversation_id="sarah")
result = asyncio.run(Agent(TestModel()).run("Hi", conversation=conversation))  # or a real model
asyncio.run(store.save(result))
print(len(result.all_messages()), "messages")
