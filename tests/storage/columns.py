"""Columns of every type of Arrow, also of types that tables may not have, and rows for them."""

from __future__ import annotations

import string
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as t
from hypothesis import strategies as st

# Allowed types without child types, and all types that a table may not have.
PLAIN = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(0), pa.binary(5)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    *(pa.timestamp("s", "Mars/Phobos"), pa.timestamp("us", "+99:99"), pa.month_day_nano_interval()),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.decimal32(9, 9), pa.decimal32(9, -9), pa.decimal64(18, 9), pa.decimal64(5, -4)),
    *(pa.decimal128(1, 1), pa.decimal128(38, 38), pa.decimal128(38, -38), pa.decimal128(38, -37)),
    *(pa.decimal256(76, 76), pa.decimal256(76, -76), pa.decimal256(40, 0)),
]
REFUSED = [
    *(pa.null(), pa.string_view(), pa.binary_view(), pa.list_view(pa.int8()), pa.large_list_view(pa.int8())),
    *(pa.dictionary(pa.int8(), pa.string()), pa.run_end_encoded(pa.int32(), pa.int64())),
    *(pa.dense_union([pa.field("a", pa.int64())]), pa.sparse_union([pa.field("a", pa.int64())])),
    *(pa.uuid(), pa.bool8(), pa.json_(), pa.opaque(pa.int64(), "kind", "vendor")),
    pa.fixed_shape_tensor(pa.int32(), [2]),
    *(pa.decimal32(5, 6), pa.decimal64(9, 200), pa.decimal128(1, 2), pa.decimal256(40, 41)),
    *(pa.decimal32(5, -6), pa.decimal64(18, -19), pa.decimal128(38, -39), pa.decimal256(1, -200)),
]

# Types with one child type.
NESTED: dict[str, Callable[[pa.Field], pa.DataType]] = {
    "struct": lambda part: pa.struct([part, pa.field("n", pa.int8()), part]),
    "list": pa.list_,
    "large_list": pa.large_list,
    "fixed_size_list": lambda part: pa.list_(part, 2),
    "fixed_size_list of none": lambda part: pa.list_(part, 0),
    "map to it": lambda part: pa.map_(pa.string(), part),
    "map from it": lambda part: pa.map_(part.with_nullable(False), pa.int8(), keys_sorted=True),
}


def column(name: str, kind: pa.DataType, nullable: bool = True, note: str = "") -> pa.Field:
    return pa.field(name, kind, nullable or kind == pa.null(), {"note": note} if note else None)


def forms(kind: pa.DataType) -> list[pa.DataType]:
    """A type, and the nested types that contain it."""
    kinds = [kind]
    for name, nested in NESTED.items():
        if name != "map from it" or kind != pa.null():
            kinds += [nested(column("part", kind, nullable)) for nullable in (True, False)]
    return kinds


# ------------------------------------------------------------------------------------ any columns

NAMES = st.text(st.sampled_from(string.ascii_letters + " .`'\"é\n"), max_size=3)


def _wider(parts: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(column, NAMES, parts, st.booleans())
    keys = fields.filter(lambda key: key.type != pa.null())
    return st.one_of(
        st.builds(pa.list_, fields),
        st.builds(pa.large_list, fields),
        st.builds(pa.list_, fields, st.integers(0, 3)),
        st.builds(pa.struct, st.lists(fields, max_size=3)),
        st.builds(lambda key, item: pa.map_(key.with_nullable(False), item), keys, fields),
        st.builds(lambda part: pa.list_(nested_structs(part, 31)), parts),
    )


def nested_structs(kind: pa.DataType, levels: int) -> pa.DataType:
    for _ in range(levels):
        kind = pa.struct([("part", kind)])
    return kind


KINDS = st.recursive(st.sampled_from([*PLAIN, *PLAIN, *PLAIN, *REFUSED]), _wider, max_leaves=6)
COLUMNS = st.builds(column, NAMES, KINDS, st.booleans(), st.sampled_from(["", "x"]))


# ------------------------------------------------------------------------------------------- rows


def sample_rows(schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Different rows; the first has values at all levels, the others nulls if these are allowed."""
    columns = [pa.array([_value(field, n) for n in range(count)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value(field: pa.Field, n: int) -> Any:
    return None if field.nullable and n % 4 == 3 else _sample(field.type, n)


def _sample(kind: pa.DataType, n: int) -> Any:
    if t.is_map(kind):
        return [(_sample(kind.key_type, n + i), _value(kind.item_field, n + i)) for i in range(_items(n))]
    if t.is_struct(kind):
        return tuple(_value(kind.field(i), n + i) for i in range(kind.num_fields))
    if kind.num_fields:
        items = kind.list_size if t.is_fixed_size_list(kind) else _items(n)
        return [_value(kind.value_field, n + i) for i in range(items)]
    if t.is_boolean(kind):
        return n % 2 == 1
    if t.is_string(kind) or t.is_large_string(kind):
        return "é" * n
    if t.is_fixed_size_binary(kind):
        return bytes([n]) * kind.byte_width
    if t.is_binary(kind) or t.is_large_binary(kind):
        return b"\xff" * n
    if t.is_decimal(kind):
        # Of the lowest scale, because Arrow accepts no other from Python.
        return Decimal((0, (n % 10,), -kind.scale)) if kind.scale > -kind.precision else Decimal(0)
    if t.is_date64(kind):
        return n * 86_400_000
    return (n, n, n) if t.is_interval(kind) else n


def _items(n: int) -> int:
    return (n + 1) % 3
