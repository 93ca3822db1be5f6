"""Statistics against plain Python: bounds hold for every value, samples stay small and tell the truth."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base import value_keys
from elasticscan.base.value_keys import NULL, encode_value, successor
from elasticscan.metadata import KEY_BYTES, FragmentStatistics, StagedFragment, TableInfo, unpack_statistics
from elasticscan.storage import fragment as fragment_module
from elasticscan.storage import statistics as statistics_module
from elasticscan.storage.copying import Destination, Keep, copy_slots
from elasticscan.storage.disk import MemoryDisk
from elasticscan.storage.fragment import (
    COMMIT,
    DELETED,
    SLOT,
    FragmentReader,
    FragmentTarget,
    fragment_schema,
    write_fragment,
)
from elasticscan.storage.statistics import StatisticsCollector, extremes
from elasticscan.storage.view import Bounds
from elasticscan.topology import SlotSet
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
    """Blocks and histogram of a column hold for every value, and are as tight as they can be."""
    assert statistics.block_rows == tuple(len(batch) for batch in batches)
    column = statistics.columns[name]
    everything = sorted(key for batch in batches for key in keys_of(batch))
    for block, batch in zip(column.blocks, batches, strict=True):
        keys = sorted(key for key in keys_of(batch) if key != NULL)
        assert block.nulls == len(batch) - len(keys)
        if not keys:
            assert (block.low, block.high) == (b"", b"")
            continue
        assert all(block.low <= key < block.high for key in keys)
        assert block.low == keys[0][:KEY_BYTES]
        last = keys[-1]
        assert block.high == (last + b"\0" if len(last) <= KEY_BYTES else successor(last[:KEY_BYTES]))
    histogram = column.histogram
    assert histogram.rows == len(everything)
    assert histogram.distinct == (len(set(everything)),)
    assert all(low <= high for low, high in pairwise(histogram.bounds))
    assert len(histogram.bounds) == min(len(everything), 65) or len(everything) == 1
    assert all(len(bound) <= KEY_BYTES for bound in histogram.bounds)
    assert histogram.bounds[0] == everything[0][:KEY_BYTES]
    assert histogram.bounds[-1] >= everything[-1]


@pytest.mark.parametrize("kind", TYPES, ids=str)
@settings(max_examples=25, deadline=None)
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
    assert {kind.id for kind in TYPES} == set(value_keys._ENCODERS) - views


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_texts_of_one_length_are_compared_by_words_to_the_same_end(data: st.DataObject) -> None:
    width = data.draw(st.integers(0, 45))
    letters = st.sampled_from((b"\0", b"a", b"\x80", b"\xff"))
    common = data.draw(st.integers(0, width))
    start = b"a" * common
    tails = st.lists(letters, min_size=width - common, max_size=width - common).map(b"".join)
    values = data.draw(st.lists(tails.map(lambda tail: start + tail), min_size=2, max_size=9))
    kind = data.draw(st.sampled_from((pa.binary(), pa.large_binary(), pa.binary(width))))
    column = pa.array([b"!" * width, *values], kind)[1:]  # what is before it is not its own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics_module, "_FEW_ROWS", 1)
        low, high = extremes(column)
    keys = sorted(keys_of(column))
    assert low[:KEY_BYTES] == keys[0][:KEY_BYTES]
    assert high[:KEY_BYTES] == keys[-1][:KEY_BYTES]
    assert (len(low), len(high)) == (len(keys[0]), len(keys[-1])) or kind != pa.binary(width)


def test_nan_is_the_highest_value_and_a_negative_zero_is_zero() -> None:
    nan = float("nan")
    _, statistics = written({"a": pa.array([1.0, nan, -1.0, None, nan, nan, -0.0, 0.0])})
    mixed, nans = statistics.columns["a"].blocks
    zero, above = encode_value(pa.scalar(0.0)), encode_value(pa.scalar(nan))
    assert (mixed.low, mixed.high, mixed.nulls) == (encode_value(pa.scalar(-1.0)), above + b"\0", 1)
    assert (nans.low, nans.high) == (zero, above + b"\0")
    assert statistics.columns["a"].histogram.distinct == (5,)


def test_a_fragment_without_rows_has_columns_without_blocks() -> None:
    _, statistics = written({"a": pa.array([], pa.int64())})
    assert statistics.block_rows == ()
    assert statistics.columns["a"].blocks == ()
    assert statistics.columns["a"].histogram.bounds == ()


def test_nested_and_system_columns_have_none() -> None:
    _, statistics = written(
        {"a": pa.array([1, 2]), "b": pa.array([[1], None]), "c": pa.array([{"x": 1}] * 2)}
    )
    assert set(statistics.columns) == {"a"}


def test_tombstones_count_as_nulls_and_widen_only_the_bounds_of_their_keys() -> None:
    shelf = Shelf(table_of(KEY_KINDS["int"]), 1)
    versions = [Version((n,), 1, None if n % 2 else f"v{n}", 0) for n in range(8)]
    statistics = statistics_of(shelf, versions)
    assert set(statistics.columns) == {"k", "v", "n"}
    assert [block.nulls for block in statistics.columns["v"].blocks] == [2, 2]
    assert [block.nulls for block in statistics.columns["k"].blocks] == [0, 0]
    assert statistics.columns["k"].blocks[1].high == encode_value(pa.scalar(7)) + b"\0"
    assert statistics.columns["v"].blocks[1].low == encode_value(pa.scalar("v4"))


def statistics_of(shelf: Shelf, versions: Sequence[Version]) -> FragmentStatistics:
    with mock.patch.object(shelf, "register", wraps=shelf.register) as register:
        shelf.add(versions)
    return unpack_statistics(register.call_args.args[0].statistics)


def test_a_copy_has_statistics_of_the_rows_that_it_keeps() -> None:
    shelf = Shelf(table_of(KEY_KINDS["int"]), 1)
    shelf.add([Version((n,), 1, f"old {n}", 0) for n in range(6)])
    shelf.add([Version((n,), 2, None if n == 5 else f"new {n}", 0) for n in range(3, 6)])
    keep = Keep(horizon=2, drop_tombstones=True)
    copied = copy_slots(
        shelf.source(), SlotSet.span(0, 1), Bounds(0, 2), keep, Destination(shelf.disk, 1, ORIGIN)
    )
    assert copied is not None
    statistics = unpack_statistics(copied.staged.statistics)
    assert set(statistics.columns) == set(shelf.table.schema.names)
    assert {SLOT, COMMIT, DELETED}.isdisjoint(statistics.columns)
    texts = [pa.array(["old 0", "old 1", "old 2", "new 3"]), pa.array(["new 4"])]
    check_bounds(statistics, "v", texts)


# ------------------------------------------------------------------------------------ histograms

MANY = 60_000


def collected(column: pa.Array, batch_rows: int = 10_000) -> FragmentStatistics:
    rows = pa.RecordBatch.from_arrays([column], names=["a"])
    collector = StatisticsCollector([rows.schema.field("a")])
    for batch in cut(rows, batch_rows):
        collector.add(batch)
    return collector.finish()


def cut(rows: pa.RecordBatch, batch_rows: int) -> Iterator[pa.RecordBatch]:
    return (rows.slice(start, batch_rows) for start in range(0, rows.num_rows, batch_rows))


def half_constant(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(numbers % 2 == 0, -1, numbers)


@pytest.mark.parametrize(
    ("make", "distinct", "tolerance"),
    [
        pytest.param(lambda n: n, MANY, 0.0, id="unique"),
        pytest.param(lambda n: n * 0, 1, 0.0, id="constant"),
        pytest.param(lambda n: n % 2, 2, 0.0, id="two in turn"),
        pytest.param(lambda n: n * 7_919 % 1_000, 1_000, 0.1, id="a thousand"),
        pytest.param(lambda n: n // 3, MANY // 3, 0.25, id="three each, side by side"),
        pytest.param(lambda n: n % (MANY // 3), MANY // 3, 0.25, id="three each, far apart"),
        pytest.param(half_constant, MANY // 2 + 1, 0.25, id="half constant, half unique"),
    ],
)
def test_distinct_values_are_estimated_from_the_sample(make: Any, distinct: int, tolerance: float) -> None:
    histogram = collected(pa.array(make(np.arange(MANY)))).columns["a"].histogram
    assert histogram.rows == MANY
    assert abs(histogram.distinct[0] - distinct) <= tolerance * distinct


def test_bounds_cut_the_rows_into_about_equally_many() -> None:
    numbers = np.random.default_rng(3).permutation(MANY)
    bounds = collected(pa.array(numbers)).columns["a"].histogram.bounds
    assert len(bounds) == 65
    assert bounds[0] == encode_value(pa.scalar(0)), "the ends are exact, whatever was sampled"
    assert bounds[-1] == encode_value(pa.scalar(MANY - 1))
    places = np.array([int.from_bytes(bound[1:], "big") - (1 << 63) for bound in bounds])
    assert np.abs(places - np.linspace(0, MANY, 65)).max() < 0.04 * MANY


def test_nulls_are_the_lowest_keys_of_a_histogram() -> None:
    column = pa.array(np.arange(MANY), mask=np.arange(MANY) % 4 == 0)
    histogram = collected(column).columns["a"].histogram
    assert 12 <= sum(bound == NULL for bound in histogram.bounds) <= 21
    assert collected(pa.nulls(MANY, pa.int64())).columns["a"].histogram.distinct == (1,)


def test_a_rhythm_in_the_rows_does_not_deceive_the_sample() -> None:
    for period in (2, 4, 8, 64, 1_000):
        bounds = collected(pa.array(np.arange(MANY) % period == 0)).columns["a"].histogram.bounds
        share = sum(bound == encode_value(pa.scalar(True)) for bound in bounds) / 65
        assert abs(share - 1 / period) < 0.06


def test_the_same_rows_give_the_same_statistics() -> None:
    column = pa.array(np.random.default_rng(5).integers(0, 50_000, MANY))
    assert collected(column) == collected(column)


@pytest.mark.parametrize("batch_rows", [1, 3, 4_096, 4_097, 9_000, MANY])
def test_a_sample_is_small_and_even_however_the_rows_are_cut(batch_rows: int) -> None:
    count = 9_000 if batch_rows < 10 else MANY
    sample = statistics_module._Sample(["a"])
    for batch in cut(pa.RecordBatch.from_arrays([pa.array(np.arange(count))], names=["a"]), batch_rows):
        sample.add(batch)
        assert sum(rows.num_rows for rows in sample._rows) <= 3 * statistics_module.SAMPLE_ROWS
    numbers = sample.columns()["a"].to_numpy()
    assert len(numbers) == len(set(numbers.tolist())) == statistics_module.SAMPLE_ROWS
    per_tenth = np.histogram(numbers, 10, (0, count))[0]
    assert per_tenth.min() > 0.75 * len(numbers) / 10, "early rows are as likely as late ones"
    assert per_tenth.max() < 1.25 * len(numbers) / 10


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.binary(50_000)], ids=str)
def test_long_texts_do_not_make_the_sample_large(kind: pa.DataType) -> None:
    column = pa.array([str(n).rjust(6, "0") + "x" * 49_994 for n in range(100)], pa.string())
    column = column.cast(pa.binary()).cast(kind)
    sample = statistics_module._Sample(["a"])
    sample.add(pa.RecordBatch.from_arrays([column], names=["a"]))
    assert sum(rows.nbytes for rows in sample._rows) < 100 * 300
    histogram = collected(column).columns["a"].histogram
    assert histogram.distinct == (100,)
    assert all(len(bound) <= KEY_BYTES for bound in histogram.bounds)


def test_statistics_are_small_however_long_the_values_are() -> None:
    day = datetime.datetime(2024, 1, 1)  # noqa: DTZ001
    columns = {
        "a": pa.array(["x" * 1_000 + str(n) for n in range(1_000)]),
        "b": pa.array([day + datetime.timedelta(seconds=n) for n in range(1_000)]),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragment_module, "BATCH_ROWS", 500)
        staged, statistics = written(columns)
    assert len(statistics.block_rows) == 2
    assert len(staged.statistics) < 2 * 65 * (KEY_BYTES + 3) + 1_000
