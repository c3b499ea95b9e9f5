"""The dashboard in a real browser, against a real server, with data that Python writes in the same test."""

from __future__ import annotations

import itertools
import json
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from browser.chromium import browsing
from harness import eventually, fresh_name, issue_key, run_command, serving
from scrubjay import Memory
from scrubjay.cli.visible import visible
from scrubjay.conversations import split_key
from scrubjay.store.sqlite import SqliteStore

expect.set_options(timeout=60_000)
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x07\u202egnp.exe"


@pytest.fixture(scope="module")
def browser():
    with browsing() as opened:
        yield opened


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    """A server that needs no key; its limits are never reached."""
    with serving(tmp_path_factory.mktemp("dashboard") / "db", "--durability", "fast") as running:
        yield running


@pytest.fixture
def page(browser):
    """A page that reports every error of a script, every refused one, and every request to another server."""
    context = browser.new_context(reduced_motion="reduce", accept_downloads=True)
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.faults, page.hosts = [], set()
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda message: page.faults.append(message.text) if "Content Security" in message.text else None)
    page.on("dialog", lambda dialog: (page.faults.append("a dialog opened"), dialog.dismiss()))
    page.on("request", lambda request: page.hosts.add(request.url.split("/")[2].rpartition("@")[2]))
    yield page
    assert page.faults == []
    assert len(page.hosts) <= 1
    context.close()


@pytest.fixture
def memory(open_server):
    with Memory(fresh_name("browser"), url=open_server.url, timeout=60) as memory:
        yield memory


def show(page, server, *parts):
    """Open a view: a namespace, a tab of it, and what is open there. Returns when all of it is shown."""
    address = "#/" + "/".join(quote(part, safe="") for part in parts)
    page.goto(f"{server.url}/{address}")
    expect(page.locator("main")).to_have_attribute("data-address", address)
    expect(page.locator("[aria-busy]")).to_have_count(0)


def find_axe_problems(page, *rules):
    """What axe-core finds that is serious, or worse; with these rules only, if any are given."""
    found = Axe().run(page, options={"runOnly": list(rules)} if rules else None).response["violations"]
    return [
        (each["id"], [node["html"][:120] for node in each["nodes"][:3]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


# ------------------------------------------------------------ values


def test_an_empty_server_says_what_to_type_and_a_key_appears_as_it_is_written(page, tmp_path):
    with serving(tmp_path / "db", "--durability", "fast") as server:
        page.goto(server.url)
        code = page.locator(".empty pre")
        expect(code).to_contain_text(f'url="{server.url}"')
        exec(code.inner_text())
        page.reload()
        page.get_by_role("link", name="my-agent").click()
        expect(page.get_by_role("link", name="greeting")).to_be_visible()
        with Memory("my-agent", url=server.url, timeout=60) as memory:
            memory.set("later", [1, 2])
        expect(page.get_by_role("link", name="later")).to_be_visible()


def test_a_value_folds_and_keeps_its_numbers_when_it_is_edited(page, open_server, memory):
    memory.set("big", {"number": 12345678901234567890, "one": 1.0, "deep": {"er": {"est": True}}})
    show(page, open_server, "n", memory.namespace, "items", "big")
    expect(page.locator(".tree")).to_contain_text("12345678901234567890")
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Value, as JSON").fill(
        page.get_by_role("textbox", name="Value, as JSON").input_value().replace("true", "false")
    )
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved")).to_be_visible()
    stored = memory.get("big")
    assert stored == {"number": 12345678901234567890, "one": 1.0, "deep": {"er": {"est": False}}}
    assert type(stored["one"]) is float


def test_an_edit_that_conflicts_shows_both_versions(page, open_server, memory):
    memory.set("plan", {"step": 1})
    show(page, open_server, "n", memory.namespace, "items", "plan")
    page.get_by_role("button", name="Edit").click()
    area = page.get_by_role("textbox", name="Value, as JSON")
    area.fill('{"step": "mine"}')
    memory.set("plan", {"step": "theirs"})
    page.get_by_role("button", name="Save").click()
    conflict = page.get_by_role("dialog", name="The value was changed meanwhile")
    expect(conflict).to_contain_text("theirs")
    expect(conflict).to_contain_text("mine")
    assert memory.get("plan") == {"step": "theirs"}
    conflict.get_by_role("button", name="Overwrite with mine").click()
    expect(page.get_by_text("Saved")).to_be_visible()
    assert memory.get("plan") == {"step": "mine"}


def test_an_edit_right_after_a_save_starts_from_what_was_saved(page, open_server, memory):
    memory.set("plan", {"step": 1})
    stream = re.compile(r"/changes\?.*after=[0-9]")
    page.route(stream, lambda route: route.abort())  # the page hears of no change, as if the stream were late
    show(page, open_server, "n", memory.namespace, "items", "plan")
    area = page.get_by_role("textbox", name="Value, as JSON")
    for step in (2, 3):
        page.get_by_role("button", name="Edit").click()
        expect(area).to_have_value(re.compile(rf'"step": {step - 1}\b'))
        area.fill(json.dumps({"step": step}))
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Deleted")).to_be_visible()
    assert "plan" not in memory


def test_a_change_while_a_value_is_being_read_again_is_shown(page, open_server, memory):
    memory.set("plan", 1)
    show(page, open_server, "n", memory.namespace, "items", "plan")
    held = []
    page.route("**/entries?prefix=plan&limit=1", lambda route: held.append(route))  # noqa: PLW0108 - Playwright reads its signature
    memory.set("plan", 2)
    eventually(lambda: page.wait_for_timeout(10) or held)
    first = held.pop()
    response = first.fetch()  # the server has answered, and the answer is still on its way
    memory.set("plan", 3)
    expect(page.get_by_role("region", name="Keys")).to_contain_text("3")  # the page has heard of the change
    first.fulfill(response=response)
    page.unroute("**/entries?prefix=plan&limit=1")
    for other in held:
        other.continue_()
    expect(page.get_by_text("version 3")).to_be_visible()


def test_an_edited_value_expires_when_it_did(page, open_server, memory):
    memory.set("plan", {"step": 1}, ttl=3600)
    before = memory.item("plan").expires_at
    show(page, open_server, "n", memory.namespace, "items", "plan")
    page.get_by_role("button", name="Edit").click()
    shown = before.astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    expect(page.get_by_label("Expires at")).to_have_value(re.compile(re.sub(":00$", "(:00)?$", shown)))
    page.get_by_role("textbox", name="Value, as JSON").fill('{"step": 2}')
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved")).to_be_visible()
    after = memory.item("plan")
    assert after.value == {"step": 2}
    assert abs((after.expires_at - before).total_seconds()) < 5
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="never").click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("expires")).to_have_count(0)
    assert memory.item("plan").expires_at is None


def test_a_new_value_expires_at_the_time_that_was_chosen(page, open_server, memory):
    memory.set("taken", 1)
    show(page, open_server, "n", memory.namespace, "items")
    page.get_by_role("button", name="New value").click()
    page.get_by_role("textbox", name="Key", exact=True).fill("code")
    page.get_by_label("Expires at").fill("2020-01-01T00:00:00")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("has passed")
    page.get_by_role("button", name="in a day").click()
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".tag.warn", has_text="expires in").last).to_be_visible()
    left = memory.item("code").expires_at - datetime.now(UTC)
    assert timedelta(hours=23) < left < timedelta(hours=25)


def test_a_mistyped_key_or_namespace_brings_those_that_may_be_meant(page, open_server, memory):
    memory.update({"customer:sarah": 1, "login": 2})
    show(page, open_server, "n", memory.namespace, "items", "customer:sara")
    expect(page.get_by_text("There is no such key")).to_be_visible()
    meant = page.get_by_label("Value").get_by_role("link", name="customer:sarah")
    expect(meant).to_be_visible()
    page.get_by_role("searchbox", name="Keys that start with").fill("SARAH")
    expect(page.get_by_text("No key starts with “SARAH”. These contain it:")).to_be_visible()
    expect(page.get_by_label("Keys").get_by_role("link")).to_have_text(["customer:sarah"])
    page.get_by_role("searchbox", name="Keys that start with").fill("logn")
    expect(page.get_by_text("Did you mean login?")).to_be_visible()
    with Memory("wombat", url=open_server.url, timeout=60) as other:
        other.set("burrow", 1)
    show(page, open_server, "n", "wombt")
    expect(page.get_by_text("This namespace does not exist")).to_be_visible()
    page.get_by_role("link", name="wombat").click()
    expect(page.get_by_role("link", name="burrow")).to_be_visible()


def test_a_name_that_a_browser_takes_out_of_paths_is_refused_and_never_asked_for(page, open_server, memory):
    memory.set(".", 1)
    show(page, open_server, "n", memory.namespace, "items", ".")
    expect(page.get_by_text("A browser cannot ask for the name “.”")).to_be_visible()
    show(page, open_server, "n", memory.namespace, "manage")
    page.get_by_label("Name of the person").fill("..")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("A name has a letter or a digit")).to_be_visible()


def test_a_string_is_shown_as_json_has_it(page, open_server, memory):
    text = 'say "no" \\ or\nnot'
    memory.set("text", {"a b": text})
    show(page, open_server, "n", memory.namespace, "items", "text")
    expect(page.locator(".tree .leaf")).to_have_text(f'"a b": {json.dumps(text)}')


def test_a_list_opens_from_its_end_page_by_page(page, open_server, memory):
    memory.append("log", *range(120))
    show(page, open_server, "n", memory.namespace, "items", "log")
    expect(page.get_by_text("#119", exact=True)).to_be_visible()
    expect(page.get_by_text("#69", exact=True)).to_have_count(0)
    page.get_by_role("button", name="earlier of 70").click()
    page.get_by_role("button", name="earlier of 20").click()
    expect(page.get_by_text("#0", exact=True)).to_have_count(1)


def test_a_new_value_needs_a_new_key_and_null_is_explained(page, open_server, memory):
    memory.set("taken", 1)
    show(page, open_server, "n", memory.namespace, "items")
    page.get_by_role("button", name="New value").click()
    page.get_by_role("textbox", name="Key", exact=True).fill("taken")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("This key exists already")
    page.get_by_role("textbox", name="Value, as JSON").fill("null")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("null deletes a key")
    assert memory.get("taken") == 1


def test_a_dialog_closes_with_its_view_and_the_figures_follow_changes(page, open_server, memory):
    memory.set("plan", 1)
    show(page, open_server, "n", memory.namespace, "items", "plan")
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.evaluate("location.hash = location.hash.replace('/plan', '')")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(".facts")).to_contain_text("Keys1")
    memory.set("more", 2)
    expect(page.locator(".facts")).to_contain_text("Keys2")


def test_a_limit_that_is_no_number_is_refused_at_its_field(page, open_server, memory):
    memory.set_quota(writes_per_day=70)
    show(page, open_server, "n", memory.namespace, "manage")
    for text in ("abc", "-1", "1.5"):
        page.get_by_label("Writes a day").fill(text)
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_have_text("Type a whole number, such as 1000.")
        assert memory.usage().writes_per_day == 70
    page.get_by_label("Writes a day").fill("80")
    page.get_by_label("Bytes").fill("50 MB")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Now: 80 writes a day, 50 MB.")).to_be_visible()
    assert (memory.usage().writes_per_day, memory.usage().max_bytes) == (80, 50_000_000)


# ------------------------------------------------------------ conversations


def test_a_live_chat_grows_and_folds_tool_calls_with_their_results(page, open_server, memory):
    call = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"city": "Oslo"}'}}
    memory.append(
        "session:sarah:messages",
        {"role": "user", "name": "Sarah", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"},
    )
    show(page, open_server, "n", memory.namespace)
    page.get_by_role("link", name="sarah").click()
    expect(page.locator(".bubble")).to_have_text(["Weather?"])
    tool = page.locator("details.tool")
    expect(tool).to_have_count(1)
    tool.locator("summary").click()
    expect(tool).to_contain_text("4 degrees")
    expect(page.get_by_text("live")).to_be_visible()
    memory.append("session:sarah:messages", {"role": "assistant", "content": "It is cold."})
    expect(page.locator(".bubble").last).to_have_text("It is cold.")
    page.get_by_role("searchbox", name="Search this chat").fill("COLD")
    expect(page.locator(".bubble")).to_have_text(["It is cold."])


def test_a_search_over_all_chats_opens_the_message_where_it_was_said(page, open_server, memory):
    for name in ("sarah", "tom"):
        memory.append(
            f"session:{name}:messages", *({"role": "user", "name": name, "content": f"Line {i}"} for i in range(150))
        )
    message = {"role": "user", "content": "My bicycle is green."}
    memory.append("session:tom:messages", {"sender": "tom", "message": message})
    memory.append(
        "session:tom:messages", *({"role": "user", "name": "tom", "content": f"More {i}"} for i in range(150))
    )
    show(page, open_server, "n", memory.namespace, "chats")
    page.get_by_role("searchbox", name="Search all conversations").fill("bicycle")
    expect(page.get_by_label("Conversations").get_by_role("link")).to_have_count(1)
    expect(page.get_by_label("Conversations").get_by_role("link")).to_contain_text("tom: My bicycle is green.")
    page.get_by_label("Conversations").get_by_role("link").click()
    expect(page.locator(".message.found .bubble")).to_have_text("My bicycle is green.")
    expect(page.locator(".message.found")).to_be_in_viewport()
    expect(page.get_by_text("More 149", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Later messages").click()
    page.get_by_role("button", name="Later messages").click()
    expect(page.get_by_text("More 149", exact=True)).to_have_count(1)
    memory.append("session:tom:messages", {"role": "user", "name": "tom", "content": "The end."})
    expect(page.locator(".bubble").last).to_have_text("The end.")
    page.get_by_role("button", name="Earlier messages").click()
    expect(page.get_by_text("Line 100", exact=True)).to_have_count(1)


def test_a_session_is_exported_and_erased_after_its_name_is_typed(page, open_server, memory):
    memory.append("session:sarah:messages", *({"role": "user", "content": f"line {i}"} for i in range(150)))
    memory.append("session:other:messages", {"role": "user", "content": "stays"})
    show(page, open_server, "n", memory.namespace, "chats", "session:sarah:messages")
    with page.expect_download() as started:
        page.get_by_role("button", name="Markdown").click()
    text = started.value.path().read_text()
    assert "line 0" in text
    assert "line 149" in text
    page.get_by_role("button", name="Erase").click()
    sure = page.get_by_role("dialog").get_by_role("button", name="Erase")
    expect(sure).to_be_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("sarah")
    sure.click()
    result = page.get_by_role("dialog", name="Erased “sarah”")
    expect(result).to_contain_text("Deleted: 1 session, 150 messages.")
    expect(result).to_contain_text("Nothing else in this namespace has the name.")
    expect(page.get_by_label("Messages")).to_have_text("No messages.")
    result.get_by_role("button", name="Done").click()
    expect(page.get_by_label("Conversations").get_by_role("link")).to_have_count(1)
    assert memory.keys() == ["session:other:messages"]


def test_one_person_is_erased_with_what_has_the_name_and_what_remains_is_shown(page, open_server, memory):
    memory.append("bob", {"role": "user", "content": "A list of my own"})
    memory.append("bob:ids", "1")
    memory.append("session:Bob:messages", {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})
    memory.append(
        "session:ana:messages", {"role": "user", "content": "Bob told me"}, {"role": "user", "content": "Yes"}
    )
    memory.update({"user:bob": {"plan": "team"}, "bob/theme": "dark", "bobby": 1, "plan": "as Bob likes it"})
    memory.remember("He likes tea", session="Bob")
    memory.remember("Bob lives in Oslo")
    memory.remember("Bobby lives in Bergen")
    show(page, open_server, "n", memory.namespace, "manage")
    page.get_by_label("Name of the person").fill("bob")
    page.get_by_role("button", name="Find").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".choices label bdi")).to_have_text(
        ["bob", "Bob", "bob/theme", "user:bob", "Bob lives in Oslo"]
    )
    expect(dialog).to_contain_text("2 messages, 1 note")
    dialog.get_by_role("checkbox", name="bob/theme").uncheck()
    dialog.get_by_role("textbox").fill("bob")
    dialog.get_by_role("button", name="Erase").click()
    result = page.get_by_role("dialog", name="Erased “bob”")
    expect(result).to_contain_text("Deleted: 2 sessions, 3 messages, 1 value, 2 notes.")
    expect(result).to_contain_text("Kept, as you chose: bob/theme.")
    expect(result.get_by_role("link")).to_have_text(["plan", "session:ana:messages #0"])
    assert memory.keys() == ["bob/theme", "bobby", "plan", "session:ana:messages"]
    assert [note.content for note in memory.notes()] == ["Bobby lives in Bergen"]
    result.get_by_role("link", name="session:ana:messages #0").click()
    expect(page.locator(".message.found .bubble")).to_have_text("Bob told me")


def with_limits(page, **limits):
    """Let the page look through less for a name than it would."""

    def answer(route):
        text = route.fetch().text()
        for name, limit in limits.items():
            text, found = re.subn(rf"\b{name} = [0-9_]+", f"{name} = {limit}", text)
            assert found == 1, name
        route.fulfill(body=text, content_type="text/javascript")

    page.route("**/dashboard/erase.js", answer)


def find_person(page, open_server, memory, name):
    show(page, open_server, "n", memory.namespace, "manage")
    page.get_by_label("Name of the person").fill(name)
    page.get_by_role("button", name="Find").click()


def erase_person(page, name):
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill(name)
    dialog.get_by_role("button", name="Erase").click()
    return page.get_by_role("dialog", name=f"Erased “{name}”")


def test_a_person_is_found_behind_the_first_page_of_keys_notes_and_sessions(page, open_server, memory):
    memory.update({f"user:{i}": i for i in range(40, 45)})
    for i in range(5):
        memory.remember(f"fact {i}", session=f"user-{i}")
    memory.remember("likes tea", session="user-42")
    memory.remember("User 42 lives in Oslo")
    with_limits(page, KEYS_PAGE=2, NOTES_PAGE=2)
    none = {"types": [], "tags": [], "sessions": []}  # as when others have more notes than all that are listed
    page.route("**/labels", lambda route: route.fulfill(json=none))
    find_person(page, open_server, memory, "user 42")
    expect(page.locator(".choices label bdi")).to_have_text(["user-42", "user:42", "User 42 lives in Oslo"])
    expect(page.get_by_role("dialog")).to_contain_text("0 messages, 1 note")
    result = erase_person(page, "user 42")
    expect(result).to_contain_text("Deleted: 1 session, 1 value, 2 notes.")
    expect(result).to_contain_text("Nothing else in this namespace has the name.")
    assert memory.keys() == ["user:40", "user:41", "user:43", "user:44"]
    assert [note.content for note in memory.notes()] == [f"fact {i}" for i in range(5)]


def test_a_search_for_a_person_that_was_cut_is_said_and_claims_nothing_of_the_rest(page, open_server, memory):
    memory.update({f"bob:{i}": i for i in range(5)})
    for i in range(5):
        memory.remember(f"fact {i}", session=f"s{i}")
    with_limits(page, KEYS_PAGE=2, MOST_KEYS=2, NOTES_PAGE=2, MOST_NOTES=4, MOST_LABELS=5)
    find_person(page, open_server, memory, "zed")
    expect(
        page.get_by_text("was found with the name “zed”. Only the first 4 notes were looked through.")
    ).to_be_visible()
    find_person(page, open_server, memory, "bob")
    cuts = (
        "Of the keys that have a part of the name, only the first 2 were looked through."
        " Only the first 4 notes were looked through. Of the sessions of the others,"
        " only those with the most notes were."
    )
    expect(page.get_by_role("dialog")).to_contain_text(cuts)
    result = erase_person(page, "bob")
    expect(result).to_contain_text("Found only now: 2 things with the name.")
    expect(result).to_contain_text(cuts)
    expect(result).not_to_contain_text("Nothing else")


def test_texts_that_mention_a_person_are_found_behind_line_breaks_and_not_called_all_when_cut(
    page, open_server, memory
):
    memory.update({"user:bob": 1, "plan": "To do:\nBob"})
    with_limits(page, MOST_MENTIONS=1)
    find_person(page, open_server, memory, "bob")
    result = erase_person(page, "bob")
    expect(result.get_by_role("link")).to_have_text(["plan"])
    expect(result).to_contain_text("Only the 1 texts that fit the name best were looked at.")


def test_a_name_is_found_as_whole_words_in_every_script(page, open_server):
    page.goto(open_server.url)
    found = [
        ("user:bob", "BOB"),
        ("Bobさんは元気です", "bob"),
        ("王伟住在奥斯陆", "王伟"),
        ("田中さんはオスロに住んでいます", "田中"),
        ("エリーはオスロに", "エリー"),
        ("สมชายอยู่ที่ออสโล", "สมชาย"),
        ("Jose\u0301 lives in Oslo", "José"),
        ("José lives in Oslo", "jose\u0301"),
        ("राम ओस्लो में", "राम"),
        ("user:42", "user 42"),
    ]
    missed = [
        ("bobby", "bob"),
        ("रामा ओस्लो में", "राम"),
        ("Jose\u0301", "Jose"),
        ("王芳", "王伟"),
        ("user:421", "user 42"),
    ]
    has_word = (
        "async (pairs) => pairs.map(((dom) => (pair) => dom.hasWord(...pair))(await import('/dashboard/dom.js')))"
    )
    assert page.evaluate(has_word, found) == [True] * len(found)
    assert page.evaluate(has_word, missed) == [False] * len(missed)


def test_the_page_knows_the_session_of_a_key_as_the_server_does(page, open_server):
    keys = ["session:a%3Ab%25:messages", "session:50%:x", "session:%E9%3A:x", "messages", "conversation_history:ids"]
    keys += ["learned:messages", "with:ana:bob", "state:ana:plan", "bob", "bob:ids", "user:bob", "speaker_history"]
    page.goto(open_server.url)
    find = "async (keys) => keys.map((await import('/dashboard/namespace.js')).sessionOf)"
    found = dict(zip(keys, page.evaluate(find, keys), strict=True))
    assert found.pop("session:%E9%3A:x") == "%E9%3A"  # not UTF-8, so nothing that an adapter has written
    assert found == {key: split_key(key)[0] for key in found}


def test_a_session_of_values_alone_is_found_by_its_name_with_a_colon(page, open_server, memory):
    memory.set("session:team%3Abob:state:plan", 1)
    show(page, open_server, "n", memory.namespace, "manage")
    page.get_by_label("Name of the person").fill("bob")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("dialog").locator(".choices label bdi")).to_have_text(["team:bob"])


def test_an_open_chat_ends_where_the_window_does_and_leaves_the_page_where_it_is(page, open_server, memory):
    memory.append("session:sarah:messages", *({"role": "user", "content": f"line {i}"} for i in range(150)))
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        show(page, open_server, "n", memory.namespace, "chats", "session:sarah:messages")
        expect(page.get_by_label("Messages").get_by_text("line 149", exact=True)).to_be_in_viewport()
        show(page, open_server, "n", memory.namespace, "chats")
        page.goto(f"{page.url}/session%3Asarah%3Amessages?message=70")
        expect(page.locator(".message.found")).to_be_in_viewport()
        box = page.locator(".chat").bounding_box()
        assert box["y"] + box["height"] <= size["height"]
        assert page.evaluate("[scrollY, document.documentElement.scrollHeight <= innerHeight]") == [0, True]


def test_the_page_says_when_the_server_is_gone_and_when_it_is_back(page, tmp_path):
    with serving(tmp_path / "db", "--durability", "fast") as server:
        with Memory("chat", url=server.url, timeout=60) as memory:
            memory.append("talk", {"role": "user", "content": "Hi"})
        show(page, server, "n", "chat", "chats", "talk")
        expect(page.locator(".live")).to_have_text("live")
        port = server.url.rpartition(":")[2]
    expect(page.locator(".live")).to_have_text("disconnected, trying again …")
    with serving(tmp_path / "db", "--durability", "fast", "--port", port) as server:
        with Memory("chat", url=server.url, timeout=60) as memory:
            memory.append("talk", {"role": "assistant", "content": "Back again"})
        expect(page.locator(".bubble").last).to_have_text("Back again")
        expect(page.locator(".live")).to_have_text("live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_a_search_finds_is_readable_in_every_bubble(page, open_server, memory, scheme):
    memory.append("chat", {"role": "user", "content": "needle here"}, {"role": "assistant", "content": "a needle"})
    page.emulate_media(color_scheme=scheme)
    show(page, open_server, "n", memory.namespace, "chats", "chat")
    page.get_by_role("searchbox", name="Search this chat").fill("needle")
    expect(page.locator("mark")).to_have_count(2)
    assert find_axe_problems(page, "color-contrast") == []


# ------------------------------------------------------------ notes


def test_a_recall_explains_itself(page, open_server, memory):
    memory.remember("Sarah prefers PostgreSQL over MongoDB", type="decision", tags=["db"])
    memory.remember("The office is closed on Friday")
    show(page, open_server, "n", memory.namespace, "notes")
    page.get_by_role("searchbox", name="What would an agent ask?").fill("which database does Sarah prefer?")
    page.get_by_role("button", name="Recall").click()
    best = page.get_by_role("region", name="Recalled notes").get_by_role("listitem").first
    expect(best).to_contain_text("Sarah prefers PostgreSQL")
    score = float(best.locator(".score b").inner_text())
    parts = [float(each.replace("−", "-")) for each in re.findall(r"[+−][\d.]+", best.locator(".legend").inner_text())]
    assert score == pytest.approx(sum(parts), abs=0.02)
    expect(best.locator(".explanation")).to_contain_text("prefer")


def test_parts_of_a_score_that_round_to_zero_are_not_shown(page, open_server, memory):
    explanation = {"parts": {"words": 0.4, "time": 0.004, "question": -0.004}, "words": {"topic": 0.4, "topi…": 0.004}}
    memory.remember("A topic")

    def explain(route):
        response = route.fetch()
        found = response.json()
        found["notes"][0]["explanation"] = explanation
        route.fulfill(response=response, json=found)

    page.route("**/notes/recall", explain)
    show(page, open_server, "n", memory.namespace, "notes")
    page.get_by_role("searchbox", name="What would an agent ask?").fill("which topic?")
    page.get_by_role("button", name="Recall").click()
    expect(page.locator(".legend")).to_have_text("words of the note +0.40")
    expect(page.locator(".explanation .tag")).to_have_text(["topic +0.40"])


def test_a_note_is_filtered_pinned_edited_and_forgotten(page, open_server, memory):
    memory.remember("Sarah prefers tea", type="preference", tags=["drinks"], session="s1")
    memory.remember("Deploys happen on Monday", type="rule")
    show(page, open_server, "n", memory.namespace, "notes")
    rows = page.get_by_role("region", name="Notes", exact=True).get_by_role("listitem")
    expect(rows).to_have_count(2)
    expect(page.get_by_role("combobox", name="type").get_by_role("option")).to_have_text(
        ["any type", "preference (1)", "rule (1)"]
    )
    page.get_by_role("combobox", name="type").select_option("preference")
    expect(rows).to_have_count(1)
    rows.get_by_role("button", name="Pin").click()
    expect(rows.get_by_text("pinned")).to_be_visible()
    rows.get_by_role("button", name="Unpin").click()
    expect(rows.get_by_text("pinned")).to_have_count(0)
    rows.get_by_role("button", name="Pin").click()
    expect(rows.get_by_role("button", name="Unpin")).to_be_visible()
    rows.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Text").fill("Sarah prefers coffee")
    page.get_by_role("button", name="Save").click()
    expect(rows).to_contain_text("coffee")
    (note,) = memory.notes(type="preference")
    assert (note.content, note.pinned, note.session, note.tags) == ("Sarah prefers coffee", True, "s1", ("drinks",))
    rows.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(page.get_by_text("No note matches")).to_be_visible()
    assert memory.notes(type="preference") == []


def test_an_edited_note_expires_when_it_did_and_both_lists_follow(page, open_server, memory):
    memory.remember("Sarah drinks tea this week", ttl=3600)
    (before,) = memory.notes()
    show(page, open_server, "n", memory.namespace, "notes")
    page.get_by_role("searchbox", name="What would an agent ask?").fill("what does Sarah drink?")
    page.get_by_role("button", name="Recall").click()
    recalled = page.get_by_role("region", name="Recalled notes").get_by_role("listitem")
    recalled.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Text").fill("Sarah drinks coffee this week")
    page.get_by_role("button", name="Save").click()
    expect(recalled).to_contain_text("coffee")
    expect(page.get_by_role("region", name="Notes", exact=True).get_by_role("listitem")).to_contain_text("coffee")
    (after,) = memory.notes()
    assert abs((after.expires_at - before.expires_at).total_seconds()) < 5


def test_the_filters_apply_to_what_is_recalled(page, open_server, memory):
    memory.remember("Sarah drinks tea", type="preference", tags=["drinks"], session="s1")
    memory.remember("Sarah drinks water", type="rule", tags=["health"], session="s2")
    show(page, open_server, "n", memory.namespace, "notes")
    page.get_by_role("searchbox", name="What would an agent ask?").fill("what does Sarah drink?")
    page.get_by_role("button", name="Recall").click()
    recalled = page.get_by_role("region", name="Recalled notes").get_by_role("listitem")
    expect(recalled).to_have_count(2)
    for name, text in (("type", "preference"), ("tag", "drinks"), ("session", "s1")):
        page.get_by_role("combobox", name=name, exact=True).select_option(text)
        expect(recalled).to_have_count(1)
        expect(recalled).to_contain_text("tea")
        page.get_by_role("combobox", name=name, exact=True).select_option("")
        expect(recalled).to_have_count(2)


def test_an_edited_note_loses_its_old_tags_and_keeps_its_id(page, open_server, memory):
    before = memory.remember("Sarah drinks tea", tags=["a", "b"])
    show(page, open_server, "n", memory.namespace, "notes")
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Tags").fill("b")
    with page.expect_response(lambda response: response.request.method == "POST"):
        page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved")).to_be_visible()
    (after,) = memory.notes()
    assert (after.id, after.tags, after.created_at) == (before.id, ("b",), before.created_at)


def test_a_superseded_note_is_only_forgotten(page, open_server, memory):
    old = memory.remember("Sarah lives in Oslo")
    memory.remember("Sarah lives in Bergen", supersedes=[old.id])
    show(page, open_server, "n", memory.namespace, "notes")
    row = page.get_by_role("listitem").filter(has_text="Oslo")
    expect(row.get_by_text("superseded")).to_be_visible()
    expect(row.get_by_role("button")).to_have_text(["Forget"])


# ------------------------------------------------------------ signing in


def test_a_page_that_was_opened_with_a_key_in_its_url_asks_the_server(page, tmp_path):
    path = tmp_path / "db"
    admin = issue_key(path, "boss", "--admin")
    with serving(path, "--durability", "fast") as server:
        page.goto(server.url.replace("http://", f"http://{admin}@"))
        expect(page.get_by_label("Api key", exact=True)).to_be_visible()


def test_signing_in_shows_what_the_key_may_see_until_it_is_revoked(page, tmp_path):
    path = tmp_path / "db"
    admin = issue_key(path, "boss", "--admin")
    with serving(path, "--durability", "fast") as server:
        for name in ("team-a", "secret"):
            with Memory(name, url=server.url, api_key=admin, timeout=60) as memory:
                memory.set("k", 1)
        page.goto(server.url)
        expect(page.get_by_label("Api key", exact=True)).to_be_visible()
        page.get_by_label("Api key", exact=True).fill("sj_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("does not know this key")
        page.get_by_label("Api key", exact=True).fill(admin)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="secret")).to_be_visible()
        assert page.evaluate("document.cookie") == ""
        page.reload()
        expect(page.get_by_role("link", name="secret")).to_be_visible()
        page.get_by_role("link", name="Activity").click()
        refused = page.get_by_role("region", name="Recent changes").locator("tr", has_text="refused")
        expect(refused).to_have_count(1)  # of the wrong key: the page itself has caused none
        expect(refused).to_contain_text("sign in refused: no valid api key")
        expect(page.get_by_role("cell", name="store a value")).to_have_count(2)
        key = issue_in_the_page(page)
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Api key", exact=True).fill(key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="team-a")).to_be_visible()
        expect(page.get_by_role("link", name="secret")).to_have_count(0)
        expect(page.get_by_role("link", name="Keys")).to_have_count(0)
        page.evaluate("location.hash = '#/n/secret'")
        expect(page.locator(".empty")).to_contain_text(
            "This namespace does not exist, or your key may not read it. It may read and write namespaces that match"
        )
        page.evaluate("location.hash = '#/'")
        expect(page.get_by_role("link", name="team-a")).to_be_visible()
        assert run_command("key", "revoke", key.split("_")[1], "--path", path).returncode == 0
        expect(page.get_by_role("alert")).to_contain_text("signed out")
        expect(page.get_by_text("team-a")).to_have_count(0)


def test_the_first_keys_are_shown_until_they_are_copied(page, tmp_path):
    with serving(tmp_path / "db", "--durability", "fast") as server:
        show(page, server, "keys")
        page.get_by_role("button", name="Issue a key").click()
        page.get_by_label("Name, which the log of changes shows").fill("bot")
        page.get_by_role("button", name="Issue", exact=True).click()
        keys = page.get_by_role("dialog", name="Two keys, shown only now")
        expect(keys.get_by_role("heading")).to_have_text(
            ["Two keys, shown only now", "Key for the program", "Admin key: keep it"]
        )
        for _ in range(3):
            page.keyboard.press("Escape")
        page.evaluate("location.hash = '#/'")
        expect(page.locator("main h1")).to_have_text("Sign in")
        expect(keys).to_be_visible()
        admin = keys.locator("pre").last.inner_text()
        keys.get_by_role("button", name="I have copied both").click()
        page.get_by_label("Api key", exact=True).fill(admin)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="Keys")).to_be_visible()


def test_a_key_that_sees_nothing_is_told_what_it_may_see(page, tmp_path):
    path = tmp_path / "db"
    key = issue_key(path, "reader", "--namespaces", "team-*", "--read-only")
    with serving(path, "--durability", "fast") as server:
        page.goto(server.url)
        page.get_by_label("Api key", exact=True).fill(key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".empty")).to_contain_text("It may only read namespaces that match team-*.")


def test_after_an_erasure_the_keys_with_the_name_are_revoked_and_forgotten(page, tmp_path):
    path, name = tmp_path / "db", "user-ann"
    admin = issue_key(path, "boss", "--admin")
    for each in ("phone of ann", "laptop of ann", "tablet of ann"):
        key = issue_key(path, each, "--exact", "--namespaces", name)
    with serving(path, "--durability", "fast") as server:
        with Memory(name, url=server.url, api_key=key, timeout=60) as memory:
            memory.set("k", 1)
        page.goto(server.url)
        page.get_by_label("Api key", exact=True).fill(admin)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Keys").click()
        page.get_by_role("row", name="phone of ann").get_by_role("button", name="Revoke").click()
        page.get_by_label("Forget its name").check()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(page.get_by_role("row", name="phone of ann")).to_have_count(0)
        show(page, server, "n", name, "manage")
        page.get_by_role("button", name="Erase with proof").click()
        page.get_by_role("dialog").get_by_role("textbox").fill(name)
        page.get_by_role("dialog").get_by_role("button", name="Erase").click()
        keys = page.get_by_role("dialog", name="Api keys that have the name")
        expect(keys.locator("bdi")).to_have_text(["laptop of ann", "tablet of ann"])
        keys.get_by_role("button", name="Revoke and forget").first.click()
        expect(keys.get_by_text("Forgotten", exact=True)).to_be_visible()
        keys.get_by_role("button", name="Done").click()
        expect(page.get_by_role("heading", name="Namespaces")).to_be_visible()
    listed = run_command("key", "list", "--path", path).stdout.decode()
    assert "tablet of ann" in listed
    assert "laptop" not in listed
    assert not re.search("phone|laptop", run_command("audit", "--json", "--path", path).stdout.decode())


def test_a_key_for_one_exact_name_is_issued_in_the_page(page, tmp_path):
    path = tmp_path / "db"
    issue_key(path, "boss", "--admin")
    with serving(path, "--durability", "fast") as server:
        page.goto(server.url)
        page.get_by_label("Api key", exact=True).fill(issue_key(path, "me", "--admin"))
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Keys").click()
        page.get_by_role("button", name="Issue a key").click()
        page.get_by_label("Name, which the log of changes shows").fill("one user")
        page.get_by_label("One exact name").check()
        expect(page.get_by_label("Namespaces, as patterns")).to_have_value("")
        page.get_by_label("Namespaces, as patterns").fill("user-*,x")
        page.get_by_role("button", name="Issue", exact=True).click()
        key = page.get_by_role("dialog").locator("pre").inner_text()
        with Memory("user-*,x", url=server.url, api_key=key, timeout=60) as memory:
            memory.set("k", 1)
            assert memory.namespaces() == ["user-*,x"]


def issue_in_the_page(page) -> str:
    """Issue a key for team-* as an administrator does; the key, which is shown once."""
    page.get_by_role("link", name="Keys").click()
    page.get_by_role("button", name="Issue a key").click()
    page.get_by_label("Name, which the log of changes shows").fill("team")
    page.get_by_label("Namespaces, as patterns").fill("team-*")
    page.get_by_role("button", name="Issue", exact=True).click()
    key = page.get_by_role("dialog").locator("pre").inner_text()
    page.get_by_role("button", name="I have copied it").click()
    expect(page.get_by_role("cell", name="team-*")).to_be_visible()
    page.get_by_role("row", name="team-*").get_by_role("button", name="Limits").click()
    page.get_by_label("Writes a day").fill("5")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("img", name="writes today: 0 of 5")).to_be_visible()
    assert key not in page.content()
    return key


# ------------------------------------------------------------ hostile content, width, accessibility, size


def fill_namespace(memory, text):
    """Something for every view, made of one text."""
    memory.set(text, {text: [text, {"more": text}]})
    memory.set("large", text * 20_000)
    memory.append("session:chat:messages", {"role": "user", "name": text[:60], "content": text})
    memory.remember(text, type=text[:20], tags=[text[:30]])


def test_hostile_content_is_shown_and_never_run(page, open_server, memory):
    with Memory(f"{memory.namespace} <b onclick=x>bold", url=open_server.url, timeout=60) as hostile:
        fill_namespace(hostile, HOSTILE)
        show(page, open_server)
        expect(page.get_by_role("link", name=hostile.namespace)).to_be_visible()
        for tab in ("items", "chats", "notes", "activity", "manage"):
            show(page, open_server, "n", hostile.namespace, tab)
            expect(page.get_by_role("heading", level=1)).to_contain_text("<b onclick=x>bold")
        show(page, open_server, "n", hostile.namespace, "items", HOSTILE)
        expect(page.locator(".tree")).to_contain_text("<script>document.title='owned'</script>\\u0007\\u202egnp.exe")
        show(page, open_server, "n", hostile.namespace, "items", "large")
        expect(page.get_by_role("button", name="Show as a tree")).to_be_visible()
        show(page, open_server, "n", hostile.namespace, "chats", "session:chat:messages")
        expect(page.locator(".bubble")).to_contain_text("<script>")
        assert "owned" not in page.title()
        assert page.locator("main img, main script, main b[onclick]").count() == 0


def test_the_page_shows_the_same_characters_as_the_command(page, open_server):
    some = (
        "ab1_ \n\u0301\u200b\u200c\u200d\u202e\ufe0f\ufe00\U000e0100\u20e3\u0645\u06f1\u0915\u094d葛©❤👩\U0001f3fd\x85"
    )
    texts = ["".join(each) for each in itertools.product(some, repeat=3)]
    texts += [
        f"🏴{''.join(chr(0xE0000 + ord(letter)) for letter in name)}\U000e007f" for name in ("gbsct", "gbwls", "hi")
    ]
    texts += [chr(code) for code in range(32, 0x110000) if not 0xD800 <= code < 0xE000]
    page.goto(open_server.url)
    shown = page.evaluate("async (texts) => texts.map((await import('/dashboard/dom.js')).visible)", texts)
    assert shown == [visible(text) for text in texts]


def test_persian_and_joined_emoji_are_shown_as_they_are_and_what_deceives_as_codes(page, open_server, memory):
    text = "سلام، می\u200cخواهم کتاب\u200cها را ببینم 👩\u200d💻"
    memory.append(f"session:{text}:messages", {"role": "user", "name": text, "content": f"{text}\u202e"})
    show(page, open_server, "n", memory.namespace, "chats", f"session:{text}:messages")
    expect(page.locator(".bubble")).to_have_text(f"{text}\\u202e")
    expect(page.locator(".message .by bdi")).to_have_text(text)


VIEWS = [
    (),
    ("activity",),
    ("keys",),
    *(("n", "NAMESPACE", tab) for tab in ("items", "chats", "notes", "activity", "manage")),
]


@pytest.fixture(scope="module")
def filled(open_server):
    with Memory(fresh_name("filled"), url=open_server.url, timeout=60) as memory:
        fill_namespace(memory, "A sentence with averyverylongwordthatdoesnotbreak" + "e" * 80)
        memory.set("soon", 1, ttl=3600)
        yield memory


def test_every_view_fits_a_phone(page, open_server, filled):
    page.set_viewport_size(PHONE)
    opened = ("n", "NAMESPACE", "items", "large"), ("n", "NAMESPACE", "chats", "session:chat:messages")
    for view in (*VIEWS, *opened):
        show(page, open_server, *(filled.namespace if part == "NAMESPACE" else part for part in view))
        expect(page.locator("main .panel:visible").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], view
    show(page, open_server, "n", filled.namespace, "notes")
    page.set_viewport_size({"width": 360, "height": 740})
    tabs = page.get_by_role("navigation", name="Contents of the namespace")
    assert tabs.evaluate("tabs => tabs.scrollWidth <= tabs.clientWidth")
    for name in ("type", "tag", "session"):
        assert page.get_by_role("combobox", name=name, exact=True).bounding_box()["width"] > 120


def test_axe_finds_nothing_serious_in_light_and_dark(page, open_server, filled):
    opened = ("n", "NAMESPACE", "items", "soon"), ("n", "NAMESPACE", "chats", "session:chat:messages")
    for view in (*VIEWS, *opened):
        page.emulate_media(color_scheme="light")
        show(page, open_server, *(filled.namespace if part == "NAMESPACE" else part for part in view))
        assert find_axe_problems(page) == [], view
        page.emulate_media(color_scheme="dark")
        assert find_axe_problems(page, "color-contrast") == [], view
    page.goto(f"{open_server.url}/docs")
    page.locator("details.route summary").first.click()
    assert find_axe_problems(page) == []


def test_the_page_is_used_with_the_keyboard_alone(page, open_server, filled):
    show(page, open_server)
    expect(page.locator("tbody a").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    page.get_by_role("searchbox", name="Search namespaces").focus()
    page.keyboard.type(filled.namespace)
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody a").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(filled.namespace)


def test_a_name_that_begins_or_ends_with_spaces_is_in_quotes(page, tmp_path):
    with serving(tmp_path / "db", "--durability", "fast") as server:
        for name in ("   ", " a", "b c"):
            with Memory(name, url=server.url, timeout=60) as memory:
                memory.set("k", 1)
        show(page, server)
        assert sorted(page.locator("tbody a").all_inner_texts()) == ['"   "', '" a"', "b c"]
        page.locator("tbody a", has_text='"   "').click()
        expect(page.get_by_role("link", name="k", exact=True)).to_be_visible()


def test_ten_thousand_namespaces_are_paged_searched_and_sorted_by_the_server(page, tmp_path):
    path = tmp_path / "db"
    store = SqliteStore(path, durability="fast")
    with store.connect() as connection:
        connection.executemany(
            "INSERT INTO namespaces (namespace, keys, notes, bytes, day, writes, version_floor, changed_at)"
            " VALUES (?, 1, 0, ?, 0, 0, 1, ?)",
            [(f"agent-{number:05}", number, number) for number in range(10_000)],
        )
        connection.commit()
    store.close()
    with serving(path) as server:
        page.goto(server.url)
        rows = page.locator("tbody tr")
        expect(page.get_by_text("50 of 10,000 namespaces")).to_be_visible()
        expect(rows).to_have_count(50)
        page.get_by_role("button", name="Size").click()
        expect(rows.first).to_contain_text("agent-09999")
        page.get_by_role("searchbox", name="Search namespaces").fill("00042")
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("agent-00042")


# ------------------------------------------------------------ the page of the API


def test_a_route_is_tried_on_the_page_of_the_api(page, open_server):
    page.goto(f"{open_server.url}/docs")
    expect(page.get_by_role("heading", name="Values", exact=True)).to_be_visible()
    route = page.locator("details.route", has_text="Store any JSON value")
    route.locator("summary").first.click()
    name = fresh_name("docs")
    route.get_by_label("namespace").fill(name)
    expect(route.locator("pre", has_text="curl -s -X PUT")).to_contain_text(name)
    expect(route.locator("pre", has_text="from scrubjay import Memory")).to_be_visible()
    route.get_by_role("button", name="Send").click()
    expect(route.get_by_text("200 OK")).to_be_visible()
    with Memory(name, url=open_server.url, timeout=60) as memory:
        assert memory.get("user")["name"] == "Sarah"


def test_the_theme_is_chosen_and_remembered(page, open_server):
    page.goto(open_server.url)
    page.get_by_role("button", name="Change between light and dark").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "dark"
