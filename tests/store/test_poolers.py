"""PostgreSQL behind PgBouncer: a pooler in session mode works, and one in transaction mode is refused in words."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commit_proxy import CommitProxy
from harness import eventually, fresh_name, postgres
from postgres import as_user, free_port
from scrubjay.errors import Unavailable
from scrubjay.store import changes, items, lists
from scrubjay.store.postgres import PostgresStore

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
SETTINGS = """
[databases]
postgres = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
"""
needs_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="Debian: apt-get install pgbouncer")


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.fixture
def pooled(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """A function that starts PgBouncer in a mode, and returns the URL of a new schema behind it."""
    started = []

    def start(mode: str, server: int | None = None) -> str:
        port, config = free_port(), tmp_path / "pgbouncer.ini"
        config.write_text(SETTINGS.format(server=server or postgres().port, port=port, mode=mode))
        started.append(subprocess.Popen(as_user(PGBOUNCER, "-q", str(config)), stderr=subprocess.DEVNULL))
        eventually(lambda: _answers(port))
        return postgres().fresh_url().replace(f":{postgres().port}/", f":{port}/")

    yield start
    for process in started:
        process.kill()
        process.wait()


def other_session(store: PostgresStore) -> None:
    """Set the session of the store's idle connection up for another connection, as a pooler lets another client do."""
    connection = store.take()
    connection.execute("SET scrubjay.session = 'of another'")
    store.put_back(connection)


def test_a_write_on_a_session_that_another_connection_has_set_up_is_refused():
    store = PostgresStore(postgres().fresh_url())
    try:
        store.run(items.set_item("ns", "k", "1"))
        other_session(store)
        with pytest.raises(Unavailable, match=r"nothing was written: a pooler .* pool_mode = session"):
            store.run(items.set_item("ns", "k", "2"))
        assert store.run(items.read_text("ns", "k")) == "1"
    finally:
        store.close()


@needs_pgbouncer
def test_behind_a_pooler_in_session_mode_writes_and_notifications_work(pooled, monkeypatch):
    monkeypatch.setattr("scrubjay.store.postgres.listener.FALLBACK_SECONDS", 600)
    url, namespace = pooled("session"), fresh_name()
    here, there = PostgresStore(url), PostgresStore(url)
    try:
        with here.listener.watching(namespace) as wait:
            wait(600)  # it listens
            there.run(items.set_item(namespace, "k", "1"))
            wait(600)
        assert here.run(items.read_text(namespace, "k")) == "1"
        assert here.run(changes.last_change(namespace)) == 1
    finally:
        here.close()
        there.close()


@needs_pgbouncer
@pytest.mark.parametrize("arrives", [True, False])
def test_behind_a_pooler_a_write_whose_commit_is_cut_off_happens_once(pooled, arrives):
    proxy = CommitProxy(postgres().port)
    store = PostgresStore(pooled("session", proxy.port))
    try:
        store.run(lists.append_items("ns", "l", ["0"]))
        proxy.cuts = [arrives]
        store.run(lists.append_items("ns", "l", ["1"]))
        assert (proxy.cuts, store.run(items.read_text("ns", "l"))) == ([], "[0,1]")
    finally:
        store.close()
        proxy.close()


@needs_pgbouncer
def test_behind_a_pooler_in_transaction_mode_writes_are_refused(pooled):
    url = pooled("transaction")
    with pytest.raises(Unavailable, match="pool_mode = session"):  # noqa: PT012 - whichever of them meets it
        for _ in range(10):
            first, second = PostgresStore(url), PostgresStore(url)
            try:
                for store in (first, second):
                    for n in range(5):
                        store.run(items.set_item("ns", "k", str(n)))
            finally:
                first.close()
                second.close()
