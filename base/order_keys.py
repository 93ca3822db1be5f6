"""Primary keys as bytes whose order is the order of the values.

A key is the concatenation of its columns, each encoded so that comparing two keys with `<` on plain
`bytes` compares their columns one after another. The encoding is reversible, given the types, and no
key of a table is a prefix of another:

    bool                       1 byte, 0 or 1
    int8 .. int64              big-endian at natural width, sign bit flipped
    date32, timestamp          as the int32 of days and the int64 of units that they are
    decimal128                 the unscaled value, 16 bytes big-endian, sign bit flipped
    fixed_size_binary          the bytes as they are: the type knows their number
    string, binary             the (UTF-8) bytes with 0x00 written as 0x00 0xFF, then 0x00 0x00

Strings thus compare as Spark and Arrow compare them, by their UTF-8 bytes. Keys are never null. The
escaped zero is that of FoundationDB's tuple layer, the flipped sign that of MyRocks' keys.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticscan.base.errors import ContinuationKeyError, InvalidKey, SchemaMismatch
from elasticscan.base.hashing import raw_values

ALLOWED_KEY_TYPES = (
    "bool, int8, int16, int32, int64, date32, timestamp, decimal128, string, large_string, binary, "
    "large_binary, fixed_size_binary"
)

_END = b"\0\0"
_ESCAPED_ZERO = b"\0\xff"

_BOOL = pa.bool_().id
_DECIMAL = pa.decimal128(1).id
_FIXED = pa.binary(1).id
# Types that are stored as a signed integer, and its bytes.
_INTEGERS: dict[int, int] = {pa.int8().id: 1, pa.int16().id: 2, pa.int32().id: 4, pa.int64().id: 8}
_TIMES: dict[int, int] = {pa.date32().id: 4, pa.timestamp("us").id: 8}
SIGNED_WIDTHS: dict[int, int] = _INTEGERS | _TIMES
_TEXTS = frozenset({pa.string().id, pa.large_string().id})
_BINARIES = frozenset({pa.binary().id, pa.large_binary().id})
_LARGE = frozenset({pa.large_string().id, pa.large_binary().id})
_BIAS_16 = 1 << 127

# Moves the point of a decimal of 38 digits without rounding, whatever the thread's own context is.
_EXACT = decimal.Context(prec=76)


def check_key_type(name: str, type: pa.DataType) -> None:  # noqa: A002
    """Raise `SchemaMismatch` unless a column of this type can be part of a key."""
    if type.id not in ENCODERS:
        raise SchemaMismatch(
            f"Column {name!r} of type {type} cannot be part of a key. Allowed are {ALLOWED_KEY_TYPES}.",
            column=name,
            type=str(type),
        )


# ---------------------------------------------------------------------------------- one row's key


def encode_row(columns: Sequence[pa.Array], row: int) -> bytes:
    """Return the key of row `row`, `0 <= row < len(columns[0])`; quick enough to bisect with.

    Raises `InvalidKey` for a null and `SchemaMismatch` for a type that `check_key_type` refuses.

    >>> encode_row([pa.array([5], pa.int16()), pa.array(["a"])], 0).hex()
    '8005610000'
    """
    key = []
    for column in columns:
        encoder, value = ENCODERS.get(column.type.id), column[row]
        if encoder is None:
            raise _unsupported("of a key", column.type)
        if not value.is_valid:
            raise _null()
        key.append(encoder(value))
    return b"".join(key)


def _unsupported(role: str, kind: pa.DataType) -> SchemaMismatch:
    return SchemaMismatch(
        f"A column {role} has type {kind}. Allowed are {ALLOWED_KEY_TYPES}.", type=str(kind)
    )


def _null() -> InvalidKey:
    return InvalidKey("A column of a key holds a null. Give every row a value in its key columns.")


def encode_integer(width: int, bias: int, scalar: pa.Scalar) -> bytes:
    return int(scalar.as_py() + bias).to_bytes(width, "big")


def encode_time(width: int, bias: int, scalar: pa.Scalar) -> bytes:
    return int(scalar.value + bias).to_bytes(width, "big")  # `as_py` loses nanoseconds and far years


def _encode_decimal(scalar: pa.Scalar) -> bytes:
    unscaled = scalar.as_py().scaleb(scalar.type.scale, _EXACT)
    return (int(unscaled) + _BIAS_16).to_bytes(16, "big")


def _encode_text(scalar: pa.Scalar) -> bytes:
    data: bytes = scalar.as_buffer().to_pybytes()
    return data.replace(b"\0", _ESCAPED_ZERO) + _END


# Of values that are not null.
ENCODERS: dict[int, Callable[[pa.Scalar], bytes]] = {
    _BOOL: partial(encode_integer, 1, 0),
    _DECIMAL: _encode_decimal,
    _FIXED: lambda scalar: bytes(scalar.as_py()),
    **{kind: partial(encode_integer, width, 1 << (8 * width - 1)) for kind, width in _INTEGERS.items()},
    **{kind: partial(encode_time, width, 1 << (8 * width - 1)) for kind, width in _TIMES.items()},
    **dict.fromkeys(_TEXTS | _BINARIES, _encode_text),
}


def decode(key: bytes, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a key of one column: the inverse of `encode_row` for a column of this type.

    Raises `ContinuationKeyError` for bytes that `encode_row` cannot have written.
    """
    if kind.id not in ENCODERS:
        raise _unsupported("of a key", kind)
    try:
        scalar = _decoded(key, kind)
        if ENCODERS[kind.id](scalar) == key:
            return scalar
    except (ValueError, OverflowError, pa.ArrowException):
        pass
    raise ContinuationKeyError(
        f"a key of a {kind} is malformed; pass the continuation key as it was returned, to its table"
    )


def _decoded(key: bytes, kind: pa.DataType) -> pa.Scalar:
    """Return a value that has this key, if any value has."""
    if kind.id in _TEXTS or kind.id in _BINARIES:
        return pa.scalar(key[: -len(_END)].replace(_ESCAPED_ZERO, b"\0"), pa.binary()).cast(kind)
    if kind.id == _FIXED:
        return pa.scalar(key, kind)
    if kind.id == _BOOL:
        return pa.scalar(key == b"\1", kind)
    width = _width(kind)
    value = int.from_bytes(key, "big") - (1 << (8 * width - 1))
    if kind.id != _DECIMAL:
        return pa.scalar(value, kind)
    return pa.scalar(decimal.Decimal(value).scaleb(-kind.scale, _EXACT), kind)


def _width(kind: pa.DataType) -> int:
    """Return the encoded bytes of a fixed-width type."""
    return 1 if kind.id == _BOOL else int(kind.byte_width)


# ---------------------------------------------------------------------------------- whole columns


def sort_codes(column: pa.Array) -> NDArray[Any]:
    """Return integers that are ordered, and equal, as the column's values are; made for `numpy.lexsort`.

    They compare within this one column only. Integers, dates, timestamps and decimals that fit 64 bits
    come without a copy, the other types as dense ranks.

    Raises `InvalidKey` for a null and `SchemaMismatch` for a type that `check_key_type` refuses.
    """
    kind = column.type
    if kind.id not in ENCODERS:
        raise _unsupported("to sort by", kind)
    if column.null_count:
        raise _null()
    if not len(column):
        return np.empty(0, dtype=np.int64)
    if kind.id == _BOOL:
        return raw_values(column.cast(pa.uint8()), np.uint8)
    if kind.id in _INTEGERS or kind.id in _TIMES:
        return raw_values(column, np.dtype(f"i{_width(kind)}"))
    if kind.id == _DECIMAL:
        halves = raw_values(column, np.int64, 2)
        low, high = halves[0::2], halves[1::2]
        if kind.precision <= 18 or np.array_equal(low >> 63, high):
            return low
    ranks: NDArray[Any] = pc.rank(column, tiebreaker="dense").to_numpy()
    return ranks


def encoded_lengths(columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Count how many bytes `encode_row` gives for each row; a null counts as nothing."""
    lengths = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        kind = column.type
        if kind.id in _TEXTS or kind.id in _BINARIES:
            plain = column.view(pa.large_binary() if kind.id in _LARGE else pa.binary())
            sizes = pc.add(pc.binary_length(plain), pc.count_substring(plain, b"\0")).fill_null(0)
            lengths += sizes.to_numpy(zero_copy_only=False) + len(_END)
        else:
            lengths += _width(kind)
    return lengths
