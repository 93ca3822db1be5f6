"""Constructors of typed expressions, with Spark's conversions and checks.

They convert constants, so `day = '2024-02-30'` fails when the filter is parsed.
"""

from __future__ import annotations

import math
import re
from calendar import monthrange
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.types as pt

from elasticscan.base.errors import FilterError
from elasticscan.filters.casts import can_cast, cast_array
from elasticscan.filters.coercion import (
    common_type,
    computed_decimal,
    integer_as_decimal,
    is_computable,
    is_float,
    is_integer,
    is_number,
    type_name,
)
from elasticscan.filters.expression import CAST, Expression, condition, decimal_literal_type, literal, to_text

NULL = literal(None, pa.null())
_AROUND = {"STARTSWITH": ("", "%"), "ENDSWITH": ("%", ""), "CONTAINS": ("%", "%")}
# Patterns of LIKE: `%` and `_` are wildcards, unless a backslash stands before them.
_PLAIN_TEXT = re.compile(r"(?:[^%_\\]|\\[%_\\])*", re.DOTALL)
_VALID_PATTERN = re.compile(r"(?:[^\\]|\\[%_\\])*", re.DOTALL)
_WHOLE = re.compile(r"[+-]?[0-9]{1,8}\Z")
_INT32_BOUND = 1 << 31
_INT64_BOUND = 1 << 63


def number(text: str) -> Expression:
    """Return a number with Spark's type: INT, BIGINT or DECIMAL by size, DOUBLE with an exponent."""
    try:
        exact, value = Decimal(text), float(text)
    except (InvalidOperation, ValueError):
        raise FilterError(f"{text[:40]} is no number") from None
    if "e" in text.lower():
        if math.isinf(value):
            raise FilterError(f"{text} is out of the range of DOUBLE")
        return literal(value, pa.float64())
    if "." in text or not -_INT64_BOUND <= exact < _INT64_BOUND:
        return literal(exact, decimal_literal_type(exact))
    return literal(int(exact), pa.int32() if -_INT32_BOUND <= exact < _INT32_BOUND else pa.int64())


def convert(value: Expression, kind: pa.DataType, *, implicit: bool = True) -> Expression:
    if value.type == kind:
        return value
    if not can_cast(value.type, kind):
        raise FilterError(
            f"{to_text(value)} is {type_name(value.type)}, which does not convert to {type_name(kind)}"
        )
    if not value.is_literal:
        return Expression(CAST, (value,), kind, implicit=implicit)
    try:
        converted = cast_array(pa.array([value.value], value.type), kind)[0].as_py()
    except (pa.ArrowInvalid, ValueError, OverflowError) as error:
        raise FilterError(f"{to_text(value)} does not convert to {type_name(kind)}: {error}") from None
    if isinstance(converted, float) and math.isnan(converted):
        converted = math.nan  # one object, so that equal conditions are equal
    return literal(converted, kind, implicit)


def explicit_cast(value: Expression, kind: pa.DataType) -> Expression:
    if value.is_literal and isinstance(value.value, str) and pt.is_decimal128(kind):
        value = _decimal_text(value.value.strip())  # the parser turns `1.5BD` into a CAST of a text
    converted = convert(value, kind, implicit=False)
    # A literal is no longer `implicit`: the user wrote the type, so the text must show it.
    return literal(converted.value, kind) if converted.is_literal else converted


def _decimal_text(text: str) -> Expression:
    if not text.isascii() or not text.lstrip("+-").replace(".", "", 1).isdecimal():
        raise FilterError(f"{text!r} is no DECIMAL")
    return literal(Decimal(text), decimal_literal_type(Decimal(text)))


def boolean(value: Expression) -> Expression:
    if value.type == pa.bool_() or pt.is_null(value.type):
        return convert(value, pa.bool_())
    raise _misplaced(value, "a condition is needed")


def _misplaced(value: Expression, need: str) -> FilterError:
    return FilterError(f"{to_text(value)} is {type_name(value.type)}, where {need}")


def text(value: Expression) -> Expression:
    if pt.is_binary(value.type):
        raise _misplaced(value, "text is needed; CAST it to STRING")
    return convert(value, pa.string())


def text_or_bytes(value: Expression) -> Expression:
    return value if pt.is_binary(value.type) else text(value)


def day(value: Expression) -> Expression:
    return convert(value, pa.date32())


def floating(value: Expression) -> Expression:
    if is_float(value.type):
        return value
    if is_number(value.type) or pt.is_string(value.type) or pt.is_null(value.type):
        return convert(value, pa.float64())
    raise _misplaced(value, "a number is needed")


def _shared_type(values: Sequence[Expression]) -> pa.DataType:
    kind = common_type(value.type for value in values)
    if kind is None or not is_computable(kind):
        kinds = ", ".join(dict.fromkeys(type_name(value.type) for value in values))
        castable = all(is_computable(value.type) or pt.is_null(value.type) for value in values)
        hint = "CAST one to the type of the other" if castable else "test it with IS [NOT] NULL"
        raise FilterError(f"values of types {kinds} cannot be compared; {hint}")
    return kind


def _with_digits(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Return both sides; an integer literal next to a decimal becomes a decimal, as in Spark."""
    if pt.is_decimal128(left.type) and right.is_literal and is_integer(right.type):
        exact = Decimal(str(right.value)) if right.value is not None else None
        if exact is not None:
            right = literal(exact, decimal_literal_type(exact), implicit=True)
    return left, right


def _pair(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    left, right = _with_digits(left, right)
    right, left = _with_digits(right, left)
    return left, right


def compare(op: str, left: Expression, right: Expression) -> Expression:
    left, right = _pair(left, right)
    kind = _shared_type([left, right])
    return condition(op, convert(left, kind), convert(right, kind))


def member(child: Expression, values: Sequence[Expression]) -> Expression:
    kind = _shared_type([child, *values])
    if pt.is_null(kind):
        return literal(None, pa.bool_())
    # A list with a column becomes separate comparisons, whose text must contain the conversions.
    implicit = all(value.is_literal for value in values)
    child, *members = (convert(value, kind, implicit=implicit) for value in (child, *values))
    constants = tuple(value for value in members if value.is_literal)
    parts = [condition("IN", child, *constants)] if constants else []
    parts += [condition("=", child, value) for value in members if not value.is_literal]
    return parts[0] if len(parts) == 1 else condition("OR", *parts)


def match(operator: str, child: Expression, pattern: Expression) -> Expression:
    """Return a test by LIKE or ILIKE, or by STARTSWITH, ENDSWITH or CONTAINS."""
    child, pattern = text(child), text(pattern)
    if not pattern.is_literal:
        raise FilterError(f"the pattern of {operator} must be a constant, not {to_text(pattern)}")
    if pattern.value is None:
        return literal(None, pa.bool_())
    wanted = str(pattern.value)
    if operator in _AROUND:
        wanted = re.sub(r"([%_\\])", r"\\\1", wanted).join(_AROUND[operator])
    if not _VALID_PATTERN.fullmatch(wanted):
        raise FilterError(f"the pattern {wanted!r} has \\ before something else than %, _ or \\; double it")
    if operator != "ILIKE" and not prefix_of(wanted)[1]:
        return condition("=", child, literal(prefix_of(wanted)[0], pa.string()))
    return condition("ILIKE" if operator == "ILIKE" else "LIKE", child, value=wanted)


def prefix_of(pattern: str) -> tuple[str, str]:
    """Return the prefix of all texts that match a pattern, and the rest of the pattern."""
    plain = _PLAIN_TEXT.match(pattern)
    assert plain is not None, "the empty text is plain"
    return re.sub(r"\\(.)", r"\1", plain[0], flags=re.DOTALL), pattern[plain.end() :]


def arithmetic(op: str, left: Expression, right: Expression) -> Expression:
    left, right = _pair(left, right)
    kind = common_type([left.type, right.type])
    if kind is None or not (is_number(kind) or pt.is_string(kind) or pt.is_null(kind)):
        raise FilterError(
            f"{type_name(left.type)} {op} {type_name(right.type)} is not supported; numbers are"
        )
    if op == "DIV":
        if not is_integer(kind):
            raise FilterError("DIV is supported between whole numbers only")
        kind = pa.int64()
    elif not is_number(kind) or (op == "/" and not pt.is_decimal128(kind)):
        kind = pa.float64()
    if not pt.is_decimal128(kind):
        return Expression(op, (convert(left, kind), convert(right, kind)), kind)
    if op not in ("+", "-", "*"):
        raise FilterError(
            f"{op} is not supported between decimals; CAST one side to DOUBLE, and the result to DECIMAL"
        )
    left, right = (
        convert(side, kind if pt.is_null(side.type) else integer_as_decimal(side.type))
        if pt.is_null(side.type) or is_integer(side.type)
        else side
        for side in (left, right)
    )
    return Expression(op, (left, right), computed_decimal(op, left.type, right.type))


def shifted_date(op: str, day: Expression, number: str, unit: str) -> Expression:
    """Return a constant date plus or minus an interval of days, months or years."""
    size = {"DAY": (0, 1), "MONTH": (1, 0), "YEAR": (12, 0)}.get(unit.upper().removesuffix("S"))
    if size is None or not _WHOLE.match(number):
        raise FilterError(
            f"INTERVAL {number!r} {unit} is not supported; a whole number of days, months or years is"
        )
    if not day.is_literal or not isinstance(day.value, date) or not pt.is_date32(day.type):
        raise FilterError(f"an INTERVAL is added to a date that is a constant, not to {to_text(day)}")
    months, days = (int(number) * (-1 if op == "-" else 1) * each for each in size)
    try:
        year, month = divmod(day.value.year * 12 + day.value.month - 1 + months, 12)
        last = monthrange(year, month + 1)[1]
        moved = date(year, month + 1, min(day.value.day, last)) + timedelta(days)
    except (OverflowError, ValueError):
        raise FilterError("the sum of a date and an INTERVAL is outside of the years 1 to 9999") from None
    return literal(moved, pa.date32())


def sign(name: str, value: Expression) -> Expression:
    if pt.is_string(value.type) or pt.is_null(value.type):
        value = convert(value, pa.float64())
    if not is_number(value.type):
        raise _misplaced(value, "a number is needed")
    return Expression(name, (value,), value.type)


def case(branches: Sequence[tuple[Expression, Expression]], default: Expression) -> Expression:
    if any(pt.is_null(when.type) for when, _ in branches):
        raise FilterError("a condition of CASE or IF cannot be a bare NULL; CAST it to BOOLEAN")
    kind = _shared_type([default, *(then for _, then in branches)])
    flat = [part for when, then in branches for part in (boolean(when), convert(then, kind))]
    return Expression("CASE", (*flat, convert(default, kind)), kind)


def coalesce(values: Sequence[Expression]) -> Expression:
    kind = _shared_type(values)
    return Expression("COALESCE", tuple(convert(value, kind) for value in values), kind)


def concat(parts: Sequence[Expression]) -> Expression:
    if not parts:
        raise FilterError("concat needs at least one value")
    flat: list[Expression] = []
    for part in map(text, parts):
        flat.extend(part.args if part.op == "CONCAT" else [part])
    return Expression("CONCAT", tuple(flat), pa.string())
