"""Agents that share a namespace and run at the same time under asyncio."""

import asyncio

from scrubjay import AsyncMemory


async def research(agent: str, topic: str) -> None:
    """Open the same namespace as the other agents, and append to the same list."""
    async with AsyncMemory("example-team") as memory:
        await memory.append("findings", {"by": agent, "topic": topic})
        await memory.incr(f"work:{agent}")


async def main() -> None:
    async with AsyncMemory("example-team") as memory:
        await memory.clear()
        await asyncio.gather(*(research(agent, topic) for agent in ("ada", "ben") for topic in ("cats", "jays")))
        print(await memory.count(), "keys:", await memory.keys())
        print(sorted((finding["by"], finding["topic"]) for finding in await memory.get("findings")))


asyncio.run(main())
