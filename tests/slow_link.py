"""A link with a delay or a limited rate: a proxy on loopback in front of a server."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time


class SlowLink:
    """Passes bytes between clients and a server: each chunk arrives `delay / 2` seconds later, and the answers come at
    a limited rate.
    """

    def __init__(self, port: int, bytes_per_second: float = 0, delay: float = 0.0) -> None:
        self._port, self._rate, self._delay = port, bytes_per_second, delay
        self.connections = 0
        """How many connections clients have made."""
        self.answered_bytes = 0
        """How many bytes of answers have passed."""
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which also ends a call of accept
        self._listener.close()

    def cut(self) -> None:
        """Close all connections, and accept no more."""
        self.close()
        for end in self._ends:
            with contextlib.suppress(OSError):  # it is closed already
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:  # it has stopped
                    client.close()
                    continue
                self._ends += client, server
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connect(client, server, 0, is_answer=False)
                self._connect(server, client, self._rate, is_answer=True)

    def _connect(self, source: socket.socket, target: socket.socket, rate: float, *, is_answer: bool) -> None:
        under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(source, under_way, rate, is_answer), daemon=True).start()
        threading.Thread(target=self._write, args=(under_way, target), daemon=True).start()

    def _read(
        self, source: socket.socket, under_way: queue.SimpleQueue[tuple[float, bytes]], rate: float, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                self.answered_bytes += len(data) if is_answer else 0
                if rate:
                    time.sleep(len(data) / rate)
                under_way.put((time.monotonic() + self._delay / 2, data))
        under_way.put((0, b""))

    def _write(self, under_way: queue.SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = under_way.get()
                time.sleep(max(due - time.monotonic(), 0))
                if not data:
                    break
                target.sendall(data)
        target.close()
