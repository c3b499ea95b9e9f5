"""A memory of LlamaIndex that goes on in the next process: run this twice."""

import asyncio

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory

from scrubjay.adapters.llama_index import ScrubjayBlock, ScrubjayChatStore

blocks = [ScrubjayBlock(session="sarah")]
memory = Memory.from_defaults(session_id="sarah", chat_store=ScrubjayChatStore(), memory_blocks=blocks)
# With a model: await agent.run("I prefer Python.", memory=memory)
asyncio.run(memory.aput(ChatMessage(content="I prefer Python.")))
print(len(asyncio.run(memory.aget())), "messages")
