"""Single rows equal the batch's rows; nothing else is read, and no unverified bytes are used."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.metadata import StagedFragment, TableInfo
from elasticscan.storage.batches.reader import BatchCache
from elasticscan.storage.disk import Disk
from elasticscan.storage.fragment import SLOT, FragmentReader, fragment_schema
from elasticscan.storage.fragment_writer import Destination, write_fragment
from elasticscan.storage.lookup import rows_at
from elasticscan.storage.sealed_file import SEGMENT_BYTES
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import ORIGIN

COUNT = 6_000
_DAY = datetime.date(2024, 2, 29)

# A value for each row number; rows of the last three types cannot be read singly.
COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "i": (pa.int64(), lambda n: n),
    "b": (pa.bool_(), lambda n: n % 3 == 0),
    "h": (pa.float16(), lambda n: np.float16(n % 100)),
    "t": (pa.timestamp("us", "UTC"), lambda n: n * 10**9),
    "d": (pa.date32(), lambda n: _DAY + datetime.timedelta(days=n)),
    "n": (pa.decimal128(38, 2), lambda n: decimal.Decimal(n).scaleb(-2)),
    "w": (pa.decimal256(50, 0), lambda n: decimal.Decimal(10) ** 40 + n),
    "x": (pa.binary(3), lambda n: bytes((n % 256, n // 256, 7))),
    "s": (pa.string(), lambda n: str(n) * (n % 5)),
    "y": (pa.large_binary(), lambda n: bytes([n % 256]) * (20_000 if n % 1_000 == 1 else n % 7)),
    "l": (pa.list_(pa.int8()), lambda n: [n % 100] * (n % 3)),
    "u": (pa.struct([("p", pa.int32())]), lambda n: {"p": n}),
    "z": (pa.null(), lambda n: None),
}


def table_of(columns: Sequence[str], compression: str | None = None) -> TableInfo:
    fields = [pa.field("k", pa.int64(), nullable=False)]
    fields += [pa.field(name, COLUMNS[name][0]) for name in columns]
    return TableInfo(1, "t", pa.schema(fields), ("k",), ("k",), compression, 0, 0)


@cache
def values(name: str, rows: int) -> pa.Array:
    kind, value = COLUMNS[name]
    return pa.array([value(n) for n in range(rows)], kind)


def write(
    disk: Disk, table: TableInfo, nulls: float = 0.0, rows: int = COUNT, seed: int = 0
) -> StagedFragment:
    schema = fragment_schema(table.schema, False, False)
    chance = np.random.default_rng(seed)
    columns = [pa.array(range(rows))]
    for name in table.schema.names[1:]:
        mask = chance.random(rows) < nulls
        columns.append(values(name, rows).take(pa.array(np.arange(rows), mask=mask)))
    columns.append(pa.array(np.arange(rows) * 16 // rows, pa.uint16()))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return write_fragment(Destination(disk, 1, ORIGIN), table, SlotSet.span(0, 16), [batch])


@pytest.fixture(autouse=True)
def _garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the memory into which rows are read with other bytes."""
    empty = np.empty

    def garbage(*shape: Any, **of: Any) -> Any:
        room = empty(*shape, **of)
        room.fill(0xFB)
        return room

    monkeypatch.setattr(np, "empty", garbage)


def open_alone(disk: Disk, staged: StagedFragment, columns: Sequence[str]) -> FragmentReader:
    """A reader that never caches a whole batch to read a few rows."""
    cache, table = BatchCache(most_bytes=1), table_of(columns)
    return FragmentReader(disk, staged.path, ("k", *columns), staged.seal, table, cache)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, max_size=4),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([None, None, "zstd"]),
    st.lists(st.integers(0, COUNT - 1), max_size=30),
    st.integers(0, 1 << 16),
)
def test_rows_that_are_read_alone_are_those_of_their_batch(
    columns: list[str], nulls: float, compression: str | None, rows: list[int], seed: int
) -> None:
    disk = MemoryDisk()
    staged = write(disk, table_of(columns, compression), nulls, seed=seed)
    names = ("k", *columns, SLOT)
    alone = rows_at(open_alone(disk, staged, columns), np.array(rows, dtype=np.int64), names)
    whole = pa.Table.from_batches(list(open_alone(disk, staged, columns))).select(list(names))
    alone.validate(full=True)
    assert alone.equals(
        whole.take(pa.array(rows, pa.int64())).combine_chunks().to_batches()[0] if rows else alone
    )
    assert alone.column("k").to_pylist() == rows


@pytest.mark.parametrize("step", [100_001, 50])
def test_few_rows_cost_few_reads_and_many_one_of_their_columns(step: int) -> None:
    disk = FaultyDisk(MemoryDisk())
    staged = write(disk, table_of(["i", "s", "n", "b"]), rows=200_000)
    assert staged.bytes > 8_000_000
    reader, rows = open_alone(disk, staged, ["i", "s", "n", "b"]), np.arange(0, 200_000, step)
    first = rows_at(reader, rows, ("i", "s"))
    disk.bytes_read = 0
    assert rows_at(reader, rows, ("i", "s")).equals(first)
    texts = sum(len(str(n) * (n % 5)) for n in range(200_000))
    columns = 200_000 * (8 + 4) + texts + 4 * SEGMENT_BYTES
    assert 0 < disk.bytes_read <= (columns if step == 50 else 2 * 6 * SEGMENT_BYTES)
    assert first.column("i").to_pylist() == rows.tolist()
    disk.bytes_read = 0
    alone = FragmentReader(disk, staged.path, ["b"], staged.seal, table_of(["b"]))
    assert sum(batch.num_rows for batch in alone) == 200_000
    assert disk.bytes_read < staged.bytes / 8
