"""Values as bytes whose plain comparison is the order of the values.

There are two kinds of keys. A **primary key** is never null; `encode_row` returns it, and a scan's positions
consist of such keys. A **value key** may have any ordered scalar type, and may be null; `encode_value`
returns it, for indexes and statistics. Both are the concatenation of their columns, and no key is a prefix of
another key of the same columns. A value key has one byte before each column: 0x00 for a null, without further
bytes, or 0x01. The values are:

    bool                       1 byte, 0 or 1
    int8 .. int64              big-endian at natural width, sign bit flipped
    dates, times, timestamps   as their int32 or int64, in the same form
    decimal128                 the unscaled value, 16 bytes big-endian, sign bit flipped
    fixed_size_binary          the unchanged bytes: the type defines their number
    string, binary             the (UTF-8) bytes with 0x00 written as 0x00 0xFF, then 0x00 0x00

and in value keys only (which also have `date64`, `time32` and `time64`):

    uint8 .. uint64            big-endian at natural width
    float16, float32, float64  IEEE 754 bits, big-endian (float16 as float32); the sign bit is flipped, or
                               all bits when it is set

Nulls thus come first, NaN equals itself and is above all numbers, -0.0 equals 0.0, and strings compare by
their UTF-8 bytes: Spark's ascending order. Keys that begin with the same values lie between that prefix and
its `successor`. A key with all bits inverted sorts in reverse. The escaped zero is from FoundationDB's
tuple layer, the flipped sign from MyRocks' keys.
"""

from __future__ import annotations

import decimal
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

_PRIMARY_KEY_TYPES = "bool, int8 to int64, date32, timestamp, decimal128, strings and binaries"
_INDEXABLE_TYPES = "bool, integers, floats, decimal128, dates, times, timestamps, strings and binaries"

NULL = b"\0"  # the value key of a null
VALUES = b"\1"  # the first byte of the value key of any other value
END = b"\2"  # above every value key

_TEXT_END = b"\0\0"
_ESCAPED_ZERO = b"\0\xff"

# Key types that Arrow stores as numbers in the order of the values, and the others.
_TIMES = (pa.date32(), pa.timestamp("us"), pa.date64(), pa.time32("s"), pa.time64("us"))
_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_NUMBERS = {
    kind.id: np.dtype(f"{'u' if pa.types.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
    for kind in (*_WHOLE, *_TIMES)
}
_BOOL = pa.bool_().id
_DECIMAL = pa.decimal128(1).id
_FIXED = pa.binary(1).id
_FLOATS = {pa.float16().id: ">f", pa.float32().id: ">f", pa.float64().id: ">d"}
_TEXTS = {pa.string().id, pa.large_string().id, pa.binary().id, pa.large_binary().id}
_VIEWS = {pa.string_view().id: pa.large_string(), pa.binary_view().id: pa.large_binary()}
# Types that primary keys cannot have, each with a type of the same values that Spark can hash.
_OTHERS = {
    **_VIEWS,
    **{kind.id: pa.int64() for kind in (*_WHOLE[4:], pa.date64(), pa.time64("us"))},
    pa.time32("s").id: pa.int32(),
    pa.float16().id: pa.float32(),
    **{kind.id: kind for kind in (pa.float32(), pa.float64())},
}

_TURN = bytes(255 - byte for byte in range(256))
_TOP_BIT = 1 << 63
_DECIMAL_BIAS = 1 << 127
# Scales a decimal of 38 digits without rounding, independent of the thread's decimal context.
_EXACT = decimal.Context(prec=76)


def check_key_type(name: str, kind: pa.DataType, is_index: bool = False) -> None:
    """Raise `SchemaMismatch` unless a column of this type can be part of a primary key, or of an index."""
    if not can_be_encoded(kind) or not (is_index or kind.id in PRIMARY_ENCODERS):
        use, allowed = ("indexed", _INDEXABLE_TYPES) if is_index else ("part of a key", _PRIMARY_KEY_TYPES)
        why = f"column {name!r} of type {kind} cannot be {use}; allowed are {allowed}"
        raise SchemaMismatch(why, column=name, type=str(kind))


def can_be_encoded(kind: pa.DataType) -> bool:
    return kind.id in ENCODERS


def encode_row(columns: Sequence[pa.Array], row: int) -> bytes:
    """Return the primary key of row `row`, `0 <= row < len(columns[0])`; fast enough for a bisection.

    No value may be null. `check_key_type` must accept the types.

    >>> encode_row([pa.array([5], pa.int16()), pa.array(["a"])], 0).hex()
    '8005610000'
    """
    return b"".join([ENCODERS[column.type.id](column[row]) for column in columns])


def encode_value(scalar: pa.Scalar) -> bytes:
    """Return the value key of one value.

    >>> encode_value(pa.scalar(5, pa.int16())).hex(), encode_value(pa.scalar(None, pa.int16())).hex()
    ('018005', '00')
    """
    return VALUES + ENCODERS[scalar.type.id](scalar) if scalar.is_valid else NULL


def encode_values(columns: Sequence[pa.Array], row: int) -> bytes:
    """Return the value key of row `row`; fast enough for a bisection."""
    return b"".join([encode_value(column[row]) for column in columns])


def _encode_integer(width: int, bias: int, scalar: pa.Scalar) -> bytes:
    return int(scalar.as_py() + bias).to_bytes(width, "big")


def _encode_time(width: int, bias: int, scalar: pa.Scalar) -> bytes:
    return int(scalar.value + bias).to_bytes(width, "big")  # `as_py` loses nanoseconds and far years


def _encode_decimal(scalar: pa.Scalar) -> bytes:
    unscaled = scalar.as_py().scaleb(scalar.type.scale, _EXACT)
    return (int(unscaled) + _DECIMAL_BIAS).to_bytes(16, "big")


def _encode_text(scalar: pa.Scalar) -> bytes:
    data: bytes = scalar.as_buffer().to_pybytes()
    return data.replace(b"\0", _ESCAPED_ZERO) + _TEXT_END


def _encode_float(form: str, scalar: pa.Scalar) -> bytes:
    value = float(scalar.as_py()) + 0.0
    if value != value:
        value = float("nan")
    packed = struct.pack(form, value)
    return inverted(packed) if packed[0] & 0x80 else bytes([packed[0] | 0x80]) + packed[1:]


def _bias(width: int) -> int:
    """Return the number whose addition flips the sign bit of a signed number of `width` bytes."""
    return 1 << (8 * width - 1)


def _number_encoder(kind: pa.DataType) -> Callable[[pa.Scalar], bytes]:
    numbers = _NUMBERS[kind.id]
    encode = _encode_time if kind in _TIMES else _encode_integer
    return partial(encode, numbers.itemsize, _bias(numbers.itemsize) if numbers.kind == "i" else 0)


# The encoders of values that are not null, by type: all of them, and those of primary keys.
ENCODERS: dict[int, Callable[[pa.Scalar], bytes]] = {
    _BOOL: partial(_encode_integer, 1, 0),
    _DECIMAL: _encode_decimal,
    _FIXED: pa.FixedSizeBinaryScalar.as_py,
    **{kind.id: _number_encoder(kind) for kind in (*_WHOLE, *_TIMES)},
    **{kind: partial(_encode_float, form) for kind, form in _FLOATS.items()},
    **dict.fromkeys((*_TEXTS, *_VIEWS), _encode_text),
}
PRIMARY_ENCODERS = {kind: encoder for kind, encoder in ENCODERS.items() if kind not in _OTHERS}


def value_of(key: bytes, kind: pa.DataType) -> pa.Scalar:
    """Decode a value key of one column; text of a view type is returned as plain text."""
    kind = _VIEWS.get(kind.id, kind)
    if key == NULL:
        return pa.scalar(None, kind)
    data = key[1:]
    if kind.id in _TEXTS:
        text = data[: -len(_TEXT_END)].replace(_ESCAPED_ZERO, b"\0")
        return pa.scalar(text, pa.binary()).cast(kind)
    if kind.id == _BOOL:
        return pa.scalar(data == b"\1", kind)
    if kind.id == pa.float16().id:
        return value_of(key, pa.float32()).cast(kind)
    if kind.id in _FLOATS and data[0] < 0x80:
        data = inverted(data)
    elif kind.id != _FIXED and not pa.types.is_unsigned_integer(kind):
        data = bytes([data[0] ^ 0x80]) + data[1:]
    stored = data if kind.id == _FIXED else data[::-1]
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(stored)])[0]


def successor(prefix: bytes) -> bytes:
    """Return the lowest bytes above every key that begins with `prefix`: of `01 61 ff` it is `01 62`.

    `prefix` must not consist of 0xFF bytes only.
    """
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1])


def inverted(key: bytes) -> bytes:
    """Invert all bits of a key, which then sorts in reverse: `00 05` becomes `ff fa`, and back."""
    return key.translate(_TURN)


def sort_codes(column: pa.Array) -> NDArray[Any]:
    """Return integers with the order and equality of a key column's values, for `numpy.lexsort`.

    They can be compared only within this column. Integers, dates, timestamps and decimals that fit 64 bits
    are returned without a copy, other types as dense ranks.

    Raises `SchemaMismatch` for a null.
    """
    if column.null_count:
        raise SchemaMismatch("A column of a key holds a null. Give every row a value in its key columns.")
    kind = column.type
    if not len(column):
        return np.empty(0, dtype=np.int64)
    if kind.id == _BOOL:
        return raw_values(column.cast(pa.uint8()), np.uint8)
    if kind.id in _NUMBERS:
        return raw_values(column, _NUMBERS[kind.id])
    if kind.id == _DECIMAL:
        halves = raw_values(column, np.int64, 2)
        low, high = halves[0::2], halves[1::2]
        if kind.precision <= 18 or np.array_equal(low >> 63, high):
            return low
    ranks: NDArray[Any] = pc.rank(column, tiebreaker="dense").to_numpy()
    return ranks


def value_sort_codes(column: pa.Array) -> list[NDArray[Any]]:
    """Return one or two arrays with the order and equality of value keys, the most significant first.

    They can be compared only within this column; for `numpy.lexsort` and for finding equal neighbours.
    """
    column = _without_views(column)
    codes: list[NDArray[Any]] = []
    if column.null_count:
        codes.append(column.is_valid().to_numpy(zero_copy_only=False))
        if column.null_count == len(column):
            return codes
        # Replace nulls by the value of any other row, because the kernels below do not accept nulls.
        column = pc.coalesce(column, column[pc.index(column.is_valid(), True).as_py()])
    if column.type.id in _FLOATS:
        codes.append(float_codes(column.cast(pa.float64()).to_numpy() + 0.0))  # -0.0 + 0.0 is 0.0
    else:
        codes.append(sort_codes(column))
    return codes


def _without_views(column: pa.Array) -> pa.Array:
    return column.cast(_VIEWS[column.type.id]) if column.type.id in _VIEWS else column


def float_codes(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return signed integers in the order of the floats, with one NaN above infinity, and -0.0 below 0.0."""
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(_TOP_BIT - 1))


def floats_of(codes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the floats of integers from `float_codes`."""
    return (codes ^ ((codes >> 63) & np.int64(_TOP_BIT - 1))).view(np.float64)


def encoded_lengths(columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Return an upper bound of the encoded bytes of each row's values; a null has none.

    A value key has one more byte for each column.
    """
    lengths = np.zeros(len(columns[0]), dtype=np.int64)
    for column in map(_without_views, columns):
        kind = column.type
        if kind.id in _TEXTS:
            is_large = kind.id in (pa.large_string().id, pa.large_binary().id)
            data = column.view(pa.large_binary() if is_large else pa.binary())
            sizes = pc.add(pc.binary_length(data), pc.count_substring(data, b"\0")).fill_null(0)
            lengths += sizes.to_numpy(zero_copy_only=False) + len(_TEXT_END)
        elif kind.id == _BOOL:
            lengths += 1
        else:
            lengths += 4 if kind.id == pa.float16().id else int(kind.byte_width)
    return lengths


def index_hash(columns: Sequence[pa.Array]) -> NDArray[np.int32]:
    """Compute Spark's hash of every row's values: equal keys have equal hashes.

    Types that Spark lacks are hashed as a Spark type with the same values.
    """
    # Casts are unsafe: far years may not fit microseconds, nor a uint64 an int64; any bits serve for a hash.
    hashed = [
        pa.int64() if pa.types.is_timestamp(c.type) else _OTHERS.get(c.type.id, c.type) for c in columns
    ]
    return spark_hash([c.cast(kind, safe=False) for c, kind in zip(columns, hashed, strict=True)])


def can_be_sought(kind: pa.DataType) -> bool:
    """Return whether `place_of` supports columns of a type: numbers in Arrow's buffers."""
    return kind.id in _NUMBERS


def place_of(column: pa.Array, key: bytes) -> tuple[int, int]:
    """Return the range [begin, end) of rows of an ascending column that may contain a key of several columns.

    Rows before `begin` are below the key, and rows from `end` on are above it; rows in the range have the
    first value of the key. The range is empty if the key has only this value, which sorts before these rows.
    """
    nulls: int = column.null_count
    if key[:1] != VALUES:
        if key >= END:
            return len(column), len(column)
        return 0, nulls if len(key) > 1 else 0
    if nulls == len(column):  # there may be no values
        return nulls, nulls
    numbers = _NUMBERS[column.type.id]
    width, values = numbers.itemsize, raw_values(column, numbers)[nulls:]
    # A key that was cut within the value is the lowest with that prefix.
    number = int.from_bytes(key[1 : 1 + width].ljust(width, b"\0"), "big")
    value = numbers.type(number - _bias(width) if numbers.kind == "i" else number)
    begin = nulls + int(values.searchsorted(value))
    return begin, begin if len(key) <= 1 + width else nulls + int(values.searchsorted(value, "right"))
