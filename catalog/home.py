"""The place that keeps a log: what the log needs of a database, and nothing more.

SqliteHome     a file on a local disk, for the processes of one machine
PostgresHome   a server, for many machines
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from random import random
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

from elasticscan.base.clock import Clock
from elasticscan.base.errors import (
    AlreadyExists,
    CatalogUnavailable,
    CommitUnknown,
    DiskFull,
    InvalidOption,
    ReadOnlyStore,
)
from elasticscan.catalog import tables
from elasticscan.catalog.entries import GENESIS, damaged_log

T = TypeVar("T")


class Interrupted(CatalogUnavailable):
    """A transaction was lost, or its file was replaced: nothing was done, and all of it may begin again."""


class Refused(CatalogUnavailable):
    """A server lets nobody in like that, now or a minute later: a wrong password, no such database."""


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
        clock: by which things end; a server's is its own.
        file: the one that it lies in; None for a server.
        why_read_only: why nothing can be written; None if something can.
        is_follower: it is a standby of a server, which may show less than was seen.
    """

    retry_seconds: float
    clock: Clock
    file: Path | None
    why_read_only: str | None
    is_follower: bool

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        """Return all rows of one statement, a transaction of its own that reads; it is tried again."""

    def reading(self) -> AbstractContextManager[Transaction]:
        """Return a transaction that reads."""

    def writing(self, at_once: bool = False) -> AbstractContextManager[Transaction]:
        """Return a transaction that holds the log's lock: one at a time, of all processes.

        One that has to begin `at_once` waits for no other: `CatalogUnavailable`.
        """

    def check_sound(self) -> None:
        """Raise `StoreDamaged` unless the database finds its own file sound."""

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        """Append an entry with its parts in one statement, if the layout is `values["layout"]`.

        Returns (number, time, digest); None if the layout is another one, or the home has no such statement.
        """

    def close(self) -> None:
        """Close the connections that are free."""


def micros(seconds: float) -> int:
    """Return a time in seconds since 1970 as the log has it."""
    return round(seconds * 1e6)


def retry(home: LogHome, attempt: Callable[[], T]) -> T:
    """Return what an attempt returns, made again while the home cannot be reached, or an answer is lost.

    Other errors, and a refusal, are raised at once.

    The attempt does no harm if it is made twice. After a lost answer it is made once more at least, so that
    it can look for what it did, and after an interruption. It waits for random times, which grow.
    """
    until, pause, looked = monotonic() + home.retry_seconds, 0.01, False
    while True:
        try:
            return attempt()
        except Refused:
            raise
        except (CatalogUnavailable, CommitUnknown) as error:
            must_look = isinstance(error, (CommitUnknown, Interrupted)) and not looked
            if monotonic() > until and not must_look:
                raise
            looked = looked or must_look
        sleep(pause * random())
        pause = min(1.0, 2 * pause)


def make_tables(sql: Transaction, are_there: bool, where: str, **types: str) -> None:
    """Make the tables of a log, with a database's names of types.

    Raises:
        AlreadyExists: there is a log.
    """
    if not are_there:
        for statement in tables.CREATE:
            sql.execute(statement.format(**types))
        sql.execute(tables.INSERT_HEAD, {"digest": GENESIS})
    elif head_in(sql.execute(tables.HEAD))[0] != -1:
        raise AlreadyExists(f"{where} already holds a store; open it, or choose another place", uri=where)


def head_in(rows: Sequence[Row]) -> Row:
    """Return number, digest, time and layout of the head."""
    if len(rows) != 1:
        raise damaged_log(f"it has {len(rows)} heads")
    return rows[0]


# What databases say, as ours


def unavailable(said: str) -> CatalogUnavailable:
    return CatalogUnavailable(
        f"the catalog could not be used: {said}; check that it is reachable and writable, then try again",
        detail=said,
    )


def disk_full(said: str) -> DiskFull:
    return DiskFull(
        f"the catalog's disk is full ({said}); nothing was committed: free some space and try again"
    )


def not_writable(said: str) -> ReadOnlyStore:
    return ReadOnlyStore(
        f"the catalog cannot be written: {said}; nothing was changed, do this as a user who may", why=said
    )


def unfit_value(said: str) -> InvalidOption:
    return InvalidOption(f"the catalog's database cannot hold a value: {said}; nothing was committed")


def commit_unknown(said: str) -> CommitUnknown:
    return CommitUnknown(
        f"the catalog was lost during a commit ({said}): all or nothing was done; look at history() first, "
        "or repeat a write with txn=",
        detail=said,
    )
