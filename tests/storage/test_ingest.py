"""Rows that are staged for a write, compared with plain Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import DiskFull, SchemaMismatch
from elasticscan.base.limits import MAX_SLOTS
from elasticscan.metadata import StagedFragment
from elasticscan.storage import copying as copying_module
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.fragment import DELETED
from elasticscan.storage.ingest import arrange, discard, stage_rows
from elasticscan.topology import Placement, Tablet
from tests.base.examples import examples
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import KEY_KINDS, ORIGIN, SEEDS, Shelf, rows_of, table_of, versions_in

KINDS = st.sampled_from(sorted(KEY_KINDS))
BUFFERS = st.sampled_from([1, 100, 700, 5_000, 1 << 30])


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 5)
    monkeypatch.setattr(copying_module, "BATCH_ROWS", 5)


class Write:
    """Rows of some keys, some of them tombstones, to be written to three shards."""

    def __init__(
        self, seed: int, kind: str = "int", buffer_bytes: int = 1 << 30, deletes: bool = True
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.slot_count = rng.choice((16, MAX_SLOTS))
        self.shelves = {n: Shelf(table_of(KEY_KINDS[kind]), self.slot_count) for n in (1, 2, 3)}
        self.table, origin = self.shelves[1].table, replace(ORIGIN, store_slots=self.slot_count)
        keys = list({KEY_KINDS[kind].make(rng, n) for n in range(60)})
        rng.shuffle(keys)
        share = rng.choice((0.0, 0.3)) if deletes else 0.0
        values = [None if rng.random() < share else str(n) for n in range(len(keys))]
        self.rows = list(map(self.shelves[1].version, keys, [1] * len(keys), values))
        self.where, self.origin, self.buffer_bytes = self.placement(1, 2), origin, buffer_bytes

    def disk_of(self, shard: int) -> MemoryDisk | FaultyDisk:
        disk = self.shelves[shard].disk
        assert isinstance(disk, MemoryDisk | FaultyDisk)
        return disk

    def placement(self, *shards: int) -> Placement:
        """Four tablets at some of the shards."""
        tablets, slots = enumerate(self.rng.choices(shards, k=4)), self.slot_count // 4
        return Placement.of(Tablet(n + 1, n * slots, (n + 1) * slots, shard, 1) for n, shard in tablets)

    def batches(self) -> Iterator[pa.RecordBatch]:
        schema, left = self.table.schema, self.rows
        if any(row.value is None for row in left):
            schema = schema.append(pa.field(DELETED, pa.bool_(), nullable=False))
        while left:
            count = self.rng.choice((1, 7, 100))
            yield rows_of(left[:count], self.table, schema)
            left = left[count:]

    def run(self, batches: Iterator[pa.RecordBatch] | None = None) -> list[StagedFragment]:
        given = self.batches() if batches is None else batches
        return stage_rows(self.table, given, self.where, self.disk_of, self.origin, self.buffer_bytes)

    def check(self, staged: Sequence[StagedFragment], where: Placement) -> None:
        """Check that each row exists once, sorted, at the shard of its slot, and unchanged."""
        found = []
        for fragment in staged:
            rows = versions_in(self.shelves[fragment.shard], fragment)
            assert rows == sorted(rows, key=lambda row: (row.slot, row.key))
            assert len(rows) == fragment.rows and fragment.unique and not fragment.versioned
            assert fragment.slots <= where.at(fragment.shard)
            found += [row for row in rows if row.slot in fragment.slots]
        assert Counter(found) == Counter(self.rows)

    def files(self) -> int:
        return sum(len(self.disk_of(shard).list()) for shard in self.shelves)


@settings(max_examples=examples(80), deadline=None)
@given(SEEDS, KINDS, BUFFERS)
def test_a_write_of_any_size_becomes_one_sorted_fragment_a_shard_and_follows_its_slots(
    seed: int, kind: str, buffer_bytes: int
) -> None:
    write = Write(seed, kind, buffer_bytes)
    staged: Sequence[StagedFragment] = write.run()
    write.check(staged, write.where)
    assert sum(fragment.rows for fragment in staged) == len(write.rows)
    assert sum(fragment.tombstones for fragment in staged) == sum(row.value is None for row in write.rows)
    assert len({fragment.shard for fragment in staged}) == len(staged)
    assert write.files() == len(staged), "parts that were merged are removed"
    for _ in range(3):
        where = write.placement(1, 2, 3)
        staged = [*arrange(write.table, staged, where, write.disk_of, ORIGIN)]
        write.check(staged, where)


@settings(max_examples=examples(80), deadline=None)
@given(SEEDS, KINDS, BUFFERS)
def test_a_repeated_key_is_refused_by_name_and_nothing_stays(seed: int, kind: str, buffer_bytes: int) -> None:
    write = Write(seed, kind, buffer_bytes, deletes=False)
    again = write.rng.choice(write.rows)
    write.rows.insert(write.rng.randrange(len(write.rows)), again)
    with pytest.raises(SchemaMismatch, match="more than once") as caught:
        write.run()
    assert kind != "int" or f"{{'k': {again.key[0]}}}" in str(caught.value)
    assert write.files() == 0


def test_a_disk_that_is_full_while_parts_are_merged_leaves_nothing_behind() -> None:
    write = Write(1, buffer_bytes=100, deletes=False)
    for shelf in write.shelves.values():
        shelf.disk = FaultyDisk(shelf.disk)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows_of(write.rows, write.table, write.table.schema)
        for shard in write.shelves:
            disk = write.disk_of(shard)
            assert isinstance(disk, FaultyDisk)
            disk.full_after = disk.written + 100

    with pytest.raises(DiskFull):
        write.run(batches())
    assert write.files() == 0


def test_discarding_what_is_gone_or_out_of_reach_is_no_error() -> None:
    write, broken = Write(1), FaultyDisk(MemoryDisk())
    staged = write.run()
    broken.raise_always.add("delete")
    for disk_of in (write.disk_of, write.disk_of, lambda _: broken):
        discard(staged, disk_of)
    assert write.files() == 0
