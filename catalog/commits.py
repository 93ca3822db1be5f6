"""Catalog transactions: tables, commits, leases."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import bindparam, func, select

from elasticscan.base.errors import (
    AlreadyExists,
    ContinuationKeyError,
    NotFound,
    SnapshotExpired,
    TableChanged,
    WriteConflict,
)
from elasticscan.base.limits import CLOCK_SLACK_SECONDS, TRUSTED_JUMP_SECONDS
from elasticscan.base.showing import utc
from elasticscan.base.suggestions import suggest
from elasticscan.catalog.believed_time import next_commit_time
from elasticscan.catalog.definitions import packed_columns, unpacked_columns
from elasticscan.catalog.failures import damaged, decoding
from elasticscan.catalog.fragments import ask_condemned, ask_fragments
from elasticscan.catalog.pipeline import Question
from elasticscan.catalog.sealed import SUMS_OF_KINDS, RowQuery, ask_group, ask_sums
from elasticscan.catalog.tables import COMMITS, OVERWRITES, REPORT, commits, indexes, leases, shards, tables
from elasticscan.catalog.tags import TagTx
from elasticscan.metadata import IndexEvent, StagedFragment, TableInfo


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


_NEWEST = RowQuery(
    commits, commits.c.table_id == bindparam("table"), order_by=commits.c.number.desc(), limit=1
)
_OF_ONE = commits.alias()
_OF_EACH = select(func.max(_OF_ONE.c.number)).where(_OF_ONE.c.table_id == tables.c.id).scalar_subquery()
_NEWEST_OF_EACH = RowQuery(commits, commits.c.number.in_(select(_OF_EACH).select_from(tables)))
_MADE_BEFORE = RowQuery(
    commits,
    commits.c.created_at <= bindparam("timestamp"),
    order_by=commits.c.created_at.desc(),
    limit=1,
)
_UPTO = RowQuery(
    commits,
    commits.c.table_id == bindparam("table"),
    commits.c.number <= bindparam("upto"),
    order_by=commits.c.number.desc(),
    limit=1,
)
# The kinds of groups that a commit changes or counts; with it begins a step of upkeep that is due.
_KINDS = (
    "commits",
    "fragments",
    "histograms",
    "index_runs",
    "indexes",
    "overwrites",
    "statistics",
    "upkeep_steps",
)
_RESERVED = 0  # the commit that made a table which is not visible yet


class IdempotencyKey(NamedTuple):
    """The name of a write, of which the store carries out the first attempt alone.

    Attributes:
        application, version: the pair that a table takes once.
        content: what the version stands for, if that is known; it must be the same when it is repeated.
    """

    application: str
    version: int
    content: str | None = None


class CommitTx(TagTx):
    """Tables, commits, leases."""

    # Tables

    def create_table(self, name: str, info: TableInfo) -> TableInfo:
        self._enter_table(self.reserve_table(replace(info, name=name)))
        return self.table(name)

    def reserve_table(self, info: TableInfo) -> TableInfo:
        """Reserve a table that is not visible yet, for files to be staged; an equal definition gets the same.

        The form of its files is that which was asked for last.
        """
        every = self._rows.all(tables)
        if any(row.name == info.name and row.dropped_at is None for row in every):
            raise AlreadyExists(
                f"the store already has a table {info.name!r}; drop it or choose another", table=info.name
            )
        row = {
            "name": info.name,
            **packed_columns(info),
            "primary_key": json.dumps(info.primary_key),
            "shard_key": json.dumps(info.shard_key),
            "created_commit": _RESERVED,
        }
        for stored in every:
            if all(getattr(stored, column) == value for column, value in row.items()):
                if stored.compression != info.compression:  # files of several forms serve one table
                    self._change_table(stored.id, compression=info.compression)
                return replace(info, id=stored.id)
        number = self._next("next_table")
        unseen = {"id": number, "oldest_snapshot": _RESERVED, "dropped_at": self.times.stamp}
        self._rows.insert(tables, row | unseen | {"compression": info.compression})
        return replace(info, id=number)

    def reserved_table(self, table_id: int) -> TableInfo | None:
        """Return a table that was reserved and not entered."""
        row = self._rows.one(tables, id=table_id, created_commit=_RESERVED)
        return None if row is None else _table_info(row)

    def enter_reserved(self, table_id: int) -> bool:
        """Let a reserved table be seen from here on; False when it is no longer one.

        Raises:
            WriteConflict: another table has taken its name.
        """
        table = self.reserved_table(table_id)
        if table is None:
            return False
        if any(row.name == table.name and row.dropped_at is None for row in self._rows.all(tables)):
            raise WriteConflict(
                f"table {table.name!r} was made with another definition meanwhile; nothing was committed: "
                "write again into that table",
                table=table.name,
            )
        self._enter_table(table)
        return True

    def _enter_table(self, table: TableInfo) -> None:
        commit = self._next_commit()
        seen = {"created_commit": commit, "oldest_snapshot": commit, "dropped_at": None}
        self._change_table(table.id, **seen)
        self._add_commit_row(commit, table.id, "create", {"rows": 0, "bytes": 0})

    def redefine(self, table: TableInfo) -> TableInfo:
        """Give a table its next definition; checked by the caller, in this transaction."""
        self._change_table(table.id, **packed_columns(table))
        self.bump_layout()
        return table

    def drop_table(self, name: str) -> None:
        table = self.table(name)
        self._change_table(table.id, dropped_at=self.times.stamp)
        self._drop_table_files(table.id)
        self.drop_tags(table.id)
        for index in self.indexes(table.id):
            self.transition_index(index, IndexEvent.DROPPED)
        self.bump_layout()

    def table(self, name: str) -> TableInfo:
        row = self._rows.one(tables, name=name, dropped_at=None)
        if row is None:
            names = [table.name for table in self.tables()]
            hint = suggest(name, names) or "; Store.tables() lists them"
            raise NotFound(f"the store has no table {name!r}{hint}", table=name, kind="table")
        return _table_info(row)

    def table_by_id(self, table_id: int) -> TableInfo | None:
        row = self._rows.one(tables, id=table_id, dropped_at=None)
        return None if row is None else _table_info(row)

    def tables(self, of: Collection[int] | None = None) -> tuple[TableInfo, ...]:
        """Return the tables that are not dropped; `of` some ids, without reading the others."""
        rows = sorted(self._of(tables, "id", of or ()), key=lambda row: row.name)
        if of is None or len(rows) != len(of):  # one that damage hides is missed among all
            every = self._rows.all(tables, order_by=tables.c.name)
            rows = [row for row in every if of is None or row.id in of]
        return tuple(_table_info(row) for row in rows if row.dropped_at is None)

    def _change_table(self, table: int, **new: Any) -> None:
        row = self._rows.one(tables, id=table)
        if row is None:
            raise damaged(f"table {table} is not there")
        self._rows.update(tables, [(row, new)])

    # Commits

    def add_commit(
        self,
        table: int,
        kind: str,
        staged: Sequence[StagedFragment],
        txn: IdempotencyKey | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Make staged fragments visible under the next commit number, all at once."""
        self._rows.note_sums(_KINDS, table)
        number = self._next_commit()
        size = sum(fragment.bytes + sum(run.bytes for run in fragment.runs) for fragment in staged)
        wrote = {"rows": sum(fragment.rows for fragment in staged), "bytes": size}
        said = json.dumps(dict(user_metadata), sort_keys=True) if user_metadata else None
        names = ("app_id", "app_version", "app_content")
        once = {} if txn is None else dict(zip(names, txn, strict=True))
        self._add_commit_row(number, table, kind, wrote | once | {"user_metadata": said})
        self.add_fragments(table, staged, number, number)
        return number

    def commit_of_txn(self, table: int, txn: IdempotencyKey) -> int | None:
        """Return the commit that was made under an idempotency key, if there is one.

        Raises:
            ContinuationKeyError: there is, but it stood for other rows.
        """
        named = {"table_id": table, "app_id": txn.application, "app_version": txn.version}
        row = self._rows.one(commits, missing_is_checked=False, **named)
        if row is None:
            return None
        if None not in (row.app_content, txn.content) and row.app_content != txn.content:
            raise ContinuationKeyError(
                f"micro-batch {txn.version} was committed before by commit {row.number}, with another "
                "end: its checkpoint is old; start with a new checkpoint",
                table=table,
                batch=txn.version,
                commit=row.number,
            )
        return int(row.number)

    def has_forerunner(self, table: TableInfo, application: str) -> bool:
        """Return whether an application wrote to a table of this name before this one was made."""
        same_name = [r.id for r in self._rows.all(tables) if r.name == table.name and r.id != table.id]
        c = commits.c
        wrote = (c.table_id.in_(same_name), c.app_id == application)
        return bool(self._rows.select(commits, *wrote, limit=1))

    def commits(self, table: int) -> tuple[Commit, ...]:
        """All commits of a table, oldest first."""
        rows = self._rows.group(commits, {"table_id": table}, order_by=commits.c.number)
        return tuple(_commit(row) for row in rows)

    def newest_commits(self, table: int, most: int) -> tuple[Commit, ...]:
        """Return the newest commits of a table, oldest first, at most so many."""
        c, count = commits.c, self._rows.count(COMMITS, table)
        rows = self._rows.select(commits, c.table_id == table, order_by=c.number.desc(), limit=most)
        # Ordinals have no gaps, so a row that is hidden is missed.
        if [row.ordinal for row in rows] != list(range(count, max(count - most, 0), -1)):
            raise damaged(f"the newest commits of table {table} have a gap")
        return tuple(_commit(row) for row in reversed(rows))

    def commits_after(self, table: int, after: int, most: int) -> tuple[Commit, ...]:
        """Return the next commits of a table beyond one, oldest first, at most so many."""
        c = commits.c
        beyond = (c.table_id == table, c.number > after)
        rows = self._rows.select(commits, *beyond, order_by=c.number, limit=most)
        at = self._totals_upto(table, after)[0]
        # Ordinals have no gaps, so a row that is hidden is missed.
        expected = range(at + 1, at + 1 + len(rows))
        ended = len(rows) == most or at + len(rows) == self._rows.count(COMMITS, table)
        if [row.ordinal for row in rows] != list(expected) or not ended:
            raise damaged(f"the commits of table {table} after {after} have a gap")
        return tuple(_commit(row) for row in rows)

    def newest_upto(self, table: int, upto: int) -> Commit:
        """Return the newest commit of a table up to a snapshot of it."""
        rows = self._rows.ask(_UPTO, table=table, upto=upto)
        self.commits_after(table, upto, 1)  # the next one proves that none is hidden in between
        if not rows:
            raise damaged(f"table {table} has no commits up to {upto}")
        return _commit(rows[0])

    def last_commit_of(self, table: int) -> int:
        """Return the newest commit of a table."""
        newest = self._newest(table)
        if newest is None:
            raise damaged(f"table {table} has no commits")
        return int(newest.number)

    def behind(self, table: int, after: int) -> tuple[int, int, float | None]:
        """Return (commits, rows, time of the oldest) of a table beyond a commit: a stream's lag."""
        newest, (ordinal, rows) = self._newest(table), self._totals_upto(table, after)
        if newest is None or newest.ordinal <= ordinal:
            return 0, 0, None
        (oldest,) = self.commits_after(table, after, 1)
        return newest.ordinal - ordinal, newest.rows_upto - rows, oldest.created_at

    def _totals_upto(self, table: int, upto: int) -> tuple[int, int]:
        """Return (commits, rows) of a table up to a commit."""
        rows = self._rows.ask(_UPTO, table=table, upto=upto)
        return (rows[0].ordinal, rows[0].rows_upto) if rows else (0, 0)

    def _newest(self, table: int) -> Any | None:
        """Return the row of a table's newest commit; None before its first."""
        count = self._rows.count(COMMITS, table)
        rows = self._rows.ask(_NEWEST, table=table)
        if (rows[0].ordinal if rows else 0) != count:
            raise damaged(f"the newest commit of table {table} is not there")
        return rows[0] if rows else None

    def written(self) -> dict[int, tuple[int, int]]:
        """(rows, bytes) that the commits of each table wrote, deletions included; one question for all."""
        newest = {row.table_id: row for row in self._rows.ask(_NEWEST_OF_EACH)}
        for (kind, table, _), (count, _) in self._rows.all_groups().items():
            if kind == COMMITS.kind and (table not in newest or newest[table].ordinal != count):
                raise damaged(f"the newest commit of table {table} is not there")
        return {table: (int(row.rows_upto), int(row.bytes_upto)) for table, row in newest.items()}

    def committed_bytes(self, table: int) -> int:
        """Return how many bytes the commits of a table brought."""
        newest = self._newest(table)
        return 0 if newest is None else int(newest.bytes_upto)

    def commit_before(self, timestamp: float) -> int:
        """Return the newest commit made at or before a time; 0 when there is none."""
        rows = self._rows.ask(_MADE_BEFORE, timestamp=timestamp)
        number = int(rows[0].number) if rows else 0
        # Times grow with numbers, so the next commit proves that this one is the newest.
        made = self._commit_time(number + 1)
        if made is not None and made <= timestamp:
            raise damaged(f"commit {number + 1} is not found by its time")
        return number

    def commit_at(self, timestamp: float) -> int:
        """As `commit_before`, of a time that a user gave for a snapshot.

        Raises:
            NotFound: the time is still to come, and what will be the newest then is not known.
        """
        # Where a clock was ahead, the newest commit's time may be, too, and stands for that commit.
        now = max(self.times.stamp, self._state("newest_commit_at"))
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
        c = commits.c
        rows = self._rows.select(commits, c.number <= snapshot, order_by=c.number.desc(), limit=1)
        return float(rows[0].created_at) if rows else 0.0

    def _commit_time(self, number: int) -> float | None:
        """Return the time of a commit, or of the next one not lost; None when it is still to come."""
        if number > self.versions()[1]:
            return None
        row = self._rows.one(commits, missing_is_checked=False, number=number)
        if row is not None:
            return float(row.created_at)
        for first, last in self.lost_commits():
            if first <= number <= last:
                return self._commit_time(last + 1)
        raise damaged(f"commit {number} is not there")

    def commit_times(self, numbers: Iterable[int]) -> dict[int, float]:
        """Return the times of commits, as far as these are there."""
        if not (asked := set(numbers)):
            return {}
        found = self._rows.select(commits, commits.c.number.in_(asked))
        return {row.number: float(row.created_at) for row in found}

    def overwrites(self, table: int) -> tuple[int, ...]:
        """Return commits that replaced the whole table: at and after each, rows of earlier ones are gone.

        Of those up to the oldest snapshot the newest alone: no other is asked for.
        """
        rows = self._rows.group(commits, {"table_id": table}, OVERWRITES, commits.c.number)
        return tuple(row.number for row in rows)

    def floors(self) -> dict[int, tuple[int, int]]:
        """(commit, rows written before it) of the newest overwrite of each table that has one."""
        rows = self._rows.group(commits, {}, OVERWRITES, commits.c.number)
        return {row.table_id: (row.number, row.rows_upto - row.rows) for row in rows}

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

    def set_oldest_snapshot(self, table: int, snapshot: int) -> None:
        """Stop keeping snapshots before this one. Never goes back: a snapshot that is gone stays gone."""
        row = self._rows.one(tables, id=table)
        if row is not None and row.oldest_snapshot < snapshot:
            self._rows.update(tables, [(row, {"oldest_snapshot": snapshot})])
            overwrites = self._rows.group(commits, {"table_id": table}, OVERWRITES, commits.c.number)
            past = [commit for commit in overwrites if commit.number <= snapshot]
            self._rows.update(commits, [(commit, {"is_floor": 0}) for commit in past[:-1]])
            self.bump_layout()

    def _next_commit(self) -> int:
        number: int = self._state("last_commit") + 1
        self._set(last_commit=number)
        return number

    def _add_commit_row(self, number: int, table: int, kind: str, facts: Mapping[str, Any]) -> None:
        # Change feeds and users know times to the microsecond, and ask for commits by what they know.
        made = next_commit_time(self.now, self._state("newest_commit_at"))
        self._set(newest_commit_at=made)
        before = self._newest(table)
        values = {"number": number, "table_id": table, "kind": kind, "created_at": made, **facts}
        values["is_floor"] = int(kind == "overwrite")
        values["ordinal"] = 1 + (before.ordinal if before else 0)
        for upto, more in (("rows_upto", facts["rows"]), ("bytes_upto", facts["bytes"])):
            values[upto] = more + (getattr(before, upto) if before else 0)
        self._rows.insert(commits, values)

    # Leases

    def take_lease(self, lease: str, table: TableInfo, snapshot: int, purpose: str, seconds: float) -> None:
        """Promise that a snapshot stays readable until `now + seconds`; takes one that ended again."""
        current = self.table_by_id(table.id)  # the caller's may be from before a compaction
        if current is None:
            raise TableChanged(f"table {table.name!r} was dropped; start a new scan", table=table.name)
        self.check_snapshot(current, snapshot)
        self.end_lease(lease)
        lasts = {"seconds": seconds, "expires_at": self.times.stamp + seconds}
        held = {"id": lease, "table_id": table.id, "snapshot": snapshot, "purpose": purpose}
        self._rows.insert(leases, held | lasts)

    def renew_lease(self, lease: str, seconds: float) -> bool:
        """Prolong a lease; false when it is gone, or ended: then its snapshot may be gone too."""
        row = self._lease(lease)
        if row is None or row.expires_at < self.times.stamp:
            return False
        lasts = {"seconds": seconds, "expires_at": self.times.stamp + seconds}
        self._rows.update(leases, [(row, lasts)])
        return True

    def _lease(self, lease: str) -> Any | None:
        return self._rows.one(leases, missing_is_checked=False, id=lease)

    def lease_end(self, lease: str) -> float:
        """Return the time at which a lease ends or ended; 0 when there is none."""
        row = self._lease(lease)
        return 0.0 if row is None else float(row.expires_at)

    def end_lease(self, lease: str) -> None:
        row = self._lease(lease)
        if row is not None:
            self._rows.delete(leases, [row])

    def end_expired_leases(self) -> int:
        """Forget leases whose time is over; returns how many.

        One of a process whose clock was far ahead is cut to what it may have meant, as soon as the time
        here is beyond doubt: it must not hold a snapshot for years.
        """
        rows = self._rows.all(leases)
        if self.times.agreed:
            most = {row.id: self.now + row.seconds + TRUSTED_JUMP_SECONDS for row in rows}
            long = [(row, {"expires_at": most[row.id]}) for row in rows if row.expires_at > most[row.id]]
            self._rows.update(leases, long)
        return self._rows.delete(leases, [row for row in rows if row.expires_at < self.times.expiry])

    def leases(self) -> list[dict[str, Any]]:
        names = {row.id: row.name for row in self._rows.all(tables)}
        rows = self._rows.all(leases)
        return [
            {
                "id": row.id,
                "table": names[row.table_id],
                "snapshot": row.snapshot,
                "purpose": row.purpose,
                "expires_at": row.expires_at,
            }
            for row in rows
            if row.expires_at >= self.times.expiry and not row.purpose.startswith(REPORT)
        ]

    def oldest_held(self, table: int) -> int | None:
        """Return the oldest snapshot of a table that some lease or tag holds."""
        held = self._leased(self._rows.group(leases, {"table_id": table}))
        tagged = self._oldest_tagged(table)
        return min(held if tagged is None else [*held, tagged], default=None)

    def _leased(self, rows: Iterable[Any]) -> list[int]:
        """Return the snapshots that unexpired leases hold."""
        lasting = (row for row in rows if row.expires_at >= self.times.expiry)
        return [row.snapshot for row in lasting if not row.purpose.startswith(REPORT)]

    def _retained(self, seconds: float) -> int:
        """Return the oldest snapshot that a retention period keeps by itself."""
        return self.versions()[1] if seconds <= 0 else self.commit_before(self.times.expiry - seconds)

    def kept_seconds(self, snapshot: int, retention_seconds: float) -> float:
        """For how much longer the retention period alone keeps a snapshot readable."""
        overtaken_at = self._commit_time(max(snapshot, 0) + 1)
        return retention_seconds - (0.0 if overtaken_at is None else self.times.stamp - overtaken_at)

    def set_retention(self, table: int, seconds: float | None) -> None:
        """Set the time for which a table's snapshots stay readable; None for as long as the store's."""
        self._change_table(table, retention_seconds=seconds)
        self.bump_layout()

    def set_compression(self, table: int, compression: str | None) -> None:
        """Set the form of a table's next files."""
        self._change_table(table, compression=compression)
        self.bump_layout()

    def oldest_needed(self, table: int, retention_seconds: float) -> int:
        """Return the oldest snapshot that a lease, a tag or the retention period may still ask for."""
        oldest, held = self._retained(retention_seconds), self.oldest_held(table)
        return oldest if held is None else min(oldest, held)

    def oldest_needed_of_all(self, retention_seconds: Iterable[float]) -> int | None:
        """As `oldest_needed`, of all tables, whose retention periods are given; None if nothing is needed."""
        held = [tag.snapshot for tag in self.tags()] + self._leased(self._rows.all(leases))
        return min([*held, *map(self._retained, set(retention_seconds))], default=None)

    def horizon(self, table: int, retention_seconds: float) -> int:
        """As `oldest_needed`, or the oldest snapshot with the same rows: the table's own commit before it.

        Commits of other tables take none of its snapshots away.
        """
        oldest = self.oldest_needed(table, retention_seconds)
        rows = self._rows.ask(_UPTO, table=table, upto=oldest)
        # Where retention was prolonged, what is gone stays gone.
        info = self.table_by_id(table)
        kept = 0 if info is None else info.oldest_snapshot
        return max(kept, int(rows[0].number) if rows else oldest)


def ask_for_commit(table: int, staged: Sequence[StagedFragment]) -> list[Question]:
    """Return the queries of `CommitTx.add_commit`, which may be sent with a transaction's beginning."""
    questions = [ask_sums(_KINDS, table), (_NEWEST.statement(raw=False), {"table": table})]
    if any(fragment.runs for fragment in staged):
        questions.append(ask_group(indexes, {"table_id": table}, "id"))
    return [*questions, *ask_condemned(staged)]


def ask_for_merges(table: int, at: Iterable[int]) -> list[Question]:
    """Return the questions of who plans merges of a table at some shards."""
    overwritten = ask_group(commits, {"table_id": table, "is_floor": 1}, "number")
    newest, sums = (_NEWEST.statement(raw=False), {"table": table}), (SUMS_OF_KINDS, {"kinds": ["shards"]})
    return [*ask_fragments(table, at), overwritten, newest, ask_group(shards, {}, None), sums]


def _commit(row: Any) -> Commit:
    with decoding(f"commit {row.number}"):
        said = json.loads(row.user_metadata or "{}")
    return Commit(row.number, row.table_id, row.kind, row.rows, row.bytes, row.created_at, said)


@lru_cache(maxsize=4096)  # listing all tables needs each again
def _table_info(row: Any) -> TableInfo:
    with decoding(f"table {row.name!r}"):
        columns = unpacked_columns(row.schema, row.past)
        primary_key, shard_key = tuple(json.loads(row.primary_key)), tuple(json.loads(row.shard_key))
    return TableInfo(
        id=row.id,
        name=row.name,
        primary_key=primary_key,
        shard_key=shard_key,
        compression=row.compression,
        retention_seconds=row.retention_seconds,
        created_commit=row.created_commit,
        oldest_snapshot=row.oldest_snapshot,
        **columns,
    )
