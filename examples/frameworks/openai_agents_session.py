"""A session of the OpenAI Agents SDK that survives the process: run this twice."""

import asyncio

from scrubjay.adapters.openai_agents import ScrubjaySession


async def main() -> None:
    session = ScrubjaySession("sarah")
    # With a model: await Runner.run(agent, "I prefer Python.", session=session)
    await session.add_items([{"role": "user", "content": "I prefer Python."}])
    print(f"{len(await session.get_items())} items, the last: {(await session.get_items(limit=1))[0]}")


asyncio.run(main())
