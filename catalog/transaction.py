"""A transaction of the catalog: one state of the log, and the records that are appended to it.

A reading transaction has a state, and queries the database only for what a state does not contain: older
commits, statistics, rows and leases. A writing transaction holds the log's lock. Each record that it appends
changes its state; at its end either all its records become visible or none.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgpack

from elasticscan.base.errors import ContinuationKeyError, NotFound, StoreDamaged
from elasticscan.base.formatting import utc
from elasticscan.base.limits import (
    CLAIM_SECONDS,
    CLOCK_SLACK_SECONDS,
    STREAM_LEASE_SECONDS,
    TRUSTED_JUMP_SECONDS,
)
from elasticscan.catalog import leases, tables
from elasticscan.catalog.checkpoints import head_of, replay_newest
from elasticscan.catalog.checks import check
from elasticscan.catalog.codec import pack_value
from elasticscan.catalog.database import NOTHING, LogHome, Row, micros
from elasticscan.catalog.entries import (
    GENESIS,
    STATISTICS,
    Append,
    LogEntry,
    chained,
    check_part,
    damaged_log,
    drafted,
    is_sealed,
    linked_entry,
    row_digest,
)
from elasticscan.catalog.failures import Interrupted
from elasticscan.catalog.fold import apply
from elasticscan.catalog.leases import ENDLESS, Lease
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.store_time import Times, observe
from elasticscan.catalog.table_state import InlineCommit
from elasticscan.metadata import MAX_FILES, Record, TableInfo, TimeObserved, file_changes

T = TypeVar("T")

_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit.

    Attributes:
        kind: create, write, delete, merge (upserts and deletions in one commit) or overwrite.
        rows, bytes: the size of what it wrote, deletions included.
        created_at: its time in seconds since 1970, a whole number of microseconds.
        user_metadata: the metadata that the writer passed.
    """

    number: int
    table: int
    kind: str
    rows: int
    bytes: int
    created_at: float
    user_metadata: Mapping[str, str] = field(default_factory=dict, hash=False)


class IdempotencyKey(NamedTuple):
    """The key of a write; a table accepts only the first write with the same key.

    Attributes:
        application, version: the pair that is unique in a table.
        content: a description of the rows, if known; a repeated write must have the same one.
    """

    application: str
    version: int
    content: str | None = None


class Tx:
    """One catalog transaction: all its changes become visible together, or none.

    Args:
        begun: the state at its beginning; None before the first record, which creates the store.

    Attributes:
        now: the time of this process's clock; use `times` for stamps and expiry.
        files_at: the shards at which its records have added files.
    """

    def __init__(self, home: LogHome, begun: StoreState | None) -> None:
        self.home, self.now = home, home.clock.now()
        self._state = self._begun = begun
        self._first: bytes | None = None  # the id of the first appended record
        self._leases: dict[str, list[Row]] = {}  # the rows that it wrote, by the lease's id
        self.files_at = frozenset[int]()

    @property
    def state(self) -> StoreState:
        """The state of the store, with the changes of this transaction."""
        assert self._state is not None, "the first record creates the store"
        return self._state

    # Append, in a transaction that writes

    def append(self, what: Record | Append) -> int:
        """Append a record and return its number. Raises the errors of `checks`."""
        clock, state = micros(self.home.clock.now()), self._state
        what = what if isinstance(what, Append) else Append(what)
        row, parts = drafted(what, clock)
        if state is not None:
            check(state, what.record)
        number, at = self._next_number(what), time_after(state, clock)
        before = GENESIS if state is None else state.digest
        entry = LogEntry(number, at, row, chained(before, number, at, row_digest(row)))
        self._state = apply(state, entry, what.record)
        values = row._asdict() | {"number": number, "time": at, "digest": entry.digest}
        self.execute(tables.INSERT_ENTRY, values)
        for part, content in parts.items():
            self.execute(tables.INSERT_PART, {"number": number, "part": part, "bytes": content})
        if what.topology is not None:
            values = {"number": what.topology[0], "record": number, "bytes": what.topology[1]}
            self.execute(tables.PUT_TOPOLOGY, values)
        self._first = self._first or row.id
        changes = file_changes(what.record).values()
        self.files_at |= {added.shard for files in changes for added in files.added}
        return number

    def _next_number(self, what: Append) -> int:
        if what.beyond is not None:
            return max(what.beyond, self.state.number) + 1
        return 0 if self._state is None else self._state.number + 1

    def finish(self) -> None:
        """Move the head to the last appended record, if there is one."""
        if self._first is not None:
            values = dict(zip(("number", "digest", "time", "layout"), head_of(self.state), strict=True))
            before = GENESIS if self._begun is None else self._begun.digest
            self.execute(tables.MOVE_HEAD, values | {"before": before})

    def was_committed(self) -> bool:
        """Return whether it was committed, as seen by the thread's present transaction."""
        if self._first is not None:
            after = -1 if self._begun is None else self._begun.number
            return bool(self.execute(tables.BY_ID, {"after": after, "id": self._first}))
        return all(leases.lease_rows(self.home, lease) == rows for lease, rows in self._leases.items())

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        """Execute a statement and return all rows; a writing transaction sees its own changes."""
        return self.home.execute(statement, values)

    # Time

    @property
    def times(self) -> Times:
        """This process's clock, and the store's accepted time."""
        return Times(self.now, observe(self.state.belief, self.now).accepted_at)

    def observe_time(self) -> None:
        """Append the clock's time if it changes the claim, or the accepted time by an hour (`store_time`)."""
        if self._first is not None:  # its records have the time already
            return
        before = self.state.belief
        after = observe(before, self.now)
        is_later = after.accepted_at > before.accepted_at + CLAIM_SECONDS
        if is_later or after.claimed_at != before.claimed_at:
            self.append(TimeObserved())

    # Commits: entries of the log. A state has only the newest of a table, and sums

    def commits(
        self,
        table: int | None = None,
        after: int = -1,
        upto: int = _ALL,
        most: int = _ALL,
        newest: bool = False,
    ) -> tuple[Commit, ...]:
        """Return commits of one table or of all, with numbers in (after, upto], oldest first.

        If there are more than `most`, returns the oldest of them, or the newest if `newest` is set. Compares
        them with the table's newest number and sums in the state; raises `StoreDamaged` if one is missing.
        """
        statement = tables.NEWEST_COMMITS if newest else tables.OLDEST_COMMITS
        values = {"table": table or 0, "after": after, "upto": min(upto, self.state.number), "most": most}
        entries = sorted(self.entries(statement, **values), key=lambda entry: entry.number)
        found = tuple(map(_commit, entries))
        known = self.state.tables.get(table or 0)
        if known is None or not after < known.newest <= upto or (len(found) == most and not newest):
            return found
        if most and (not found or found[-1].number != known.newest):
            raise damaged_log(f"the newest commit of table {table} is not there")
        sums = sum(commit.rows for commit in found), sum(commit.bytes for commit in found)
        if after < 0 and len(found) < most and sums != (known.rows, known.bytes):
            raise damaged_log(f"the commits of table {table} have a gap")
        return found

    def newest_upto(self, table: int, upto: int) -> Commit:
        """Return the newest commit of a table that a snapshot contains."""
        found = self.commits(table, upto=upto, most=1, newest=True)
        if not found:
            raise damaged_log(f"table {table} has no commits up to {upto}")
        return found[0]

    def lag(self, table: int, after: int) -> tuple[int, int, float | None]:
        """Return (number of commits, their rows, time of the oldest) of a table after a commit."""
        if after >= self.state.tables[table].newest:
            return 0, 0, None
        values = {"table": table, "after": after, "upto": self.state.number}
        ((count, rows),) = self.execute(tables.WRITTEN_BETWEEN, values)
        (oldest,) = self.commits(table, after, most=1)
        return int(count), int(rows), oldest.created_at

    def commit_of_txn(self, table: int, txn: IdempotencyKey) -> int | None:
        """Return the number of the commit with an idempotency key, or None.

        Raises:
            ContinuationKeyError: the commit has another `content`, so it wrote other rows.
        """
        values = {"table": table, "app_id": txn.application, "app_version": txn.version}
        rows = self.execute(tables.BY_APP, values)
        if not rows:
            return None
        number = int(rows[0][0])
        (entry,) = self.entries(tables.ENTRIES, first=number, last=number)
        content = _metadata_of(entry).get("content")
        if None not in (content, txn.content) and content != txn.content:
            raise ContinuationKeyError(
                f"micro-batch {txn.version} was committed before, by commit {number}, with other rows: the "
                "checkpoint is older; start with a new checkpoint",
                table=table,
                batch=txn.version,
                commit=number,
            )
        return number

    def has_forerunner(self, table: TableInfo, application: str) -> bool:
        """Return whether an application wrote to a dropped table of the same name."""
        dropped = self.state.dropped.items()
        same_name = [number for number, other in dropped if other.name == table.name]
        every = [{"table": number, "app_id": application} for number in same_name]
        return any(self.execute(tables.OF_APP, values) for values in every)

    def newest_commit_at(self, timestamp: float) -> int:
        """Return the number of the newest commit at or before a time; 0 if there is none."""
        time = micros(timestamp)
        time -= time / 1e6 > timestamp  # round down: a float just below a commit's time is before it
        rows = self.execute(tables.BEFORE_TIME, {"time": time})
        found = self.commits(upto=int(rows[0][0]), most=1, newest=True) if rows else ()
        return found[0].number if found else 0

    def commit_at(self, timestamp: float) -> int:
        """Return `newest_commit_at` for the time of a snapshot that a user asked for.

        Raises:
            NotFound: the time is in the future, so its newest commit is not known yet.
        """
        # If a writer's clock was ahead, the newest commit's time is, too; it must still find that commit.
        now = max(self.times.stamp, self.made_at(self.state.commit) or 0.0)
        if timestamp > now + CLOCK_SLACK_SECONDS:
            raise NotFound(
                f"the time {utc(timestamp)} is still to come (now it is {utc(now)}); give a past time with "
                "its zone, or leave it out for the newest snapshot",
                time=timestamp,
                now=now,
                kind="snapshot",
            )
        return self.newest_commit_at(timestamp)

    def made_at(self, snapshot: int) -> float | None:
        """Return the time of the newest commit in a snapshot; None if it has no commit."""
        found = self.commits(upto=snapshot, most=1, newest=True)
        return found[0].created_at if found else None

    def entries(self, statement: str, **values: int) -> list[LogEntry]:
        """Return the entries of a statement, each checked against the digest before it."""
        return [linked_entry(row) for row in self.execute(statement, values)]

    # Rows

    def rows_of(self, table: int, commits: Collection[InlineCommit]) -> dict[int, bytes]:
        """Return the rows of commits that have rows in the log, by number.

        Raises:
            Interrupted: a flush has moved some to files meanwhile, and the log has dropped them.
            StoreDamaged: some are missing or damaged.
        """
        digests = {commit.number: commit.digest for commit in commits}
        values = {"table": table, "after": min(digests, default=0) - 1}
        rows = self.execute(tables.ROWS_OF, values) if commits else ()
        found = {number: content for number, content in rows if number in digests}
        for number, content in found.items():
            if not is_sealed(content, digests[number]):
                raise damaged_log(f"the rows of record {number} are not what was written")
        missing = digests.keys() - found.keys()
        if not missing:
            return found
        now = replay_newest(self.home, self._begun)
        if missing.isdisjoint(commit.number for commit in now.memory(table)):
            raise Interrupted("rows were moved from the log to files while they were read; try again")
        raise damaged_log(f"the rows of record {min(missing)} are missing")

    def statistics(self, table: int, files: Collection[int]) -> dict[int, bytes]:
        """Return the packed statistics of files of a table, by file id.

        Damaged statistics are left out: they only save work, and no row depends on them.
        """
        found, numbers = dict[int, bytes](), {file // MAX_FILES for file in files}
        if not numbers:
            return found
        values = {"table": table, "first": min(numbers), "last": max(numbers)}
        for content, *columns in self.execute(tables.STATISTICS, values):
            with suppress(StoreDamaged):
                entry = linked_entry(columns)
                check_part(entry, STATISTICS, content)
                bodies = msgpack.unpackb(content, strict_map_key=False)
                found |= {entry.number * MAX_FILES + ordinal: body for ordinal, body in bodies.items()}
        return {file: found[file] for file in found.keys() & set(files)}

    # Leases

    def leases(self, kind: type[T]) -> list[Lease[T]]:
        """Return the leases of a kind, expired ones included. Raises `StoreDamaged` if any is damaged."""
        rows = sorted(leases.lease_rows(self.home))
        return [leases.lease_of(kind, row) for row in rows if row[0].startswith(leases.lease_id(kind, ""))]

    def lease(self, kind: type[T], name: str) -> Lease[T] | None:
        """Return a lease, expired or not, or None."""
        rows = leases.lease_rows(self.home, leases.lease_id(kind, name))
        return leases.lease_of(kind, rows[0]) if rows else None

    def put_lease(self, name: str, value: object, seconds: float | None = None) -> None:
        """Insert or replace a lease. Without `seconds` it does not expire, but ends with its owner."""
        until = ENDLESS if seconds is None else micros(self.times.stamp + seconds)
        self._put_lease((leases.lease_id(type(value), name), pack_value(value), until))

    def _put_lease(self, row: Row) -> None:
        leases.put_lease(self.home, row)
        self._leases[row[0]] = [row]

    def remove_lease(self, kind: type, name: str) -> None:
        self._remove_lease(leases.lease_id(kind, name))

    def _remove_lease(self, id: str) -> None:  # noqa: A002
        self.execute(tables.DELETE_LEASE, {"id": id})
        self._leases[id] = []

    def is_valid(self, lease: Lease[Any]) -> bool:
        """Return whether a lease has not expired."""
        return lease.until >= micros(self.times.expiry)

    def end_expired_leases(self) -> int:
        """Remove expired leases; return their number.

        A process whose clock was far ahead may have written a lease that would keep a snapshot for years.
        Such a lease is shortened to the longest valid time once clock and accepted time agree.
        """
        now = micros(self.times.expiry)
        latest = micros(self.now + STREAM_LEASE_SECONDS + TRUSTED_JUMP_SECONDS)
        rows = leases.lease_rows(self.home)
        ended = [id for id, *_, until in rows if until < now]  # noqa: A001
        for id in ended:  # noqa: A001
            self._remove_lease(id)
        for row in rows:
            if self.times.agreed and latest < row[-1] < ENDLESS:
                self._put_lease((*row[:-1], latest))
        return len(ended)


def time_after(state: StoreState | None, clock: int) -> int:
    """Return the time of the next record: the clock, but later than the record before."""
    return clock if state is None else max(clock, state.time + 1)


def _metadata_of(entry: LogEntry) -> dict[str, Any]:
    """Return the metadata of a commit: `user`, and the `content` of its idempotency key."""
    metadata: dict[str, Any] = json.loads(entry.row.metadata or "{}")
    return metadata


def _commit(entry: LogEntry) -> Commit:
    row, user = entry.row, _metadata_of(entry).get("user", {})
    assert row.operation is not None, "a commit has one"
    return Commit(entry.number, row.table, row.operation, row.rows, row.size, entry.time / 1e6, user)
