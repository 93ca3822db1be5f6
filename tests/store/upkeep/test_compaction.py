"""Merges of some of a shard's fragments, of all of them, and in stages; and how many follow a commit.

The rest of that is in `tests/transcripts`: `upkeep_after_commits`, `keeper*`; random programs kill keepers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import ShardUnavailable
from elasticscan.metadata import Fragment
from elasticscan.storage import open_disk
from elasticscan.store import Store, repair_store
from elasticscan.store.upkeep import after_commit, compaction
from elasticscan.store.upkeep.planning import Policy
from tests.base.manual_clock import ManualClock
from tests.storage.faulty_disk import FaultyDisk

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """One shard, and no snapshot that is kept without a lease."""
    clock = ManualClock(4_000_000_000.0)
    with Store.create(
        tmp_path / "store", ["s1"], tablets=4, slots=16, retention_seconds=0, clock=clock, upkeep="off"
    ) as it:
        it.create_table("t", SCHEMA, ["id"])
        yield it


def rows_of(ids: range, value: int) -> pa.Table:
    return pa.table({"id": ids, "v": [value] * len(ids)}, schema=SCHEMA)


def fragments_of(store: Store) -> tuple[Fragment, ...]:
    return store.context.catalog.newest().state.fragments(table=store.table("t").definition.id)


def read(store: Store) -> dict[int, int]:
    rows = store.table("t").scan().to_table()
    assert len(set(rows["id"].to_pylist())) == rows.num_rows
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


def test_a_tombstone_goes_when_only_newer_fragments_take_no_part(store: Store) -> None:
    table = store.table("t")
    table.upsert(rows_of(range(100), 1))
    table.delete([*range(50)])
    table.upsert(rows_of(range(20, 30), 2))
    some = [fragment.id for fragment in fragments_of(store)[:2]]
    tx = store.context.catalog.newest()
    merging = compaction.plan_merge(store.context, tx, table.definition.id, 1, some)
    assert merging is not None
    merging.carry_out()
    assert {(f.rows, f.tombstones) for f in fragments_of(store)} == {(10, 0), (50, 0)}
    assert read(store) == dict.fromkeys(range(50, 100), 1) | dict.fromkeys(range(20, 30), 2)


def test_a_merge_whose_disk_fails_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOST_AT_ONCE", 2)
    for value in range(5):
        store.table("t").upsert(rows_of(range(10), value))
    disks = list[FaultyDisk]()

    def faulty(root: str) -> FaultyDisk:
        disks.append(FaultyDisk(open_disk(root)))
        return disks[-1]

    with Store.open(store.uri, disks=faulty, upkeep="off") as other:
        before, files = fragments_of(other), set(other.context.disk_of(1).list())
        disks[0].raise_at_call["create"] = 3  # after two stages
        with pytest.raises(ShardUnavailable):
            other.compact()
    assert fragments_of(store) == before
    assert set(store.context.disk_of(1).list()) == files


def test_a_repair_brings_nothing_back_that_a_merged_overwrite_replaced(tmp_path: Path) -> None:
    with Store.create(tmp_path / "old", ["s1"], tablets=1, slots=4) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows_of(range(100), 0))
        table.overwrite(rows_of(range(10), 1))
        for value in range(2, 12):
            table.upsert(rows_of(range(5), value))
        assert sum(f.max_commit < 3 for f in fragments_of(store)) == 1, "older snapshots need it"
        expected = read(store)
        store.collect_garbage(grace_seconds=0, orphan_seconds=0)
    (tmp_path / "old" / "catalog.db").unlink()
    repair_store(tmp_path / "old", tmp_path / "new")
    with Store.open(tmp_path / "new") as store:
        assert read(store) == expected


def test_work_beyond_the_allowance_is_left_until_it_is_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=4, slots=64) as store:
        table = store.create_table("t", {"id": range(100)}, primary_key="id")

        def depth(commits: int) -> int:
            for _ in range(commits):
                table.upsert({"id": range(100)})
            return int(store.status()["tables"][0]["upkeep"]["slot_fragments"])

        monkeypatch.setattr(after_commit, "MOST_BYTES", 0)
        assert depth(commits=15) == 16
        assert depth(commits=after_commit.RETRY_EVERY + 1) <= Policy().slot_fragments
