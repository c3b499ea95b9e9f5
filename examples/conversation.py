"""A chat history that continues in the next run: run this twice."""

from scrubjay import Memory

memory = Memory("example-conversation")


def say(role: str, content: str) -> None:
    """Append one message; the cost does not depend on the length of the history."""
    memory.append("history", {"role": role, "content": content})


before = len(memory.get("history", []))
say("user", "What did we talk about?")
say("assistant", f"We had {before} messages before this one.")

for message in memory.tail("history", 4):
    print(f"{message['role']:>9}: {message['content']}")
