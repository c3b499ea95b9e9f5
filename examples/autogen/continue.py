"""Run twice and continue: each run is a process of its own, and the agent counts on."""

from typing import Any

from autogen import ConversableAgent

from scrubjay import PersistentAgent


def count(_agent: Any, messages: list[dict[str, Any]], **_: Any) -> tuple[bool, str]:
    """Answer in place of a model, with all the messages that a model would be handed."""
    return True, f"You have told me {(len(messages) + 1) // 2} things."


assistant = PersistentAgent("counter", memory="example-continue", llm_config=False, human_input_mode="NEVER")
assistant.register_reply([ConversableAgent, None], count)
if assistant.state.get("runs", 0) == 2:
    assistant.forget()  # so that the third run of this example is a first one again

assistant.state["runs"] = assistant.state.get("runs", 0) + 1
user = ConversableAgent("user", llm_config=False, human_input_mode="NEVER")
result = user.initiate_chat(assistant, message="One more thing.", max_turns=1, silent=True)
print(f"run {assistant.state['runs']}: {result.chat_history[-1]['content']}")
