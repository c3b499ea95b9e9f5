"""A group chat that goes on after a restart, every member with its own view of it."""

from autogen import ConversableAgent, GroupChatManager

from scrubjay import PersistentGroupChat


def meeting(message: str) -> None:
    """All objects are new each time, as in another process."""
    team = [
        ConversableAgent(name, llm_config=False, human_input_mode="NEVER", default_auto_reply=f"{name} agrees.")
        for name in ("planner", "writer", "critic")
    ]
    chat = PersistentGroupChat(team, [], max_round=3, speaker_selection_method="round_robin", session="example")
    if len(chat.messages) >= 6:
        chat.forget()
    manager = GroupChatManager(groupchat=chat, llm_config=False, silent=True)
    team[0].initiate_chat(manager, message=message, silent=True)
    print("spoke:", *chat.speaker_history)
    print("the critic knows", len(team[2].chat_messages[manager]), "messages")


meeting("Let us plan.")
meeting("Let us go on.")
