"""What PostgreSQL alone has to get right: locks, the order of changes, lost connections, and its own refusals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import unquote

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.pq import TransactionStatus

from commit_proxy import CommitProxy
from harness import Clock, clean_environment, eventually, fresh_name, postgres
from postgres import Postgres
from scrubjay import Memory
from scrubjay.errors import InvalidInput, OutcomeUnknown, QuotaExceeded, ScrubjayError, Unavailable
from scrubjay.models import Usage
from scrubjay.store import api_keys, changes, expiry, items, lists, notes, usage, vectors, word_index
from scrubjay.store.idempotency import IdempotencyKey, run_once
from scrubjay.store.jobs import Job
from scrubjay.store.operation import READ, WRITE, Actor, EngineSql, Quota, operation
from scrubjay.store.postgres import PostgresStore, connection, erase, queries, schema, session, watchdog
from scrubjay.store.postgres.asyncio import WRITE_THREADS, AsyncPostgresStore
from scrubjay.store.postgres.transaction import Transaction, listeners_lock, lock_of
from scrubjay.store.sqlite.queries import CONDITIONS, FILTERED, QUERIES, REPEATED
from scrubjay.validation import NewNote

OF_SQLITE = {"rename_blobs", "drop_blob_index", "create_blobs", "create_blob_index", "copy_blobs", "drop_blobs"}
"""Queries that rebuild the blobs of a file."""
BUILT = [f"{name} where {' and '.join(CONDITIONS)}" for name in FILTERED] + [f"{name} * 2" for name in REPEATED]
"""Queries whose names say what their texts are built of."""


@pytest.fixture
def url() -> str:
    return postgres().fresh_url()


@pytest.fixture
def open_store(url) -> Iterator:
    opened = []

    def open_(at: str = url, **options) -> PostgresStore:
        opened.append(PostgresStore(at, **{"durability": "fast", **options}))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store) -> PostgresStore:
    return open_store()


def in_threads(*calls) -> list:
    """What each call returns or raises, when all run at the same time."""
    start, outcomes = threading.Barrier(len(calls)), [None] * len(calls)

    def run(n, call):
        start.wait()
        try:
            outcomes[n] = call()
        except Exception as error:
            outcomes[n] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@contextlib.contextmanager
def open_transaction(store: PostgresStore, namespace: str) -> Iterator[Transaction]:
    """A write transaction of another client, which commits at the end."""
    session = store.connect()
    transaction = Transaction(session, store.address.schema)
    session.run_blocking(transaction.begin(namespace))
    try:
        yield transaction
        session.run_blocking(transaction.commit())
    finally:
        store.discard(session)


# ---------------------------------------------------------------- queries


@pytest.mark.parametrize("query", [*sorted(QUERIES.keys() - OF_SQLITE), *BUILT])
def test_every_query_is_valid_in_the_schema(query):
    text = queries.text_of(query)
    if text:
        with contextlib.closing(_checker().connect()) as checked:
            checked.execute(f"PREPARE checked AS {text}".encode())


_opened: list[PostgresStore] = []


def _checker() -> PostgresStore:
    if not _opened:
        _opened.append(PostgresStore(postgres().fresh_url()))
        _opened[0].close_idle()
    return _opened[0]


def execute(store: PostgresStore, text: str, params: tuple = ()) -> list:
    """The rows of a statement, executed as the store does."""
    connection = store.take()
    try:
        return connection.run_blocking(connection.exchange([(text, params)]))[0]
    finally:
        store.end(connection)


def rows_handled(store: PostgresStore, query: str, params: tuple) -> float:
    """How many rows the parts of a query's plan read, pass on or leave out."""
    ((plan,),) = execute(store, f"EXPLAIN (ANALYZE, FORMAT JSON) {queries.text_of(query)}", params)
    return sum(
        node["Actual Loops"] * sum(count for name, count in node.items() if re.match("Actual Rows|Rows Removed", name))
        for node in nodes_of(plan[0]["Plan"])
    )


def nodes_of(plan: dict) -> Iterator[dict]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


def test_looking_up_a_note_and_the_blocks_of_words_reads_no_others(store):
    """Also while tables have no statistics, as during an import: the cost of a note does not grow with their number."""
    for n in range(200):
        store.run(notes.remember("ns", NewNote.check(f"word{n} other{n}")))
    rows = execute(store, "SELECT word, max(block) FROM note_words GROUP BY word")
    terms, newest = [word for word, _ in rows], max(block for _, block in rows)
    blocks = (word_index.space_of("ns"), json.dumps(terms), json.dumps([newest]))
    assert rows_handled(store, "find_same_note", ("ns", 1, b"")) <= 10
    # The plan has ten parts, each of which handles a term once.
    assert rows_handled(store, "find_blocks", blocks) <= 20 * len(terms)


def test_placeholders_are_numbered():
    assert queries.text_of(EngineSql("SELECT ?, ? WHERE a = ?1")) == "SELECT $1, $2 WHERE a = $1"


def test_writes_to_different_tables_are_one_statement_and_others_are_not():
    texts = [queries.text_of(name) for name in ("write_item", "save_namespace", "append_change")]
    joined = queries.joined(tuple(texts))
    assert (joined.count("INSERT"), joined.startswith("WITH")) == (3, True)
    assert set(re.findall(r"\$(\d+)", joined)) == {str(n) for n in range(1, 9 + 11 + 6 + 1)}
    deleted = ("erase_note_blobs", "delete_note")
    for others in (("write_item", "resize_list"), deleted, ("rotate_changes",)):
        assert queries.joined(tuple(map(queries.text_of, others))) is None
    assert queries.joined((texts[0],) * (queries.MAX_JOINED + 1)) is None


# ---------------------------------------------------------------- keys


@given(st.lists(st.text(alphabet="\0\1\2ab", max_size=4), max_size=8))
def test_escaped_texts_have_the_order_of_code_points_and_come_back(texts):
    escaped = sorted(connection.escape(text) for text in texts)
    assert [connection.unescape(text) for text in escaped] == sorted(texts)
    assert not any("\0" in text for text in escaped)


def test_keys_are_in_the_order_of_code_points(store):
    keys = [
        "\0",
        "\0\0",
        "\1",
        "\1\0",
        "\2",
        "A",
        "a",
        "a\0b",
        "a\1",
        "ab",
        "Ä",
        "ä",
        "Z",
        "z",
        "ß",
        "日本",
        "😀",
        "\uffff",
    ]
    for key in keys:
        store.run(items.set_item("ns", key, '"v"'))
    assert store.run(items.list_keys("ns")) == sorted(keys)
    assert store.run(items.list_keys("ns", "a")) == sorted(key for key in keys if key.startswith("a"))
    assert store.run(items.list_keys("ns", "", "\0")) == sorted(key for key in keys if key > "\0")
    assert store.find_problems() == []


# ---------------------------------------------------------------- writers


def test_no_update_of_two_clients_is_lost(open_store):
    one, two = open_store(), open_store()

    def write(store, name):
        for n in range(25):
            store.run(items.increment("ns", "total", 1))
            store.run(lists.append_items("ns", "list", [f'"{name}{n}"']))
            store.run(items.set_item("ns", f"{name}{n}", "1"))

    assert in_threads(*(lambda s=s, n=n: write(s, n) for s, n in ((one, "a"), (one, "b"), (two, "c")))) == [None] * 3
    assert one.run(items.read_text("ns", "total")) == "75"
    assert one.run(lists.find_length("ns", "list")) == 75
    assert one.run(usage.read_usage("ns")).keys == 77
    assert one.find_problems() == []


def test_two_clients_that_create_a_namespace_at_once_count_both_keys(open_store):
    one, two = open_store(), open_store()
    for n in range(20):
        writes = [lambda s=s, k=k, n=n: s.run(items.set_item(f"ns{n}", k, "1")) for s, k in ((one, "a"), (two, "b"))]
        in_threads(*writes)
        assert one.run(usage.read_usage(f"ns{n}")).keys == 2


def test_a_quota_is_exact_with_two_clients(open_store):
    stores = [open_store(quota=Quota(writes_per_day=10)) for _ in range(2)]
    write = [lambda s=s, n=n: s.run(items.set_item("ns", f"k{n}", "1")) for n, s in enumerate(stores * 10)]
    outcomes = in_threads(*write)
    assert sum(isinstance(outcome, QuotaExceeded) for outcome in outcomes) == 10
    used = stores[0].run(usage.read_usage("ns"))
    assert (used.keys, used.writes_today) == (10, 10)


def test_the_usage_of_an_api_key_is_exact_over_namespaces(open_store):
    stores = [open_store() for _ in range(2)]
    key = stores[0].run(api_keys.issue("bot")).apikey.id

    def write(store, n):
        operation = items.set_item(f"ns{n}", "k", "1")
        operation.actor = Actor("bot", key)
        store.run(operation)

    assert in_threads(*(lambda s=s, n=n: write(s, n) for n, s in enumerate(stores * 8))) == [None] * 16
    (bot,) = [each for each in stores[0].run(api_keys.list_all()) if each.id == key]
    assert (bot.writes_today, bot.namespaces_in_use) == (16, 16)
    assert stores[0].find_problems() == []


def test_of_two_keys_issued_at_once_one_is_the_first(open_store):
    stores = [open_store() for _ in range(2)]
    issued = in_threads(*(lambda s=s: s.run(api_keys.issue("bot")) for s in stores))
    assert sorted(each.admin_secret is None for each in issued) == [False, True]


def test_writers_of_a_namespace_share_commits(open_store, monkeypatch):
    store, commits = open_store(), []
    real = Transaction.commit
    monkeypatch.setattr(Transaction, "commit", lambda self, *args: commits.append(1) or real(self, *args))
    with open_transaction(store, "ns"):  # they wait for each other here
        commits.clear()
        work = threading.Thread(
            target=lambda: in_threads(
                *(lambda n=n: store.run(lists.append_items("ns", "l", [str(n)])) for n in range(20))
            )
        )
        work.start()
        while sum(len(queue.jobs) for queue in list(store.writer._queues.values())) < 20:
            pass
    work.join()
    assert store.run(lists.find_length("ns", "l")) == 20
    assert len(commits) <= 5, "its own, one for the first writer, one for the others, and a sweep"


def test_one_refused_write_leaves_the_others_of_its_commit_alone(open_store):
    store = open_store(quota=Quota(max_bytes=60))
    with open_transaction(store, "ns"):
        calls = [
            lambda n=n: store.run(items.set_item("ns", f"k{n}", '"' + "x" * 100 * (n == 3) + '"')) for n in range(8)
        ]
        outcomes = []
        work = threading.Thread(target=lambda: outcomes.extend(in_threads(*calls)))
        work.start()
    work.join()
    assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, QuotaExceeded)] == [3]
    assert store.run(usage.read_usage("ns")).keys == 7
    assert store.find_problems() == []


def test_other_namespaces_do_not_wait_for_a_writer(store):
    with open_transaction(store, "ns"):
        assert store.run(items.set_item("other", "k", "1"))[0] == 1
        assert store.run(items.read_text("ns", "k")) is None, "readers never wait for writers"


def test_a_lock_that_is_never_released_is_unavailable(open_store):
    store = open_store(busy_seconds=0.3)
    with open_transaction(store, "ns"), pytest.raises(Unavailable, match="another client has been writing"):
        store.run(items.set_item("ns", "k", "1"))


def test_a_sweep_leaves_what_was_renewed_meanwhile(open_store, monkeypatch):
    clock = Clock()
    store = open_store(clock=clock)
    store.run(items.set_item("ns", "k", "1", 60))
    clock.now += 61
    real, renewed = expiry.open_namespace, []

    def open_namespace(context, namespace):
        if not renewed:  # between the first look and the lock
            renewed.append(PostgresStore.write(other, items.set_item("ns", "k", "2")))
        return real(context, namespace)

    other = open_store(clock=clock)
    monkeypatch.setattr(expiry, "open_namespace", open_namespace)
    store.sweep()
    assert store.run(items.read_text("ns", "k")) == "2"
    assert store.find_problems() == []


# ---------------------------------------------------------------- batches
# A transaction does not read again what it knows, so that the operations of a batch see rows that were not sent yet.


@st.composite
def writes(draw):
    """The arguments of a write, after the namespace, with the function that makes it."""
    key, value = draw(st.sampled_from("ab")), draw(st.sampled_from(["1", "[1,2]", '{"f":1}', '"text"', None]))
    return draw(
        st.sampled_from(
            [
                (items.set_item, key, value, draw(st.sampled_from([None, 60]))),
                (items.set_item, key, "1", None, draw(st.integers(0, 3))),
                (items.delete_item, key),
                (items.increment, key, 1),
                (items.merge_item, key, '{"g":2}'),
                (items.touch_item, key, 60),
                (items.update_items, {"a": "1", "b": None}),
                (items.clear_items,),
                (lists.append_items, key, draw(st.sampled_from([["1"], ["1", "2"], []]))),
                (lists.pop_items, key, 1, True),
                (usage.set_quota, {"max_bytes": draw(st.sampled_from([20, None]))}),
            ]
        )
    )


def outcome_of(job: Job) -> object:
    """What a job returned or raised, without the name of its namespace."""
    try:
        result = job.outcome()
    except ScrubjayError as error:
        return type(error), str(error).replace(job.operation.namespace, "")
    return result._replace(namespace="") if isinstance(result, Usage) else result[0]


def contents_of(store: PostgresStore, namespace: str) -> tuple:
    """What is stored in a namespace, without its times."""
    values = {key: store.run(items.read_text(namespace, key)) for key in store.run(items.list_keys(namespace))}
    versions = {key: store.run(items.find_version(namespace, key)) for key in values}
    found, last = store.run(changes.read_changes(namespace, "", 0))
    logged = [(change.id, change.verb, change.key, change.bytes) for change in found]
    return values, versions, store.run(usage.read_usage(namespace))._replace(namespace=""), logged, last


@given(st.lists(st.tuples(writes(), st.one_of(st.none(), st.integers(1, 3))), min_size=2, max_size=10))
@settings(max_examples=30, deadline=None)
def test_operations_in_one_transaction_do_what_they_do_one_by_one(calls):
    store = _checker()
    actor = Actor("bot", store.run(api_keys.issue("bot")).apikey.id)

    def make_jobs(namespace: str) -> list[Job]:
        jobs = []
        for (make, *arguments), number in calls:
            once = number if make is not usage.set_quota else None
            jobs.append(Job(run_once(make(namespace, *arguments), once and IdempotencyKey("s", once))))
            jobs[-1].operation.actor = actor
        return jobs

    namespaces = fresh_name(), fresh_name()
    together, alone = map(make_jobs, namespaces)
    store.writer.commit(together)
    for job in alone:
        store.writer.commit([job])
    assert [outcome_of(job) for job in together] == [outcome_of(job) for job in alone]
    assert contents_of(store, namespaces[0]) == contents_of(store, namespaces[1])
    assert store.find_problems() == []


def test_an_exchange_raises_the_first_error_and_the_connection_goes_on(store, monkeypatch):
    monkeypatch.setattr(session, "MAX_PREPARED", 2)
    connection = store.connect()
    exchange = lambda *texts: connection.run_blocking(connection.exchange([(text, ()) for text in texts]))  # noqa: E731
    for _ in range(3):  # parsed, prepared, executed
        with pytest.raises(psycopg.errors.DivisionByZero):
            exchange("SELECT 1", "SELECT 1 / 0", "SELECT no_column")
        assert exchange("SELECT 1", "SELECT 2", "SELECT 3", "SELECT 4") == [[(1,)], [(2,)], [(3,)], [(4,)]]
    assert connection.is_idle
    assert connection.run_blocking(connection.exchange([("SELECT 1", ())], [("SELECT 1 / 0", ())])) == [[(1,)]]
    assert exchange("SELECT 2") == [[(2,)]], "an error of what comes after harms nobody"
    store.discard(connection)


# ---------------------------------------------------------------- changes


def test_a_watcher_misses_no_change_of_a_late_commit(open_store):
    store, late = open_store(), open_store()
    _, cursor = store.run(changes.read_changes("ns", "", None))
    with open_transaction(late, "ns") as transaction:
        operation = items.set_item("ns", "late", "1")
        transaction.session.run_blocking(transaction.run(operation, late.context(operation)))
        writer = threading.Thread(target=lambda: store.run(items.set_item("ns", "waits", "1")))
        writer.start()
        store.run(items.set_item("other", "k", "1"))
        seen, cursor = store.run(changes.read_changes("ns", "", cursor))
        assert seen == []
    writer.join()
    found, cursor = store.run(changes.read_changes("ns", "", cursor))
    assert [(change.id, change.key) for change in found] == [(1, "late"), (2, "waits")]
    assert store.run(changes.read_changes("other", "", 0))[0][0].id == 1, "each namespace numbers its own"


def test_whatever_commits_first_a_watcher_sees_all_in_order(open_store):
    stores = [open_store() for _ in range(3)]
    seen, cursor, done = [], 0, threading.Event()

    def watch():
        nonlocal cursor
        while True:
            was_done = done.is_set()
            found, cursor = stores[2].run(changes.read_changes("ns", "", cursor))
            seen.extend(found)
            if was_done:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()

    def write(n):
        for i in range(30):
            stores[n].run(items.set_item("ns", f"{n}-{i}", "1"))
            stores[n].run(items.set_item(f"other{n}", "k", "1"))

    in_threads(*(lambda n=n: write(n) for n in range(2)))
    done.set()
    watcher.join()
    assert [change.id for change in seen] == list(range(1, 61))


def test_erasing_names_the_keys_that_have_the_name(store):
    issued = store.run(api_keys.issue("phone", ("ns",), False, False, {}, True))
    assert erase.erase(store, "ns").keys == [{"id": issued.apikey.id, "name": "phone", "is_revoked": False}]
    store.run(api_keys.revoke(issued.apikey.id, True))
    assert erase.erase(store, "ns").keys == []


def test_the_numbers_of_an_erased_namespace_go_on(store):
    for n in range(3):
        store.run(items.set_item("ns", "k", str(n)))
    erased = erase.erase(store, "ns")
    assert erased.rows["changes"] == 3
    assert "write-ahead log" in erased.limits
    assert store.run(changes.read_changes("ns", "", 3)) == ([], 3)
    store.run(items.set_item("ns", "k", "1"))
    assert [change.id for change in store.run(changes.read_changes("ns", "", 3))[0]] == [4]


def test_a_notification_wakes_a_watcher_of_another_process(open_store, monkeypatch):
    monkeypatch.setattr("scrubjay.store.postgres.listener.FALLBACK_SECONDS", 600)
    here, there = open_store(), open_store()
    with here.listener.watching("ns") as wait:
        wait(600)  # the listener is ready, and calls every watcher
        threading.Timer(0.1, lambda: there.run(items.set_item("ns", "k", "1"))).start()
        wait(600)
    assert here.run(changes.last_change("ns")) == 1


def test_a_write_notifies_only_while_a_process_listens(open_store, monkeypatch):
    monkeypatch.setattr("scrubjay.store.postgres.listener.FALLBACK_SECONDS", 600)
    store, heard = open_store(), []
    with psycopg.connect(postgres().url, autocommit=True) as spy:
        spy.add_notify_handler(lambda each: heard.append(each.payload))
        spy.execute("LISTEN scrubjay")
        store.run(items.set_item("unheard", "k", "1"))
        with open_store().listener.watching("ns") as wait:
            wait(600)  # it listens
            store.run(items.set_item("ns", "k", "2"))
            tokens = [store.listener.token_of(name) for name in ("unheard", "ns")]
            eventually(lambda: spy.execute("SELECT 1") and tokens[1] in heard)  # they come in the order of commits
            assert tokens[0] not in heard


def test_a_process_that_begins_to_listen_during_a_write_looks_after_its_commit(open_store, monkeypatch):
    monkeypatch.setattr("scrubjay.store.postgres.listener.FALLBACK_SECONDS", 600)
    here, there, found = open_store(), open_store(), []

    def watch():
        with here.listener.watching("ns") as wait:
            wait(600)
            found.append(here.run(changes.last_change("ns")))

    with open_transaction(there, "ns") as transaction:
        operation = items.set_item("ns", "k", "1")
        transaction.session.run_blocking(transaction.run(operation, there.context(operation)))
        assert not transaction.has_listeners
        watcher = threading.Thread(target=watch)
        watcher.start()
        number = listeners_lock(here.address.schema)
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND (classid::bigint << 32) + objid::bigint = %s"
        with psycopg.connect(postgres().url, autocommit=True) as spy:
            eventually(lambda: found or spy.execute(waiting, (number,)).fetchone())
    watcher.join()
    assert found == [1]


# ---------------------------------------------------------------- lost connections


@pytest.fixture
def proxy() -> Iterator[CommitProxy]:
    proxy = CommitProxy(postgres().port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("cuts", [[True], [False], [True, True], [False, True], [True, False, True]])
@pytest.mark.parametrize("has_key", [True, False])
def test_a_write_whose_commit_is_cut_off_happens_once(open_store, url, proxy, cuts, has_key):
    through = open_store(url.replace(str(postgres().port), str(proxy.port)))
    through.run(lists.append_items("ns", "l", ["0"]))
    proxy.cuts = list(cuts)
    for n in range(1, 4):
        operation = lists.append_items("ns", "l", [str(n)])
        key = IdempotencyKey("sender", n) if has_key else None
        assert through.run(run_once(operation, key))[0] == n + 1
    assert proxy.cuts == [] or len(cuts) > 3
    assert through.run(items.read_text("ns", "l")) == "[0,1,2,3]"
    assert through.find_problems() == []


def test_after_a_failover_only_writes_with_a_key_are_run_again(open_store, url, proxy, monkeypatch):
    through = open_store(url.replace(str(postgres().port), str(proxy.port)))
    through.run(lists.append_items("ns", "l", ["0"]))
    histories = iter(range(1000))
    monkeypatch.setattr(connection, "_read_history", lambda _session: session.History(1, str(next(histories))))
    proxy.cuts = [True]
    assert through.run(run_once(lists.append_items("ns", "l", ["1"]), IdempotencyKey("s")))[0] == 2
    proxy.cuts = [True]
    with pytest.raises(OutcomeUnknown, match="may have happened or not"):
        through.run(lists.append_items("ns", "l", ["2"]))
    assert through.run(lists.find_length("ns", "l")) == 3


@pytest.mark.parametrize("error", [psycopg.errors.DeadlockDetected, psycopg.errors.ReadOnlySqlTransaction])
def test_a_write_that_fails_for_a_moment_is_started_again(store, monkeypatch, error):
    real, failures = Transaction.run, [error("no"), error("no")]

    def run(self, operation, context):
        result = yield from real(self, operation, context)
        if failures:
            raise failures.pop()
        return result

    monkeypatch.setattr(Transaction, "run", run)
    assert store.run(lists.append_items("ns", "l", ["1"]))[0] == 1
    assert not failures


@operation("broken", WRITE)
def write_nothing(_context, namespace, reads):
    """Violates a constraint of the table, in a statement whose answer is read with the next one, or with the COMMIT."""
    yield "write_item", (namespace, "k", None, None, 1, 1, 1, 1, None)
    if reads:
        yield "find_item", (namespace, "k")


def test_statements_stay_prepared_whatever_psycopg_executes(store):
    """If psycopg had prepared one of its own, it would deallocate all of them at a ROLLBACK."""
    for n in range(8):
        store.run(items.set_item("ns", f"k{n}", "1"))
        session = store.take()
        session.execute("SELECT 1")
        store.put_back(session)
    session = store.take()
    session.execute("BEGIN")
    store.end(session)
    for n in range(8):
        store.run(items.set_item("ns", f"k{n}", "2"))


@pytest.mark.parametrize("reads", [True, False])
def test_an_error_of_a_statement_that_was_sent_with_others_is_its_own(store, reads):
    with pytest.raises(Unavailable, match=r"violates check constraint.*\(23514\)"):
        store.run(write_nothing("ns", reads))
    store.run(items.set_item("ns", "k", "1"))
    assert store.find_problems() == []


def test_a_crash_starts_another_history_and_a_restart_does_not():
    server = Postgres()
    try:
        store = PostgresStore(server.fresh_url(), busy_seconds=60)
        histories = []
        for how in (signal.SIGINT, signal.SIGQUIT, None):
            opened = store.connect()
            histories.append(opened.history)
            store.discard(opened)
            if how:
                server.stop(how)
                server.start()
        store.close()
        assert histories[0] == histories[1] != histories[2], "after a crash ids of transactions are used again"
    finally:
        server.close()


def waiting_for(opened: psycopg.Connection) -> threading.Thread:
    """A thread that waits for an answer that does not come; it ends when its connection is cut."""

    def wait() -> None:
        with pytest.raises(psycopg.OperationalError) as lost:
            opened.execute("SELECT pg_sleep(600)")
        assert connection.is_temporary(lost.value)

    thread = threading.Thread(target=wait)
    thread.start()
    while opened.pgconn.transaction_status != TransactionStatus.ACTIVE:
        time.sleep(0.01)
    return thread


def next_primary(timeline: int):
    """A standby that has become the primary, as a new connection sees it."""
    return lambda _connection: session.History(timeline, "")


def test_connections_to_a_primary_that_was_replaced_are_cut_and_new_ones_refused(store, monkeypatch):
    old = store.connect()
    waiting = waiting_for(old)
    monkeypatch.setattr(connection, "_read_history", next_primary(old.history.timeline + 1))
    new = store.connect()
    waiting.join(60)
    assert not waiting.is_alive()
    assert new.execute("SELECT 1").fetchone() == (1,)
    monkeypatch.setattr(connection, "_read_history", next_primary(old.history.timeline))
    with pytest.raises(psycopg.OperationalError, match="before another one took over") as refused:
        store.connect()
    assert connection.is_temporary(refused.value)
    for each in (old, new):
        store.discard(each)


def test_an_operation_on_a_frozen_primary_ends_when_another_has_taken_over(open_store, monkeypatch):
    monkeypatch.setattr(watchdog, "CHECK_SECONDS", 0.05)
    store = open_store()
    old = store.connect()
    waiting = waiting_for(old)
    monkeypatch.setattr(connection, "_read_history", next_primary(old.history.timeline + 1))
    waiting.join(60)
    assert not waiting.is_alive()
    store.discard(old)


def test_what_fails_after_a_commit_is_not_run_again(open_store, caplog):
    store = open_store()

    def fail(_token):
        raise RuntimeError("the event loop is closed")

    store.listener.subscribe(fail)
    threads = [
        threading.Thread(target=lambda: [store.run(lists.append_items("ns", "l", ["1"])) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.listener.unsubscribe(fail)
    assert store.run(lists.find_length("ns", "l")) == 80
    assert "could not be woken" in caplog.text


@pytest.mark.parametrize("query", ["options=-c%20statement_timeout%3D5s", "application_name=a+b%26c"])
def test_parameters_of_the_url_reach_postgresql_as_they_were_written(query):
    given = psycopg.conninfo.conninfo_to_dict(connection.Address(f"postgresql://h/db?{query}&schema=s").conninfo)
    name, _, value = query.partition("=")
    assert given[name] == unquote(value)
    with pytest.raises(InvalidInput, match="%XX"):
        connection.Address("postgresql://u:p[x@h/db")


def test_a_database_that_restarts_is_used_again():
    server = Postgres()
    try:
        store = PostgresStore(server.fresh_url(), busy_seconds=60)
        store.run(items.set_item("ns", "k", "1"))
        for how in (signal.SIGINT, signal.SIGQUIT):  # in order, and a crash
            server.stop(how)
            restart = threading.Timer(0.3, server.start)
            restart.start()
            assert store.run(items.increment("ns", "k", 1))
            restart.join()
        assert store.run(items.read_text("ns", "k")) == "3"
        server.stop()
        store.busy_seconds = 0.2
        for operation in (items.read_text("ns", "k"), items.set_item("ns", "k", "1")):
            with pytest.raises(Unavailable, match="check the URL, that it is running"):
                store.run(operation)
        store.close()
    finally:
        server.close()


def test_a_child_of_a_fork_and_its_parent_both_write(store):
    store.run(items.set_item("ns", "k", "0"))
    child = multiprocessing.get_context("fork").Process(target=lambda: store.run(items.increment("ns", "k", 1)))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert store.run(items.increment("ns", "k", 1))[0] == 2


# ---------------------------------------------------------------- asyncio


def test_the_asyncio_driver_runs_operations_at_the_same_time(open_store):
    async def work() -> list:
        async with AsyncPostgresStore(open_store()) as served:
            writes = [served.run(lists.append_items("ns", "l", [str(n)])) for n in range(40)]
            await asyncio.gather(*writes, *(served.run(items.set_item(f"ns{n}", "k", "1")) for n in range(10)))
            await served.sweep()
            text = await served.run(items.read_text("ns", "l"))
            refused = items.set_item("ns", "k", "1")
            refused.actor = Actor("bot", quota=Quota(writes_per_day=1))
            with pytest.raises(QuotaExceeded):
                await served.run(refused)
            return sorted(map(int, text[1:-1].split(",")))

    assert asyncio.run(work()) == list(range(40))


@pytest.mark.parametrize("cuts", [[True], [False], [True, False, True]])
@pytest.mark.parametrize("has_key", [True, False])
def test_writes_on_the_loop_whose_commit_is_cut_off_happen_once(open_store, url, proxy, cuts, has_key):
    async def work() -> None:
        async with AsyncPostgresStore(open_store(url.replace(str(postgres().port), str(proxy.port)))) as served:
            await served.run(lists.append_items("ns0", "l", ["0"]))
            proxy.cuts = list(cuts)
            for n in range(1, 4):
                keys = [IdempotencyKey("sender", n) if has_key else None] * 3
                appends = [run_once(lists.append_items(f"ns{i}", "l", [str(n)]), key) for i, key in enumerate(keys)]
                await asyncio.gather(*map(served.run, appends))

    asyncio.run(work())
    store = open_store()
    assert [store.run(items.read_text(f"ns{i}", "l")) for i in range(3)] == ["[0,1,2,3]", "[1,2,3]", "[1,2,3]"]
    assert store.find_problems() == []


def test_writes_on_the_loop_share_transactions(open_store, monkeypatch):
    commits, real = [], Transaction.commit
    monkeypatch.setattr(Transaction, "commit", lambda self, *args: commits.append(1) or real(self, *args))

    async def work() -> None:
        async with AsyncPostgresStore(open_store()) as served:
            await asyncio.gather(*(served.run(items.set_item(f"ns{n % 5}", f"k{n}", "1")) for n in range(50)))

    asyncio.run(work())
    assert len(commits) == 1


@pytest.mark.parametrize(
    "make", [items.set_item, lambda namespace, key, text: items.update_items(namespace, {key: text})]
)
def test_a_namespace_that_another_client_has_locked_holds_up_no_other(open_store, make):
    async def work(other: psycopg.Connection) -> None:
        async with AsyncPostgresStore(open_store(busy_seconds=600)) as served:
            lock = lock_of(served.store.address.schema, "locked")
            other.execute("SELECT pg_advisory_lock(%s)", (lock,))
            many = range(3 * WRITE_THREADS)
            waiting = [asyncio.create_task(served.run(make("locked", f"k{n}", "1"))) for n in many]
            for n in range(3):
                await served.run(make("free", f"k{n}", "1"))
                assert await served.run(items.read_text("free", f"k{n}")) == "1"
                await served.run(items.set_item(f"free{n}", "k", "1"))
            assert not any(task.done() for task in waiting)
            other.execute("SELECT pg_advisory_unlock(%s)", (lock,))
            await asyncio.gather(*waiting)
            assert len(await served.run(items.list_keys("locked"))) == len(many)

    with psycopg.connect(postgres().url, autocommit=True) as other:
        asyncio.run(work(other))


def test_a_transaction_that_waits_for_an_api_key_holds_up_no_other(open_store, monkeypatch):
    monkeypatch.setattr("scrubjay.store.postgres.transaction.SHORT_WAIT", "600s")

    async def work(other: psycopg.Connection) -> None:
        async with AsyncPostgresStore(open_store(busy_seconds=600)) as served:
            await served.run(items.set_item("free", "k", "1"))
            await asyncio.gather(*(served.run(items.read_text("free", "k")) for _ in range(8)))  # opens connections
            key = served.store.run(api_keys.issue("bot")).apikey.id
            other.execute(f"SET search_path = {served.store.address.schema}")
            with other.transaction():
                other.execute("SELECT 1 FROM api_keys WHERE id = %s FOR NO KEY UPDATE", (key,))
                stuck = items.set_item("stuck", "k", "1")
                stuck.actor = Actor("bot", key)
                waiting = asyncio.create_task(served.run(stuck))
                await asyncio.sleep(0.05)  # what begins with it shares its transaction
                for n in range(3):
                    await served.run(items.set_item("free", f"k{n}", "1"))
                assert not waiting.done()
            await waiting

    with psycopg.connect(postgres().url, autocommit=True) as other:
        asyncio.run(work(other))


def test_a_host_that_never_answers_is_unavailable(open_store, monkeypatch):
    monkeypatch.setattr("scrubjay.store.postgres.asyncio.ANSWER_SECONDS", 0.1)

    async def work() -> None:
        async with AsyncPostgresStore(open_store()) as served:
            with pytest.raises(Unavailable, match="no answer for"):
                await served.run(sleep())
            assert await served.run(items.read_text("ns", "k")) is None

    asyncio.run(work())


@operation("sleep", READ)
def sleep(_context):
    yield EngineSql("SELECT pg_sleep(1)"), ()


def test_a_write_of_a_client_that_has_gone_is_not_made(store):
    operation = items.set_item("ns", "k", "1")
    operation.is_wanted = lambda: False
    with pytest.raises(Unavailable, match="nothing was written"):
        store.run(operation)
    assert store.run(items.read_text("ns", "k")) is None


def test_a_get_is_one_round_trip_and_a_set_or_an_append_two(store, monkeypatch):
    exchange, count = session.Session.exchange, []
    monkeypatch.setattr(session.Session, "exchange", lambda *args: count.append(1) or exchange(*args))
    operations = (items.read_text("ns", "k"), items.set_item("ns", "k", "2"), lists.append_items("ns", "l", ["1"]))
    store.run(items.set_item("ns", "k", "1"))
    for each, trips in zip(operations, (1, 2, 2), strict=True):
        count.clear()
        store.run(each)
        assert len(count) == trips


# ---------------------------------------------------------------- opening


def test_a_memory_on_a_database_does_what_one_on_a_file_does(url):
    with Memory("ns", url=url) as memory:
        memory["k"] = {"a": [1, None]}
        memory.append("l", "x")
        memory.remember("Sarah likes tea")
        assert (memory["k"], memory.get("l"), list(memory.keys())) == ({"a": [1, None]}, ["x"], ["k", "l"])
        assert [note.content for note in memory.recall("Sarah")] == ["Sarah likes tea"]
        assert [change.key for change in memory.watch(after=0, timeout=0.1)][:2] == ["k", "l"]
    with pytest.raises(InvalidInput, match="not both"):
        Memory("ns", url=url, path="x")


def test_two_clients_can_create_the_schema_at_once(url):
    stores = in_threads(*(lambda: PostgresStore(url) for _ in range(4)))
    for store in stores:
        store.close()


def test_a_schema_that_is_not_ours_is_not_changed(url):
    name = url.rpartition("=")[2]
    with psycopg.connect(postgres().url, autocommit=True) as other:
        other.execute(f"CREATE SCHEMA {name}")
        other.execute(f"CREATE TABLE {name}.items (id int)")
    with pytest.raises(Unavailable, match=r"another program's tables; name another with \?schema=NAME"):
        PostgresStore(url)


def test_a_newer_schema_is_refused_with_advice(open_store, url):
    store = open_store()
    with store.connect() as changed:
        changed.execute(f"UPDATE {schema.VERSION_TABLE} SET version = 99")
    store.close()
    with pytest.raises(Unavailable, match="pip install -U scrubjay"):
        PostgresStore(url)


@pytest.mark.parametrize(
    ("broken", "advice"),
    [
        (lambda url: url.replace("/postgres?", "/nowhere?"), "nowhere.* does not exist; check its name in the URL"),
        (lambda url: re.sub(r":\d+/", ":1/", url), "check the URL, that it is running"),
        (lambda url: url.replace("postgres@", "nobody@"), "nobody.* does not exist; check the user and the password"),
        (lambda url: f"{url}&connect_timeout=soon", "'soon'; check the parameters in the URL"),
    ],
)
def test_a_database_that_cannot_be_opened_is_refused_with_advice(url, broken, advice):
    with pytest.raises(Unavailable, match=advice):
        PostgresStore(broken(url))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://bob:hunter2@h1,h2:5433/db?schema=s", "postgresql://bob@h1,h2:5433/db?schema=s"),
        ("postgresql://h/db?user=bob&password=hunter2&sslmode=require", "postgresql://h/db?user=bob&sslmode=require"),
        ("postgresql:///db?host=/run/postgresql", "postgresql:///db?host=/run/postgresql"),
        ("postgresql://b%40b@h/db?options=-c%20a%3Db", "postgresql://b%40b@h/db?options=-c%20a%3Db"),
    ],
)
def test_a_url_without_its_password_connects_as_the_same_user(url, shown):
    address = connection.Address(url)
    assert address.without_password == shown
    given, again = (psycopg.conninfo.conninfo_to_dict(each.conninfo) for each in (address, connection.Address(shown)))
    given.pop("password", None)
    assert again == given


def test_no_message_shows_the_password():
    address = connection.Address("postgresql://bob:hunter2@h1,h2:5433/db?schema=s&sslmode=require")
    assert address.name == "postgresql://h1,h2:5433/db?schema=s"
    assert (address.schema, "sslmode=require" in address.conninfo) == ("s", True)


@pytest.mark.parametrize("special", ["#", "?", "/", "%", "@", "[", " ", "%00", "\u2100"])
@pytest.mark.parametrize("start", ["hunter2", "12"])
def test_a_password_that_would_be_misread_is_refused_without_showing_it(start, special):
    with pytest.raises(InvalidInput, match="write special characters of a password as %XX") as refused:
        connection.Address(f"postgresql://bob:{start}{special}xyz@h/db")
    assert not re.search(f"{start}|xyz", str(refused.value))
    assert refused.value.__suppress_context__ or not refused.value.__context__, "a traceback would show it, too"


@pytest.mark.parametrize("query", ["password=hunter2%00", "password=hun&ter2"])
def test_a_password_among_the_parameters_is_not_shown(query):
    with pytest.raises(InvalidInput, match="write special characters of a password as %XX") as refused:
        connection.Address(f"postgresql://h/db?{query}")
    assert "ter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [("h/db?foo=1", 'parameter: "foo"; correct it: its parameters are'), ("bob:hunter2@h s/db", 'found in "h s"')],
)
def test_other_faults_of_a_url_are_named(url, words):
    with pytest.raises(InvalidInput, match=words) as refused:
        connection.Address(f"postgresql://{url}")
    assert "hunter2" not in str(refused.value)


def test_a_url_without_a_host_reaches_libpq():
    given = psycopg.conninfo.conninfo_to_dict(connection.Address("postgresql:///db?host=/run/postgresql").conninfo)
    assert (given["dbname"], given["host"]) == ("db", "/run/postgresql")


def test_an_at_sign_in_a_parameter_is_no_password():
    assert connection.Address("postgresql://h:5433,[fe80::a1]:5432/db?user=bob@h").name.endswith("[fe80::a1]:5432/db")


def test_what_is_not_the_url_of_a_database_is_named_without_its_password():
    with pytest.raises(InvalidInput, match=r"^'/data/agents.db' is not the URL of a PostgreSQL database.* --path"):
        connection.Address("/data/agents.db")
    with pytest.raises(InvalidInput, match=r"^'h/db' is not"):
        connection.Address("mysql://bob:hunter2@h/db?password=hunter2")


def test_a_secret_is_required_where_values_are_encrypted(open_store, url):
    open_store(secret="one").run(items.set_item("ns", "k", '"hidden"'))
    for secret in (None, "two"):
        with pytest.raises(InvalidInput, match="SCRUBJAY_SECRET"):
            open_store(secret=secret)
    plain = postgres().fresh_url()
    open_store(plain).run(items.set_item("ns", "k", "1"))
    with pytest.raises(InvalidInput, match="import them into another"):
        open_store(plain, secret="one")


def test_an_encrypted_value_that_was_moved_cannot_be_read(open_store):
    store = open_store(secret="one")
    store.run(items.set_item("ns", "a", '"hidden"'))
    store.run(items.set_item("ns", "b", '"other"'))
    with store.connect() as changed:
        changed.execute("UPDATE items SET value = (SELECT value FROM items WHERE key = 'a') WHERE key = 'b'")
    with pytest.raises(Unavailable, match="changed, or moved"):
        store.run(items.read_text("ns", "b"))
    with store.connect() as changed:
        changed.execute("UPDATE items SET value = '\"plain\"' WHERE key = 'b'")
    with pytest.raises(Unavailable, match="changed, or moved"):
        store.run(items.read_text("ns", "b"))


def test_a_note_that_is_forgotten_leaves_no_row(store):
    note, _ = store.run(notes.remember("ns", NewNote.check("Sarah likes tea")))
    store.run(vectors.add_vectors("ns", "m", [(int(note.id), b"12")]))
    store.run(notes.forget("ns", note.id))
    with store.connect() as reader:
        for table in ("notes", "note_words", "note_vectors", "erasable_blobs"):
            assert reader.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_without_the_package_the_error_has_the_command_that_installs_it():
    program = """
import sys
sys.modules["psycopg"] = None
from scrubjay import Memory
Memory("ns", url="postgresql://127.0.0.1/db")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False, timeout=60)
    assert "MissingExtra: PostgreSQL is not installed" in done.stderr
    assert 'pip install "scrubjay[postgres]"' in done.stderr
