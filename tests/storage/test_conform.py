"""What may be written to a table, column by column."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from elasticscan.base.errors import SchemaMismatch
from elasticscan.storage.conform import batches_of, conform


def written(column: pa.Array, kind: pa.DataType, nullable: bool = True) -> pa.Array:
    """The column after conversion to a table's column of this type."""
    batch = pa.RecordBatch.from_arrays([column], names=["v"])
    schema = pa.schema([pa.field("v", kind, nullable=nullable)])
    found = conform(batch, schema)
    assert found.schema.equals(schema)
    found.validate(full=True)
    return found.column(0)


def of(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


required = pa.field("item", pa.int64(), nullable=False)
a_struct = pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
a_map = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
point = decimal.Decimal("1.5")
instant = datetime.datetime(2024, 1, 2, 3, 4, 5)  # noqa: DTZ001 - Arrow has times without a zone


# ------------------------------------------------------------------------------------------- columns


def rows(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


TWO = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (rows(a=[1]), "missing: b"),
        (rows(a=[1], b=["x"], c=[1]), "unknown: c"),
        (rows(a=[1], c=[1]), "missing: b; unknown: c"),
        (rows(A=[1], b=["x"]), "missing: a; unknown: A"),
        (pa.RecordBatch.from_arrays([of([1], pa.int64())] * 3, names=["a", "b", "a"]), "one is repeated"),
    ],
)
def test_columns_that_do_not_match_are_named(batch: pa.RecordBatch, message: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        conform(batch, TWO)
    assert message in str(caught.value)


def test_nulls_are_refused_where_the_table_allows_none() -> None:
    assert written(of([1, 2], pa.int64()), pa.int64(), nullable=False).to_pylist() == [1, 2]
    for column in (of([1, None], pa.int64()), pa.nulls(2)):
        with pytest.raises(SchemaMismatch, match="nulls where the table allows none"):
            written(column, pa.int64(), nullable=False)


# --------------------------------------------------------------------------------------------- types

WIDENING = [
    (of([1, None], pa.int8()), pa.int64()),
    (of([1], pa.uint8()), pa.uint32()),
    (of([1.5], pa.float32()), pa.float64()),
    (of([1.5], pa.float16()), pa.float32()),
    (of(["ä"], pa.large_string()), pa.string()),
    (of(["ä", None], pa.string_view()), pa.string()),
    (of(["ä"], pa.string()), pa.large_string()),
    (of(["ä", None, "ä"], pa.string()).dictionary_encode(), pa.string()),
    (of(["ä", None, "ä"], pa.string()).dictionary_encode(), pa.large_string()),
    (of([1, 1], pa.int32()).dictionary_encode(), pa.int64()),
    (of([b"\xff"], pa.large_binary()), pa.binary()),
    (of([b"\xff"], pa.binary_view()), pa.binary()),
    (of([b"ab"], pa.binary(2)), pa.binary()),
    (of([b"ab"], pa.binary()), pa.binary(2)),
    (of([instant], pa.timestamp("s")), pa.timestamp("us")),
    (of([instant], pa.timestamp("ms", "UTC")), pa.timestamp("us", "Europe/Berlin")),
    (of([point], pa.decimal128(2, 1)), pa.decimal128(20, 5)),
    (of([point], pa.decimal64(5, 1)), pa.decimal128(20, 1)),
    (of([point], pa.decimal256(5, 1)), pa.decimal128(5, 1)),
    (of([[1, None], None], pa.list_(pa.int8())), pa.list_(pa.int64())),
    (of([[1]], pa.large_list(pa.int8())), pa.list_(pa.field("element", pa.int64()))),
    (of([[1, 2]], pa.list_(pa.int8(), 2)), pa.list_(pa.int64())),
    (of([{"a": 1, "b": "x"}], pa.struct([("a", pa.int8()), ("b", pa.large_string())])), a_struct),
    (of([[("k", 1)]], pa.map_(pa.string(), pa.int8())), pa.map_(pa.string(), pa.int64())),
    (of([["x"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), pa.list_(pa.string())),
]


@pytest.mark.parametrize(("column", "kind"), WIDENING, ids=lambda value: str(getattr(value, "type", value)))
def test_a_type_whose_every_value_is_one_of_the_column_is_taken(column: pa.Array, kind: pa.DataType) -> None:
    found = written(column, kind).to_pylist()
    if pa.types.is_timestamp(kind):
        assert [value.timestamp() for value in found] == [value.timestamp() for value in column.to_pylist()]
    else:
        assert found == column.to_pylist()
    assert written(pa.nulls(2), kind).to_pylist() == [None, None], "nothing but nulls is taken for any type"


LOSSY = [
    (of([1], pa.int64()), pa.int32()),
    (of([1], pa.int64()), pa.float64()),
    (of([1], pa.uint8()), pa.int64()),
    (of([1], pa.int8()), pa.uint64()),
    (of([1.0], pa.float64()), pa.float32()),
    (of([1.0], pa.float64()), pa.int64()),
    (of([True], pa.bool_()), pa.int8()),
    (of(["1"], pa.string()), pa.int64()),
    (of([1], pa.int64()), pa.string()),
    (of(["x"], pa.string()), pa.binary()),
    (of([b"x"], pa.binary()), pa.string()),
    (of([b"abc"], pa.binary()), pa.binary(2)),
    (of([b"abc"], pa.binary(3)), pa.binary(2)),
    (of([instant], pa.timestamp("us")), pa.timestamp("ms")),
    (of([instant], pa.timestamp("us")), pa.timestamp("us", "UTC")),
    (of([instant], pa.timestamp("us", "UTC")), pa.timestamp("us")),
    (of([1 << 62], pa.int64()).cast(pa.timestamp("us")), pa.timestamp("ns")),
    (of([instant.date()], pa.date32()), pa.timestamp("us")),
    (of([instant.date()], pa.date32()), pa.date64()),
    (of([point], pa.decimal128(10, 2)), pa.decimal128(5, 2)),
    (of([point], pa.decimal128(10, 2)), pa.decimal128(20, 1)),
    (of([[1]], pa.list_(pa.int64())), pa.list_(pa.int32())),
    (of([[1, 2, 3]], pa.list_(pa.int64())), pa.list_(pa.int64(), 2)),
    (of([[1]], pa.list_(pa.int64())), pa.int64()),
    (of([{"a": 1}], pa.struct([("a", pa.int64())])), a_struct),
    (of([{"b": "x", "a": 1}], pa.struct([("b", pa.string()), ("a", pa.int64())])), a_struct),
    (pc.run_end_encode(of([1, 1], pa.int64())), pa.int64()),
    (pa.ExtensionArray.from_storage(pa.uuid(), of([b"x" * 16], pa.binary(16))), pa.binary(16)),
    (of(["x"], pa.string()).dictionary_encode(), pa.int64()),
]


@pytest.mark.parametrize(("column", "kind"), LOSSY, ids=lambda value: str(getattr(value, "type", value)))
def test_a_type_that_could_lose_something_is_refused_by_column(column: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="column 'v'"):
        written(column, kind)


# ---------------------------------------------------------------------------------------- what to hand in


# Values, and whether each is refused because of a null inside where the type allows none.
NESTED: list[tuple[pa.DataType, dict[bool, list[Any]]]] = [
    (pa.list_(required), {True: [[1, None]], False: [[1], None, []]}),
    (pa.large_list(required), {True: [[None]], False: [[1], None]}),
    (pa.list_(required, 2), {True: [[1, None]], False: [[1, 2], None]}),
    (a_struct, {True: [{"a": None, "b": "x"}], False: [{"a": 1, "b": None}, None]}),
    (pa.list_(a_struct), {True: [[{"a": None, "b": "x"}]], False: [[{"a": 1, "b": None}, None], None]}),
    (a_map, {True: [[("k", None)]], False: [[("k", 1)], None, []]}),
    (
        pa.map_(pa.string(), pa.list_(required, 2)),
        {True: [[("k", [1, 2]), ("l", [1, None])]], False: [[("k", [1, 2]), ("l", None)], None]},
    ),
    (
        pa.struct([("s", a_struct)]),
        {True: [{"s": {"a": None, "b": None}}], False: [{"s": None}, {"s": {"a": 1, "b": None}}, None]},
    ),
]


@pytest.mark.parametrize(("kind", "cases"), NESTED, ids=[str(kind) for kind, _ in NESTED])
def test_nulls_inside_values_are_refused_where_the_type_allows_none(
    kind: pa.DataType, cases: dict[bool, list[Any]]
) -> None:
    values = cases[False]
    assert written(of(values, kind), kind).to_pylist() == values
    assert written(of([values[0], *values], kind).slice(1), kind).to_pylist() == values
    for value in cases[True]:
        with pytest.raises(SchemaMismatch, match="nulls where its type"):
            written(of([*values, value], kind), kind)


@pytest.mark.parametrize("kind", ["view", "dictionary", "text that is not UTF-8"])
def test_unsound_values_are_refused_before_any_kernel_sees_them(kind: str) -> None:
    """A kernel that casts them would crash the process."""
    places, content = np.array([1_000, 0, 5, 10**6], np.int32).tobytes(), pa.py_buffer(b"hello")
    unsound = pa.Array.from_buffers(pa.string_view(), 1, [None, pa.py_buffer(places), content])
    if kind == "dictionary":
        indices = pa.array([99_999_999], pa.int32())
        unsound = pa.DictionaryArray.from_arrays(indices, pa.array(["a"]), safe=False)
    elif kind != "view":
        offsets = pa.array([0, 1], pa.int32()).buffers()[1]
        unsound = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    batch = pa.RecordBatch.from_arrays([unsound], names=["v"])
    with pytest.raises(SchemaMismatch, match="no"):
        [conform(found, pa.schema([("v", pa.string())])) for found in batches_of(batch)]
