"""Group commit: writes that wait at the same time share one transaction.

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
from scrubjay.store.postgres.listener import Listener
from scrubjay.store.postgres.session import Waits
from scrubjay.store.postgres.transaction import Transaction

T = TypeVar("T")

MAX_BATCH = 64
"""Operations in one transaction: few enough that other servers get their turn at the namespace."""


class _Forgotten(OutcomeUnknown):
    """PostgreSQL has failed over or crashed, and so cannot tell what became of a transaction."""


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
        self, connections: Connections, context_of: Callable[[Operation[Any]], Context], listener: Listener
    ) -> None:
        self._connections = connections
        self._context_of = context_of
        self._listener = listener
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
            self.commit(first_jobs(queue.jobs, MAX_BATCH))
        finally:
            remove_done(queue.jobs)

    def commit(self, jobs: list[Job[Any]]) -> None:
        """Run writes to one namespace in one transaction; each has its own outcome, and none happens in part."""
        batch = start_batch(jobs)
        try:
            self._retry(jobs, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome of these jobs
            if batch.is_done:
                return  # it is committed: what failed came after that
            jobs = [job for job in jobs if not job.batch.is_done]  # without those whose outcome is unknown
            if len(jobs) == 1 or not _is_about_one(error):
                _fail(jobs, error)
                return
        jobs = [job for job in jobs if not job.batch.is_done]
        if not batch.is_done and len(jobs) == 1:  # refused after it had written something
            batch.is_done = True
        elif not batch.is_done:  # one of them made the transaction fail: each gets its own
            for job in jobs:
                self.commit([job])

    def _retry(self, jobs: list[Job[Any]], batch: Batch) -> None:
        """Attempt until the database answers; the batch is not done if a job was refused after it had written."""
        store = self._connections
        for _ in store.retry_while_busy():
            session = transaction = None
            try:
                session = store.take()
                transaction = Transaction(session, store.address.schema)
                return session.run_blocking(self._attempt(transaction, jobs, batch))
            except psycopg.Error as error:
                if not is_temporary(error):
                    raise store.explained(error) from error
                store.failed(error)
                if transaction and transaction.is_committing:
                    jobs = self.resolve(transaction, jobs)
                    if not jobs:
                        batch.is_done = True
                        return None
            except BaseException:  # Ctrl-C
                if session is not None:
                    session.close()
                batch.is_done = batch.is_done or (transaction is not None and self.was_committed(transaction))
                raise
            finally:
                if session is not None:
                    store.end(session)
        raise AssertionError  # retry_while_busy() ends with an error

    def _attempt(self, transaction: Transaction, jobs: list[Job[Any]], batch: Batch) -> Waits[None]:
        yield from transaction.begin(jobs[0].operation.namespace, [job.operation for job in jobs])
        yield from self._run(transaction, jobs, batch)

    def attempt_together(self, transaction: Transaction, jobs: list[Job[Any]], batch: Batch) -> Waits[list[Job[Any]]]:
        """Run writes to several namespaces in one transaction.

        Returns those to namespaces that another transaction has locked; they have not run, and have no part in the
        batch. The batch is not done if a job was refused after it had written.
        """
        namespaces = list(dict.fromkeys(job.operation.namespace for job in jobs))
        locked = yield from transaction.begin_together(namespaces, [job.operation for job in jobs])
        yield from self._run(transaction, [job for job in jobs if job.operation.namespace not in locked], batch)
        return [job for job in jobs if job.operation.namespace in locked]

    def _run(self, transaction: Transaction, jobs: list[Job[Any]], batch: Batch) -> Waits[None]:
        """Run jobs in a transaction that has begun, and commit it."""
        for job in jobs:
            job.error, transaction.has_written = None, False
            is_wanted = job.operation.is_wanted
            if is_wanted is not None and not is_wanted():
                job.error = Unavailable("the client has closed the connection, so nothing was written")
                continue
            try:
                job.result = yield from transaction.run(job.operation, self._context_of(job.operation))
            except ScrubjayError as error:
                job.error = error
                if transaction.has_written:
                    return
        yield from transaction.commit(self._listener.notifications)
        batch.is_done = True
        self._listener.changed(transaction.changed)

    def resolve(self, transaction: Transaction, jobs: list[Job[Any]]) -> list[Job[Any]]:
        """Find the outcome of jobs whose connection was lost during the COMMIT; those that are returned have to run."""
        ran = [job for job in jobs if transaction.has_locked(job.operation.namespace)]
        try:
            if not self.was_committed(transaction):
                return jobs
        except OutcomeUnknown as error:
            again = [job for job in ran if isinstance(error, _Forgotten) and job.operation.sender]
            _fail([job for job in ran if job not in again], error)
            ran = [job for job in ran if job not in again]
        return [job for job in jobs if job not in ran]

    def was_committed(self, transaction: Transaction) -> bool:
        """Whether a transaction whose connection was lost has happened. Raises OutcomeUnknown if that is not known."""
        if not transaction.is_committing:
            return False
        try:
            return self._find_outcome(transaction)
        except OutcomeUnknown:
            raise
        except Unavailable as error:
            raise OutcomeUnknown(f"{error}; this write may have happened or not") from error

    def _find_outcome(self, transaction: Transaction) -> bool:
        """After a failover or a crash the id may belong to another transaction: then the outcome is unknown."""
        store = self._connections
        for _ in store.retry_while_busy():
            session = None
            try:
                session = store.take()
                if session.history != transaction.session.history:
                    raise _Forgotten(
                        f"{store.name} failed over or crashed during a commit, so this write may have happened or not;"
                        " read the value, or give writes an idempotency key, with which they can be repeated"
                    )
                status = transaction.status_on(session)
                if status != "in progress":
                    return status == "committed"
                store.failed(psycopg.OperationalError("the commit is still in progress"))
            except psycopg.Error as error:
                if not is_temporary(error):
                    raise store.explained(error) from error
                store.failed(error)
            finally:
                if session is not None:
                    store.end(session)
        raise AssertionError  # retry_while_busy() ends with an error


def _fail(jobs: list[Job[Any]], error: Exception) -> None:
    batch = start_batch(jobs)
    for job in jobs:
        job.error = error
    batch.is_done = True


def _is_about_one(error: Exception) -> bool:
    """Whether an error of a transaction is about one of its statements, and not about the database.

    The classes are of SQLSTATE: data that does not fit, a constraint, a statement that is not valid, a limit.
    """
    if not isinstance(error, Unavailable):
        return True
    state = getattr(error.__cause__, "sqlstate", None)
    return state is not None and state[:2] in ("22", "23", "42", "54")
