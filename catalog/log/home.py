"""The place that keeps a log: what the log needs of a database, and nothing more.

SqliteHome     a file on a local disk, for the processes of one machine
PostgresHome   a server, for many machines
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from random import random
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

from elasticscan.base.errors import CatalogUnavailable, CommitUnknown

T = TypeVar("T")

Row = tuple[Any, ...]
NOTHING: Mapping[str, Any] = {}


class Transaction(Protocol):
    """Statements that see one snapshot, and that are done together or not at all."""

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        """Return all rows of a statement."""


class LogHome(Protocol):
    """A database with the tables of a log.

    Its errors are ours: `CatalogUnavailable` (try again), `CommitUnknown` (the transaction may have been
    committed), `DiskFull`, `StoreDamaged`, `ReadOnlyStore`.

    Attributes:
        retry_seconds: for how long what cannot be reached is tried again.
    """

    retry_seconds: float

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        """Return all rows of one statement, a transaction of its own that reads; it is tried again."""

    def reading(self) -> AbstractContextManager[Transaction]:
        """Return a transaction that reads."""

    def writing(self) -> AbstractContextManager[Transaction]:
        """Return a transaction that holds the log's lock: one at a time, of all processes."""

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        """Append an entry with its parts in one statement, if the layout is `values["layout"]`.

        Returns (number, time, digest); None if the layout is another one, or the home has no such statement.
        """

    def now(self) -> int:
        """Return the time in microseconds since the epoch, UTC."""

    def close(self) -> None: ...


def retry(home: LogHome, attempt: Callable[[], T]) -> T:
    """Return what an attempt returns, made again while the home cannot be reached, or an answer is lost.

    The attempt does no harm if it is made twice. After a lost answer it is made once more at least, so that
    it can look for what it did. It waits for random times, which grow.
    """
    until, pause, looked = monotonic() + home.retry_seconds, 0.01, False
    while True:
        try:
            return attempt()
        except (CatalogUnavailable, CommitUnknown) as error:
            must_look = isinstance(error, CommitUnknown) and not looked
            if monotonic() > until and not must_look:
                raise
            looked = looked or must_look
        sleep(pause * random())
        pause = min(1.0, 2 * pause)
