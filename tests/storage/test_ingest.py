"""Rows on their way in, against plain Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import DiskFull, InvalidKey
from elasticscan.base.limits import MAX_SLOTS
from elasticscan.metadata import StagedFragment
from elasticscan.storage import copying as copying_module
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.disk import Disk
from elasticscan.storage.fragment import COMMIT, DELETED, SLOT, FragmentReader
from elasticscan.storage.ingest import Ingest, discard, reroute
from elasticscan.store import Store
from elasticscan.topology import Placement, Tablet
from tests.base.examples import examples
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import KEY_KINDS, ORIGIN, Key, keys_of, table_of

SEEDS = st.integers(0, 1 << 32)
KINDS = st.sampled_from(sorted(KEY_KINDS))
BUFFERS = st.sampled_from([1, 100, 700, 5_000, 1 << 30])


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 5)
    monkeypatch.setattr(copying_module, "BATCH_ROWS", 5)


class Write:
    """Rows of some keys, some of them tombstones, on their way to shards."""

    def __init__(self, seed: int, kind: str = "int", buffer_bytes: int = 1 << 30) -> None:
        self.rng = rng = random.Random(seed)
        self.table = table_of(KEY_KINDS[kind])
        self.keys: list[Key] = list({KEY_KINDS[kind].make(rng, n) for n in range(60)})
        rng.shuffle(self.keys)
        self.deleted = [rng.random() < 0.3 for _ in self.keys] if rng.random() < 0.5 else None
        self.disks: dict[int, Disk] = {shard: MemoryDisk() for shard in (1, 2, 3)}
        self.where = self.placement(1, 2)
        self.ingest = Ingest(self.table, self.where, self.disks.__getitem__, ORIGIN, buffer_bytes)

    def placement(self, *shards: int) -> Placement:
        """Four tablets at some of the shards."""
        tablets = enumerate(self.rng.choices(shards, k=4))
        return Placement.of(Tablet(n + 1, 4 * n, 4 * n + 4, shard, 1) for n, shard in tablets)

    def add(self, keys: Sequence[Key], start: int = 0) -> None:
        columns = [
            pa.array([key[at] for key in keys], self.table.schema.field(name).type)
            for at, name in enumerate(self.table.primary_key)
        ]
        numbers = range(start, start + len(keys))
        columns += [pa.array(map(str, numbers), pa.string()), pa.array(numbers, pa.int32())]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.table.schema)
        if self.deleted is not None:
            rows = rows.append_column(DELETED, pa.array(self.deleted[start : start + len(keys)]))
        self.ingest.add(rows)

    def run(self) -> list[StagedFragment]:
        start = 0
        while start < len(self.keys):
            count = self.rng.choice((1, 7, 100))
            self.add(self.keys[start : start + count], start)
            start += count
        return list(self.ingest.finish())

    def check(self, staged: Sequence[StagedFragment], where: Placement) -> None:
        """Each row once, sorted, where its slot lives, as it was added."""
        found: list[Key] = []
        for fragment in staged:
            rows = self.rows_in(fragment)
            assert [row[:2] for row in rows] == sorted(row[:2] for row in rows)
            assert len(rows) <= fragment.rows and fragment.unique and not fragment.versioned
            assert fragment.slots <= where.at(fragment.shard)
            for _, key, value, gone in rows:
                assert self.keys[int(value)] == key
                assert gone == (self.deleted is not None and self.deleted[int(value)])
            found += [row[1] for row in rows]
        assert Counter(found) == Counter(self.keys)

    def rows_in(self, staged: StagedFragment) -> list[tuple[int, Key, Any, bool]]:
        """(slot, key, value, deleted) of all rows that a staged fragment serves, in the file's order."""
        disk, names = self.disks[staged.shard], self.table.schema.names
        found: list[tuple[int, Key, Any, bool]] = []
        for batch in FragmentReader(disk, staged.path, names, staged.seal):
            assert COMMIT not in batch.schema.names
            marks = (
                batch.column(DELETED).to_pylist() if DELETED in batch.schema.names else [False] * len(batch)
            )
            columns = (
                batch.column(SLOT).to_pylist(),
                keys_of(batch, self.table),
                batch.column("v").to_pylist(),
            )
            found += zip(*columns, marks, strict=True)
        return [row for row in found if row[0] in staged.slots]

    def files(self) -> int:
        return sum(len(disk.list()) for disk in self.disks.values())


@settings(max_examples=examples(80), deadline=None)
@given(SEEDS, KINDS, BUFFERS)
def test_a_write_of_any_size_becomes_one_sorted_fragment_a_shard_and_follows_its_slots(
    seed: int, kind: str, buffer_bytes: int
) -> None:
    write = Write(seed, kind, buffer_bytes)
    staged: Sequence[StagedFragment] = write.run()
    write.check(staged, write.where)
    assert sum(fragment.rows for fragment in staged) == len(write.keys)
    assert sum(fragment.tombstones for fragment in staged) == sum(write.deleted or ())
    assert len({fragment.shard for fragment in staged}) == len(staged)
    assert write.files() == len(staged), "parts that were merged are removed"
    for _ in range(3):
        where = write.placement(1, 2, 3)
        staged = reroute(write.table, staged, where, write.disks.__getitem__, ORIGIN)
        write.check(staged, where)


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS, KINDS, BUFFERS)
def test_a_repeated_key_is_refused_and_nothing_stays(seed: int, kind: str, buffer_bytes: int) -> None:
    write = Write(seed, kind, buffer_bytes)
    write.deleted = None
    write.keys.insert(write.rng.randrange(len(write.keys)), write.rng.choice(write.keys))
    with pytest.raises(InvalidKey, match="more than once"):
        write.run()
    write.ingest.abandon()
    assert write.files() == 0


@pytest.mark.parametrize("buffer_bytes", [1, 60, 1 << 30])
def test_a_repeated_key_is_refused_by_name(buffer_bytes: int) -> None:
    write = Write(1, "int", buffer_bytes)
    write.keys = [*((n,) for n in range(20)), (7,)]
    with pytest.raises(InvalidKey, match="'k': 7"):
        write.run()


def test_a_disk_that_is_full_while_parts_are_merged_leaves_nothing_behind() -> None:
    write = Write(1, "int", 100)
    for shard, disk in write.disks.items():
        write.disks[shard] = FaultyDisk(disk)
    write.add(write.keys)
    for disk in write.disks.values():
        assert isinstance(disk, FaultyDisk)
        disk.full_after = disk.written + 100
    with pytest.raises(DiskFull):
        write.ingest.finish()
    write.ingest.abandon()
    assert write.files() == 0


def test_discarding_what_is_gone_or_out_of_reach_is_no_error() -> None:
    write = Write(1)
    staged = write.run()
    discard(staged, write.disks.__getitem__)
    discard(staged, write.disks.__getitem__)
    broken = FaultyDisk(MemoryDisk())
    broken.raise_always.add("delete")
    discard(staged, lambda _: broken)
    assert write.files() == 0


@pytest.mark.long
def test_rows_of_the_last_of_most_slots_are_staged(tmp_path: Path) -> None:
    rows = pa.table({"id": range(200_000)}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    with Store.create(tmp_path / "s", ["a", "b"], slots=MAX_SLOTS) as store:
        table = store.create_table("t", rows.schema, ["id"])
        table.upsert(rows)
        assert table.scan().count() == 200_000
