"""The PostgreSQL driver under asyncio, for the server: it never blocks the event loop.

Short reads and writes run on the loop itself, which waits for the sockets of their connections: switching to a thread
and back for each of them takes longer than all else. The writes that wait at the same time share a transaction,
whatever their namespaces, except that a namespace which another transaction has locked is left to a thread, where
no other namespace waits for it. Threads also run what may take long, open connections, and try again after a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

import psycopg
from psycopg.waiting import Ready, Wait

from scrubjay.errors import Unavailable
from scrubjay.store.jobs import Job, start_batch
from scrubjay.store.operation import READ, WRITE, WRITES, Operation, WouldBlock
from scrubjay.store.postgres.connection import is_temporary
from scrubjay.store.postgres.session import Session, Waits
from scrubjay.store.postgres.store import PostgresStore
from scrubjay.store.postgres.transaction import Reading, TooSlow, Transaction
from scrubjay.store.postgres.writer import MAX_BATCH

T = TypeVar("T")

LOOP_READS = 8
"""Reads on the loop at a time, each with a connection; others wait for their turn."""
LOOP_TRANSACTIONS = 4
"""Transactions on the loop at a time."""
JOIN_SECONDS = 0.05
"""Seconds that writes wait for the transaction in progress, to form the next one together, before they get their own:
a transaction that is stuck holds them up no longer."""
READ_THREADS, WRITE_THREADS = 4, 16
"""Threads for what cannot run on the loop; each has a connection while it works. A namespace takes one at most."""
MAX_CONNECTIONS = LOOP_READS + LOOP_TRANSACTIONS + READ_THREADS + WRITE_THREADS + 1
"""Connections of a server process at most, with the one that listens; without load it has two."""
GROUP_COMMIT_SHARE = 0.5
"""Group commit waits up to this share of the last commit's duration for more writers."""
MAX_GATHER_SECONDS = 0.05
"""Seconds that it waits at most: a commit that took long, because a standby did not answer, says nothing."""
ANSWER_SECONDS = 15.0
"""Seconds after which a connection on the loop that does not answer is given up. None of its statements wait long for
a lock, so that only a host that is frozen, or a commit that no standby confirms, takes longer."""

Pending = tuple[Job[Any], "asyncio.Future[Any]"]


class AsyncPostgresStore:
    """A PostgresStore for one event loop; open it with `async with`."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self._readers = ThreadPoolExecutor(READ_THREADS, "scrubjay-reader")
        self._writers = ThreadPoolExecutor(WRITE_THREADS, "scrubjay-writer")
        self._reads = asyncio.Semaphore(LOOP_READS)
        self._waiting: dict[str, deque[Pending]] = {}
        """Writes by their namespace; a namespace that has waited longer comes first."""
        self._count = 0  # of the writes in it
        self._busy: set[str] = set()  # namespaces with a transaction in progress
        self._transactions = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Handle | None = None
        self._started_at = 0.0
        self._joining: asyncio.Handle | None = None
        self._expected = 0
        self._closing = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Commit the writes in progress, then close."""
        self._closing = True
        while self._tasks or self._count:
            if not self._tasks:
                self._start()
            await asyncio.wait(self._tasks)
        for threads in (self._writers, self._readers):
            await asyncio.to_thread(threads.shutdown)
        await asyncio.to_thread(self.store.close)

    async def run(self, operation: Operation[T]) -> T:
        if self._closing:
            raise Unavailable("the server is shutting down; try again in a moment")
        if operation.mode in WRITES:
            return await self._write(operation)
        if operation.mode is READ:
            async with self._reads:
                return await self._read(operation)
        return await self._in_thread(self._readers, self.store.read, operation)

    answers_now = False
    """Every statement waits for the network."""

    def run_now(self, _operation: Operation[T]) -> T:
        raise WouldBlock

    def check_ready(self) -> None:
        """Do nothing: a database cannot be replaced under an open connection."""

    async def sweep(self) -> None:
        """Remove what has expired."""
        await self.run_in_thread(PostgresStore.sweep)

    @property
    def folder(self) -> Path | None:
        """The folder for temporary copies of the store: the system's."""
        return None

    async def run_in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function with the store in a thread: for calls that may take minutes."""
        return await asyncio.to_thread(call, self.store, *args)

    async def _in_thread(self, threads: ThreadPoolExecutor, call: Callable[..., T], *args: Any) -> T:
        return await self._loop.run_in_executor(threads, call, *args)

    # ------------------------------------------------------------ reads

    async def _read(self, operation: Operation[T]) -> T:
        """Read on the loop; in a thread if there is no connection, if it failed, or if it may take long."""
        session = self.store.take_idle()
        if session is not None:
            reading = Reading(operation, self.store.context(operation))
            try:
                return await self._wait(session, reading.run(session, on_loop=True))
            except TooSlow:
                pass
            except psycopg.Error as error:
                self._failed(error)
                if session.is_waiting and not session.closed:  # no answer: another connection would get none either
                    raise self.store.explained(error) from error
            finally:
                self.store.put_back(session)
        return await self._in_thread(self._readers, self.store.read, operation)

    def _failed(self, error: psycopg.Error) -> None:
        if is_temporary(error):
            self.store.failed(error)

    async def _wait(self, session: Session, waits: Waits[T]) -> T:
        """Run a generator of a connection; raises psycopg.OperationalError when it does not answer."""
        loop, socket = self._loop, session.pgconn.socket
        give_up_at = loop.time() + ANSWER_SECONDS
        try:
            wanted = next(waits)
            while True:
                ready: asyncio.Future[Ready] = loop.create_future()
                timer = loop.call_at(give_up_at, _resolve, ready, Ready.NONE)
                loop.add_reader(socket, _resolve, ready, Ready.R)
                if wanted & Wait.W:
                    loop.add_writer(socket, _resolve, ready, Ready.W)
                try:
                    state = await ready
                finally:
                    timer.cancel()
                    loop.remove_reader(socket)
                    if wanted & Wait.W:
                        loop.remove_writer(socket)
                if state is Ready.NONE:
                    raise psycopg.OperationalError(f"no answer for {ANSWER_SECONDS:g} s")
                wanted = waits.send(state)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    # ------------------------------------------------------------ writes

    async def _write(self, operation: Operation[T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        pending, namespace = (Job(operation), future), operation.namespace
        if not namespace:  # it locks what it needs by itself
            self._run_task(self._commit_in_thread([pending]))
            return await future
        self._waiting.setdefault(namespace, deque()).append(pending)
        self._count += 1
        if self._starting is None:  # soon: the other requests of this iteration of the loop join
            self._starting = self._loop.call_soon(self._start)
        elif self._count == self._expected:
            self._starting.cancel()
            self._starting = self._loop.call_soon(self._start)
        return await future

    def _run_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start(self) -> None:
        """Start transactions for the namespaces that have none in progress."""
        self._starting, self._expected = None, 0
        for namespace in [name for name, jobs in self._waiting.items() if jobs[0][0].operation.mode is not WRITE]:
            if namespace not in self._busy:
                self._run_task(self._commit_in_thread([self._take(namespace)]))
        if self._may_begin() and (batch := self._next_batch()):
            self._transactions += 1
            self._started_at = self._loop.time()
            self._run_task(self._commit(batch))
        if self._count and self._transactions and self._joining is None:
            self._joining = self._loop.call_later(JOIN_SECONDS, self._start_beside)

    def _may_begin(self) -> bool:
        """Whether no transaction is in progress, or the last one takes so long that others should not wait for it."""
        if not self._transactions:
            return True
        is_late = self._loop.time() >= self._started_at + JOIN_SECONDS
        return is_late and self._transactions < LOOP_TRANSACTIONS

    def _start_beside(self) -> None:
        """Start a transaction beside one that takes too long."""
        self._joining = None
        if self._starting is None and self._transactions < LOOP_TRANSACTIONS:
            self._start()

    def _next_batch(self) -> list[Pending]:
        """Short writes to namespaces that have no transaction in progress; they have one from now on."""
        batch: list[Pending] = []
        for namespace in [name for name in self._waiting if name not in self._busy]:
            while len(batch) < MAX_BATCH and (jobs := self._waiting.get(namespace)):
                if jobs[0][0].operation.mode is not WRITE:
                    break
                batch.append(self._take(namespace))
        return batch

    def _take(self, namespace: str) -> Pending:
        jobs = self._waiting[namespace]
        pending = jobs.popleft()
        if not jobs:
            del self._waiting[namespace]
        self._count -= 1
        self._busy.add(namespace)
        return pending

    async def _commit(self, batch: list[Pending]) -> None:
        """Commit a batch on the loop; what cannot be done there is left to threads."""
        started, jobs = self._loop.time(), [job for job, _ in batch]
        try:
            left = await self._attempt(jobs)
        except Exception as error:  # noqa: BLE001 - no request may wait forever
            left = []
            for job in jobs:
                job.error = error
        self._transactions -= 1
        rest = [each for each in batch if each[0] in left]
        self._finish([each for each in batch if each[0] not in left])
        for namespace in dict.fromkeys(job.operation.namespace for job, _ in rest):
            of_namespace = [each for each in rest if each[0].operation.namespace == namespace]
            self._run_task(self._commit_in_thread(of_namespace))
        if len(batch) > 1:
            took = self._loop.time() - started
            self._gather(len(batch) + self._count, min(took * GROUP_COMMIT_SHARE, MAX_GATHER_SECONDS))
        elif self._starting is None:
            self._start()

    def _gather(self, expected: int, seconds: float) -> None:
        """Wait for the next writes of the clients that just got their responses.

        Without this the first of them starts the next transaction alone, and the others wait for its commit.
        """
        if self._starting is not None:
            self._starting.cancel()
        self._expected = expected
        self._starting = self._loop.call_later(seconds, self._start)

    async def _attempt(self, jobs: list[Job[Any]]) -> list[Job[Any]]:
        """Run jobs in one transaction on the loop; those that are returned have no outcome, and have not happened."""
        session = self.store.take_idle()
        if session is None:
            return jobs
        transaction, batch = Transaction(session, self.store.address.schema), start_batch(jobs)
        writer = self.store.writer
        try:
            left = await self._wait(session, writer.attempt_together(transaction, jobs, batch))
        except psycopg.Error as error:
            self._failed(error)
        except Exception:  # noqa: BLE001, S110 - a thread meets it again, and assigns it to a job
            pass
        else:
            return left if batch.is_done else jobs
        finally:
            await self._release(session)
        if not transaction.is_committing:
            return jobs
        return await self._in_thread(self._writers, writer.resolve, transaction, jobs)

    async def _release(self, session: Session) -> None:
        """Roll back, if a transaction is open, and put the connection back."""
        if not (session.closed or session.is_waiting or session.is_idle):
            with contextlib.suppress(psycopg.Error):
                await self._wait(session, session.exchange([("ROLLBACK", ())]))
        self.store.put_back(session)

    async def _commit_in_thread(self, batch: list[Pending]) -> None:
        jobs = [job for job, _ in batch]
        try:
            await self._in_thread(self._writers, self.store.writer.commit, jobs)
        except Exception as error:  # noqa: BLE001 - no request may wait forever
            for job in jobs:
                job.error = error
        self._finish(batch)
        if self._starting is None:
            self._start()

    def _finish(self, batch: list[Pending]) -> None:
        """Give each request its outcome, and its namespace to the next; one that was cancelled needs none."""
        for job, future in batch:
            self._busy.discard(job.operation.namespace)
            if not future.done():
                if job.error is not None:
                    future.set_exception(job.error)
                else:
                    future.set_result(job.result)


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)
