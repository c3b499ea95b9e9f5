"""A client of the MCP server that finds what the process before it stored: run this twice."""

import asyncio

from mcp import Client, StdioServerParameters


async def main() -> None:
    async with Client(StdioServerParameters(command="scrubjay", args=["mcp", "--namespace", "me"])) as client:
        print("before:", (await client.call_tool("get", {"key": "visit"})).content[0].text)
        await client.call_tool("set", {"key": "visit", "value": {"day": "Monday"}})


asyncio.run(main())
