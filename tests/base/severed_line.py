"""A line to a server that counts how often a client waits for an answer, and breaks where a test says."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from pathlib import Path

BLOCK = 1 << 16


class SeveredLine:
    """A proxy on the loopback, in front of a server's Unix socket.

    Attributes:
        trips: how many requests were sent since the last `cut_at`; those sent together count once.
        cuts: how many connections were broken.
    """

    def __init__(self, server: Path) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.trips = self.cuts = 0
        self._at = frozenset[int]()
        self._answered = False
        self._lock = threading.Lock()
        self._ends, self._end = socket.socketpair()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> SeveredLine:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()
        for thread in list(self._threads):
            thread.join()
        self._listener.close()
        self._ends.close()

    def cut_at(self, *trips: int, answered: bool = False) -> None:
        """Break a connection when it sends these requests, counted from 1 and from now over all connections.

        Args:
            trips: the requests; none of them to let all pass.
            answered: the request reaches the server, and the answer is lost; else the request is.
        """
        with self._lock:
            self.trips = self.cuts = 0
            self._at, self._answered = frozenset(trips), answered

    def url(self, database: str, user: str = "elasticscan") -> str:
        place = f"127.0.0.1:{self.port}/{database}?sslmode=disable&gssencmode=disable"
        return f"postgresql+psycopg://{user}@{place}"

    def _accept(self) -> None:
        while self._ends not in select.select([self._listener, self._ends], [], [])[0]:
            client, _ = self._listener.accept()
            self._threads.append(threading.Thread(target=self._carry, args=(client,)))
            self._threads[-1].start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(str(self._server))
            asking, lose_answer, started = False, False, False
            while True:
                ready = select.select([client, server, self._ends], [], [])[0]
                if self._ends in ready:
                    return
                if server in ready:
                    data = server.recv(BLOCK)
                    if not data or lose_answer:
                        return
                    client.sendall(data)
                    asking = False
                if client in ready:
                    data = client.recv(BLOCK)
                    if not data or data[:1] == b"X":  # it says good-bye
                        return
                    if not asking and started and self._is_cut():
                        if not self._answered:
                            return
                        lose_answer = True
                    asking = started = True
                    server.sendall(data)

    def _is_cut(self) -> bool:
        with self._lock:
            self.trips += 1
            cut = self.trips in self._at
            self.cuts += cut
            return cut
