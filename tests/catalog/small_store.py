"""A catalog with two shards, and tables and commits for it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from elasticscan.catalog import Catalog, IdempotencyKey, NewStore, Tx
from elasticscan.metadata import HorizonRaised, StagedFragment, TableDropped, TableInfo
from elasticscan.store.writing.definitions import enter
from elasticscan.store.writing.entering import commit_of
from elasticscan.topology import SlotSet, initial_placement
from tests.base.manual_clock import ManualClock

SLOTS = 16
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("Ä b", pa.list_(pa.string()))])


def make(where: Path | str, clock: ManualClock) -> Catalog:
    """Make a catalog whose shard 1 serves slots [0, 8), and shard 2 the others."""
    shards = (("a", "shards/a"), ("b", "shards/b"))
    new = NewStore(shards, initial_placement(SLOTS, 4, [1, 2]), "spark", 100.0)
    Catalog.create(where, clock, str(where), new)
    return Catalog(where, clock, str(where))


def definition(name: str, compression: str | None = "lz4") -> TableInfo:
    return TableInfo(0, name, SCHEMA, ("k",), ("k",), compression, 0, 0)


def staged(path: str = "t1/a.arrow", rows: int = 5, tombstones: int = 0) -> StagedFragment:
    slots = SlotSet.span(0, 8)
    return StagedFragment(1, path, slots, rows, 100, True, tombstones, False, 60, -(1 << 63))


def add_table(catalog: Catalog, name: str = "t") -> TableInfo:
    with catalog.writing() as tx:
        return enter(tx, definition(name))


def add_commit(catalog: Catalog, table: TableInfo, *fragments: StagedFragment, kind: str = "write") -> int:
    with catalog.writing() as tx:
        return commit(tx, table, *fragments, kind=kind)


def commit(
    tx: Tx,
    table: TableInfo,
    *fragments: StagedFragment,
    kind: str = "write",
    txn: IdempotencyKey | None = None,
    user: dict[str, str] | None = None,
) -> int:
    return tx.append(commit_of(tx.state, table.id, kind, fragments, txn, user))


def raise_horizon(tx: Tx, table: TableInfo, snapshot: int) -> None:
    tx.append(HorizonRaised(table.id, snapshot))


def drop_table(tx: Tx, name: str) -> None:
    tx.append(TableDropped(tx.state.table_named(name).id))
