"""An AutoGen agent that remembers: run this twice."""

from autogen import ConversableAgent

from scrubjay import PersistentAgent

user = ConversableAgent("user", llm_config=False, human_input_mode="NEVER")
# With a model, give llm_config={...} in place of the canned answer; nothing else changes.
assistant = PersistentAgent("assistant", llm_config=False, human_input_mode="NEVER", default_auto_reply="Noted.")
user.initiate_chat(assistant, message="I prefer Python.", max_turns=1, silent=True)

print([line["message"] for line in assistant.memory.get("conversation_history")][-2:])
