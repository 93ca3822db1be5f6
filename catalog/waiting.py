"""Connections to a server that wait for an answer no longer than a limit.

A server that is stopped, or whose machine went beyond a network that drops all, keeps its connections and
says nothing. Timeouts of its own do not count while it stands still, and keepalives are answered by its
machine. So it is the client that gives up: after `ANSWER_SECONDS` of silence it ends the connection from
its own side, and then all is as if the connection had been lost (`server.py`). What goes on slowly is no
silence: each piece of an answer begins the time again.

A small question that is asked again and again (`ask`) goes to the driver's library directly, and its `answer`
is waited for no longer either: what the driver adds to it takes four times as long as the question itself.
Between the two the caller may do something else.

A statement that waits for the lock of another writer hears nothing, either. It is asked again on another
connection, and so waits twice as long before it raises.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import suppress
from functools import lru_cache
from select import POLLIN, poll
from time import monotonic
from typing import Any

from elasticscan.base.limits import ANSWER_SECONDS


@lru_cache(maxsize=1)
def connection_type() -> Any:
    """Return the driver's type of connections, with that limit."""
    from psycopg import Connection, OperationalError  # noqa: PLC0415 - an extra, which not all installations have

    class ImpatientConnection(Connection[Any]):
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            watched = _Watched(gen, self.pgconn.socket)
            try:
                return super().wait(watched.steps(), *args, **kwargs)
            except OperationalError as error:
                if watched.given_up:
                    said = f"the server gave no answer for {watched.seconds:g} seconds"
                    raise OperationalError(said) from error
                raise

    return ImpatientConnection


class _Watched:
    """The steps of the driver, which since 3.2.13 are resumed now and then without data."""

    def __init__(self, steps: Generator[Any, Any, Any], descriptor: int) -> None:
        self._steps, self._descriptor = steps, descriptor
        self.seconds, self.given_up = ANSWER_SECONDS, False

    def steps(self) -> Generator[Any, Any, Any]:
        try:
            wanted = next(self._steps)
            while True:
                end = monotonic() + self.seconds
                while not (ready := (yield wanted)):
                    if monotonic() >= end and not self.given_up:
                        self._give_up()
                wanted = self._steps.send(ready)
        except StopIteration as done:
            return done.value

    def _give_up(self) -> None:
        """End both directions, upon which the driver reads that the connection is lost."""
        self.given_up = True
        with suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as line:
            line.shutdown(socket.SHUT_RDWR)


def ask(connection: Any, words: bytes) -> None:
    """Send a question; on an error, here or with the answer, the caller closes the connection.

    It is for connections outside of any transaction, and words that are few. Raises what the driver does.
    """
    line = connection.pgconn
    line.send_query(words)
    if line.flush():
        raise BlockingIOError("the connection takes nothing")


def answer(connection: Any) -> list[bytes | None]:
    """Return the only row of the answer, as the server writes it; raises the driver's errors."""
    line, row = connection.pgconn, list[bytes | None]()
    there = poll()
    there.register(line.socket, POLLIN)
    while True:
        while line.is_busy():  # to take a result that is not there yet would wait without end
            if not there.poll(1_000 * ANSWER_SECONDS):
                raise TimeoutError(f"the server gave no answer for {ANSWER_SECONDS:g} seconds")
            line.consume_input()
        result = line.get_result()
        if result is None:
            return row
        if result.ntuples != 1:
            raise ValueError(f"the answer has {result.ntuples} rows")
        row = [result.get_value(0, column) for column in range(result.nfields)]
