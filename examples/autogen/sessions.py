"""One conversation per user: a handler that creates its agents for each request."""

from autogen import ConversableAgent

from scrubjay import PersistentAgent


def agent_for(person: str) -> PersistentAgent:
    return PersistentAgent(
        "support",
        memory="example-sessions",
        session=person,
        llm_config=False,
        human_input_mode="NEVER",
        default_auto_reply="Noted.",
    )


def handle(person: str, message: str) -> None:
    user = ConversableAgent("user", llm_config=False, human_input_mode="NEVER")
    user.initiate_chat(agent_for(person), message=message, max_turns=1, silent=True)


handle("alice", "My order is A-17.")
handle("bob", "I want a refund.")
handle("alice", "When does it arrive?")

visitor = ConversableAgent("user", llm_config=False)
for name in agent_for("alice").sessions():
    print(name, [message["content"] for message in agent_for(name).chat_messages[visitor]])
for name in ("alice", "bob"):
    agent_for(name).forget()  # one user's data is gone in one call
print("left:", agent_for("alice").sessions())
