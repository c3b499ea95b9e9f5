"""A chat history that goes on where it stopped: run this twice."""

from scrubjay import Memory

memory = Memory("example-conversation")


def say(role: str, content: str) -> None:
    """One message is one row: the thousandth costs what the first did."""
    memory.append("history", {"role": role, "content": content})


before = len(memory.get("history", []))
say("user", "What did we talk about?")
say("assistant", f"We had {before} messages before this one.")

for message in memory.tail("history", 4):
    print(f"{message['role']:>9}: {message['content']}")
