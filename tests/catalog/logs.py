"""Logs without a catalog: their databases, which may have faults, their first records, and appends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from elasticscan.base.errors import CommitUnknown
from elasticscan.catalog import Catalog, IdempotencyKey, Tx, tables
from elasticscan.catalog.database import LogHome, head_in, micros
from elasticscan.catalog.entries import Append, LogEntry, chained
from elasticscan.catalog.failures import retry
from elasticscan.catalog.postgres import PostgresHome
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.catalog.topology_history import first_topology
from elasticscan.metadata import RowsCommitted, StoreCreated, TimeObserved, table_of
from elasticscan.topology import Shard, Tablet
from tests.base.manual_clock import ManualClock

CREATED = StoreCreated("s", "spark", 60.0, (Shard(1, "a", "/a"),), (Tablet(1, 0, 8, 1, 1),))
TIME = Append(TimeObserved())
KILLED, DONE_AND_KILLED, NOT_DONE, ANSWER_LOST = "killed", "done, and killed", "not done", "answer lost"


def begin(home: LogHome, record: StoreCreated = CREATED) -> Catalog:
    """Begin a log with its first record and topology."""
    home.make_tables()
    with Catalog(home).beginning() as transaction:
        transaction.append(Append(record, topology=first_topology(record)))
    return Catalog(home)


def append(log: Catalog, what: Append = TIME, content: str | None = None) -> int:
    """Append a record if the state at the head allows it; a small commit in one statement if possible.

    If an application has already made a commit under the same version, that commit is returned.
    """
    is_small = isinstance(what.record, RowsCommitted) and what.rows is not None and what.app is None
    inline = log.append_inline(lambda _: what) if is_small else None
    if inline is not None:
        return inline

    def attempt() -> int:
        with log.appending() as tx:
            key = None if what.app is None else IdempotencyKey(*what.app, content)
            made = None if key is None else tx.commit_of_txn(table_of(what.record), key)
            return tx.append(what) if made is None else made

    return retry(log.home, attempt)


def entries(home: LogHome, first: int = 0, last: int = 1 << 60) -> list[LogEntry]:
    """The entries with numbers from the first to the last."""
    return Tx(home, None).entries(tables.ENTRIES, first=first, last=last)


class KilledProcess(Exception):
    """Raised to end a process at one point."""


class _Faults:
    """A database whose next writing transactions have faults."""

    faults: tuple[str, ...] = ()

    @contextmanager
    def writing(self) -> Iterator[Any]:
        fault = self._next_fault()
        with super().writing() as transaction:  # type: ignore[misc]
            yield transaction
            self._fail(fault == KILLED, fault == NOT_DONE)
        self._fail(fault == DONE_AND_KILLED, fault == ANSWER_LOST)

    def _next_fault(self) -> str:
        fault, self.faults = (self.faults[0], self.faults[1:]) if self.faults else ("", ())
        return fault

    def _fail(self, is_killed: bool, is_lost: bool) -> None:
        if is_killed:
            raise KilledProcess
        if is_lost:
            raise CommitUnknown("the line was cut during a commit")

    def fill_disk(self, is_full: bool) -> None:
        """Stop the database from growing, or let it grow again."""

    def advance(self, seconds: float) -> None:
        """Move the clock."""


class FileHome(_Faults, SqliteHome):
    """A database in a file, which may append small commits in one statement, as a server does."""

    @classmethod
    def opened(cls, path: Path, draw: Random) -> FileHome:
        home = cls(path, ManualClock(1_700_000_000 + draw.randrange(-100, 100)))
        home.appends_inline = draw.random() < 0.5
        return home

    def append_inline(self, values: Mapping[str, Any]) -> Any:
        with self.writing():
            number, before, time, layout = head_in(self.execute(tables.HEAD))
            if layout != values["layout"]:
                return None
            at = max(micros(self.clock.now()), time + 1)
            digest = chained(before, number + 1, at, values["seal"])
            entry = {"number": number + 1, "time": at, "digest": digest}
            self.execute(tables.INSERT_ENTRY, {**values, **entry})
            for part, content in values["parts"].items():
                self.execute(tables.INSERT_PART, {"number": number + 1, "part": part, "bytes": content})
            self.execute(tables.MOVE_HEAD, entry | {"layout": layout, "before": before})
        return number + 1, at, digest

    def fill_disk(self, is_full: bool) -> None:
        with self._lent() as connection:
            connection.execute(f"PRAGMA max_page_count = {1 if is_full else 1 << 30}")

    def advance(self, seconds: float) -> None:
        self.clock.sleep(seconds)


class ServerHome(_Faults, PostgresHome):
    @classmethod
    def opened(cls, address: str, draw: Random) -> ServerHome:
        return cls(address)

    def append_inline(self, values: Mapping[str, Any]) -> Any:
        fault = self._next_fault()
        self._fail(fault == KILLED, fault == NOT_DONE)
        answer = super().append_inline(values)
        if answer is None:  # the caller uses a transaction next
            self.faults = (fault,)
        else:
            self._fail(fault == DONE_AND_KILLED, fault == ANSWER_LOST)
        return answer
