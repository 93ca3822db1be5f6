"""Whole and decimal numbers, added, subtracted and multiplied in 64 bits where that is certain to be exact.

    exact = ExactColumns(batch)
    units = exact.units(node)         # of sum(price * (1 - discount)): the products in units of 0.0001
    units.values, units.is_wide, units.beyond

A decimal is a whole number of units of its last place. From the least and the greatest number of each column
follows how large any sum or product of them can be: mostly 64 bits hold it, and whole columns are computed in
a few nanoseconds a row. What may not fit is computed in decimals of 256 bits, with as many digits as needed.

A result that does not fit the type that Spark gives it is an error there. Here it is set aside: `beyond` says
in which rows, so that who folds can fail in the group, or let Spark fail. As in Spark the right side is not
looked at where the left is null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.filters.coercion import integer_as_decimal, is_integer
from elasticscan.filters.expression import Call, Cast, Column, Expression, Literal, children
from elasticscan.filters.kernels import Rows, is_cut
from elasticscan.filters.units import is_narrow, whole_units, words_of

_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]

_MOST = (1 << 63) - 1
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
}


class _TooWideError(Exception):
    """64 bits may not hold a result."""


@dataclass(frozen=True, slots=True)
class Units:
    """A number for each row.

    Attributes:
        values: whole numbers of units of the last place, or decimals where these may not fit 64 bits.
        is_wide: true of decimals.
        beyond: the rows whose number does not fit its type (their value is 0); None for none.
    """

    values: pa.Array
    is_wide: bool
    beyond: _Flags | None


@dataclass(frozen=True, slots=True)
class _Term:
    """The numbers of a part of an expression, 0 where there is none.

    Attributes:
        least, most: bounds of `values`.
        valid: where there is a number; None for everywhere.
        beyond: where it did not fit.
    """

    values: _Numbers | int
    least: int
    most: int
    valid: _Flags | None = None
    beyond: _Flags | None = None


@dataclass(frozen=True, slots=True)
class _WideTerm:
    values: pa.Array | pa.Scalar
    beyond: _Flags | None = None


def is_exact(node: Expression) -> bool:
    """Return True for sums, differences and products of whole and decimal numbers."""
    if not (is_integer(node.type) or pt.is_decimal128(node.type)):
        return False
    match node:
        case Column():
            return True
        case Literal():
            return node.value is not None
        case Cast(implicit=True):
            return is_exact(node.child) and scale_of(node.type) >= scale_of(node.child.type)
        case Call(name="+" | "-" | "*" | "NEGATE"):
            return all(map(is_exact, node.args))
    return False


def scale_of(kind: pa.DataType) -> int:
    return 0 if is_integer(kind) else int(kind.scale)


def has_several_constants(node: Expression) -> bool:
    """Return True if constants may meet: Spark adds or multiplies whole constants first, in any order."""
    return sum(isinstance(part, Literal) for part in _leaves(node)) > 1


def _leaves(node: Expression) -> list[Expression]:
    inner = list(children(node))
    return [leaf for child in inner for leaf in _leaves(child)] if inner else [node]


class ExactColumns:
    """The columns of a batch, and what was computed of them: each part of an expression once."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._rows = Rows(batch)
        self._parts: dict[Expression, _Term] = {}

    def units(self, node: Expression) -> Units:
        """Return the numbers of an expression that `is_exact`, and names a column."""
        try:
            part = self._part(node)
        except _TooWideError:
            wide = self._wide(node)
            return Units(self._rows.array(wide.values), True, wide.beyond)
        return Units(pa.array(part.values, mask=_not(part.valid)), False, part.beyond)

    # ------------------------------------------------------------------------------- in 64 bits

    def _part(self, node: Expression) -> _Term:
        part = self._parts.get(node)
        if part is None:
            part = self._parts[node] = self._narrow(node)
        return part

    def _narrow(self, node: Expression) -> _Term:
        match node:
            case Column():
                return self._column(node)
            case Literal():
                value = node.value
                if isinstance(value, Decimal):
                    value = whole_units(value, scale_of(node.type))
                assert isinstance(value, int), "a number that is no float is whole, in units"
                return _Term(value, value, value)
            case Cast():
                return _shifted(self._part(node.child), scale_of(node.type) - scale_of(node.child.type))
            case Call(name="NEGATE"):
                zero = _Term(0, 0, 0)
                return _computed("-", zero, self._part(node.args[0]), node.type)
        assert isinstance(node, Call), "an exact expression has no other parts"
        parts = [self._part(arg) for arg in node.args]
        if node.name != "*":
            scale = scale_of(node.type)
            pairs = zip(parts, node.args, strict=True)
            parts = [_shifted(part, scale - scale_of(arg.type)) for part, arg in pairs]
        left, right = parts
        return _computed(node.name, left, right, node.type)

    def _column(self, node: Column) -> _Term:
        array = self._rows.column(node.path, node.type)
        valid = np.asarray(array.is_valid()) if array.null_count else None
        values = _units_of(array, valid)
        if valid is not None:
            values = np.where(valid, values, 0)
        least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        return _Term(values, least, most, valid)

    # ----------------------------------------------------------------------------- in 256 bits

    def _wide(self, node: Expression) -> _WideTerm:
        if is_integer(node.type):
            part = self._part(node)  # whole numbers fit their type, or are beyond it
            if isinstance(part.values, int):
                return _WideTerm(pa.scalar(part.values, _wide_type(node.type)))
            numbers = pa.array(part.values, mask=_not(part.valid)).cast(pa.decimal256(19, 0))
            return _WideTerm(numbers.cast(_wide_type(node.type)), part.beyond)
        kind = _wide_type(node.type)
        match node:
            case Column():
                return _WideTerm(self._rows.column(node.path, node.type).cast(kind))
            case Literal():
                return _WideTerm(pa.scalar(node.value, kind))
            case Cast():
                child = self._wide(node.child)
                return _WideTerm(pc.cast(child.values, kind), child.beyond)
        assert isinstance(node, Call), "an exact expression has no other parts"
        parts = [self._wide(arg) for arg in node.args]
        if node.name == "NEGATE":
            return _WideTerm(pc.negate(parts[0].values), parts[0].beyond)
        left, right = parts
        values = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}[node.name](left.values, right.values)
        present = np.asarray(self._rows.array(left.values).is_valid())
        beyond = _either(left.beyond, None if right.beyond is None else right.beyond & present)
        if is_cut(node):
            size = pc.fill_null(pc.abs(self._rows.array(values)).cast(pa.decimal256(76, kind.scale)), 0)
            bound = pa.scalar(Decimal(1).scaleb(kind.precision - kind.scale), size.type)
            large = np.asarray(pc.greater_equal(size, bound))
            if large.any():
                values = pc.if_else(pa.array(large), pa.scalar(0, values.type), values)
                beyond = _either(beyond, large)
        return _WideTerm(pc.cast(values, kind), beyond)


def _wide_type(kind: pa.DataType) -> pa.DataType:
    exact = integer_as_decimal(kind) if is_integer(kind) else kind
    return pa.decimal256(exact.precision, exact.scale)


def _units_of(array: pa.Array, valid: _Flags | None) -> _Numbers:
    """Return the numbers of a column as 64 bits; anything where there is none."""
    if not pt.is_decimal128(array.type):
        return np.asarray(array.fill_null(0) if valid is not None else array).astype(np.int64)
    words = words_of(array)
    low = np.ascontiguousarray(words[:, 0])
    if not is_narrow(array.type):
        same = words[:, 1] == low >> 63
        if not (same if valid is None else same | ~valid).all():
            raise _TooWideError
    return low


def _shifted(part: _Term, places: int) -> _Term:
    if not places:
        return part
    factor = 10**places
    least, most = part.least * factor, part.most * factor
    _require_narrow(least, most)
    return _Term(part.values * factor, least, most, part.valid, part.beyond)


def _computed(op: str, left: _Term, right: _Term, kind: pa.DataType) -> _Term:
    operation = _OPERATIONS[op]
    corners = [operation(a, b) for a in (left.least, left.most) for b in (right.least, right.most)]
    least, most = min(corners), max(corners)
    right_beyond = right.beyond
    if right_beyond is not None and left.valid is not None:
        right_beyond = right_beyond & left.valid
    beyond, valid = _either(left.beyond, right_beyond), _both(left.valid, right.valid)
    bound = 1 << (kind.bit_width - 1) if is_integer(kind) else None
    if bound is None or (least >= -bound and most < bound):
        _require_narrow(least, most)
        return _Term(operation(left.values, right.values), least, most, valid, beyond)
    # Some whole number may not fit its type: narrow ones are computed in 64 bits, which hold them.
    a, b = np.broadcast_arrays(np.asarray(left.values, np.int64), np.asarray(right.values, np.int64))
    with np.errstate(over="ignore"):
        values = operation(a, b)
        large = _wraps(op, a, b, values) if bound > _MOST else (values < -bound) | (values >= bound)
    if valid is not None:
        large &= valid
    values = np.where(large, 0, values)
    return _Term(values, max(least, -bound), min(most, bound - 1), valid, _either(beyond, large))


def _wraps(op: str, left: _Numbers, right: _Numbers, values: _Numbers) -> _Flags:
    """Return True where 64 bits did not hold a result."""
    if op == "+":
        return ((left ^ values) & (right ^ values)) < 0
    if op == "-":
        return ((left ^ right) & (left ^ values)) < 0
    divisor = np.where((left == 0) | (left == -1), 1, left)
    # Times -1 only the least number has no counterpart.
    times_minus_one = (left == -1) & (right == -_MOST - 1)
    wraps: _Flags = times_minus_one | ((left != 0) & (left != -1) & (values // divisor != right))
    return wraps


def _require_narrow(least: int, most: int) -> None:
    if least < -_MOST - 1 or most > _MOST:
        raise _TooWideError


def _both(one: _Flags | None, two: _Flags | None) -> _Flags | None:
    return two if one is None else one if two is None else one & two


def _either(one: _Flags | None, two: _Flags | None) -> _Flags | None:
    return two if one is None else one if two is None else one | two


def _not(valid: _Flags | None) -> _Flags | None:
    return None if valid is None else ~valid
