"""Connections to a server that wait for an answer no longer than a limit.

A server that is stopped, or whose machine went beyond a network that drops all, keeps its connections and
says nothing. Timeouts of its own do not count while it stands still, and keepalives are answered by its
machine. So it is the client that gives up: after some silence it ends the connection from its own side, and
then all is as if the connection had been lost. What goes on slowly is no silence: each piece of an answer
begins the time again.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Generator
from contextlib import suppress
from time import monotonic
from typing import Any

import psycopg

# Of a pipeline whose connection was lost it warns; the same is an error here, and is dealt with.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class ImpatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose server may be silent for `answer_seconds`; `transaction` is the newest one on it."""

    answer_seconds = 60.0
    transaction: Any = None

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        watched = _Watched(gen, self.pgconn.socket, self.answer_seconds)
        try:
            return super().wait(watched.steps(), *args, **kwargs)
        except psycopg.OperationalError as error:
            if watched.given_up:
                said = f"the server gave no answer for {self.answer_seconds:g} seconds"
                raise psycopg.OperationalError(said) from error
            raise


class _Watched:
    """The steps of the driver, which since 3.2.13 are resumed now and then without data."""

    def __init__(self, steps: Generator[Any, Any, Any], descriptor: int, seconds: float) -> None:
        self._steps, self._descriptor, self._seconds = steps, descriptor, seconds
        self.given_up = False

    def steps(self) -> Generator[Any, Any, Any]:
        try:
            wanted = next(self._steps)
            while True:
                end = monotonic() + self._seconds
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
