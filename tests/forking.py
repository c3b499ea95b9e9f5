"""Server processes that are forked from one that has imported the service, because importing it takes most of a start.

Such a process is a child of the forking one, and otherwise like any other: it has its own memory, files and signals.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LENGTH = struct.Struct("I")


class ForkedServer:
    """`scrubjay serve` in a forked process, with what tests use of a Popen."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], limits: Mapping[str, float]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        order = {"arguments": list(arguments), "env": dict(env), "cwd": str(Path.cwd()), "limits": dict(limits)}
        self.pid = _forker().fork(order, [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in pipes[:2])
        self._ended = os.fdopen(pipes[2][0], encoding="utf-8")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], (), (), timeout)[0]:
                raise subprocess.TimeoutExpired("scrubjay serve", timeout or 0)
            with self._ended:
                self.returncode = int(self._ended.read())
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it prints until it ends; no server prints so much that it would wait for a reader of one of both."""
        with self.stdout, self.stderr:
            errors, output = self.stderr.read(), self.stdout.read()
        self.wait(timeout)
        return output, errors

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its exit code is on the way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """The process that forks, and a socket to it."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            command = [sys.executable, __file__, str(other.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()])

    def fork(self, order: Mapping[str, Any], files: Sequence[int]) -> int:
        """The process id of a new server, whose output, errors and exit code are written to these files."""
        message = json.dumps(order).encode()
        socket.send_fds(self._socket, [LENGTH.pack(len(message))], files)
        self._socket.sendall(message)
        return int(LENGTH.unpack(_receive(self._socket, LENGTH.size))[0])

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _forker() -> Forker:
    forker = Forker()
    atexit.register(forker.close)
    return forker


def _receive(connection: socket.socket, size: int) -> bytes:
    return connection.recv(size, socket.MSG_WAITALL)


def _serve_forks(connection: socket.socket) -> int:
    """Fork for each order. Returns in the forked process, with the exit code of the server, or when the socket ends."""
    import scrubjay_limits
    import scrubjay_server  # noqa: F401 - so that the forked process has it
    from scrubjay.cli import main

    ends: dict[int, int] = {}

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):  # there are none
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                file = ends.pop(ended[0])
                os.write(file, str(os.waitstatus_to_exitcode(ended[1])).encode())
                os.close(file)

    signal.signal(signal.SIGCHLD, reap)
    gc.collect()
    gc.freeze()  # the garbage collector of a forked process need not look at what it shares
    while True:
        head, files, *_ = socket.recv_fds(connection, LENGTH.size, 3)
        if not head:
            return 0
        order = json.loads(_receive(connection, *LENGTH.unpack(head)))
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until its end can be told
        pid = os.fork()
        if pid == 0:
            break
        ends[pid] = files[2]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        os.close(files[0])
        os.close(files[1])
        connection.sendall(LENGTH.pack(pid))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    connection.close()
    os.dup2(files[0], 1)
    os.dup2(files[1], 2)
    sys.stdout, sys.stderr = (os.fdopen(file, "w", encoding="utf-8", closefd=False) for file in (1, 2))
    sys.stderr.reconfigure(line_buffering=True)
    for file in (*files, *ends.values()):
        os.close(file)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    vars(scrubjay_limits).update(order["limits"])
    return main(["serve", *order["arguments"]])


if __name__ == "__main__":
    sys.exit(_serve_forks(socket.socket(fileno=int(sys.argv[1]))))
