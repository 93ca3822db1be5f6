"""The place that keeps a log: what the log needs of a database, and nothing more.

SqliteHome     a file on a local disk, for the processes of one machine
PostgresHome   a server, for many machines
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

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
        """Return all rows of one statement, which is a transaction of its own."""

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
