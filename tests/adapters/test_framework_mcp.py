"""The MCP server, as its clients see it: over stdio, over HTTP, and in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("mcp.server.mcpserver", reason="the MCP SDK is not installed")

from mcp import StdioServerParameters
from mcp.client import Client

from scrubjay import InvalidInput, Memory, ScrubjayError
from scrubjay.adapters.mcp import make_server, run


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "memory.db")


def stdio(path: str, *namespaces: str) -> Client:
    flags = [flag for name in namespaces or ("me",) for flag in ("--namespace", name)]
    command = ["-m", "scrubjay", "mcp", "--path", path, *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCRUBJAY_")}
    return Client(StdioServerParameters(command=sys.executable, args=command, env=environment))


async def call(client: Client, tool: str, **arguments) -> str:
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    return f"error: {content.text}" if result.is_error else content.text


def test_the_tools_keep_and_find(path):
    async def use() -> None:
        async with Client(make_server(["me", "work"], path=path)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["remember", "recall", "forget", "get", "set", "list", "search"]
            assert tools["recall"].annotations.read_only_hint
            assert tools["forget"].annotations.destructive_hint
            note = (await call(client, "remember", content="Sarah likes walnuts")).rpartition(" ")[2]
            assert "Sarah likes walnuts" in await call(client, "recall", query="What does Sarah like?")
            assert await call(client, "recall", query="PostgreSQL") == "no note fits 'PostgreSQL'"
            assert await call(client, "forget", note_id=note) == f"note {note} is erased"
            assert await call(client, "forget", note_id=note) == f"there is no note {note}"
            assert await call(client, "get", key="city") == "nothing is stored under 'city'"
            assert await call(client, "set", key="city", value={"name": "Berlin"}) == "stored under 'city'"
            assert await call(client, "get", key="city") == '{"name": "Berlin"}'
            assert await call(client, "search", query="berlin") == 'city: {"name": "Berlin"}'
            assert await call(client, "list") == "city"
            assert await call(client, "list", namespace="work") == "no keys"
            assert await call(client, "set", key="city", value=None) == "'city' is deleted"

    asyncio.run(use())


TEXTS = ["null", "[1]", '{"a": 1}', "42", "true", '"quoted"', "", "plain"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_stored_as_that_text_whatever_it_looks_like(path, text):
    async def use() -> None:
        async with Client(make_server(["me", "null"], path=path)) as client:
            assert await call(client, "set", key="note", value=text) == "stored under 'note'"
            assert json.loads(await call(client, "get", key="note")) == text
            assert await call(client, "set", key="k", value=1, namespace="null") == "stored under 'k'"
            assert await call(client, "list", namespace="null", after="[1]") == "k"

    asyncio.run(use())
    assert Memory("me", path=path).get("note") == text


def test_tags_as_text_are_a_list(path):
    async def use() -> None:
        async with Client(make_server(["me"], path=path)) as client:
            for tags in (["a", "b"], '["a", "b"]'):
                assert "remembered" in await call(client, "remember", content=f"tagged {tags}", tags=tags)

    asyncio.run(use())
    assert [note.tags for note in Memory("me", path=path).notes()] == [("a", "b"), ("a", "b")]


def test_an_argument_that_a_tool_does_not_have_is_refused_and_named(path):
    async def use() -> None:
        async with Client(make_server(["me"], path=path)) as client:
            for tool in (await client.list_tools()).tools:
                assert tool.input_schema["additionalProperties"] is False
                required = dict.fromkeys(tool.input_schema.get("required", ()), "x")
                answer = await call(client, tool.name, **required, expires=5)
                assert answer.startswith("error: ")
                assert "expires" in answer
            assert await call(client, "list") == "no keys"

    asyncio.run(use())


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("recall", {"query": "x", "limit": 500}, "limit should be less than or equal to 100, not 500"),
        ("recall", {}, "recall needs the argument query"),
        ("recall", {"query": 5}, "query should be a valid string, not 5"),
        ("remember", {"content": "x", "tags": [1]}, "tags[0] should be a valid string, not 1"),
        ("get", {"key": "k", "kee": 1}, "get has no argument 'kee'; it takes key, namespace"),
        ("set", {"kee": 1}, "set needs the argument key; set needs the argument value; set has no argument 'kee'; it"),
    ],
)
def test_the_model_reads_in_one_sentence_what_is_wrong_with_its_arguments(path, tool, arguments, told):
    async def use() -> str:
        async with Client(make_server(["me"], path=path)) as client:
            return await call(client, tool, **arguments)

    answer = asyncio.run(use())
    assert answer.startswith(f"error: {told}")
    assert "pydantic" not in answer
    assert "\n" not in answer


def test_a_value_expires(path):
    async def use() -> None:
        async with Client(make_server(["me"], path=path)) as client:
            assert await call(client, "set", key="tmp", value=1, ttl=3600) == "stored under 'tmp'"
            assert "ttl" in await call(client, "set", key="tmp", value=1, ttl=-1)

    asyncio.run(use())
    assert Memory("me", path=path).item("tmp").expires_at is not None


def test_no_other_namespace_can_be_reached_and_the_model_reads_why(path):
    Memory("secret", path=path).set("k", "hidden")

    async def use() -> None:
        async with Client(make_server(["me"], path=path)) as client:
            for tool, arguments in (("get", {"key": "k"}), ("list", {}), ("recall", {"query": "hidden"})):
                answer = await call(client, tool, namespace="secret", **arguments)
                assert answer.startswith("error: ")
                assert "use one of: me" in answer
            assert "at least one character" in await call(client, "get", key="")

    asyncio.run(use())
    with pytest.raises(InvalidInput, match="at least one"):
        make_server([], path=path)


def test_a_long_list_of_keys_says_how_to_go_on(path):
    Memory("me", path=path).update({f"k{number:03}": 1 for number in range(250)})

    async def use() -> None:
        async with Client(make_server(["me"], path=path)) as client:
            first = await call(client, "list")
            assert "after='k199'" in first
            assert (await call(client, "list", after="k199")).splitlines()[-1] == "k249"

    asyncio.run(use())


def test_an_unreachable_server_is_an_error_that_the_model_reads(tmp_path):
    options = {"url": "http://127.0.0.1:9", "timeout": 1, "outbox": tmp_path / "outbox"}

    async def use() -> None:
        async with Client(make_server(["me"], **options)) as client:
            assert "cannot reach" in await call(client, "recall", query="x")
            assert (await call(client, "set", key="k", value=1)).startswith("queued")

    asyncio.run(use())


def test_two_clients_with_a_process_each_that_write_at_once_lose_nothing(path):
    async def write(client: Client, number: int) -> None:
        assert await call(client, "set", key=f"k{number}", value=number) == f"stored under 'k{number}'"
        assert (await call(client, "remember", content=f"The number {number} was written")).startswith("remembered")

    async def use() -> None:
        async with stdio(path) as one, stdio(path) as other:  # both processes have started before the first write
            await asyncio.gather(*(write((one, other)[number % 2], number) for number in range(80)))

    asyncio.run(use())
    with Memory("me", path=path) as memory:
        assert dict(memory.items()) == {f"k{number}": number for number in range(80)}
        assert len(memory.notes()) == 80


def test_another_process_goes_on_after_kill_9(path):
    command = [sys.executable, "-m", "scrubjay", "mcp", "--path", path, "--namespace", "me"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(method: str, **fields) -> None:
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "method": method, **fields}) + "\n")
        server.stdin.flush()

    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    send("initialize", id="start", params=client)
    assert server.stdout.readline()
    send("notifications/initialized")
    for number in range(100):
        value = {"key": f"k{number:02}", "value": number}
        send("tools/call", id=number, params={"name": "set", "arguments": value})
    stored = [json.loads(server.stdout.readline())["id"] for _ in range(20)]
    server.kill()
    server.communicate(timeout=60)

    async def use() -> None:
        async with stdio(path) as client:
            for number in stored:
                assert await call(client, "get", key=f"k{number:02}") == str(number)
            assert await call(client, "set", key="again", value=True) == "stored under 'again'"

    asyncio.run(use())


def test_a_port_that_is_in_use_is_named_with_what_to_do(path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            ScrubjayError, match=f"cannot listen on 127.0.0.1 port {port}: .*; choose another with --port"
        ):
            run(["me"], port, path=path)


@contextlib.contextmanager
def serving_http(path: str):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "scrubjay", "mcp", "--path", path, "--namespace", "me", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def http_url(tmp_path_factory):
    with serving_http(str(tmp_path_factory.mktemp("http") / "db")) as url:
        yield url


def test_the_tools_are_served_over_http_to_this_machine_only(path):
    import httpx

    async def use(url: str) -> None:
        async with Client(url) as client:
            assert await call(client, "set", key="k", value=1) == "stored under 'k'"
            assert await call(client, "get", key="k") == "1"

    with serving_http(path) as url:
        asyncio.run(use(url))
        headers = {"Host": "evil.example", "Accept": "application/json, text/event-stream"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert httpx.post(url, json=body, headers=headers, timeout=60).status_code in (403, 421)


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"])
def test_a_request_that_a_proxy_has_forwarded_is_refused(http_url, name):
    import httpx

    headers = {name: "10.1.2.3", "Accept": "application/json, text/event-stream"}
    answer = httpx.post(http_url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers, timeout=60)
    assert (answer.status_code, "proxy" in answer.text) == (403, True)


def test_a_request_in_the_form_of_a_plain_nginx_proxy_is_refused(http_url):
    host, port = http_url.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"POST /mcp HTTP/1.0\r\nHost: {host}:{port}\r\nContent-Length: 0\r\n\r\n".encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 403")
