"""The types of computations in filters, and Spark's implicit conversions between them.

The rules are those of Spark 4 in ANSI mode. The common type of two numbers is the wider one; of decimals one
with enough digits for both. Text is converted to the type of the other side.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.types as pt

from elasticscan.base.errors import FilterError
from elasticscan.base.limits import MAX_DECIMAL_DIGITS

TIMESTAMP = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_BINARIES = (pa.binary(), pa.large_binary(), pa.binary_view())
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_NAMES = {
    pa.null(): "VOID", pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT",
    pa.int64(): "BIGINT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "STRING",
    pa.binary(): "BINARY", pa.date32(): "DATE", TIMESTAMP: "TIMESTAMP", TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
}  # fmt: skip


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type in Spark's SQL."""
    if pt.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _NAMES.get(kind) or str(kind)


def computed_type(stored: pa.DataType) -> pa.DataType:
    """Return the type in which a stored column is computed. Types that Spark lacks stay unchanged."""
    if pt.is_dictionary(stored):
        return computed_type(stored.value_type)
    if stored in _TEXTS:
        return pa.string()
    if stored in _BINARIES or pt.is_fixed_size_binary(stored):
        return pa.binary()
    if pt.is_timestamp(stored):
        return TIMESTAMP_NTZ if stored.tz is None else TIMESTAMP
    if pt.is_decimal32(stored) or pt.is_decimal64(stored):
        return pa.decimal128(stored.precision, stored.scale)
    return stored


def is_computable(kind: pa.DataType) -> bool:
    """Return True if values of the type can be compared; others can only be tested for null."""
    return kind in _NAMES or (pt.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)


def is_integer(kind: pa.DataType) -> bool:
    return kind in _INTEGERS


def is_float(kind: pa.DataType) -> bool:
    return bool(pt.is_float32(kind) or pt.is_float64(kind))


def is_number(kind: pa.DataType) -> bool:
    return is_integer(kind) or is_float(kind) or bool(pt.is_decimal128(kind))


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Return an exact decimal type. Raises for more than 38 digits, where Spark rounds."""
    if precision > MAX_DECIMAL_DIGITS:
        raise FilterError(
            f"an exact result needs {precision} digits, more than {MAX_DECIMAL_DIGITS}; CAST a side to DOUBLE"
        )
    return pa.decimal128(precision, scale)


def computed_decimal(op: str, one: pa.DataType, two: pa.DataType) -> pa.DataType:
    """Return the type of a sum, difference or product of decimals. Raises where Spark may round."""
    if op == "*":
        return decimal_type(one.precision + two.precision + 1, one.scale + two.scale)
    scale = max(one.scale, two.scale)
    return decimal_type(max(one.precision - one.scale, two.precision - two.scale) + scale + 1, scale)


def integer_as_decimal(kind: pa.DataType) -> pa.DataType:
    return pa.decimal128(_INTEGER_DIGITS[kind], 0)


def common_type(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    """Return the type to which Spark converts all of these types; None if there is none."""
    # Text is first, since its conversion depends on the other types.
    common: pa.DataType | None = pa.null()
    for kind in sorted(kinds, key=lambda k: not pt.is_string(k)):
        common = None if common is None else _common_of_two(common, kind)
    return common


def _common_of_two(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if left == right or pt.is_null(right):
        return left
    if pt.is_null(left):
        return right
    if pt.is_string(left) or pt.is_string(right):
        return _common_with_text(right if pt.is_string(left) else left)
    if is_number(left) and is_number(right):
        return _common_number(left, right)
    moments = {left, right}
    if moments <= {pa.date32(), TIMESTAMP, TIMESTAMP_NTZ}:
        return TIMESTAMP if TIMESTAMP in moments else TIMESTAMP_NTZ
    return None


def _common_with_text(kind: pa.DataType) -> pa.DataType | None:
    if is_integer(kind):
        return pa.int64()
    if is_number(kind):
        return pa.float64()
    return kind if is_computable(kind) else None


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if is_integer(left) and is_integer(right):
        return max(left, right, key=_INTEGERS.index)
    if is_float(left) or is_float(right):
        return pa.float64()
    left, right = (integer_as_decimal(kind) if is_integer(kind) else kind for kind in (left, right))
    scale = max(left.scale, right.scale)
    return decimal_type(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)
