"""The data commands on a file and on a running server."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import shlex
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import requests

from harness import Server, clean_environment, eventually, fresh_name, issue_key, run_command, serving
from scrubjay import Forbidden, Memory
from scrubjay.cli import data, main
from scrubjay.cli.output import Report
from scrubjay.store import items, usage
from scrubjay.store.recover import recovery
from scrubjay.store.sqlite import SqliteStore

NO_LIMITS = ("--writes-per-day", "0", "--max-bytes", "0")


scrubjay = run_command


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Server:
    """A server whose file the commands also use directly, while it runs."""
    with serving(tmp_path_factory.mktemp("data") / "db", *NO_LIMITS, "--durability", "fast") as server:
        yield server


@pytest.fixture(params=["file", "server"])
def where(request, here) -> tuple[str, str]:
    """The same database, directly and through its server."""
    return ("--path", str(here.path)) if request.param == "file" else ("--url", here.url)


def fill(server: Server, namespace: str | None = None) -> str:
    namespace = namespace or fresh_name()
    with Memory(namespace, url=server.url) as memory:
        memory.set("user", {"name": "Sarah", "big": 2**70, "text": "ключ \u2028 \x00"})
        memory.set("session", "abc", ttl=3600)
        memory.append("history", {"role": "user"}, None, 1.5)
        memory.incr("visits")
        memory.delete("visits")
        memory.remember("Sarah prefers PostgreSQL over MongoDB", type="preference", tags=["db"], session="s-1")
    return namespace


def state(server: Server, namespace: str) -> list[dict]:
    done = scrubjay("export", namespace, "--path", server.path)
    return [json.loads(line) for line in done.stdout.splitlines()][1:]


def test_a_namespace_is_moved_from_either_end_to_either_end(here, where, tmp_path):
    namespace, copy = fill(here), fresh_name()
    done = scrubjay("export", namespace, *where)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    lines = done.stdout.splitlines()
    assert json.loads(lines[0])["namespace"] == namespace
    assert json.loads(lines[-1]) == {"kind": "end", "lines": len(lines)}
    assert scrubjay("export", namespace, *where, "-o", tmp_path / "file").returncode == 0
    assert (tmp_path / "file").read_bytes().splitlines()[1:] == lines[1:]
    done = scrubjay("import", copy, *where, stdin=done.stdout)
    assert (done.returncode, done.stdout.decode()) == (0, f"{copy}: 3 keys and 1 note\n"), done.stderr
    assert state(here, copy) == state(here, namespace)
    with Memory(copy, url=here.url) as memory:
        assert memory.get("user")["big"] == 2**70
        assert memory.append("history", "more") == 4
        assert memory.recall("which database does Sarah like?")[0].tags == ("db",)
        assert memory.usage().writes_today == 1
    store = SqliteStore(here.path)
    assert store.find_problems() == []
    store.close()


def test_ctrl_c_during_an_import_into_a_server_says_that_it_may_happen_all_the_same(here, tmp_path, monkeypatch):
    name, export = fresh_name(), tmp_path / "export.jsonl"
    with Memory(name, url=here.url) as memory:
        memory.set("k", 1)
    export.write_bytes(scrubjay("export", name, "--url", here.url).stdout)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("scrubjay.http.HttpExecutor.import_", interrupt)
    ended = scrubjay("import", "my copy", "-i", export, "--url", here.url)
    assert ended.returncode == 130
    assert b"interrupted: the server may import it all the same; look with: scrubjay usage 'my copy'" in ended.stderr


@pytest.mark.parametrize("name", ["my export.jsonl", "folder/export.jsonl"])
def test_a_file_where_import_expects_a_namespace_is_recognised(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    scrubjay("set", "ns", "k", "1", "--path", "db")
    Path("folder").mkdir()
    assert scrubjay("export", "ns", "-o", name, "--path", "db").returncode == 0
    refused = scrubjay("import", name, "--path", "other")
    assert refused.returncode == 1
    advice = re.search(rf"{name} is a file, and to import it, type: scrubjay (import .*)$", refused.stderr.decode())[1]
    done = scrubjay(*shlex.split(advice), "--path", "other")
    assert done.stdout == b"ns: 1 key and 0 notes\n", done.stderr


def test_importing_refuses_with_a_sentence_and_changes_nothing(here, where, tmp_path):
    namespace = fill(here)
    whole = scrubjay("export", namespace, *where).stdout
    before = state(here, namespace)
    for given, sentence in (
        (whole, "--replace"),
        (whole[:-30], "incomplete"),
        (whole.replace(b'"key":"user"', b'"key":""'), "at least one character"),
        (b"", "line 1"),
    ):
        words = () if sentence == "--replace" else ("--replace",)
        done = scrubjay("import", *words, namespace, *where, stdin=given)
        assert done.returncode == 1
        assert done.stderr.startswith(b"scrubjay: ")
        assert done.stderr.count(b"\n") == 1, done.stderr
        assert sentence in done.stderr.decode()
    assert state(here, namespace) == before
    (tmp_path / "file").write_bytes(whole)
    done = scrubjay("import", "--replace", "-i", tmp_path / "file", *where)
    assert done.returncode == 0, done.stderr
    assert [{**line, "version": 0} for line in state(here, namespace)] == [{**line, "version": 0} for line in before]
    assert scrubjay("import", "-i", tmp_path / "nowhere", *where).returncode == 1
    assert scrubjay("export", "nobody", *where).returncode == 1


def test_a_server_holds_its_limit_of_storage_but_not_of_writes(here, tmp_path):
    namespace = fill(here)
    export = scrubjay("export", namespace, "--url", here.url).stdout
    with serving(tmp_path / "db", "--writes-per-day", "1", "--max-bytes", "300") as server:
        assert scrubjay("import", "a", "--url", server.url, stdin=export).returncode == 0
        with Memory("a", url=server.url) as memory:
            assert memory.set("one", 1)
    with serving(tmp_path / "db", "--max-bytes", "100") as server:
        done = scrubjay("import", "b", "--url", server.url, stdin=export)
        assert done.returncode == 1
        assert b"--max-bytes" in done.stderr
        assert requests.get(f"{server.url}/v1/namespaces", timeout=60).json() == {"namespaces": ["a"]}


def test_a_backup_is_made_while_the_server_works_and_restored_while_it_runs(tmp_path):
    with serving(tmp_path / "db", *NO_LIMITS) as server, Memory("ns", url=server.url) as memory:
        memory.update({f"k{i}": "x" * 1000 for i in range(500)})
        stop, written = threading.Event(), []

        def write() -> None:
            with Memory("log", url=server.url) as log:
                while not stop.is_set():
                    written.append(log.append("l", len(written)))

        writer = threading.Thread(target=write)
        writer.start()
        for where in (("--url", server.url), ("--path", str(server.path))):
            done = scrubjay("backup", tmp_path / f"copy-{where[0]}", *where)
            assert done.returncode == 0, done.stderr
            assert b"checked" in done.stdout
            refused = scrubjay("backup", tmp_path / f"copy-{where[0]}", *where)
            assert refused.returncode == 1
            assert b"--force" in refused.stderr
            assert scrubjay("backup", tmp_path / f"copy-{where[0]}", *where, "--force").returncode == 0
        memory.set("k1", "after")
        done = scrubjay("restore", tmp_path / "copy---url", "--path", server.path)
        assert done.returncode == 0, done.stderr
        stop.set()
        writer.join()
        aside = Path(re.search(r"kept: (\S+)", done.stdout.decode())[1])
        assert memory.get("k1") == "x" * 1000, "the server shows the restored state at once"
        assert memory.set("k1", "again")
        assert requests.get(f"{server.url}/ready", timeout=60).status_code == 200
        refused = scrubjay("restore", tmp_path / "copy---url", "--url", server.url)
        assert refused.returncode == 1
        assert b"--path" in refused.stderr
    for path in (server.path, aside, tmp_path / "copy---url", tmp_path / "copy---path"):
        store = SqliteStore(path)
        assert store.find_problems() == []
        assert len(store.run(items.list_keys("ns"))) == 500
        store.close()
    store = SqliteStore(aside)
    assert store.run(items.read_text("ns", "k1")) == '"after"'
    store.close()
    left = sorted(part.name for part in tmp_path.iterdir())
    assert [name for name in left if "partial" in name or name.startswith(".scrubjay")] == []


def test_erasing_leaves_nothing_in_the_files_of_a_running_server(here, where):
    namespace, other = fill(here), fill(here)
    refused = scrubjay("erase", namespace, *where)
    assert refused.returncode == 1
    assert b"--yes" in refused.stderr
    done = scrubjay("erase", namespace, "--yes", *where)
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"searched [\d.]+ [kM]B of \S+db", done.stdout.decode())
    assert "found    nothing" in done.stdout.decode()
    for part in here.path.parent.iterdir():
        assert namespace.encode() not in part.read_bytes(), part
    with Memory(namespace, url=here.url) as memory:
        assert memory.keys() == []
    assert namespace not in requests.get(f"{here.url}/v1/namespaces", timeout=60).json()["namespaces"]
    assert len(state(here, other)) > 1


def test_erasing_names_the_keys_that_have_the_name_and_the_commands_that_remove_it(tmp_path):
    path, name = tmp_path / "db", "user-ZQXuser"
    admin = issue_key(path, "boss", "--admin")
    key = issue_key(path, "user ZQXuser", "--exact", "--namespaces", name)
    with serving(path) as server:
        with Memory(name, url=server.url, api_key=key) as memory:
            memory.set("k", 1)
        with Memory("other", url=server.url, api_key=key, strict=True) as memory, pytest.raises(Forbidden):
            memory.set("k", 1)
        where = {"SCRUBJAY_URL": server.url, "SCRUBJAY_API_KEY": admin}
        eventually(lambda: b"REFUSED" in scrubjay("audit", **where).stdout)
        shown = scrubjay("erase", name, "--yes", **where).stdout.decode()
        command = re.search(r"scrubjay (key revoke .*)", shown)[1].split()
        assert "(user ZQXuser) is in force, and has this name" in shown
        assert json.loads(scrubjay("erase", name, "--yes", "--json", **where).stdout)["keys"][0]["id"] == command[2]
        assert scrubjay(*command, **where).returncode == 0
        assert scrubjay("erase", name, "--yes", **where).returncode == 1, "nothing has the name any more"
        assert b"ZQXuser" not in scrubjay("audit", "--json", **where).stdout
    assert scrubjay("compact", "--path", path).returncode == 0
    for part in tmp_path.iterdir():
        assert b"ZQXuser" not in part.read_bytes(), part


def test_erasing_asks_for_the_name_on_a_terminal(here):
    namespace = fill(here)
    for typed, code in ((b"another\n", 1), (namespace.encode() + b"\n", 0)):
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "scrubjay", "erase", namespace, "--path", str(here.path)],
            stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(),
        )  # fmt: skip
        os.write(master, typed)
        out, err = process.communicate(timeout=60)
        os.close(master)
        os.close(slave)
        assert process.returncode == code, (out, err)
        assert b"will be erased. Type " in err
    assert requests.get(f"{here.url}/v1/namespaces/{namespace}/usage", timeout=60).json()["bytes"] == 0


def test_a_bar_is_drawn_on_a_terminal_and_nothing_elsewhere(here, tmp_path):
    namespace = fill(here)
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "scrubjay", "backup", str(tmp_path / "copy"), "--path", str(here.path)],
        stdout=subprocess.PIPE, stderr=slave, check=True, timeout=60, env=clean_environment(),
    )  # fmt: skip
    drawn = os.read(master, 65536).decode()
    os.close(master)
    os.close(slave)
    assert re.search(r"\[#+\s*\] [\d,]+ of [\d,]+ pages", drawn)
    assert done.stdout
    assert scrubjay("export", namespace, "--path", here.path).stderr == b""


def test_only_administrators_import_back_up_and_erase_and_a_key_exports_what_it_may_read(tmp_path):
    with serving(tmp_path / "db", *NO_LIMITS) as server:
        fill(server, "ns")
        keys = {
            kind: scrubjay("key", "issue", *flags, "--path", server.path).stdout.decode().strip()
            for kind, flags in (("admin", ["--admin"]), ("user", []), ("other", ["--namespaces", "other-*"]))
        }
        calls = [("POST", "namespaces/ns/import"), ("GET", "backup"), ("POST", "namespaces/ns/erase")]
        for method, path in calls:
            for kind, status in ((None, 401), ("user", 403), ("other", 403)):
                headers = {"X-API-Key": keys[kind]} if kind else {}
                answer = requests.request(method, f"{server.url}/v1/{path}", headers=headers, data=b"x", timeout=60)
                assert (answer.status_code, path, kind) == (status, path, kind)
        for kind, status in ((None, 401), ("user", 200), ("other", 404)):
            headers = {"X-API-Key": keys[kind]} if kind else {}
            answer = requests.get(f"{server.url}/v1/namespaces/ns/export", headers=headers, timeout=60)
            assert (answer.status_code, kind) == (status, kind)
            assert b'"idempotency_key"' not in answer.content
        done = scrubjay("export", "ns", SCRUBJAY_URL=server.url, SCRUBJAY_API_KEY=keys["admin"])
        assert done.returncode == 0, done.stderr
        assert b'"idempotency_key"' in done.stdout
        refused = scrubjay("import", "x", stdin=done.stdout * 5000, SCRUBJAY_URL=server.url)
        assert refused.returncode == 1
        large = tmp_path / "large"
        large.write_bytes(done.stdout.splitlines(keepends=True)[0] + b'{"kind":"x"}\n' * 10**6 + b'{"kind":"end","lines":1000002}\n')  # noqa: E501 # fmt: skip
        refused = scrubjay("import", "x", "-i", large, SCRUBJAY_URL=server.url)
        assert b"needs an api key" in refused.stderr, "an answer that comes before all is sent is read"
        asked = requests.get(f"{server.url}/v1/backup", headers={"X-API-Key": keys["admin"]}, timeout=60)
        assert asked.headers["content-type"] == "application/vnd.sqlite3"
        assert int(asked.headers["content-length"]) == len(asked.content)


def test_an_export_of_everything_says_that_it_has_no_api_keys(tmp_path):
    with serving(tmp_path / "db", *NO_LIMITS) as server:
        fill(server, "ns")
        places = (("--path", server.path), ("--url", server.url))
        for where in places:
            assert scrubjay("export", "--all", *where).stderr == b""
        admin = scrubjay("key", "issue", "--admin", "--path", server.path).stdout.decode().strip()
        user = scrubjay("key", "issue", "--path", server.path).stdout.decode().strip()
        for where in places:
            for key in (admin, user):
                done = scrubjay("export", "--all", *where, SCRUBJAY_API_KEY=key)
                assert done.returncode == 0, done.stderr
                assert done.stderr.startswith(b"scrubjay: api keys and their limits are not part of an export")
                assert b"--require-key" in done.stderr
                assert b"api_key" not in done.stdout
                assert scrubjay("export", "ns", *where, SCRUBJAY_API_KEY=key).stderr == b""


def test_a_restore_tells_which_revoked_keys_are_in_force_again(tmp_path):
    path, keep = tmp_path / "db", tmp_path / "copy"
    SqliteStore(path).close()
    kept, leaked = (
        scrubjay("key", "issue", "--admin", "--name", n, "--path", path).stdout.decode().strip() for n in "ab"
    )
    ids = {key: key.split("_")[1] for key in (kept, leaked)}
    assert scrubjay("backup", keep, "--path", path).returncode == 0
    with serving(path, *NO_LIMITS) as server:
        ask = lambda key: requests.get(f"{server.url}/v1/apikeys", headers={"X-API-Key": key}, timeout=60).status_code  # noqa: E731
        assert scrubjay("key", "revoke", ids[leaked], "--path", path).returncode == 0
        assert ask(leaked) == 401
        told = scrubjay("restore", keep, "--path", path).stdout.decode()
        assert ask(leaked) == 200
        assert ids[kept] not in told
        advice = re.search(r"scrubjay (key revoke (\S+) --path \S+)", told)
        assert advice[2] == ids[leaked]
        assert scrubjay(*advice[1].split()).returncode == 0
        assert ask(leaked) == 401
        told = scrubjay("restore", keep, "--path", path, "--revoke-keys").stdout.decode()
        assert f"revoked  api key {ids[leaked]}" in told
        assert "CAUTION" not in told
        assert (ask(leaked), ask(kept)) == (401, 200)
        scrubjay("restore", keep, "--path", path)
        assert "no api key was revoked" in scrubjay("restore", keep, "--path", path, "--revoke-keys").stdout.decode()


def test_a_restore_names_what_it_removes_and_brings_back(tmp_path):
    path, keep = tmp_path / "db", tmp_path / "copy"
    for name in ("both", "old"):
        scrubjay("set", name, "k", "1", "--path", path)
    rotated, lost = (
        scrubjay("key", "issue", "--admin", "--name", name, "--path", path).stdout.decode().split("_")[1]
        for name in ("rotated", "lost")
    )
    scrubjay("key", "revoke", lost, "--path", path)
    assert scrubjay("backup", keep, "--path", path).returncode == 0
    scrubjay("key", "rotate", rotated, "--path", path)
    lost = scrubjay("key", "issue", "--name", "lost", "--path", path).stdout.decode().split("_")[1]
    scrubjay("erase", "old", "--yes", "--path", path)
    for i in range(12):
        scrubjay("set", f"new-{i:02}", "k", "1", "--path", path)
    told = scrubjay("restore", keep, "--path", path).stdout.decode()
    assert re.search(r"^removed  namespaces new-00, .*new-09 and 2 more,", told, re.MULTILINE)
    assert re.search(r"^back     namespace old,", told, re.MULTILINE)
    assert "both" not in told
    assert f"CAUTION  api key {lost} (lost) is not valid any more" in told
    assert f"CAUTION  api key {rotated} (rotated) has its old secret again; to revoke it:" in told
    again = json.loads(scrubjay("restore", keep, "--path", path, "--json").stdout)
    assert (again["removed"], again["brought_back"]) == ([], [])
    assert "in_force_again" not in again


def test_a_restore_tells_when_no_key_is_in_force_any_more(tmp_path):
    scrubjay("set", "ns", "k", "1", "--path", tmp_path / "db")
    assert scrubjay("backup", tmp_path / "copy", "--path", tmp_path / "db").returncode == 0
    assert "CAUTION" not in scrubjay("restore", tmp_path / "copy", "--path", tmp_path / "db").stdout.decode()
    scrubjay("key", "issue", "--admin", "--path", tmp_path / "db")
    assert scrubjay("backup", tmp_path / "keyed", "--path", tmp_path / "db").returncode == 0
    told = scrubjay("restore", tmp_path / "copy", "--path", tmp_path / "db").stdout.decode()
    assert "every user of this machine gets in without one" in told
    told = scrubjay("restore", tmp_path / "keyed", "--path", tmp_path / "db", "--revoke-keys").stdout.decode()
    assert "a server lets nobody in" in told


def test_a_restore_tells_when_no_admin_key_is_in_force_any_more(tmp_path):
    path, copy = tmp_path / "my db", tmp_path / "copy"
    SqliteStore(path).close()
    admin, _ = (
        scrubjay("key", "issue", *flags, "--path", path).stdout.decode().split("_")[1] for flags in (["--admin"], [])
    )
    assert scrubjay("backup", copy, "--path", path).returncode == 0
    assert scrubjay("key", "revoke", admin, "--path", path).returncode == 0
    told = scrubjay("restore", copy, "--path", path, "--revoke-keys").stdout.decode()
    assert f"revoked  api key {admin}" in told
    assert "CAUTION  no admin key is in force; to make one:" in told
    advice = re.search(r"scrubjay (key issue .*)$", told, re.MULTILINE)[1]
    assert scrubjay(*shlex.split(advice)).returncode == 0
    assert scrubjay("key", "list", "--path", path).stdout.count(b"\n") == 2


def test_a_restore_without_a_previous_database_compares_no_keys_and_revokes_none(tmp_path):
    path, copy, new = tmp_path / "db", tmp_path / "copy", tmp_path / "typo" / "fresh.db"
    SqliteStore(path).close()
    ids = sorted(scrubjay("key", "issue", "--admin", "--path", path).stdout.decode().split("_")[1] for _ in range(3))
    assert scrubjay("backup", copy, "--path", path).returncode == 0
    refused = scrubjay("restore", copy, "--path", new, "--revoke-keys")
    assert refused.returncode == 1
    assert f"there is no database at {new}" in refused.stderr.decode()
    assert not new.parent.exists(), "it is refused before anything is done"
    told = scrubjay("restore", copy, "--path", new).stdout.decode()
    assert f"there was no database at {new}, so it is new: a server that is running keeps its own" in told
    assert told.count("CAUTION") == 1
    assert f"scrubjay key list --path {new}" in told
    listed = [json.loads(line) for line in scrubjay("key", "list", "--path", new, "--json").stdout.splitlines()]
    assert sorted(key["id"] for key in listed) == ids
    done = scrubjay("restore", copy, "--path", tmp_path / "other", "--json")
    assert json.loads(done.stdout)["in_force_again"] == ids


def test_a_restore_over_a_database_that_cannot_be_read_revokes_no_key(tmp_path):
    path, copy = tmp_path / "db", tmp_path / "copy"
    SqliteStore(path).close()
    assert scrubjay("key", "issue", "--admin", "--path", path).returncode == 0
    assert scrubjay("backup", copy, "--path", path).returncode == 0
    path.write_bytes(b"no database" * 1000)
    told = scrubjay("restore", copy, "--path", path, "--revoke-keys").stdout.decode()
    assert "it cannot be read, so it is not compared with the backup" in told
    assert "no api key was revoked: nothing tells which were in force before the restore" in told
    assert told.count("CAUTION") == 1
    assert scrubjay("key", "list", "--path", path).stdout.count(b"\n") == 1


def test_the_routes_are_described(here):
    paths = requests.get(f"{here.url}/openapi.json", timeout=60).json()["paths"]
    exported = paths["/v1/namespaces/{namespace}/export"]["get"]["responses"]["200"]["content"]
    assert list(exported) == ["application/x-ndjson"]
    taken = paths["/v1/namespaces/{namespace}/import"]["post"]["requestBody"]["content"]
    assert list(taken) == ["application/octet-stream"]
    assert "/v1/backup" in paths
    assert "/v1/namespaces/{namespace}/erase" in paths
    bad = requests.post(f"{here.url}/v1/namespaces/x/import?replace=perhaps", data=b"", timeout=60)
    assert bad.status_code == 400


# ---------------------------------------------------------------- damaged files


@pytest.fixture
def ill(tmp_path) -> Path:
    """A file of which one page of values is noise."""
    path = tmp_path / "db"
    store = SqliteStore(path, durability="fast", audit_rows=0)  # the log has keys, too
    for i in range(400):
        store.run(items.set_item("ns", f"k{i:04}", json.dumps("x" * 100)))
    store.close()
    raw = path.read_bytes()
    page = raw.index(b'nsk0200"x') // 4096
    with path.open("r+b") as file:
        file.seek(page * 4096)
        file.write(b"\xff" * 4096)
    return path


def test_a_damaged_file_names_the_way_out_wherever_it_is_met(ill):
    advice = f"scrubjay recover {ill}"
    done = scrubjay("get", "ns", "k0200", "--path", ill)
    assert done.returncode == 3
    assert advice in done.stderr.decode()
    assert scrubjay("get", "ns", "k0000", "--path", ill).returncode == 0, "what is well can be read"
    done = scrubjay("doctor", "--path", ill)
    assert done.returncode == 1
    assert advice in done.stdout.decode()
    with serving(ill) as server:
        answer = requests.get(f"{server.url}/v1/namespaces/ns/items/k0200", timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        advice = "scrubjay recover FILE"
        assert advice in answer.json()["detail"]
        listed = requests.get(f"{server.url}/v1/namespaces/ns/items?limit=10000", timeout=60)
        assert advice in listed.json()["detail"]
        assert requests.get(f"{server.url}/v1/namespaces/ns/items/k0000", timeout=60).status_code == 200


@pytest.mark.parametrize("harm", ["noise", "header", "cut"])
def test_a_server_does_not_start_on_what_is_no_database_and_says_what_to_do(ill, harm):
    raw = ill.read_bytes()
    ill.write_bytes({"noise": b"text" * 4000, "header": b"\0" * 50 + raw[50:], "cut": raw[: len(raw) // 3]}[harm])
    before = ill.read_bytes()
    done = scrubjay("serve", "--port", "0", "--path", ill)
    assert done.returncode == 3
    assert f"scrubjay recover {ill}" in done.stderr.decode()
    assert ill.read_bytes() == before, "it is not recreated without a message"


def test_a_file_that_is_damaged_under_a_running_server_is_told(ill, tmp_path):
    path = tmp_path / "served"
    store = SqliteStore(path, durability="fast")
    store.run(items.update_items("ns", {f"k{i:04}": json.dumps("x" * 1000) for i in range(4000)}))
    store.close()
    with serving(path) as server:
        assert requests.get(f"{server.url}/v1/namespaces/ns/items/k0001", timeout=60).status_code == 200
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        answers = [
            requests.get(f"{server.url}/v1/namespaces/ns/items/k{i:04}", timeout=60) for i in range(0, 4000, 400)
        ]
        told = [answer.json()["detail"] for answer in answers if answer.status_code == 503]
        assert told
        assert all("scrubjay recover FILE" in detail for detail in told)
        assert requests.get(f"{server.url}/health", timeout=60).status_code == 200


def test_recover_saves_tells_and_can_be_put_in_place(ill):
    done = scrubjay("recover", ill)
    assert done.returncode == 1, "something was lost"
    printed = done.stdout.decode()
    assert re.search(r"saved +3\d\d rows of items", printed)
    assert re.search(r"LOST +the namespace 'ns' had 400 keys .* 3\d\d keys", printed)
    assert scrubjay("recover", ill).returncode == 1, "the file is there already"
    assert scrubjay("doctor", "--path", f"{ill}.recovered").returncode == 0
    done = scrubjay("restore", f"{ill}.recovered", "--path", ill)
    assert done.returncode == 0, done.stderr
    assert scrubjay("doctor", "--path", ill).returncode == 0
    assert scrubjay("get", "ns", "k0000", "--path", ill).returncode == 0
    assert list(ill.parent.glob("db.before-restore-*"))
    well = scrubjay("recover", ill, ill.with_name("well"))
    assert well.returncode == 0
    assert b"LOST" not in well.stdout


def test_the_advice_of_a_recovery_can_be_pasted_for_a_path_with_a_space(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    damaged = Path("my data/t.db")
    damaged.parent.mkdir()
    assert scrubjay("set", "ns", "k", "1", "--path", damaged).returncode == 0
    printed = scrubjay("recover", damaged, XDG_DATA_HOME=str(tmp_path)).stdout.decode()
    advice = re.findall(r": scrubjay (.*)$", printed, re.MULTILINE)
    assert [words.split()[0] for words in advice] == ["doctor", "restore"]
    for words in advice:
        done = scrubjay(*shlex.split(words), XDG_DATA_HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
    assert list(damaged.parent.glob("t.db.before-restore-*")), "the damaged file is replaced, and no other"
    assert not (tmp_path / "scrubjay").exists()


def test_a_loss_is_told_without_what_was_not_lost(capsys):
    for pages, rows, printed in ((0, 3, "3 rows"), (2, 0, "2 of 90 pages"), (2, 1, "2 of 90 pages, and 1 row")):
        found = recovery.Report({}, 90, pages, rows, [])
        data._report_recovered(found, Path("db"), Path("new"), Report(argparse.Namespace(json=False)))
        assert f"LOST     {printed}\n" in capsys.readouterr().out


def test_recover_refuses_a_database_of_postgresql_without_its_password(capsys):
    done = scrubjay("recover", "postgresql://user:hunter2@host/db")
    assert done.returncode == 1
    assert b"pg_restore" in done.stderr
    assert b"hunter2" not in done.stderr + done.stdout


def test_an_empty_file_is_a_new_database_unless_its_log_says_otherwise(tmp_path):
    (tmp_path / "db").write_bytes(b"")
    assert scrubjay("set", "ns", "k", "1", "--path", tmp_path / "db").returncode == 0
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("UPDATE items SET version = version + 1")
        connection.commit()
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{tmp_path / 'db'}{suffix}", f"{tmp_path / 'cut'}{suffix}")
    connection.close()
    (tmp_path / "cut").write_bytes(b"")
    done = scrubjay("get", "ns", "k", "--path", tmp_path / "cut")
    assert done.returncode == 3
    assert b"truncated" in done.stderr
    assert (tmp_path / "cut-wal").stat().st_size


def test_quotas_move_with_the_namespace(tmp_path):
    store = SqliteStore(tmp_path / "db")
    store.run(usage.set_quota("ns", {"writes_per_day": 7, "max_bytes": 10**6}))
    store.close()
    export = scrubjay("export", "ns", "--path", tmp_path / "db").stdout
    assert scrubjay("import", "--path", tmp_path / "other", stdin=export).returncode == 0
    assert b"0 of 7" in scrubjay("usage", "ns", "--path", tmp_path / "other").stdout


def test_a_path_without_a_database_is_not_backed_up(tmp_path, capsys):
    missing = tmp_path / "mistyped.db"
    assert main(["backup", str(tmp_path / "copy.db"), "--path", str(missing)]) == 1
    assert f"there is no database at {missing}" in capsys.readouterr().err
    assert list(tmp_path.glob("*.db")) == []


def test_a_backup_never_takes_the_place_of_a_file_in_use(tmp_path):
    path = tmp_path / "db"
    with serving(path) as server:
        assert scrubjay("set", "ns", "k", "1", "--url", server.url).returncode == 0
        for target in (path, tmp_path / "db-wal", tmp_path / "db-shm"):
            for where in (("--url", server.url), ("--path", path)):
                done = scrubjay("backup", target, "--force", *where)
                assert done.returncode == 1
                assert b"name another file" in done.stderr, done.stderr
        assert scrubjay("get", "ns", "k", "--url", server.url).stdout == b"1\n"


def test_an_export_is_written_into_a_pipe_and_through_a_link_and_keeps_permissions(tmp_path):
    assert scrubjay("set", "ns", "k", "1", "--path", tmp_path / "db").returncode == 0
    pipe, file, link = (tmp_path / name for name in ("pipe", "file", "link"))
    os.mkfifo(pipe)
    file.write_text("old")
    file.chmod(0o644)
    link.symlink_to(file)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    for target in (pipe, link):
        done = scrubjay("export", "ns", "-o", target, "--path", tmp_path / "db")
        assert done.returncode == 0, done.stderr
    assert pipe.is_fifo(), "a pipe is not replaced by a file"
    reader.join(timeout=60)
    assert b'"k"' in received[0]
    assert link.is_symlink()
    assert b'"k"' in file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    read_end, write_end = os.pipe()  # as a process substitution of a shell, whose name is a link to no path
    assert scrubjay("export", "ns", "-o", f"/dev/fd/{write_end}", "--path", tmp_path / "db").returncode == 0
    os.close(write_end)
    with os.fdopen(read_end, "rb") as output:
        assert b'"k"' in output.read()


@pytest.mark.parametrize("flags", [(), ("--force",)])
def test_a_backup_is_a_file_and_takes_the_place_of_no_pipe(tmp_path, flags):
    assert scrubjay("set", "ns", "k", "1", "--path", tmp_path / "db").returncode == 0
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        refused = scrubjay("backup", *flags, tmp_path / name, "--path", tmp_path / "db")
        assert refused.returncode == 1
        assert b"is a device or a pipe, which a file cannot replace; name a file" in refused.stderr
    assert (tmp_path / "pipe").is_fifo()


def test_a_backup_replaces_what_a_link_points_to(tmp_path):
    assert scrubjay("set", "ns", "k", "1", "--path", tmp_path / "db").returncode == 0
    folder = tmp_path / "disk"
    folder.mkdir()
    (folder / "copy").write_text("old")
    (tmp_path / "link").symlink_to("disk/copy")
    assert scrubjay("backup", "--force", tmp_path / "link", "--path", tmp_path / "db").returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert scrubjay("get", "ns", "k", "--path", folder / "copy").stdout == b"1\n"


def test_erasing_what_is_not_there_says_so(tmp_path):
    scrubjay("set", "somebody", "k", "1", "--path", tmp_path / "db")
    done = scrubjay("erase", "nobody", "--yes", "--path", tmp_path / "db")
    assert done.returncode == 1
    assert b"there is no namespace 'nobody'" in done.stderr


def test_two_restores_in_a_second_keep_both_states(tmp_path):
    for name in ("one", "two"):
        assert scrubjay("set", "ns", "k", name, "--path", tmp_path / name).returncode == 0
    for _ in range(3):
        assert scrubjay("restore", tmp_path / "two", "--path", tmp_path / "one").returncode == 0
    kept = list(tmp_path.glob("one.before-restore-*"))
    assert len([path for path in kept if not path.name.endswith(("-wal", "-shm"))]) == 3


def test_a_damaged_backup_is_named_by_its_own_name(tmp_path):
    (tmp_path / "bad").write_bytes(b"no database" * 1000)
    done = scrubjay("restore", tmp_path / "bad", "--path", tmp_path / "db")
    assert done.returncode == 3
    assert f"{tmp_path / 'bad'} is damaged or not a backup: file is not a database; nothing was".encode() in done.stderr
    assert b".scrubjay-restore" not in done.stderr


def test_the_advice_for_a_damaged_backup_names_the_backup_and_not_a_copy_that_is_deleted(tmp_path):
    with Memory("ns", path=tmp_path / "bad") as memory:
        memory.append("l", *(f"item {number} " * 20 for number in range(2000)))
    data = (tmp_path / "bad").read_bytes()
    for start in range(4096, 6 * 4096, 4096):  # SQLite can read some damaged pages, and others not
        (tmp_path / "bad").write_bytes(data[:start] + b"\xff" * 4096 + data[start + 4096 :])
        done = scrubjay("restore", tmp_path / "bad", "--path", tmp_path / "db")
        assert done.returncode == 3
        assert done.stderr.count(b"scrubjay recover") == 1
        assert done.stderr.endswith(f"scrubjay recover {tmp_path / 'bad'}\n".encode())
        assert b".scrubjay-restore" not in done.stderr


def test_a_dash_is_stdin_and_stdout(here, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = fill(here)
    piped = scrubjay("backup", "-", *where)
    assert (piped.returncode, piped.stderr) == (0, b"")
    assert scrubjay("restore", "-", "--path", "restored", stdin=piped.stdout).returncode == 0
    exported = scrubjay("export", namespace, "-o", "-", "--path", "restored")
    lines = [done.stdout.splitlines()[1:] for done in (exported, scrubjay("export", namespace, *where))]
    assert lines[0] == lines[1] != []
    for words in (("import", "-i", "-"), ("import", "-")):
        done = scrubjay(*words, "--replace", "--path", "imported", stdin=exported.stdout)
        assert done.stdout.startswith(f"{namespace}: ".encode()), done.stderr
    assert not list(tmp_path.glob("-*"))


@pytest.mark.parametrize("words", [("backup", "-"), ("restore", "-"), ("import",), ("import", "-i", "-")])
def test_a_terminal_is_neither_read_from_nor_written_to_like_a_file(words, tmp_path):
    assert scrubjay("set", "ns", "k", "1", "--path", tmp_path / "db").returncode == 0
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "scrubjay", *words, "--path", str(tmp_path / "db")],
        stdin=slave, stdout=slave, stderr=subprocess.PIPE, check=False, timeout=120, env=clean_environment(),
    )  # fmt: skip
    os.close(master)
    os.close(slave)
    assert done.returncode == 1
    assert re.match(rb"scrubjay: .*(redirect the output|send it to stdin)\n$", done.stderr)


def test_a_damaged_backup_from_stdin_changes_nothing(tmp_path):
    assert scrubjay("set", "ns", "k", "1", "--path", tmp_path / "db").returncode == 0
    for damaged, code in ((b"", 1), (b"no database" * 1000, 3)):
        done = scrubjay("restore", "-", "--path", tmp_path / "db", stdin=damaged)
        assert done.returncode == code
        assert b"stdin" in done.stderr
    assert scrubjay("get", "ns", "k", "--path", tmp_path / "db").stdout == b"1\n"
