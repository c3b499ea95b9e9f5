"""Group commit by namespace: writes to a namespace that wait at the same time share one transaction.

Writes to one namespace have to wait for each other anyway, up to the commit of each with its fsync. The thread that has
the namespace commits the writes of all threads that wait for it. Other namespaces do not wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg

from scrubjay.errors import OutcomeUnknown, ScrubjayError, Unavailable
from scrubjay.store.jobs import Batch, Job, first_jobs, remove_done, start_batch
from scrubjay.store.operation import Context, Operation
from scrubjay.store.postgres.connection import Connections, is_temporary
from scrubjay.store.postgres.transaction import Transaction

T = TypeVar("T")

MAX_BATCH = 64
"""Operations in one transaction: few enough that other servers get their turn at the namespace."""


class _Queue:
    """The writes to a namespace that wait."""

    __slots__ = ("jobs", "lock", "users")

    def __init__(self) -> None:
        self.jobs: deque[Job[Any]] = deque()
        self.lock = threading.Lock()
        """Held by the thread that commits."""
        self.users = 0


class Writer:
    """The queues of writes to a database, and their commits."""

    def __init__(
        self,
        connections: Connections,
        context_of: Callable[[Operation[Any]], Context],
        notify: Callable[[psycopg.Connection[Any], set[str]], None],
    ) -> None:
        self._connections = connections
        self._context_of = context_of
        self._notify = notify
        self._queues: dict[str, _Queue] = {}
        self._lock = threading.Lock()  # of the table of queues

    def locks(self) -> list[Any]:
        return [*(queue.lock for queue in list(self._queues.values())), self._lock]

    def run(self, operation: Operation[T]) -> Job[T]:
        """Run an operation, in a transaction with those of other threads on its namespace."""
        job = Job(operation)
        with self._queue_of(operation.namespace) as queue:
            queue.jobs.append(job)
            try:
                while not job.batch.is_done:
                    with queue.lock:
                        if not job.batch.is_done:
                            self._commit_queue(queue)
            except BaseException:  # Ctrl-C while waiting: a write that was not acknowledged must not happen later
                with contextlib.suppress(ValueError):
                    queue.jobs.remove(job)
                raise
        return job

    @contextlib.contextmanager
    def _queue_of(self, namespace: str) -> Iterator[_Queue]:
        with self._lock:
            queue = self._queues.setdefault(namespace, _Queue())
            queue.users += 1
        try:
            yield queue
        finally:
            with self._lock:
                queue.users -= 1
                if not queue.users:
                    del self._queues[namespace]

    def _commit_queue(self, queue: _Queue) -> None:
        """Commit the queue, with its lock held. Jobs leave it only when they are done."""
        remove_done(queue.jobs)
        try:
            self._commit(first_jobs(queue.jobs, MAX_BATCH))
        finally:
            remove_done(queue.jobs)

    def _commit(self, jobs: list[Job[Any]]) -> None:
        """Run write operations in one transaction; each has its own outcome, and none happens in part."""
        batch = start_batch(jobs)
        try:
            self._retry(jobs, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome of these jobs
            if batch.is_done:
                return  # it is committed: what failed came after that
            if len(jobs) == 1 or not _is_about_one(error):
                for job in jobs:
                    job.error = error
                batch.is_done = True
        if not batch.is_done and len(jobs) == 1:  # refused after it had written something
            batch.is_done = True
        elif not batch.is_done:  # one of them made the transaction fail: each gets its own
            for job in jobs:
                self._commit([job])

    def _retry(self, jobs: list[Job[Any]], batch: Batch) -> None:
        """Attempt until the database answers; the batch is not done if a job was refused after it had written."""
        store = self._connections
        for _ in store.retry_while_busy():
            connection = None
            try:
                connection = store.take()
                return self._attempt(Transaction(connection, store.address.schema), jobs, batch)
            except psycopg.Error as error:
                if not is_temporary(error):
                    raise store.explained(error) from error
                store.failed(error)
            finally:
                if connection is not None:
                    store.end(connection)
        raise AssertionError  # retry_while_busy() ends with an error

    def _attempt(self, transaction: Transaction, jobs: list[Job[Any]], batch: Batch) -> None:
        transaction.begin(jobs[0].operation.namespace)
        for job in jobs:
            job.error, transaction.has_written = None, False
            is_wanted = job.operation.is_wanted
            if is_wanted is not None and not is_wanted():
                job.error = Unavailable("the client has closed the connection, so nothing was written")
                continue
            try:
                job.result = transaction.run(job.operation, self._context_of(job.operation))
            except ScrubjayError as error:
                job.error = error
                if transaction.has_written:
                    return
        self._end(transaction, jobs, batch)
        self._notify(transaction.connection, transaction.changed)

    def _end(self, transaction: Transaction, jobs: list[Job[Any]], batch: Batch) -> None:
        """COMMIT. If the connection is lost meanwhile, ask PostgreSQL whether it happened."""
        history = self._connections.history_of(transaction.connection)
        try:
            transaction.commit()
            batch.is_done = True
        except BaseException as error:  # also Ctrl-C
            if isinstance(error, psycopg.Error) and not transaction.connection.closed:
                raise  # PostgreSQL has refused the COMMIT, and rolled back
            transaction.connection.close()
            if self._was_committed(transaction, history, jobs):
                batch.is_done = True
                if not isinstance(error, psycopg.Error):
                    raise
            else:
                raise

    def _was_committed(self, transaction: Transaction, history: str, jobs: list[Job[Any]]) -> bool:
        """The same, but a failure to find out is OutcomeUnknown."""
        try:
            return self._find_outcome(transaction, history, jobs)
        except OutcomeUnknown:
            raise
        except Unavailable as error:
            raise OutcomeUnknown(f"{error}; this write may have happened or not") from error

    def _find_outcome(self, transaction: Transaction, history: str, jobs: list[Job[Any]]) -> bool:
        """Whether a transaction was committed whose COMMIT got no answer.

        After a failover or a crash its id may belong to another transaction. Then writes with an idempotency key are
        run again, which is harmless if they have happened, and for others the outcome is unknown.
        """
        store = self._connections
        for _ in store.retry_while_busy():
            connection = None
            try:
                connection = store.take()
                if store.history_of(connection) != history:
                    if all(job.operation.is_repeatable for job in jobs):
                        return False
                    raise OutcomeUnknown(
                        f"{store.name} failed over or crashed during a commit, so this write may have happened or not;"
                        " read the value, or give writes an idempotency key, with which they can be repeated"
                    )
                status = transaction.status_on(connection)
                if status != "in progress":
                    return status == "committed"
                store.failed(psycopg.OperationalError("the commit is still in progress"))
            except psycopg.Error as error:
                if not is_temporary(error):
                    raise store.explained(error) from error
                store.failed(error)
            finally:
                if connection is not None:
                    store.end(connection)
        raise AssertionError  # retry_while_busy() ends with an error


def _is_about_one(error: Exception) -> bool:
    """Whether an error of a transaction is about one of its statements, and not about the database.

    The classes are of SQLSTATE: data that does not fit, a constraint, a statement that is not valid, a limit.
    """
    if not isinstance(error, Unavailable):
        return True
    state = getattr(error.__cause__, "sqlstate", None)
    return state is not None and state[:2] in ("22", "23", "42", "54")
