"""A catalog with two shards, and tables and commits for it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from elasticscan.catalog import Catalog, create_catalog, open_catalog
from elasticscan.metadata import StagedFragment, StoreCreated, TableInfo
from elasticscan.store.writing.definitions import enter
from elasticscan.store.writing.publishing import CommitRequest, commit_of
from elasticscan.topology import Shard, SlotSet, initial_placement
from tests.base.manual_clock import ManualClock

SLOTS = 16
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("Ä b", pa.list_(pa.string()))])


def make(where: Path | str, clock: ManualClock) -> Catalog:
    """Make a catalog whose shard 1 serves slots [0, 8), and shard 2 the others."""
    shards = Shard(1, "a", "shards/a"), Shard(2, "b", "shards/b")
    new = StoreCreated("s", "spark", 100.0, shards, initial_placement(SLOTS, 4, [1, 2]).tablets)
    create_catalog(where, clock, new)
    return open_catalog(where, clock, str(where))


def staged(path: str) -> StagedFragment:
    return StagedFragment(1, path, SlotSet.span(0, 8), 5, 100, True, 0, False, 60, -(1 << 63))


def add_table(catalog: Catalog, name: str = "t") -> TableInfo:
    with catalog.writing() as tx:
        return enter(tx, TableInfo(0, name, SCHEMA, ("k",), ("k",), "lz4", 0, 0))


def add_commit(catalog: Catalog, table: TableInfo, *fragments: StagedFragment) -> int:
    with catalog.writing() as tx:
        return tx.append(commit_of(tx.state, table.id, fragments, CommitRequest()))
