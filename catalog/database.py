"""The place that keeps a log: what the log needs of a database, and nothing more.

SqliteHome     a file on a local disk, for the processes of one machine
PostgresHome   a server, for many machines
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from elasticscan.base.clock import Clock
from elasticscan.catalog import tables
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.pool import ConnectionPool

Row = tuple[Any, ...]
NOTHING: Final[Mapping[str, Any]] = {}


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
        appends_inline: it has a statement that appends a small commit, `append_inline`.
        types: the database's words for the types of columns, and for the digest before the first record.
    """

    retry_seconds: float
    clock: Clock
    file: Path | None = None
    why_read_only: str | None = None
    is_follower = appends_inline = False
    types: ClassVar[Mapping[str, str]]
    _pool: ConnectionPool[Any]

    @abstractmethod
    def make_tables(self) -> None:
        """Make the tables of a log, as far as they are not there."""

    def remove_empty(self) -> None:
        """Remove a log that was not begun, as far as it takes a place; not what others have begun there."""
        return

    @abstractmethod
    def look(self) -> bool:
        """Return whether the tables of a log are there, and note who may write to them."""

    @abstractmethod
    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        """Return all rows of a statement: within the transaction of this thread, if it has one.

        Else the statement is a transaction of its own, which reads, and is tried again.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[Self]:
        """Have this thread see one snapshot in all that it executes."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Self]:
        """Hold the log's lock, one thread of all processes at a time; commit at the end."""

    def check_sound(self) -> None:
        """Raise `StoreDamaged` unless the database finds its own file sound; a server checks by itself."""
        return

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        """Append an entry with its parts in one statement, if the layout is `values["layout"]`.

        Returns (number, time, digest); None if the layout is another one.
        """
        raise NotImplementedError

    @property
    def in_transaction(self) -> bool:
        """True if this thread is in a transaction of this log."""
        return self._pool.held is not None

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
    if len(rows) == 1:
        return rows[0]
    raise damaged_log(f"it has {len(rows)} heads")
