"""A scripted model for learning: its answers are given beforehand."""

from __future__ import annotations

import json


def lesson(content, *, type="fact", messages=(1,), replaces=()):  # noqa: A002
    """What a model answers about one note."""
    return {"content": content, "type": type, "messages": list(messages), "replaces": list(replaces)}


class Script:
    """A model that gives these answers in order, then []; keeps the prompts."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.prompts = []

    def __call__(self, prompt):
        self.prompts.append(prompt)
        answer = self.answers.pop(0) if self.answers else []
        return answer if isinstance(answer, str) else json.dumps(answer)
