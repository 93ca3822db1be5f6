"""The place that keeps a log: what the log needs of a database, and nothing more.

SqliteHome     a file on a local disk, for the processes of one machine
PostgresHome   a server, for many machines
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self

from elasticscan.base.clock import Clock
from elasticscan.base.errors import CatalogUnavailable
from elasticscan.catalog import tables
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.pool import ConnectionPool, forked_amid_use


class Interrupted(CatalogUnavailable):
    """A transaction was lost, or its file was replaced: nothing was done, and all of it may begin again."""


Row = tuple[Any, ...]
NOTHING: Final[Mapping[str, Any]] = {}


class Transaction(Protocol):
    """Statements that see one snapshot, and that are done together or not at all."""

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        """Return all rows of a statement."""


class HeldConnection:
    """The connection of a transaction; a forked child has none, for it is its parent's."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._process = connection, os.getpid()

    def check_process(self) -> None:
        if self._process != os.getpid():
            raise forked_amid_use()


class LogHome(ABC):
    """A database with the tables of a log. Safe to use from several threads, and after a fork.

    Its errors are ours: `CatalogUnavailable` (try again), `CommitUnknown` (the transaction may have been
    committed), `DiskFull`, `StoreDamaged`, `ReadOnlyStore`.

    Attributes:
        retry_seconds: for how long what cannot be reached is tried again.
        clock: by which things end; a server's is its own.
        file: the one that it lies in; None for a server.
        why_read_only: why nothing can be written; None if something can.
        is_follower: it is a standby of a server, which may show less than was seen.
        types: the database's words for the types of columns, and for the digest before the first record.
    """

    retry_seconds: float
    clock: Clock
    file: Path | None = None
    why_read_only: str | None = None
    is_follower = False
    types: ClassVar[Mapping[str, str]]
    _pool: ConnectionPool[Any]

    @classmethod
    def create(cls, *place: Any) -> Self:
        """Make the tables of a log in a place that has none."""
        home = cls(*place)
        home.make_tables()
        return home

    @abstractmethod
    def make_tables(self) -> None:
        """Make the tables of a log, as far as they are not there."""

    @abstractmethod
    def look(self) -> bool:
        """Return whether the tables of a log are there, and note who may write to them."""

    @abstractmethod
    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        """Return all rows of one statement, a transaction of its own that reads; it is tried again."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Transaction]:
        """Return a transaction that reads."""

    @abstractmethod
    def writing(self, at_once: bool = False) -> AbstractContextManager[Transaction]:
        """Return a transaction that holds the log's lock: one at a time, of all processes.

        One that has to begin `at_once` waits for no other: `CatalogUnavailable`.
        """

    @abstractmethod
    def check_sound(self) -> None:
        """Raise `StoreDamaged` unless the database finds its own file sound."""

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        """Append an entry with its parts in one statement, if the layout is `values["layout"]`.

        Returns (number, time, digest); None if the layout is another one, or the home has no such statement.
        """
        return None

    def is_begun(self) -> bool:
        """Return whether the log has a record."""
        return bool(head_in(self.execute(tables.HEAD))[0] != -1)

    def definitions(self) -> list[str]:
        """Return the statements that make the tables."""
        return [statement.format(**self.types) for statement in tables.CREATE]

    def close(self) -> None:
        """Close the connections that are free."""
        self._pool.close()


def micros(seconds: float) -> int:
    """Return a time in seconds since 1970 as the log has it."""
    return round(seconds * 1e6)


def head_in(rows: Sequence[Row]) -> Row:
    """Return number, digest, time and layout of the head."""
    if len(rows) != 1:
        raise damaged_log(f"it has {len(rows)} heads")
    return rows[0]
