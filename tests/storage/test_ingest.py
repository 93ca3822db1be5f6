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
from elasticscan.metadata import StagedFragment, TableInfo
from elasticscan.storage import copying as copying_module
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.disk import Disk
from elasticscan.storage.fragment import COMMIT, DELETED, SLOT, FragmentReader
from elasticscan.storage.ingest import Ingest, discard, reroute, sort_rows
from elasticscan.store import Store
from elasticscan.topology import Placement, Tablet
from tests.base.examples import examples
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import KEY_KINDS, ORIGIN, KeyKind, keys_of, table_of

SEEDS = st.integers(0, 1 << 32)
SLOTS = 16

Row = tuple[Any, ...]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 5)
    monkeypatch.setattr(copying_module, "BATCH_ROWS", 5)


class Shards:
    """Disks of some shards, by id."""

    def __init__(self, *shards: int) -> None:
        self.disks: dict[int, Disk] = {shard: MemoryDisk() for shard in shards}

    def of(self, shard: int) -> Disk:
        return self.disks[shard]

    def files(self) -> int:
        return sum(len(disk.list()) for disk in self.disks.values())


def placement(*shards: int) -> Placement:
    """Four tablets, at these shards."""
    return Placement.of(Tablet(n + 1, 4 * n, 4 * n + 4, shard, 1) for n, shard in enumerate(shards))


def batch_of(keys: Sequence[Row], table: TableInfo, values: Sequence[str | None]) -> pa.RecordBatch:
    columns = [
        pa.array([key[at] for key in keys], table.schema.field(name).type)
        for at, name in enumerate(table.primary_key)
    ]
    columns += [pa.array(values, pa.string()), pa.array(range(len(keys)), pa.int32())]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def rows_in(staged: StagedFragment, table: TableInfo, shards: Shards) -> list[tuple[int, Row, Any]]:
    """(slot, key, value) of all rows that a staged fragment serves, in the file's order."""
    disk = shards.of(staged.shard)
    reader = FragmentReader(disk, staged.path, table.schema.names, staged.seal)
    return [
        row
        for batch in reader
        for row in zip(
            batch.column(SLOT).to_pylist(),
            keys_of(batch, table),
            batch.column("v").to_pylist(),
            strict=True,
        )
        if row[0] in staged.slots
    ]


def some_keys(rng: random.Random, kind: KeyKind, count: int) -> list[Row]:
    keys = list({kind.make(rng, n % 200) for n in range(count)})
    rng.shuffle(keys)
    return keys


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS, st.sampled_from(sorted(KEY_KINDS)), st.sampled_from([1, 100, 700, 5_000, 1 << 30]))
def test_a_write_of_any_size_becomes_one_sorted_fragment_a_shard(
    seed: int, name: str, buffer_bytes: int
) -> None:
    rng, kind = random.Random(seed), KEY_KINDS[name]
    table, shards, where = table_of(kind), Shards(1, 2), placement(1, 2, 2, 1)
    keys = some_keys(rng, kind, 60)
    ingest = Ingest(table, where, shards.of, ORIGIN, buffer_bytes)
    start = 0
    while start < len(keys):
        end = min(len(keys), start + rng.choice((1, 7, 100)))
        ingest.add(batch_of(keys[start:end], table, [str(n) for n in range(start, end)]))
        start = end
    staged = ingest.finish()
    found: list[Row] = []
    for fragment in staged:
        rows = rows_in(fragment, table, shards)
        assert [row[:2] for row in rows] == sorted(row[:2] for row in rows)
        assert len(rows) == fragment.rows
        assert fragment.unique
        assert not fragment.versioned
        assert fragment.slots <= where.at(fragment.shard)
        assert all(keys[int(value)] == key for _, key, value in rows)
        found += [key for _, key, _ in rows]
    assert Counter(found) == Counter(keys)
    assert len({fragment.shard for fragment in staged}) == len(staged)
    assert shards.files() == len(staged), "parts that were merged are removed"


@pytest.mark.parametrize("buffer_bytes", [1, 60, 1 << 30])
@pytest.mark.parametrize("apart", [True, False])
def test_a_repeated_key_is_refused_by_name_and_nothing_stays(buffer_bytes: int, apart: bool) -> None:
    table, shards = table_of(KEY_KINDS["int"]), Shards(1)
    ingest = Ingest(table, placement(1, 1, 1, 1), shards.of, ORIGIN, buffer_bytes)
    keys = [(n,) for n in range(20)] + [(7,)]

    def write() -> None:
        for part in [keys[:10], keys[10:]] if apart else [keys]:
            ingest.add(batch_of(part, table, [None] * len(part)))
        ingest.finish()

    with pytest.raises(InvalidKey, match="'k': 7"):
        write()
    ingest.abandon()
    assert shards.files() == 0


@pytest.mark.parametrize("name", sorted(KEY_KINDS))
def test_a_repeated_key_of_any_kind_is_refused(name: str) -> None:
    kind = KEY_KINDS[name]
    table, keys = table_of(kind), some_keys(random.Random(1), kind, 20)
    with pytest.raises(InvalidKey, match="more than once"):
        sort_rows(batch_of([*keys, keys[3]], table, [None] * (len(keys) + 1)), table, SLOTS)


@pytest.mark.parametrize("buffer_bytes", [50, 1 << 30])
def test_tombstones_are_counted_and_marked(buffer_bytes: int) -> None:
    table, shards = table_of(KEY_KINDS["int"]), Shards(1, 2)
    ingest = Ingest(table, placement(1, 2, 1, 2), shards.of, ORIGIN, buffer_bytes)
    rows = batch_of([(n,) for n in range(30)], table, [None] * 30)
    marks = pa.array([n % 3 == 0 for n in range(30)])
    ingest.add(rows.append_column(DELETED, marks))
    staged = ingest.finish()
    assert sum(fragment.tombstones for fragment in staged) == 10
    for fragment in staged:
        reader = FragmentReader(shards.of(fragment.shard), fragment.path, ["k"], fragment.seal)
        for batch in reader:
            gone = [k % 3 == 0 for k in batch.column("k").to_pylist()]
            assert batch.column(DELETED).to_pylist() == gone
            assert COMMIT not in batch.schema.names


@settings(max_examples=examples(20), deadline=None)
@given(SEEDS)
def test_rows_that_are_staged_again_lie_where_their_slots_live(seed: int) -> None:
    rng = random.Random(seed)
    table, shards = table_of(KEY_KINDS["int"]), Shards(1, 2, 3)
    keys = [(n,) for n in range(60)]
    ingest = Ingest(table, placement(1, 1, 2, 2), shards.of, ORIGIN, rng.choice((200, 1 << 30)))
    ingest.add(batch_of(keys, table, [str(n) for n in range(60)]))
    staged = ingest.finish()
    for _ in range(3):
        where = placement(*rng.choices((1, 2, 3), k=4))
        staged = reroute(table, staged, where, shards.of, ORIGIN)
        assert all(fragment.slots <= where.at(fragment.shard) for fragment in staged)
        found = [key for fragment in staged for _, key, _ in rows_in(fragment, table, shards)]
        assert Counter(found) == Counter(keys)
        assert all(fragment.unique for fragment in staged)


def test_a_disk_that_is_full_while_parts_are_merged_leaves_nothing_behind() -> None:
    table, shards = table_of(KEY_KINDS["int"]), Shards(1)
    faulty = shards.disks[1] = FaultyDisk(shards.disks[1])
    ingest = Ingest(table, placement(1, 1, 1, 1), shards.of, ORIGIN, 100)
    ingest.add(batch_of([(n,) for n in range(60)], table, ["x"] * 60))
    faulty.full_after = faulty.written + 100
    with pytest.raises(DiskFull):
        ingest.finish()
    ingest.abandon()
    assert shards.files() == 0


def test_discarding_what_is_gone_or_out_of_reach_is_no_error() -> None:
    table, shards = table_of(KEY_KINDS["int"]), Shards(1)
    ingest = Ingest(table, placement(1, 1, 1, 1), shards.of, ORIGIN)
    ingest.add(batch_of([(1,)], table, ["x"]))
    staged = ingest.finish()
    discard(staged, shards.of)
    discard(staged, shards.of)
    broken = FaultyDisk(MemoryDisk())
    broken.raise_always.add("delete")
    discard(staged, lambda _: broken)
    assert shards.files() == 0


@pytest.mark.long
def test_rows_of_the_last_of_most_slots_are_staged(tmp_path: Path) -> None:
    rows = pa.table({"id": range(200_000)}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    with Store.create(tmp_path / "s", ["a", "b"], slots=MAX_SLOTS) as store:
        table = store.create_table("t", rows.schema, ["id"])
        table.upsert(rows)
        assert table.scan().count() == 200_000
