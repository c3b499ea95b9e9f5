"""Whether a concurrent history can be explained by some order of its calls (Wing and Gong's search)."""

from __future__ import annotations

from typing import Any, NamedTuple


class Call(NamedTuple):
    """One call on one key: when it began and ended, what it was, and what came back."""

    began: float
    ended: float
    verb: str
    argument: Any
    result: Any


def apply(state: Any, verb: str, argument: Any) -> tuple[Any, Any]:
    """What a single-threaded store would do: the new state and the result."""
    match verb:
        case "get":
            return state, state
        case "set":
            return argument, None
        case "delete":
            return None, state is not None
        case "append":
            grown = (*(state or ()), argument)
            return grown, len(grown)
        case "incr":
            total = (state or 0) + argument
            return total, total
    raise AssertionError(verb)


def is_linearizable(history: list[Call]) -> bool:
    """Depth-first: take any call that began before every open one ended, if its result fits, and go on.

    A call without an answer (`ended` is infinite) may have happened at any time after it began, or never.
    """
    order = sorted(history, key=lambda call: call.began)
    seen: set[tuple[int, Any]] = set()
    stack: list[tuple[int, Any]] = [((1 << len(order)) - 1, None)]
    while stack:
        left, state = stack.pop()
        open_calls = [i for i in range(len(order)) if left >> i & 1]
        if all(order[i].ended == float("inf") for i in open_calls):
            return True
        if (left, state) in seen:
            continue
        seen.add((left, state))
        horizon = min(order[i].ended for i in open_calls)
        for i in open_calls:
            call = order[i]
            if call.began > horizon:
                break
            after, result = apply(state, call.verb, call.argument)
            if call.ended == float("inf") or result == call.result or call.verb == "set":
                stack.append((left & ~(1 << i), after))
    return False
