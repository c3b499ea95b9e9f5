"""What the adapter tests talk to in place of a model: scripted replies, and an OpenAI-compatible server on loopback."""

from __future__ import annotations

import itertools
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def says(agent, *lines):
    """Let the agent answer with these lines, then with its name and a number."""
    from autogen import ConversableAgent

    waiting = list(lines)
    count = [0]

    def reply(recipient, messages=None, sender=None, config=None):
        count[0] += 1
        return True, waiting.pop(0) if waiting else f"{agent.name} {count[0]}"

    agent.register_reply([ConversableAgent, None], reply)
    return agent


def quiet(kind, name, *args, **options):
    """An agent of that kind that asks nobody and calls no model."""
    options = {"llm_config": False, "human_input_mode": "NEVER", "code_execution_config": False, **options}
    return kind(name, *args, **options)


class Model:
    """Answers with what `replies` holds, and keeps every list of messages that it was sent.

    It refuses what OpenAI refuses.
    """

    def __init__(self, *replies):
        self.replies = list(replies)
        self.echoes = False
        """Whether it answers with the last message of a user instead."""
        self.seen = []
        self.refused = []

    def answer(self, request):
        self.seen.append(request["messages"])
        reason = refused_by_openai(request["messages"])
        if reason:
            self.refused.append(reason)
            return None
        if self.echoes:
            reply = [message["content"] for message in request["messages"] if message["role"] == "user"][-1]
        else:
            reply = self.replies.pop(0) if self.replies else "ok"
        message = {"role": "assistant", "content": reply} if isinstance(reply, str) else {"role": "assistant", **reply}
        return {
            "id": "chat-1",
            "object": "chat.completion",
            "created": 1,
            "model": request["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }

    def last_texts(self):
        """What the model was told last, without the system message."""
        return [message["content"] for message in self.seen[-1] if message["role"] != "system"]


@contextmanager
def serving_model(*replies):
    """A Model behind HTTP, with the llm_config that leads to it."""
    model = Model(*replies)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = model.answer(request)
            body = json.dumps(answer or {"error": {"message": model.refused[-1]}}).encode()
            self.send_response(200 if answer else 400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    model.config = {
        "config_list": [
            {
                "model": "gpt-4o",
                "api_key": "none",
                "base_url": f"http://127.0.0.1:{server.server_port}/v1",
                "price": [0, 0],
            }
        ],
        "cache_seed": None,
    }
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()


def refused_by_openai(messages):
    """Why OpenAI answers 400 to these messages; None if it accepts them."""
    missing = []
    for number, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message.get("tool_call_id") not in missing:
                return f"messages[{number}]: a tool message must follow a message with its tool_calls"
            missing.remove(message["tool_call_id"])
            continue
        if missing:
            return f"messages[{number}]: these tool_call_ids have no response: {missing}"
        if role == "function" and not message.get("name"):
            return f"messages[{number}]: a function message needs a name"
        unknown = set(message) - {"role", "content", "name", "tool_calls", "function_call", "refusal"}
        if unknown:
            return f"messages[{number}]: additional properties: {unknown}"
        missing = [call["id"] for call in message.get("tool_calls") or ()]
    return f"the last tool_call_ids have no response: {missing}" if missing else None


def call_of(tool, arguments, call_id="call_1"):
    """A message in which a model calls a tool."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


class CallsAndTexts:
    """Replies of a model: a tool call, then a text, and so on."""

    def __init__(self):
        self._numbers = itertools.count(1)

    def __bool__(self):
        return True

    def pop(self, _index):
        number = next(self._numbers)
        return call_of("weather", {"city": "Rome"}, f"call_{number}") if number % 2 else "sunny"
