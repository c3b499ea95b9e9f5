"""A value that the next run reads: run this twice."""

from scrubjay import Memory

memory = Memory("example-three-lines")
runs = memory.incr("runs")
memory.set("user", {"name": "Sarah", "likes": ["TypeScript"]})

print(f"run {runs}: I remember {memory.get('user')['name']}")
