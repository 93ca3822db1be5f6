"""Catalog transactions, part three: tables, commits, leases."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
from sqlalchemy import ColumnElement, delete, func, insert, select, update

from elasticscan.base.errors import (
    AlreadyExists,
    InvalidOffset,
    SnapshotExpired,
    SnapshotNotFound,
    TableChanged,
    TableNotFound,
    WriteConflict,
)
from elasticscan.catalog.fragments import FragmentTx
from elasticscan.catalog.placement import decoding
from elasticscan.catalog.tables import commits, fragments, leases, store_state, tables
from elasticscan.topology import StagedFragment, TableInfo


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit, made at a whole microsecond.

    `kind` is create, write, delete, merge (it upserts some rows and deletes others) or overwrite.
    """

    number: int
    table: int
    kind: str
    rows: int
    created_at: float


_RESERVED = 0  # the commit that made a table which nobody sees yet


class Txn(NamedTuple):
    """Under what a write is done once.

    Attributes:
        application, version: the pair that a table takes once.
        content: what the version stands for, if that is known; it must be the same when it is repeated.
    """

    application: str
    version: int
    content: str | None = None


class CommitTx(FragmentTx):
    """Tables, commits, leases."""

    # Tables

    def create_table(self, name: str, info: TableInfo) -> TableInfo:
        self._enter_table(self.reserve_table(replace(info, name=name)))
        return self.table(name)

    def reserve_table(self, info: TableInfo) -> TableInfo:
        """A table that nobody sees yet, for files to be staged; the same again for an equal definition."""
        if self._sql.execute(_live_table(tables.c.name == info.name)).first():
            raise AlreadyExists(
                f"the store already has a table {info.name!r}; drop it or choose another", table=info.name
            )
        row = {
            "name": info.name,
            "schema": info.schema.serialize().to_pybytes(),
            "primary_key": json.dumps(info.primary_key),
            "shard_key": json.dumps(info.shard_key),
            "compression": info.compression,
            "created_commit": _RESERVED,
        }
        same = [
            tables.c[name] == value if value is not None else tables.c[name].is_(None)
            for name, value in row.items()
        ]
        known = self._sql.execute(select(tables.c.id).where(*same)).scalar()
        if known is not None:
            return replace(info, id=known)
        unseen = {"oldest_snapshot": _RESERVED, "dropped_at": self.now}
        inserted = self._sql.execute(insert(tables).values(**row, **unseen)).inserted_primary_key
        assert inserted is not None
        return replace(info, id=inserted[0])

    def reserved_table(self, table_id: int) -> TableInfo | None:
        """A table that was reserved and not entered."""
        found = select(tables).where(tables.c.id == table_id, tables.c.created_commit == _RESERVED)
        row = self._sql.execute(found).one_or_none()
        return None if row is None else _table_info(row)

    def enter_reserved(self, table_id: int) -> bool:
        """Let a reserved table be seen from here on; False when it is no longer one.

        Raises:
            WriteConflict: another table has taken its name.
        """
        table = self.reserved_table(table_id)
        if table is None:
            return False
        if self._sql.execute(_live_table(tables.c.name == table.name)).first():
            raise WriteConflict(
                f"table {table.name!r} was made, with another definition, while rows were written that "
                "were to make it; nothing was committed: write again, into that one",
                table=table.name,
            )
        self._enter_table(table)
        return True

    def _enter_table(self, table: TableInfo) -> None:
        commit = self._next_commit()
        seen = {"created_commit": commit, "oldest_snapshot": commit, "dropped_at": None}
        self._sql.execute(update(tables).where(tables.c.id == table.id).values(**seen))
        self._add_commit_row(commit, table.id, "create", 0)

    def add_columns(self, table: int, fields: Sequence[pa.Field]) -> TableInfo:
        """Append columns to a table; checked by the caller, in this transaction. Every snapshot has them."""
        known = self.table_by_id(table)
        assert known is not None, "the caller looked it up in this transaction"
        schema = pa.schema([*known.schema, *fields])
        body = schema.serialize().to_pybytes()
        self._sql.execute(update(tables).where(tables.c.id == table).values(schema=body))
        self.bump_layout()
        return replace(known, schema=schema)

    def drop_table(self, name: str) -> None:
        table = self.table(name)
        self._sql.execute(update(tables).where(tables.c.id == table.id).values(dropped_at=self.now))
        self._drop_where(fragments.c.table_id == table.id)
        self.drop_indexes(table.id)
        self.bump_layout()

    def table(self, name: str) -> TableInfo:
        row = self._sql.execute(_live_table(tables.c.name == name)).one_or_none()
        if row is None:
            known = [table.name for table in self.tables()]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'no tables'}"
            raise TableNotFound(f"the store has no table {name!r}; {hint}", table=name)
        return _table_info(row)

    def table_by_id(self, table_id: int) -> TableInfo | None:
        row = self._sql.execute(_live_table(tables.c.id == table_id)).one_or_none()
        return None if row is None else _table_info(row)

    def tables(self) -> tuple[TableInfo, ...]:
        query = select(tables).where(tables.c.dropped_at.is_(None)).order_by(tables.c.name)
        return tuple(_table_info(row) for row in self._sql.execute(query))

    # Commits

    def add_commit(
        self,
        table: int,
        kind: str,
        staged: Sequence[StagedFragment],
        txn: Txn | None = None,
    ) -> int:
        """Make staged fragments visible under the next commit number, all at once."""
        number = self._next_commit()
        rows = sum(fragment.rows for fragment in staged)
        self._add_commit_row(number, table, kind, rows, txn)
        self.add_fragments(table, staged, number, number)
        return number

    def commit_of_txn(self, table: int, txn: Txn) -> int | None:
        """The commit that was made under this pair, if there is one.

        Raises:
            InvalidOffset: there is, but it stood for other rows.
        """
        c = commits.c
        named = (c.table_id == table, c.app_id == txn.application, c.app_version == txn.version)
        row = self._sql.execute(select(c.number, c.app_content).where(*named)).one_or_none()
        if row is None:
            return None
        if None not in (row.app_content, txn.content) and row.app_content != txn.content:
            raise InvalidOffset(
                f"micro-batch {txn.version} of this stream was written before, by commit {row.number}, and "
                "then ended elsewhere: its checkpoint lost its newest files, is an older copy or was edited. "
                "Nothing was committed. Start the stream with a new checkpoint: rows that are there already "
                "are upserted once more, but a copy with deletes has to begin with an empty table",
                table=table,
                batch=txn.version,
                commit=row.number,
            )
        return int(row.number)

    def has_forerunner(self, table: TableInfo, application: str) -> bool:
        """Whether an application wrote to a table of this name before this one was made."""
        same_name = select(tables.c.id).where(tables.c.name == table.name, tables.c.id != table.id)
        wrote = (commits.c.table_id.in_(same_name), commits.c.app_id == application)
        return self._sql.execute(select(commits.c.number).where(*wrote).limit(1)).first() is not None

    def commits(self, table: int) -> tuple[Commit, ...]:
        c = commits.c
        query = select(c.number, c.table_id, c.kind, c.rows, c.created_at).where(c.table_id == table)
        return tuple(Commit(*row) for row in self._sql.execute(query.order_by(c.number)))

    def commits_after(self, table: int, after: int, most: int) -> tuple[Commit, ...]:
        """The next commits of a table beyond one, oldest first, at most so many."""
        c = commits.c
        query = select(c.number, c.table_id, c.kind, c.rows, c.created_at).where(c.table_id == table)
        query = query.where(c.number > after).order_by(c.number).limit(most)
        return tuple(Commit(*row) for row in self._sql.execute(query))

    def last_commit_of(self, table: int) -> int:
        """The newest commit of a table."""
        newest = select(func.max(commits.c.number)).where(commits.c.table_id == table)
        return int(self._sql.execute(newest).scalar_one())

    def behind(self, table: int, after: int) -> tuple[int, int, float | None]:
        """(commits, rows, time of the oldest) of a table beyond a commit: how far a stream is behind."""
        c = commits.c
        query = select(func.count(), func.coalesce(func.sum(c.rows), 0), func.min(c.created_at))
        row = self._sql.execute(query.where(c.table_id == table, c.number > after)).one()
        return int(row[0]), int(row[1]), row[2]

    def commit_before(self, timestamp: float) -> int:
        """The newest commit made at or before a time; 0 when there is none."""
        query = select(func.max(commits.c.number)).where(commits.c.created_at <= timestamp)
        return self._sql.execute(query).scalar() or 0

    def overwrites(self, table: int) -> tuple[int, ...]:
        """Commits that replaced the whole table: at and after each, rows of earlier ones are gone."""
        c = commits.c
        query = select(c.number).where(c.table_id == table, c.kind == "overwrite").order_by(c.number)
        return tuple(self._sql.execute(query).scalars())

    def check_snapshot(self, table: TableInfo, snapshot: int) -> None:
        """Raises unless the snapshot exists and is still kept."""
        newest = self.versions()[1]
        if not table.created_commit <= snapshot <= newest:
            raise SnapshotNotFound(
                f"table {table.name!r} has snapshots {table.created_commit} to {newest}, not {snapshot}",
                table=table.name,
                snapshot=snapshot,
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
        """Snapshots before this one are no longer kept. Never goes back: what is gone stays gone."""
        older = (tables.c.id == table, tables.c.oldest_snapshot < snapshot)
        self._sql.execute(update(tables).where(*older).values(oldest_snapshot=snapshot))

    def _next_commit(self) -> int:
        self._sql.execute(update(store_state).values(last_commit=store_state.c.last_commit + 1))
        return self.versions()[1]

    def _add_commit_row(self, number: int, table: int, kind: str, rows: int, txn: Txn | None = None) -> None:
        # Change feeds and users know times to the microsecond, and ask for commits by what they know.
        made = round(self.now, 6)
        values = {"number": number, "table_id": table, "kind": kind, "rows": rows, "created_at": made}
        if txn is not None:
            names = ("app_id", "app_version", "app_content")
            values |= dict(zip(names, txn, strict=True))
        self._sql.execute(insert(commits).values(**values))

    # Leases

    def take_lease(self, lease: str, table: TableInfo, snapshot: int, purpose: str, seconds: float) -> None:
        """Promise that a snapshot stays readable until `now + seconds`; takes one that ended anew."""
        current = self.table_by_id(table.id)  # the caller's may be from before a compaction
        if current is None:
            raise TableChanged(f"table {table.name!r} was dropped; start a new scan", table=table.name)
        self.check_snapshot(current, snapshot)
        self.end_lease(lease)
        self._sql.execute(
            insert(leases).values(
                id=lease,
                table_id=table.id,
                snapshot=snapshot,
                purpose=purpose,
                expires_at=self.now + seconds,
            )
        )

    def renew_lease(self, lease: str, seconds: float) -> bool:
        """False when the lease is gone, or ended: then its snapshot may be gone too."""
        running = (leases.c.id == lease, leases.c.expires_at >= self.now)
        query = update(leases).where(*running).values(expires_at=self.now + seconds)
        return bool(self._sql.execute(query).rowcount)

    def lease_end(self, lease: str) -> float:
        """When a lease ends or ended; 0 when there is none."""
        return self._sql.execute(select(leases.c.expires_at).where(leases.c.id == lease)).scalar() or 0.0

    def end_lease(self, lease: str) -> None:
        self._sql.execute(delete(leases).where(leases.c.id == lease))

    def end_expired_leases(self) -> int:
        return self._sql.execute(delete(leases).where(leases.c.expires_at < self.now)).rowcount

    def leases(self) -> list[dict[str, Any]]:
        query = select(leases, tables.c.name).join(tables).where(leases.c.expires_at >= self.now)
        return [
            {
                "id": row.id,
                "table": row.name,
                "snapshot": row.snapshot,
                "purpose": row.purpose,
                "expires_at": row.expires_at,
            }
            for row in self._sql.execute(query)
        ]

    def oldest_leased(self, table: int) -> int | None:
        """The oldest snapshot of a table that some lease holds."""
        running = (leases.c.table_id == table, leases.c.expires_at >= self.now)
        return self._sql.execute(select(func.min(leases.c.snapshot)).where(*running)).scalar()

    def kept_seconds(self, snapshot: int, retention_seconds: float) -> float:
        """For how much longer the retention period alone keeps a snapshot readable."""
        later = select(func.min(commits.c.created_at)).where(commits.c.number > snapshot)
        overtaken_at = self._sql.execute(later).scalar()
        return retention_seconds - (0.0 if overtaken_at is None else self.now - overtaken_at)

    def set_retention(self, table: int, seconds: float | None) -> None:
        """How long a table's snapshots stay readable; None for as long as the store's."""
        self._sql.execute(update(tables).where(tables.c.id == table).values(retention_seconds=seconds))
        self.bump_layout()

    def oldest_needed(self, table: int, retention_seconds: float) -> int:
        """The oldest snapshot that a lease or the retention period may still ask for."""
        newest = self.versions()[1]
        kept = newest if retention_seconds <= 0 else self.commit_before(self.now - retention_seconds)
        leased = self.oldest_leased(table)
        return kept if leased is None else min(kept, leased)


def _live_table(condition: ColumnElement[bool]) -> Any:
    return select(tables).where(condition, tables.c.dropped_at.is_(None))


def _table_info(row: Any) -> TableInfo:
    with decoding(f"table {row.name!r}"):
        schema = pa.ipc.read_schema(pa.py_buffer(row.schema))
        primary_key, shard_key = tuple(json.loads(row.primary_key)), tuple(json.loads(row.shard_key))
    return TableInfo(
        id=row.id,
        name=row.name,
        schema=schema,
        primary_key=primary_key,
        shard_key=shard_key,
        compression=row.compression,
        retention_seconds=row.retention_seconds,
        created_commit=row.created_commit,
        oldest_snapshot=row.oldest_snapshot,
    )
