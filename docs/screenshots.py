"""The pictures of the dashboard in docs/images: `make screenshots` starts a server with sample data and takes them."""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser.chromium import browsing
from harness import serving
from scrubjay.exact_json import encode
from scrubjay.store import changes, items, lists, notes
from scrubjay.store.operation import Actor, Operation, Quota
from scrubjay.store.overview import RequestCount, add_requests
from scrubjay.store.sqlite import SqliteStore
from scrubjay.validation import NewNote

IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


def user(name: str, text: str) -> dict[str, Any]:
    return {"role": "user", "name": name, "content": text}


def agent(text: str) -> dict[str, Any]:
    return {"role": "assistant", "name": "support", "content": text}


def call(number: int, name: str, /, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": encode(arguments)}
    calls = [{"id": f"c{number}", "type": "function", "function": function}]
    return {"role": "assistant", "name": "support", "content": None, "tool_calls": calls}


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


CHATS = {
    "jonas": [
        user("Jonas", "Can I change my plan in the middle of a month?"),
        agent("Yes. The difference is on your next invoice."),
    ],
    "mei": [
        user("Mei", "Where do I find my api key?"),
        agent("In the settings, under Keys. It is shown only once."),
    ],
    "sarah": [
        user("Sarah", "Hi! My invoice from March has the wrong address on it."),
        call(1, "find_invoice", customer="Sarah", month="2026-03"),
        result(1, encode({"number": "2026-0317", "address": "12 Old Street", "total": "€ 480.00"})),
        agent("I found invoice 2026-0317. It went to 12 Old Street. What is the right address?"),
        user("Sarah", "7 Harbour Lane. We moved in February."),
        call(2, "correct_invoice", number="2026-0317", address="7 Harbour Lane"),
        result(2, "sent"),
        agent("Done: the corrected invoice is on its way to you by e-mail.\nI will use 7 Harbour Lane from now on."),
        user("Sarah", "Great, thank you. And please keep it short next time :)"),
        agent("Will do!"),
    ],
}
TALK = [{"role": "user", "content": "Summarize the report."}, {"role": "assistant", "content": "It has three parts."}]
VALUES: dict[str, tuple[Any, float | None]] = {
    "customer:jonas": ({"name": "Jonas Weber", "plan": "solo", "since": "2025-11-02"}, None),
    "customer:sarah": (
        {"name": "Sarah Lind", "plan": "team", "address": {"street": "7 Harbour Lane", "city": "Aarhus"}, "seats": 12},
        None,
    ),
    "login:sarah": ({"code": "483-201"}, 30_000),
    "settings": ({"language": "en", "tone": "friendly", "escalate_after": 3}, None),
    "tickets:solved": (128, None),
}
NOTES = [
    ("Sarah moved to 7 Harbour Lane in February", {"type": "fact", "tags": ["address"], "pinned": True}),
    ("Sarah prefers short answers", {"type": "preference", "tags": ["style"]}),
    ("Invoice 2026-0317 was corrected and sent again", {"type": "event", "tags": ["invoice"], "session": "sarah"}),
    ("Refunds over € 500 need the approval of a person", {"type": "rule", "tags": ["policy"]}),
    ("The March invoices went out with old addresses", {"type": "fact", "tags": ["invoice"]}),
]
OTHERS = {
    "autogen-researcher": 41,
    "planner": 17,
    "team-alpha": 64,
    "onboarding-bot": 9,
    "billing": 28,
    "crew-writer": 35,
    "kb-sync": 52,
}


class Past:
    """A clock for the sample: every write happens some time after the one before, and the last one now."""

    def __init__(self, hours: float) -> None:
        self.now = time.time() - hours * 3600
        self._steps = random.Random(7)  # noqa: S311 - a sample

    def __call__(self) -> float:
        return min(self.now, time.time())

    def pass_time(self, minutes: float) -> None:
        self.now += self._steps.expovariate(1) * minutes * 60


def write_sample(path: Path) -> None:
    """A support bot with chats, values and notes, and some other namespaces, written during the last day."""
    clock = Past(hours=19.2)
    store = SqliteStore(path, clock=clock, quota=Quota(1000, 100_000), durability="fast")

    def run(actor: str, operation: Operation[Any], minutes: float = 0.0) -> None:
        operation.actor = Actor(actor)
        store.run(operation)
        clock.pass_time(minutes)

    for name, count in OTHERS.items():
        for number in range(count):
            value = {"state": "done", "note": "x" * (number * 37 % 400)}
            run(name, items.set_item(name, f"step:{number:03}", encode(value)), 4.6)
        if name.startswith(("autogen", "crew")):
            run(name, lists.append_items(name, "messages", [encode(message) for message in TALK]))
    for session, chat in CHATS.items():
        for message in chat:
            entry = {"time": datetime.fromtimestamp(clock(), UTC).isoformat(), "message": message}
            run("support", lists.append_items("support-bot", f"session:{session}:messages", [encode(entry)]), 1.2)
    for key, (value, ttl) in VALUES.items():
        run("support", items.set_item("support-bot", key, encode(value), ttl), 2)
    for content, labels in NOTES:
        run("support", notes.remember("support-bot", NewNote.check(content, **labels)), 3)
    run("crawler", changes.refuse(changes.Refusal("set", "billing", "", "forbidden", 12)))
    minute = int(time.time() // 60)
    counts = [
        RequestCount(
            minute - ago, kind, 1 + round(most * (1.2 + math.sin(ago / 190)) / 2), 0, 0, most * 2.5, 4 + ago % 17
        )
        for ago in range(3, 1400, 7)
        for kind, most in (("read", 24), ("write", 9), ("recall", 4))
    ]
    run("server", add_requests(tuple(counts)))
    store.close()


def take(browser: Any, url: str) -> None:
    def page(theme: str, size: dict[str, int] = SIZE) -> Any:
        context = browser.new_context(
            viewport=size, color_scheme=theme, device_scale_factor=1.5, reduced_motion="reduce"
        )
        return context.new_page()

    def picture(shown: Any, name: str, path: str, ready: str, action: Any = None) -> None:
        shown.goto(f"{url}/{path}")
        shown.wait_for_selector(ready)
        if action:
            action()
        shown.wait_for_timeout(400)
        shown.screenshot(path=IMAGES / f"{name}.png")

    light, dark, phone = page("light"), page("dark"), page("light", PHONE)
    chat = "#/n/support-bot/chats/session%3Asarah%3Amessages"
    picture(light, "namespaces", "#/", "tbody tr")
    picture(light, "activity", "#/activity", ".chart")
    picture(light, "conversation", chat, ".bubble", light.locator(".tool summary").first.click)
    picture(light, "items", "#/n/support-bot/items/customer%3Asarah", ".tree .string")

    def ask() -> None:
        light.get_by_role("searchbox", name="What would an agent ask?").fill("where does Sarah live now?")
        light.get_by_role("button", name="Recall").click()
        light.wait_for_selector(".explanation")

    picture(light, "recall", "#/n/support-bot/notes", ".notes", ask)

    def find_person() -> None:
        light.get_by_role("button", name="Erase").click()
        light.get_by_role("dialog").get_by_role("textbox").fill("sarah")

    picture(light, "erase", chat, ".bubble", find_person)
    picture(light, "api", "docs#get_many_v1_namespaces__namespace__read_post", ".route[open]")
    picture(dark, "conversation-dark", chat, ".bubble")
    picture(dark, "namespaces-dark", "#/", "tbody tr")
    picture(phone, "phone", chat, ".bubble")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "db"
        write_sample(path)
        with serving(path, "--writes-per-day", "1000", "--max-bytes", "100kB") as server, browsing() as browser:
            take(browser, server.url)
    print(*sorted(str(path.relative_to(ROOT)) for path in IMAGES.glob("*.png")), sep="\n")


if __name__ == "__main__":
    main()
