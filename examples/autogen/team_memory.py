"""A team that shares one memory: what one agent is told, another knows."""

from autogen import ConversableAgent

from scrubjay import Memory, PersistentAgent

team = Memory("example-team-memory")
team.clear()
user = ConversableAgent("user", llm_config=False, human_input_mode="NEVER")


def member(name: str) -> PersistentAgent:
    """`remember` keeps what is said as notes; `recall` puts what fits before the messages a model gets."""
    options = {"llm_config": False, "human_input_mode": "NEVER", "default_auto_reply": "Understood."}
    return PersistentAgent(name, memory=team, remember=True, recall=True, **options)


user.initiate_chat(member("sales"), message="The customer wants delivery on Friday.", max_turns=1, silent=True)

support = member("support")
prompt = support.process_all_messages_before_reply([{"role": "user", "content": "When is the delivery?"}])
print(prompt[0]["content"].splitlines()[1].partition("] ")[2])
