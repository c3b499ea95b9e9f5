"""Anthropic's memory tool."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("anthropic", minversion="2.8", reason="the Anthropic SDK is not installed")

from anthropic.lib.tools import ToolError

from scrubjay import Memory, Unavailable
from scrubjay.adapters.anthropic import ScrubjayAsyncMemoryTool, ScrubjayMemoryTool


def call(tool, command, **fields):
    return tool.call({"command": command, **fields})


def test_a_file_is_a_key_and_a_directory_a_prefix(home):
    tool = ScrubjayMemoryTool("sarah")
    call(tool, "create", path="/memories/people/ana.md", file_text="Ana\nlikes tea\n")
    assert dict(Memory("sarah").items()) == {"memories/people/ana.md": "Ana\nlikes tea\n"}
    call(tool, "str_replace", path="/memories/people/ana.md", old_str="tea", new_str="walks")
    call(tool, "insert", path="/memories/people/ana.md", insert_line=0, insert_text="# People")
    assert call(tool, "view", path="/memories/people/ana.md", view_range=[2, 3]).endswith("2\tAna\n     3\tlikes walks")
    call(tool, "rename", old_path="/memories/people", new_path="/memories/friends")
    listed = call(tool, "view", path="/memories").splitlines()[1:]
    assert listed == ["25B\t/memories", "25B\t/memories/friends/", "25B\t/memories/friends/ana.md"]
    call(tool, "delete", path="/memories/friends")
    assert call(tool, "view", path="/memories").splitlines()[1:] == ["0B\t/memories"]
    assert Memory("sarah").usage().writes_today == 4  # for create, str_replace, insert and rename


def test_every_command_takes_a_path_of_512_bytes(home):
    tool = ScrubjayMemoryTool()
    longest, other = ("/memories/" + letter * 502 for letter in "xy")
    call(tool, "create", path=longest, file_text="tea")
    call(tool, "str_replace", path=longest, old_str="tea", new_str="walks")
    call(tool, "insert", path=longest, insert_line=0, insert_text="Ana")
    call(tool, "rename", old_path=longest, new_path=other)
    assert "1\tAna\n     2\twalks" in call(tool, "view", path=other)
    call(tool, "delete", path=other)
    with pytest.raises(ToolError, match="at most 512"):
        call(tool, "create", path=f"{longest}x", file_text="")


def test_a_directory_is_listed_two_levels_deep_without_hidden_files(home):
    tool = ScrubjayMemoryTool()
    for path in ("a/b/c/deep.md", "a/.hidden", "z.md"):
        call(tool, "create", path=f"/memories/{path}", file_text="x" * 1536)
    listed = call(tool, "view", path="/memories").splitlines()[2:]
    assert listed == ["1.5K\t/memories/a/", "1.5K\t/memories/a/b/", "1.5K\t/memories/z.md"]


@pytest.mark.parametrize(
    ("command", "fields", "problem"),
    [
        ("create", {"path": "/memories/a", "file_text": ""}, "already exists"),
        ("create", {"path": "/memories/a/b", "file_text": ""}, "/memories/a is a file"),
        ("create", {"path": "/memories/d", "file_text": ""}, "already exists"),
        ("create", {"path": "/memories/" + "x" * 600, "file_text": ""}, "at most 512"),
        ("create", {"path": "/memories-of-others/a", "file_text": ""}, "must start with /memories"),
        ("view", {"path": "/memories/../keys"}, "would escape"),
        ("str_replace", {"path": "/memories/a", "old_str": "", "new_str": "x"}, "old_str is empty"),
        ("insert", {"path": "/memories/d", "insert_line": 0, "insert_text": ""}, "is not a file"),
        ("rename", {"old_path": "/memories/d", "new_path": "/memories/d/e"}, "inside of it"),
        ("rename", {"old_path": "/memories/d", "new_path": "/memories/a"}, "already exists"),
    ],
)
def test_the_model_reads_what_was_wrong_and_nothing_changes(home, command, fields, problem):
    tool = ScrubjayMemoryTool()
    call(tool, "create", path="/memories/a", file_text="text")
    call(tool, "create", path="/memories/d/file", file_text="text")
    before = dict(Memory("anthropic").items())
    with pytest.raises(ToolError, match=problem):
        call(tool, command, **fields)
    assert dict(Memory("anthropic").items()) == before


def test_edits_at_the_same_time_are_all_kept(home):
    call(ScrubjayMemoryTool(), "create", path="/memories/log", file_text="start\n")

    def add(number):
        call(ScrubjayMemoryTool(), "insert", path="/memories/log", insert_line=1, insert_text=str(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert sorted(map(int, Memory("anthropic").get("memories/log").split()[1:])) == list(range(40))


def test_the_async_tool_does_the_same(home):
    async def use() -> str:
        tool = ScrubjayAsyncMemoryTool()
        await call(tool, "create", path="/memories/a", file_text="one\n")
        await call(tool, "insert", path="/memories/a", insert_line=1, insert_text="two")
        with pytest.raises(ToolError, match="already exists"):
            await call(tool, "create", path="/memories/a", file_text="")
        await call(tool, "rename", old_path="/memories/a", new_path="/memories/b")
        return await call(tool, "view", path="/memories/b")

    assert asyncio.run(use()).endswith("1\tone\n     2\ttwo\n     3\t")
    assert asyncio.run(ScrubjayAsyncMemoryTool().clear_all_memory()) == "All memory cleared"
    assert list(Memory("anthropic")) == []


def test_an_unreachable_server_is_not_an_empty_memory(tmp_path):
    memory = Memory("ns", url="http://127.0.0.1:9", outbox=tmp_path / "outbox", timeout=1)
    for path in ("/memories", "/memories/a"):
        with pytest.raises(Unavailable):
            call(ScrubjayMemoryTool(memory), "view", path=path)


def test_another_process_goes_on_after_kill_9(script):
    writer = script.start("""
        import itertools
        from scrubjay.adapters.anthropic import ScrubjayMemoryTool
        tool = ScrubjayMemoryTool()
        tool.call({"command": "create", "path": "/memories/log", "file_text": "start"})
        for number in itertools.count():
            line = {"insert_line": number + 1, "insert_text": str(number)}
            tool.call({"command": "insert", "path": "/memories/log", **line})
            print(number, flush=True)
    """)
    seen = [int(writer.stdout.readline()) for _ in range(20)]
    writer.kill()
    writer.communicate(timeout=60)
    found = script("""
        from scrubjay.adapters.anthropic import ScrubjayMemoryTool
        tool = ScrubjayMemoryTool()
        tool.call({"command": "str_replace", "path": "/memories/log", "old_str": "start", "new_str": "again"})
        lines = tool.call({"command": "view", "path": "/memories/log"}).splitlines()[1:]
        print(*(line.split("\\t")[1] for line in lines))
    """).split()
    assert found[0] == "again"
    assert found[1 : len(seen) + 1] == [str(number) for number in seen]
