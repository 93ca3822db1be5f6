"""Conversions between types on whole Arrow arrays, with the results of Spark's CAST in ANSI mode.

A value that cannot be converted (text that is not a number, a number out of range) is a `FilterError`, not a
null. Conversions that Spark formats or rounds in a way that Arrow cannot are missing: parsing a filter
refuses them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.base.errors import FilterError
from elasticscan.base.hashing import raw_values
from elasticscan.filters.coercion import TIMESTAMP, TIMESTAMP_NTZ, is_float, is_integer, type_name

_Caster = Callable[[pa.Array, pa.DataType], pa.Array]

# The characters that Spark trims from text before it parses a number or a date.
_BLANKS = "".join(map(chr, range(0x21))) + "\x7f"
_WHOLE = r"\A[+-]?[0-9]+\z"
_FLOAT = r"\A[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?\z"
_FLOAT_WORD = r"(?i)\A[+-]?(?:inf|infinity|nan)\z"
_DATE = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_ZONE = r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])"
_SECOND = rf":[0-9]{{2}}(?:\.[0-9]{{1,6}})?{_ZONE}?"  # a zone may only follow the seconds
_MOMENT = rf"\A[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[ T][0-9]{{2}}:[0-9]{{2}}(?:{_SECOND})?)?\z"
# Floats of 10^38 and more fit no decimal; floats below 1e-39 are 0 in every decimal.
_MOST_WHOLE_DIGITS, _TOO_SMALL = 38, 1e-39


def cast_array(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert every value; nulls stay null. Raises `FilterError` for a value that cannot be converted."""
    if values.type == target:
        return values
    if pt.is_null(values.type):
        return pa.nulls(len(values), target)
    return _CASTS[_family(values.type), _family(target)](values, target)


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    if source == target or pt.is_null(source):
        return True
    if pt.is_decimal128(source) and pt.is_string(target):
        # With more places Arrow writes an exponent, Spark does not.
        return bool(source.scale <= 6)
    return (_family(source), _family(target)) in _CASTS


def may_fail(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if the conversion raises for some values."""
    if pt.is_decimal128(target):
        return not _has_digits_for(source, target)
    if is_integer(source) and is_integer(target):
        return bool(target.bit_width < source.bit_width)
    family = _family(source)
    return family in ("string", "binary") or (is_integer(target) and family != "boolean")


def always_fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if the conversion neither raises for nor rounds any value."""
    rounds = pt.is_decimal128(source) and pt.is_decimal128(target) and source.scale > target.scale
    return not rounds and not may_fail(source, target)


def _has_digits_for(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if a decimal type has enough digits before the point for all rounded numbers of a type."""
    if pt.is_decimal128(source):
        # Rounding may carry into one more digit.
        digits = source.precision - source.scale + (target.scale < source.scale)
    elif is_integer(source):
        digits = len(str(1 << (source.bit_width - 1)))
    elif pt.is_boolean(source):
        digits = 1
    else:
        return False
    return bool(digits <= target.precision - target.scale)


def _family(kind: pa.DataType) -> str:
    if is_integer(kind):
        return "integer"
    if is_float(kind):
        return "float"
    if pt.is_decimal128(kind):
        return "decimal"
    if kind in (TIMESTAMP, TIMESTAMP_NTZ):
        return "timestamp" if kind == TIMESTAMP else "local"
    names = {pa.bool_(): "boolean", pa.string(): "string", pa.binary(): "binary", pa.date32(): "date"}
    return names.get(kind, "other")


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    return values.cast(target)


def _cast_unsafely(values: pa.Array, target: pa.DataType) -> pa.Array:
    return values.cast(target, safe=False)


def _integer_to_decimal(values: pa.Array, target: pa.DataType) -> pa.Array:
    if target.precision - target.scale >= 19:
        return values.cast(target)
    return values.cast(pa.decimal256(76, target.scale)).cast(target)


def _decimal_to_decimal(values: pa.Array, target: pa.DataType) -> pa.Array:
    if target.scale < values.type.scale:
        wide = values.cast(pa.decimal256(76, values.type.scale))
        values = pc.round(wide, target.scale, round_mode="half_towards_infinity")
    return values.cast(target)


def _decimal_to_integer(values: pa.Array, target: pa.DataType) -> pa.Array:
    return pc.cast(values, options=pc.CastOptions(target_type=target, allow_decimal_truncate=True))


def _decimal_to_float(values: pa.Array, target: pa.DataType) -> pa.Array:
    # The result must be rounded once. With up to 15 digits, the division of two exact floats does so. (Arrow
    # multiplies by 0.1, which rounds twice: 0.3 becomes 0.30000000000000004.) With more digits only parsing
    # the number's text rounds once.
    if len(values) and values.type.precision <= 15 and target == pa.float64():
        units = raw_values(values, np.int64, 2)[::2].astype(np.float64)
        return pc.divide(pa.array(units, mask=_null_mask(values)), 10.0**values.type.scale)
    return values.cast(pa.string()).cast(target)


def _float_to_integer(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Cut towards zero. Spark converts 2.0**63, the float next to the largest long, to that long."""
    bounds = np.iinfo(target.to_pandas_dtype())
    numbers = np.asarray(values.cast(pa.float64()).fill_null(0.0))
    fits = (np.floor(numbers) <= bounds.max) & (np.ceil(numbers) >= bounds.min)
    if not fits.all():
        raise _unfit(repr(float(numbers[~fits][0])), target)
    too_large = numbers >= 2.0 ** (target.bit_width - 1)
    whole = np.where(too_large, bounds.max, np.where(too_large, 0, numbers).astype(np.int64))
    return pa.array(whole, pa.int64(), mask=_null_mask(values)).cast(target)


def _float_to_decimal(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Round the written digits of a float (0.1, not 0.1000000000000000055), half away from zero.

    These are the fewest digits that distinguish it from other floats. Java before 19 writes a 17th digit for
    some floats, so Spark's decimals with so many digits may differ.
    """
    size = pc.abs(values.cast(pa.float64()))
    _require(values, pc.less(size, 10.0**_MOST_WHOLE_DIGITS), target)  # also false for NaN
    text = pc.if_else(pc.less(size, _TOO_SMALL), "0", values.cast(pa.float64()).cast(pa.string()))
    # Up to 17 digits need at most 17 decimal places; in a number below 1 at most 56.
    is_small = pc.less(size, 1.0)
    small = pc.if_else(is_small, text, "0").cast(pa.decimal256(76, 56))
    large = pc.if_else(is_small, "0", text).cast(pa.decimal256(76, 17))
    rounded = (
        pc.round(part, target.scale, round_mode="half_towards_infinity").cast(pa.decimal256(76, target.scale))
        for part in (small, large)
    )
    return pc.if_else(is_small, *rounded).cast(target)


def _null_mask(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(values.is_null())


def _unfit(value: str, target: pa.DataType) -> FilterError:
    return FilterError(f"cannot convert {value} to {type_name(target)}: it is malformed or out of range")


def _require(values: pa.Array, good: pa.BooleanArray, target: pa.DataType) -> None:
    bad = values.filter(pc.invert(good))
    if len(bad):
        raise _unfit(repr(bad[0].as_py()), target)


def _trim(values: pa.Array) -> pa.Array:
    return pc.utf8_trim(values, characters=_BLANKS)


def _string_to_integer(values: pa.Array, target: pa.DataType) -> pa.Array:
    text = _trim(values)
    _require(values, pc.match_substring_regex(text, _WHOLE), target)
    return pc.replace_substring_regex(text, r"\A(?:\+|(-))?0*([0-9])", r"\1\2").cast(target)


def _string_to_float(values: pa.Array, target: pa.DataType) -> pa.Array:
    text = _trim(values)
    word = pc.match_substring_regex(text, _FLOAT_WORD)
    _require(values, pc.or_(word, pc.match_substring_regex(text, _FLOAT)), target)
    digits = pc.replace_substring_regex(text, r"[dDfF]\z", "")
    return pc.if_else(word, pc.ascii_lower(text), digits).cast(target)


def _string_to_date(values: pa.Array, target: pa.DataType) -> pa.Array:
    text = _trim(values)
    _require(values, pc.match_substring_regex(text, _DATE), target)
    return text.cast(target)


def _string_to_moment(values: pa.Array, target: pa.DataType) -> pa.Array:
    text = _trim(values)
    _require(values, pc.match_substring_regex(text, _MOMENT), target)
    local = pc.replace_substring_regex(text, rf"{_ZONE}\z", "").cast(TIMESTAMP_NTZ)
    if target == TIMESTAMP_NTZ:
        return local
    has_zone = pc.match_substring_regex(text, rf"{_ZONE}\z")
    return pc.if_else(has_zone, pc.if_else(has_zone, text, None).cast(target), local.cast(target))


def _moment_to_string(values: pa.Array, target: pa.DataType) -> pa.Array:
    return pc.replace_substring_regex(_cast_unsafely(values, TIMESTAMP_NTZ).cast(target), r"\.?0+\z", "")


_CASTS: dict[tuple[str, str], _Caster] = {
    ("boolean", "integer"): _cast,
    ("boolean", "string"): _cast,
    ("integer", "integer"): _cast,
    ("integer", "float"): _cast_unsafely,
    ("integer", "decimal"): _integer_to_decimal,
    ("integer", "string"): _cast,
    ("float", "integer"): _float_to_integer,
    ("float", "float"): _cast_unsafely,
    ("float", "decimal"): _float_to_decimal,
    ("decimal", "integer"): _decimal_to_integer,
    ("decimal", "float"): _decimal_to_float,
    ("decimal", "decimal"): _decimal_to_decimal,
    ("decimal", "string"): _cast,
    ("string", "integer"): _string_to_integer,
    ("string", "float"): _string_to_float,
    ("string", "binary"): _cast,
    ("string", "date"): _string_to_date,
    ("string", "timestamp"): _string_to_moment,
    ("string", "local"): _string_to_moment,
    ("binary", "string"): _cast,
    ("date", "string"): _cast,
    ("date", "timestamp"): _cast,
    ("date", "local"): _cast,
    ("timestamp", "date"): _cast,
    ("timestamp", "local"): _cast,
    ("timestamp", "string"): _moment_to_string,
    ("local", "date"): _cast,
    ("local", "timestamp"): _cast,
    ("local", "string"): _moment_to_string,
}
