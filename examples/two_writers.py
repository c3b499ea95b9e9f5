"""Two agents change one plan, and neither overwrites the other."""

from scrubjay import Conflict, Memory


def add_step(agent: str, memory: Memory) -> None:
    """Read, change, and write only if no other writer was faster; otherwise try again."""
    while True:
        item = memory.item("plan")
        steps = [*item.value, f"{agent}'s step"] if item else [f"{agent}'s step"]
        try:
            memory.set("plan", steps, if_version=item.version if item else 0)
        except Conflict:
            continue
        return


with Memory("example-two-writers") as shared:
    shared.delete("plan")
    for name in ("Ada", "Ben", "Ada"):
        add_step(name, shared)
    print(shared.get("plan"))
