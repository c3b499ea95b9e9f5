"""Claude's memory tool with files that survive the process: run this twice."""

from scrubjay.adapters.anthropic import ScrubjayMemoryTool

tool = ScrubjayMemoryTool("sarah")
# With a model: client.beta.messages.tool_runner(model=…, max_tokens=1000, messages=…, tools=[tool])
if "visits.md" not in tool.call({"command": "view", "path": "/memories"}):
    tool.call({"command": "create", "path": "/memories/visits.md", "file_text": "# Visits\n"})
tool.call({"command": "insert", "path": "/memories/visits.md", "insert_line": 1, "insert_text": "one more"})
print(tool.call({"command": "view", "path": "/memories/visits.md"}))
