"""Catalog transactions: tables, and their commits.

Tables are parts of the state. Of commits the state knows the newest alone, and sums; the others are entries
of the log, read up to the state's number, so that all of a transaction sees one moment.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from elasticscan.base.errors import (
    AlreadyExists,
    ContinuationKeyError,
    NotFound,
    SnapshotExpired,
    WriteConflict,
)
from elasticscan.base.limits import CLOCK_SLACK_SECONDS
from elasticscan.base.showing import utc
from elasticscan.base.suggestions import suggest
from elasticscan.catalog import tables
from elasticscan.catalog.appending import Append
from elasticscan.catalog.codec import pack_value
from elasticscan.catalog.entries import LogEntry, damaged_log, linked_entry
from elasticscan.catalog.fragments import FragmentTx
from elasticscan.catalog.home import Row, micros
from elasticscan.metadata import RowsCommitted, StagedFragment, TableDefined, TableDropped, TableInfo
from elasticscan.topology import SlotSet

_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit, made at a whole microsecond.

    Attributes:
        kind: create, write, delete, merge (it upserts some rows and deletes others) or overwrite.
        rows, bytes: what it wrote, deletions included.
        created_at: when, in seconds since 1970.
        user_metadata: what its writer said of it.
    """

    number: int
    table: int
    kind: str
    rows: int
    bytes: int
    created_at: float
    user_metadata: Mapping[str, str] = field(default_factory=dict, hash=False)


class IdempotencyKey(NamedTuple):
    """The name of a write, of which the store carries out the first attempt alone.

    Attributes:
        application, version: the pair that a table takes once.
        content: what the version stands for, if that is known; it must be the same when it is repeated.
    """

    application: str
    version: int
    content: str | None = None


class CommitTx(FragmentTx):
    """Reads and changes of tables and commits."""

    # Tables

    def create_table(self, name: str, info: TableInfo) -> TableInfo:
        self.append(TableDefined(self._to_be_made(replace(info, name=name)), 0, "create"))
        return self.table(name)

    def reserve_table(self, info: TableInfo) -> TableInfo:
        """Reserve a table that is not visible yet, for files to be staged; an equal definition gets the same.

        The form of its files is that which was asked for last.
        """
        table = self._to_be_made(info)
        if self.reserved_table(table.id) != table:
            self.append(TableDefined(table, 0, reserved=True))
        return table

    def _to_be_made(self, info: TableInfo) -> TableInfo:
        """Return a new table with its id, which is that of one that was reserved with the same definition."""
        if any(table.name == info.name for table in self.tables()):
            raise AlreadyExists(
                f"the store already has a table {info.name!r}; drop it or choose another", table=info.name
            )
        for table in self.state.reserved.values():
            same = replace(info, id=table.id)
            if pack_value(same) == pack_value(replace(table, compression=info.compression)):
                return same
        return replace(info, id=self.state.newest_ids.get("table", 0) + 1)

    def reserved_table(self, table_id: int) -> TableInfo | None:
        """Return a table that was reserved and not entered."""
        return self.state.reserved.get(table_id)

    def enter_reserved(self, table_id: int) -> bool:
        """Let a reserved table be seen from here on; False when it is no longer one.

        Raises:
            WriteConflict: another table has taken its name.
        """
        table = self.reserved_table(table_id)
        if table is None:
            return False
        if any(other.name == table.name for other in self.tables()):
            raise WriteConflict(
                f"table {table.name!r} was made with another definition meanwhile; nothing was committed: "
                "write again into that table",
                table=table.name,
            )
        self.append(TableDefined(table, 0, "create"))
        return True

    def redefine(self, table: TableInfo) -> TableInfo:
        """Give a table its next definition; checked by the caller, in this transaction."""
        self.append(TableDefined(table, self.state.table(table.id).info.definition))
        return table

    def set_retention(self, table: int, seconds: float | None) -> None:
        """Set the time for which a table's snapshots stay readable; None for as long as the store's."""
        self.redefine(replace(self.state.table(table).info, retention_seconds=seconds))

    def set_compression(self, table: int, compression: str | None) -> None:
        """Set the form of a table's next files."""
        self.redefine(replace(self.state.table(table).info, compression=compression))

    def drop_table(self, name: str) -> None:
        """Drop a table, with its tags, its indexes and its files."""
        self.append(TableDropped(self.table(name).id))

    def table(self, name: str) -> TableInfo:
        for table in self.state.tables.values():
            if table.info.name == name:
                return table.info
        hint = suggest(name, [table.name for table in self.tables()]) or "; Store.tables() lists them"
        raise NotFound(f"the store has no table {name!r}{hint}", table=name, kind="table")

    def table_by_id(self, table_id: int) -> TableInfo | None:
        table = self.state.tables.get(table_id)
        return None if table is None else table.info

    def tables(self, of: Collection[int] | None = None) -> tuple[TableInfo, ...]:
        """Return the tables that are not dropped, by name; `of` some ids alone."""
        every = (table.info for table in self.state.tables.values())
        return tuple(sorted((t for t in every if of is None or t.id in of), key=lambda table: table.name))

    # Commits

    def add_commit(
        self,
        table: int,
        kind: str,
        staged: Sequence[StagedFragment],
        txn: IdempotencyKey | None = None,
        user_metadata: Mapping[str, str] | None = None,
        rows: bytes | None = None,
    ) -> int:
        """Make staged fragments visible under the next number, all at once.

        With `rows`, these are kept in the log, and `staged` says of which slots they are, and how many.
        """
        commit = self.commit_to_append(table, kind, staged, txn, user_metadata, rows)
        return self.writing.append(commit).number

    def commit_to_append(
        self,
        table: int,
        kind: str,
        staged: Sequence[StagedFragment],
        txn: IdempotencyKey | None,
        user_metadata: Mapping[str, str] | None,
        rows: bytes | None,
    ) -> Append:
        """Return the commit that `add_commit` makes."""
        size = sum(fragment.bytes + sum(run.bytes for run in fragment.runs) for fragment in staged)
        record = RowsCommitted(
            table,
            kind,
            self.state.table(table).info.definition,
            rows=sum(fragment.rows for fragment in staged),
            bytes=size if rows is None else len(rows),
            tombstones=sum(fragment.tombstones for fragment in staged),
            overwrites=kind == "overwrite",
        )
        if rows is None:
            record = replace(record, files=self.commit_files(staged))
        else:
            record = replace(record, slots=SlotSet.union(fragment.slots for fragment in staged))
        said = {"content": None if txn is None else txn.content, "user": dict(user_metadata or {})}
        metadata = json.dumps(said, sort_keys=True) if any(said.values()) else None
        return Append(record, rows, None if txn is None else txn[:2], metadata)

    def commit_of_txn(self, table: int, txn: IdempotencyKey) -> int | None:
        """Return the commit that was made under an idempotency key, if there is one.

        Raises:
            ContinuationKeyError: there is, but it stood for other rows.
        """
        asked = {"table": table, "app_id": txn.application, "app_version": txn.version}
        rows = self.execute(tables.BY_APP, asked)
        if not rows:
            self._check_absent(table, txn)
            return None
        number = int(rows[0][0])
        (entry,) = self._entries(tables.ENTRIES, first=number, last=number)
        content = _said(entry).get("content")
        if None not in (content, txn.content) and content != txn.content:
            raise ContinuationKeyError(
                f"micro-batch {txn.version} was committed before by commit {number}, with another "
                "end: its checkpoint is old; start with a new checkpoint",
                table=table,
                batch=txn.version,
                commit=number,
            )
        return number

    def _check_absent(self, table: int, txn: IdempotencyKey) -> None:
        """Raise if a commit is there that the database's index does not name: it would be made twice.

        An application's versions grow, as a rule: then only entries that came since the last look are read.
        """
        key, upto = (table, txn.application), self.begun.number
        seen, newest = self.log.applications.get(key, (-1, -1))
        after = seen if txn.version > newest else -1
        versions = [version for _, version in self._of_app(table, txn.application, after, upto)]
        if txn.version in versions:
            raise damaged_log(f"an index does not name the commit {txn.application!r}, {txn.version}")
        self.log.remember_application(key, max(seen, upto), max([newest, *versions]))

    def _of_app(self, table: int, application: str, after: int, upto: int) -> list[Row]:
        """Return number and version of an application's commits, read without an index."""
        asked = {"table": table, "app_id": application, "after": after, "upto": upto}
        return self.execute(tables.OF_APP, asked)

    def has_forerunner(self, table: TableInfo, application: str) -> bool:
        """Return whether an application wrote to a table of this name before this one was made."""
        dropped = self.state.dropped.items()
        same_name = [number for number, other in dropped if other.name == table.name]
        return any(self._of_app(number, application, -1, self.begun.number) for number in same_name)

    def commits(self, table: int) -> tuple[Commit, ...]:
        """All commits of a table, oldest first."""
        found = self.commits_after(table, 0, _ALL)
        known = self.state.table(table)
        if (sum(c.rows for c in found), sum(c.bytes for c in found)) != (known.rows, known.bytes):
            raise damaged_log(f"the commits of table {table} have a gap")
        return found

    def newest_commits(self, table: int, most: int) -> tuple[Commit, ...]:
        """Return the newest commits of a table, oldest first, at most so many."""
        found = self._entries(tables.NEWEST_OF_TABLE, table=table, most=most)
        self._check_newest(table, found[:1], most > 0)
        return tuple(map(_commit, reversed(found)))

    def commits_after(self, table: int, after: int, most: int) -> tuple[Commit, ...]:
        """Return the next commits of a table beyond one, oldest first, at most so many."""
        found = self._entries(tables.COMMITS_OF_TABLE, table=table, after=after, most=most)
        self._check_newest(table, found[-1:], len(found) < most and after < self.last_commit_of(table))
        return tuple(map(_commit, found))

    def newest_upto(self, table: int, upto: int) -> Commit:
        """Return the newest commit of a table up to a snapshot of it."""
        upto = min(upto, self.state.number)
        found = self._entries(tables.NEWEST_OF_TABLE, table=table, upto=upto, most=1)
        if not found:
            raise damaged_log(f"table {table} has no commits up to {upto}")
        self._check_newest(table, found, upto >= self.last_commit_of(table))
        return _commit(found[0])

    def _check_newest(self, table: int, found: Sequence[LogEntry], is_newest: bool) -> None:
        """Raise unless what was found is the newest commit of a table, where it should be that."""
        if is_newest and [entry.number for entry in found] != [self.last_commit_of(table)]:
            raise damaged_log(f"the newest commit of table {table} is not there")

    def last_commit_of(self, table: int) -> int:
        """Return the newest commit of a table."""
        return self.state.table(table).newest

    def behind(self, table: int, after: int) -> tuple[int, int, float | None]:
        """Return (commits, rows, time of the oldest) of a table beyond a commit: a stream's lag."""
        if after >= self.last_commit_of(table):
            return 0, 0, None
        asked = {"table": table, "after": after, "upto": self.state.number}
        ((count, rows),) = self.execute(tables.WRITTEN_BETWEEN, asked)
        (oldest,) = self.commits_after(table, after, 1)
        return int(count), int(rows), oldest.created_at

    def written(self) -> dict[int, tuple[int, int]]:
        """(rows, bytes) that the commits of each table wrote, deletions included."""
        return {number: (table.rows, table.bytes) for number, table in self.state.tables.items()}

    def committed_bytes(self, table: int) -> int:
        """Return how many bytes the commits of a table brought."""
        known = self.state.tables.get(table)
        return 0 if known is None else known.bytes

    def overwrites(self, table: int) -> tuple[int, ...]:
        """Return commits that replaced the whole table: at and after each, rows of earlier ones are gone.

        Of those up to the oldest snapshot the newest alone: no other is asked for.
        """
        known = self.state.tables.get(table)
        return () if known is None else known.overwrites

    def floors(self) -> dict[int, tuple[int, int]]:
        """(commit, rows written before it) of the newest overwrite of each table that has one."""
        known = self.state.tables.items()
        return {number: (t.overwrites[-1], t.overwritten) for number, t in known if t.overwrites}

    # Times

    def commit_before(self, timestamp: float) -> int:
        """Return the newest commit made at or before a time; 0 when there is none."""
        time = micros(timestamp)
        time -= time / 1e6 > timestamp  # rounded down: the next float before a commit's time is before it
        rows = self.execute(tables.BEFORE_TIME, {"time": time})
        found = self._newest_commit(int(rows[0][0])) if rows else None
        number = 0 if found is None else found.number
        beyond = self._entries(tables.OLDEST_COMMIT, after=number)
        if (found is not None and found.time > time) or any(entry.time <= time for entry in beyond):
            raise damaged_log(f"commit {number} is not found by its time")
        return number

    def commit_at(self, timestamp: float) -> int:
        """As `commit_before`, of a time that a user gave for a snapshot.

        Raises:
            NotFound: the time is still to come, and what will be the newest then is not known.
        """
        # Where a clock was ahead, the newest commit's time may be, too, and stands for that commit.
        now = max(self.times.stamp, self.state.commit_time / 1e6)
        if timestamp > now + CLOCK_SLACK_SECONDS:
            raise NotFound(
                f"the time {utc(timestamp)} is still to come (now it is {utc(now)}); give a past time with "
                "its zone, or leave it out for the newest snapshot",
                time=timestamp,
                now=now,
                kind="snapshot",
            )
        return self.commit_before(timestamp)

    def made_at(self, snapshot: int) -> float:
        """Return the time of the newest commit of a snapshot; 0 where there is none."""
        found = self._newest_commit(snapshot)
        return 0.0 if found is None else found.time / 1e6

    def commit_times(self, snapshots: Iterable[int]) -> dict[int, float]:
        """Return the times of snapshots, as far as there are commits up to them; see `made_at`."""
        made = {snapshot: self.made_at(snapshot) for snapshot in set(snapshots)}
        return {snapshot: at for snapshot, at in made.items() if at}

    def kept_seconds(self, snapshot: int, retention_seconds: float) -> float:
        """For how much longer the retention period alone keeps a snapshot readable."""
        found = [] if snapshot >= self.state.commit else self._entries(tables.OLDEST_COMMIT, after=snapshot)
        return retention_seconds - sum(self.times.stamp - overtaken.time / 1e6 for overtaken in found)

    def check_snapshot(self, table: TableInfo, snapshot: int) -> None:
        """Raise unless the snapshot exists and is still kept."""
        newest = self.versions()[1]
        if not table.created_commit <= snapshot <= newest:
            raise NotFound(
                f"table {table.name!r} has snapshots {table.created_commit} to {newest}, not {snapshot}",
                table=table.name,
                snapshot=snapshot,
                kind="snapshot",
            )
        if snapshot < table.oldest_snapshot:
            raise SnapshotExpired(
                f"snapshot {snapshot} of table {table.name!r} is no longer kept, the oldest is "
                f"{table.oldest_snapshot}; read a newer snapshot, or load the DataFrame again",
                table=table.name,
                snapshot=snapshot,
                oldest=table.oldest_snapshot,
            )

    def _newest_commit(self, upto: int) -> LogEntry | None:
        """Return the newest commit, of any table, up to a number."""
        found = self._entries(tables.NEWEST_COMMIT, upto=min(upto, self.state.number))
        return found[0] if found else None

    def _entries(self, statement: str, **asked: int) -> list[LogEntry]:
        """Return entries, each of which proves that it was appended, up to the state's number."""
        values = {"after": -1, "upto": self.state.number, **asked}
        return [linked_entry(row) for row in self.execute(statement, values)]


def _said(entry: LogEntry) -> dict[str, Any]:
    """Return what a commit's writer said with it: `user` metadata, and the `content` of its `txn`."""
    said: dict[str, Any] = json.loads(entry.row.metadata or "{}")
    return said


def _commit(entry: LogEntry) -> Commit:
    row, said = entry.row, _said(entry)
    assert row.operation is not None, "a commit has one"
    made = entry.time / 1e6
    return Commit(entry.number, row.table, row.operation, row.rows, row.size, made, said.get("user", {}))
