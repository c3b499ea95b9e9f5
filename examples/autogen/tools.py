"""Memory as tools: the model decides what to remember and to recall."""

import json
from typing import Any

from autogen import ConversableAgent

from scrubjay import Memory, register_memory_tools

memory = Memory("example-tools")
memory.clear()
calls = [("remember", {"content": "The deadline is Friday."}), ("recall", {"query": "When is the deadline?"})]


def model(_agent: Any, messages: list[dict[str, Any]], **_: Any) -> tuple[bool, Any]:
    """Calls the tools one after the other, as a model would, then says what it was told last."""
    if not calls:
        return True, f"You said: {messages[-1]['content']}"
    name, arguments = calls.pop(0)
    function = {"name": name, "arguments": json.dumps(arguments)}
    return True, {"content": "", "tool_calls": [{"id": name, "type": "function", "function": function}]}


# Tools are described to a model by its agent's llm_config; this one is never called.
config = {"config_list": [{"model": "gpt-4o", "api_key": "none"}]}
planner = ConversableAgent("planner", llm_config=config, human_input_mode="NEVER")
user = ConversableAgent("user", llm_config=False, human_input_mode="NEVER")
register_memory_tools(memory, caller=planner, executor=user)
planner.register_reply([ConversableAgent, None], model)

result = user.initiate_chat(planner, message="Remember: the deadline is Friday.", max_turns=3, silent=True)
print(result.chat_history[-1]["content"])
