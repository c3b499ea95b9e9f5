"""A proxy on loopback in front of PostgreSQL, which cuts connections in the middle of a commit."""

from __future__ import annotations

import contextlib
import socket
import threading

SYNC = b"S\0\0\0\4"
"""The message after which PostgreSQL answers all before it."""


class CommitProxy:
    """Forwards connections to PostgreSQL, and cuts one when the client sends COMMIT."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cuts: list[bool] = []
        """For each COMMIT from now on: whether PostgreSQL still gets it."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:  # PostgreSQL does not run
                    client.close()
                    continue
                is_cut, is_done = threading.Event(), threading.Event()
                for forward in (self._forward_answers, self._forward_until_commit):
                    threading.Thread(target=forward, args=(client, server, is_cut, is_done), daemon=True).start()

    def _forward_answers(self, client, server, is_cut, is_done) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if not is_cut.is_set():
                    client.sendall(data)
                elif b"COMMIT" in data:
                    is_done.set()
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _forward_until_commit(self, client, server, is_cut, is_done) -> None:
        with contextlib.suppress(OSError), client, server:
            try:
                while data := client.recv(65536):
                    if b"COMMIT" in data and self.cuts:
                        is_cut.set()
                        if self.cuts.pop(0):
                            server.sendall(data + SYNC)
                            is_done.wait(60)
                        return
                    server.sendall(data)
            except ConnectionResetError:  # a client that was killed
                pass
            # The other thread still reads from it, so closing it would not tell PostgreSQL that the client is gone.
            server.shutdown(socket.SHUT_RDWR)
