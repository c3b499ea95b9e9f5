"""Agents that share a namespace, awaited all at once."""

import asyncio

from scrubjay import AsyncMemory


async def research(agent: str, topic: str) -> None:
    """Every agent opens the same namespace; appends from all of them end up in one list."""
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
