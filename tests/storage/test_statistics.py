"""Statistics against plain Python: bounds hold for every value."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base import key_encoding
from elasticscan.base.key_encoding import NULL, encode_value, successor
from elasticscan.metadata import (
    KEY_BYTES,
    FragmentStatistics,
    StagedFragment,
    TableInfo,
    unpack_statistics,
)
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.fragment import FragmentReader, fragment_schema
from elasticscan.storage.fragment_writer import FragmentTarget, write_fragment
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import KEY_KINDS, ORIGIN, Shelf, Version, table_of


def _whole(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    low = -(1 << (bits - 1)) if signed else 0
    return st.integers(low, low + (1 << bits) - 1)


_LONG = "x" * 40
_TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(("", "\0", "a\0", "a\0b", _LONG, _LONG + "a", _LONG + "b", "\uffff" * 20)),
)
_BYTES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from((b"", b"\xff", b"\xff" * 31, b"\xff" * 32, b"\xff" * 60, b"\0" * 20, b"a" * 40)),
)
_ODD_FLOATS = st.sampled_from((0.0, -0.0, float("nan"), float("inf"), float("-inf")))
_FLOATS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float16(): _ODD_FLOATS | st.floats(width=16),
    pa.float32(): _ODD_FLOATS | st.floats(width=32),
    pa.float64(): _ODD_FLOATS | st.floats(width=64),
}
_DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1)
TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    **{pa.type_for_alias(f"int{bits}"): _whole(bits) for bits in (8, 16, 32, 64)},
    **{pa.type_for_alias(f"uint{bits}"): _whole(bits, signed=False) for bits in (8, 16, 32, 64)},
    **_FLOATS,
    pa.decimal128(38, 5): _DECIMALS.map(lambda n: decimal.Decimal(n).scaleb(-5, decimal.Context(prec=76))),
    pa.decimal128(9, 2): st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: decimal.Decimal(n).scaleb(-2)),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.time32("ms"): st.integers(0, 86_399_999).map(lambda n: pa.scalar(n, pa.time32("ms"))),
    pa.time64("ns"): st.integers(0, 86_400 * 10**9 - 1).map(lambda n: pa.scalar(n, pa.time64("ns"))),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("ns", "UTC"): _whole(64).map(lambda n: pa.scalar(n, pa.timestamp("ns", "UTC"))),
    pa.string(): _TEXTS,
    pa.large_string(): _TEXTS,
    pa.binary(): _BYTES,
    pa.large_binary(): _BYTES,
    pa.binary(3): st.sampled_from((b"\0\0\0", b"\xff\xff\xff", b"abc", b"abd")),
    pa.binary(40): st.sampled_from((b"\0" * 40, b"\xff" * 40, b"a" * 40, b"a" * 39 + b"b", b"b" * 40)),
    pa.binary(300): st.sampled_from((b"\xff" * 300, b"a" * 300, b"a" * 255 + b"b" * 45)),
}


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)


def written(
    columns: dict[str, pa.Array], disk: MemoryDisk | None = None
) -> tuple[StagedFragment, FragmentStatistics]:
    """A fragment of these columns, all in one slot, and what its statistics say."""
    table = pa.schema([(name, column.type) for name, column in columns.items()])
    schema = fragment_schema(table, versioned=False, tombstones=False)
    count = len(next(iter(columns.values())))
    slots = pa.array(np.zeros(count, dtype=np.uint16))
    rows = pa.RecordBatch.from_arrays([*columns.values(), slots], schema=schema)
    info = TableInfo(1, "t", table, (table.names[0],), (table.names[0],), None, 0, 0)
    target = FragmentTarget(disk or MemoryDisk(), 1, info, schema, ORIGIN)
    staged = write_fragment(target, SlotSet.span(0, 1), [rows] if count else [])
    return staged, unpack_statistics(staged.statistics)


def keys_of(column: pa.Array) -> list[bytes]:
    return [encode_value(value) for value in column]


def check_bounds(statistics: FragmentStatistics, name: str, batches: Sequence[pa.Array]) -> None:
    """Blocks of a column hold for every value, and are as tight as they can be."""
    assert statistics.block_rows == tuple(len(batch) for batch in batches)
    for block, batch in zip(statistics.columns[name], batches, strict=True):
        keys = sorted(key for key in keys_of(batch) if key != NULL)
        assert block.nulls == len(batch) - len(keys)
        if not keys:
            assert (block.low, block.high) == (b"", b"")
            continue
        assert all(block.low <= key < block.high for key in keys)
        assert block.low == keys[0][:KEY_BYTES]
        last = keys[-1]
        assert block.high == (last + b"\0" if len(last) <= KEY_BYTES else successor(last[:KEY_BYTES]))


@pytest.mark.parametrize("kind", TYPES, ids=str)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_blocks_bound_every_value_of_any_type(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=15))
    column = pa.array(values, kind)
    disk = MemoryDisk()
    staged, statistics = written({"a": column, "b": column.slice(0)}, disk)
    batches = [batch.column("a") for batch in FragmentReader(disk, staged.path, ["a"], staged.seal)]
    assert sum(len(batch) for batch in batches) == len(values)
    check_bounds(statistics, "a", batches)
    assert statistics.columns["b"] == statistics.columns["a"]


def test_every_type_with_value_keys_that_a_table_may_have_is_tried() -> None:
    views = {pa.string_view().id, pa.binary_view().id}  # no table has such columns
    assert {kind.id for kind in TYPES} == set(key_encoding.ENCODERS) - views


def test_tombstones_count_as_nulls_and_widen_only_the_bounds_of_their_keys() -> None:
    shelf = Shelf(table_of(KEY_KINDS["int"]), 1)
    versions = [Version((n,), 1, None if n % 2 else f"v{n}", 0) for n in range(8)]
    statistics = statistics_of(shelf, versions)
    assert set(statistics.columns) == {"k", "v", "n"}
    assert [block.nulls for block in statistics.columns["v"]] == [2, 2]
    assert [block.nulls for block in statistics.columns["k"]] == [0, 0]
    assert statistics.columns["k"][1].high == encode_value(pa.scalar(7)) + b"\0"
    assert statistics.columns["v"][1].low == encode_value(pa.scalar("v4"))


def statistics_of(shelf: Shelf, versions: Sequence[Version]) -> FragmentStatistics:
    with mock.patch.object(shelf, "register", wraps=shelf.register) as register:
        shelf.add(versions)
    return unpack_statistics(register.call_args.args[0].statistics)
