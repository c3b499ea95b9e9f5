"""An agent of AutoGen 0.7 that goes on in the next process: run this twice."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.replay import ReplayChatCompletionClient

from scrubjay.adapters.agentchat import ScrubjayMemory, ScrubjayModelContext

model_client = ReplayChatCompletionClient(["Hello, Sarah"])  # or a real model
context = ScrubjayModelContext("sarah")
agent = AssistantAgent("assistant", model_client, model_context=context, memory=[ScrubjayMemory("sarah")])
asyncio.run(agent.run(task="Hi"))
print(len(asyncio.run(context.get_messages())), "messages")
