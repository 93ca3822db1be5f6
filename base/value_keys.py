"""Values of index columns as bytes whose order is the order of the values.

Where `order_keys` encodes primary keys, which are never null, this encodes what a secondary index
or a statistic is about: any scalar type that has an order, with nulls. A key is the concatenation
of its columns, each one

    null                       0x00
    any value                  0x01, then the value:

    bool, integers, dates, timestamps, decimals, strings, binaries     as in `order_keys`
    uint8 .. uint64            big-endian at natural width
    time32, time64, date64     as the int32 or int64 that they are, sign bit flipped
    float16, float32, float64  IEEE 754 bits, big-endian (float16 as float32); the sign bit is
                               flipped, or all bits when it is set

so nulls come first, NaN is equal to itself and above all numbers, and -0.0 equals 0.0: Spark's
ascending order. No key is a prefix of another one of the same columns. Hence keys that begin with
the same values lie between that prefix and its `successor`, and complementing every byte turns
the order round (`turned`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticscan.base.errors import SchemaMismatch
from elasticscan.base.hashing import raw_values, spark_hash
from elasticscan.base.order_keys import (
    ENCODERS,
    SIGNED_WIDTHS,
    encode_integer,
    encode_time,
    encoded_lengths,
)
from elasticscan.base.order_keys import sort_codes as key_sort_codes

NULL = b"\0"  # the key of a null
VALUES = b"\1"  # the key of any other value begins so
END = b"\2"  # above every key

INDEXABLE_TYPES = (
    "bool, integers, float16 to float64, decimal128, dates, times, timestamps, strings and binaries"
)

_FLOATS = {pa.float16().id: ">f", pa.float32().id: ">f", pa.float64().id: ">d"}
_UNSIGNED = {pa.uint8().id: 1, pa.uint16().id: 2, pa.uint32().id: 4, pa.uint64().id: 8}
_TIMES = {pa.date64().id: 8, pa.time32("s").id: 4, pa.time64("us").id: 8}
_VIEWS = {pa.string_view().id: pa.large_string(), pa.binary_view().id: pa.large_binary()}
_TURN = bytes(255 - byte for byte in range(256))
_TOP_BIT = 1 << 63


def check_index_type(name: str, kind: pa.DataType) -> None:
    """Raise `SchemaMismatch` unless columns of this type can be indexed."""
    if not can_be_encoded(kind):
        raise SchemaMismatch(
            f"column {name!r} of type {kind} cannot be indexed; allowed are {INDEXABLE_TYPES}",
            column=name,
            type=str(kind),
        )


def can_be_encoded(kind: pa.DataType) -> bool:
    return kind.id in _ENCODERS


def encode_value(scalar: pa.Scalar) -> bytes:
    """Return the key of one value.

    >>> encode_value(pa.scalar(5, pa.int16())).hex(), encode_value(pa.scalar(None, pa.int16())).hex()
    ('018005', '00')
    """
    return VALUES + _ENCODERS[scalar.type.id](scalar) if scalar.is_valid else NULL


def encode_values(columns: Sequence[pa.Array], row: int) -> bytes:
    """Return the key of row `row`; quick enough to bisect with."""
    return b"".join([encode_value(column[row]) for column in columns])


def encoded_value_lengths(columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Count how many bytes `encode_values` gives for each row, at most."""
    lengths = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values = column.cast(_VIEWS[column.type.id]) if column.type.id in _VIEWS else column
        measurable = values.type.id in ENCODERS
        lengths += 1 + (encoded_lengths([values]) if measurable else 8)
    return lengths


def can_be_sought(kind: pa.DataType) -> bool:
    """Return whether `place_of` finds keys in columns of a type."""
    return kind.id in _NUMBERS


def place_of(column: pa.Array, key: bytes) -> tuple[int, int]:
    """Return [begin, end) of the rows of an ascending column in which a key with further columns may lie.

    Rows before `begin` are below the key and those from `end` on above it; those between have the value that
    the key begins with. A key that has no more than that value lies before all of them.
    """
    width, offset = _NUMBERS[column.type.id]
    nulls: int = column.null_count
    if key[:1] != VALUES:
        if key >= END:
            return len(column), len(column)
        return 0, nulls if len(key) > 1 else 0
    if nulls == len(column):  # it may have no values
        return nulls, nulls
    sign = "u" if offset == 0 else "i"
    values = raw_values(column, f"{sign}{width}")[nulls:]
    # A key that was cut within the value is the lowest with that prefix.
    number = int.from_bytes(key[1 : 1 + width].ljust(width, b"\0"), "big") - offset
    value = values.dtype.type(number)
    begin = nulls + int(values.searchsorted(value))
    return begin, begin if len(key) <= 1 + width else nulls + int(values.searchsorted(value, "right"))


def successor(prefix: bytes) -> bytes:
    """Return the lowest bytes above every key that begins with `prefix`: of `01 61 ff` it is `01 62`.

    `prefix` is not all 0xFF.
    """
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1])


def inverted(key: bytes) -> bytes:
    """Invert all bits of a key, which then sorts in reverse: `00 05` becomes `ff fa`, and back."""
    return key.translate(_TURN)


def sort_codes(column: pa.Array) -> list[NDArray[Any]]:
    """Return one or two arrays, the most significant first, that are ordered and equal as the keys are.

    They compare within this column only; made for `numpy.lexsort` and for finding equal neighbours.
    """
    if column.type.id in _VIEWS:
        column = column.cast(_VIEWS[column.type.id])
    codes: list[NDArray[Any]] = []
    if column.null_count:
        codes.append(column.is_valid().to_numpy(zero_copy_only=False))
        if column.null_count == len(column):
            return codes
        # Nulls take the value of any other row, so that the kernels below see no nulls.
        column = pc.coalesce(column, column[pc.index(column.is_valid(), True).as_py()])
    kind = column.type
    if kind.id in _FLOATS:
        codes.append(float_codes(column.cast(pa.float64()).to_numpy() + 0.0))  # -0.0 + 0.0 is 0.0
    elif kind.id in _UNSIGNED:
        codes.append(column.to_numpy(zero_copy_only=True))
    elif kind.id in _TIMES:
        codes.append(column.cast(pa.int32() if _TIMES[kind.id] == 4 else pa.int64()).to_numpy())
    else:
        codes.append(key_sort_codes(column))
    return codes


def index_hash(columns: Sequence[pa.Array]) -> NDArray[np.int32]:
    """Compute Spark's hash of every row's values: equal keys have equal hashes.

    Types that Spark lacks are hashed as the types of the same values.
    """
    return spark_hash([_hashable(column) for column in columns])


def _hashable(column: pa.Array) -> pa.Array:
    kind = column.type
    if kind.id in _VIEWS:
        return column.cast(_VIEWS[kind.id])
    if kind.id in _UNSIGNED:
        # The bits of an uint64 are read as an int64: equal values still hash equally.
        return column.view(pa.int64()) if _UNSIGNED[kind.id] == 8 else column.cast(pa.int64())
    if kind.id in _TIMES:
        return column.view(pa.int32() if _TIMES[kind.id] == 4 else pa.int64())
    if pa.types.is_timestamp(kind):
        return column.view(pa.int64())  # as it is: seconds of a far year need not fit microseconds
    return column.cast(pa.float32()) if kind == pa.float16() else column


def float_codes(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return signed integers in the order of the floats, with one NaN above infinity, and -0.0 below 0.0."""
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(_TOP_BIT - 1))


def floats_of(codes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the floats of such integers."""
    return (codes ^ ((codes >> 63) & np.int64(_TOP_BIT - 1))).view(np.float64)


def _encode_float(form: str, scalar: pa.Scalar) -> bytes:
    value = float(scalar.as_py()) + 0.0
    if value != value:
        value = float("nan")
    packed = struct.pack(form, value)
    return inverted(packed) if packed[0] & 0x80 else bytes([packed[0] | 0x80]) + packed[1:]


_ENCODERS: dict[int, Callable[[pa.Scalar], bytes]] = {
    **ENCODERS,
    **{kind: partial(_encode_float, form) for kind, form in _FLOATS.items()},
    **{kind: partial(encode_integer, width, 0) for kind, width in _UNSIGNED.items()},
    **{kind: partial(encode_time, width, 1 << (8 * width - 1)) for kind, width in _TIMES.items()},
    **{kind: ENCODERS[pa.binary().id] for kind in _VIEWS},
}
# Types whose values are numbers in Arrow's buffers: their bytes, and what a key adds to them.
_NUMBERS: dict[int, tuple[int, int]] = {
    **{kind: (width, 1 << (8 * width - 1)) for kind, width in (SIGNED_WIDTHS | _TIMES).items()},
    **{kind: (width, 0) for kind, width in _UNSIGNED.items()},
}
