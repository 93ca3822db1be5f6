"""Sums, differences and products of whole and decimal numbers, in 64 bits where that is certain to be exact.

    Units(rows).of(node)         # of price * (1 - discount): the products in units of 0.0001

A decimal is a whole number of units of its last place. From the least and the greatest number of each column
follows how large any sum or product of them can be: mostly 64 bits hold it, and whole columns are computed in
a few nanoseconds a row. What may not fit is left to the kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from elasticscan.filters.coercion import is_integer
from elasticscan.filters.expression import Call, Cast, Column, Expression, Literal
from elasticscan.filters.kernels import Rows
from elasticscan.filters.units import low_words, whole_units

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


class _NotNarrowError(Exception):
    """64 bits may not hold a result, or it is no sum, difference or product."""


@dataclass(frozen=True, slots=True)
class _Term:
    """The units of a part of an expression, 0 where there are none.

    Attributes:
        least, most: bounds of `values`.
        is_null: where there are none; None for nowhere.
    """

    values: np.ndarray[Any, np.dtype[np.int64]] | int
    least: int
    most: int
    is_null: np.ndarray[Any, np.dtype[np.bool_]] | None = None


class Units:
    """Numbers of some rows in units, each part of an expression once."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._parts: dict[Expression, _Term] = {}

    def of(self, node: Expression) -> pa.Array | None:
        """Return the numbers of an expression that names a column, or None if 64 bits may not hold them."""
        try:
            part = self._part(node)
        except _NotNarrowError:
            return None
        return pa.array(part.values, mask=part.is_null)

    def _part(self, node: Expression) -> _Term:
        part = self._parts.get(node)
        if part is None:
            part = self._parts[node] = self._computed(node)
        return part

    def _computed(self, node: Expression) -> _Term:
        match node:
            case Column() if _is_exact(node.type):
                return self._column(node)
            case Literal(value=Decimal() | int() as number) if _is_exact(node.type):
                units = whole_units(Decimal(number), _scale(node.type))
                return _Term(units, units, units)
            case Cast(implicit=True) if _is_exact(node.type):
                return self._scaled(node.child, node.type)
            case Call(name="NEGATE") if _is_exact(node.type):
                return _combined("-", _Term(0, 0, 0), self._part(node.args[0]), node.type)
            case Call(name="*", args=(left, right)) if _is_exact(node.type):
                return _combined("*", self._part(left), self._part(right), node.type)
            case Call(name="+" | "-" as op, args=(left, right)) if _is_exact(node.type):
                return _combined(op, self._scaled(left, node.type), self._scaled(right, node.type), node.type)
        raise _NotNarrowError

    def _column(self, node: Column) -> _Term:
        array = self._rows.column(node.path, node.type)
        is_null = np.asarray(array.is_null()) if array.null_count else None
        if is_integer(node.type):
            values = np.asarray(array.fill_null(0)).astype(np.int64)
        elif (words := low_words(array)) is None:
            raise _NotNarrowError
        else:
            values = words
        least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        return _Term(values, least, most, is_null)

    def _scaled(self, node: Expression, kind: pa.DataType) -> _Term:
        """Return a part in units of a type of at least as many places."""
        part = self._part(node)
        places = _scale(kind) - _scale(node.type)
        assert places >= 0, "an implicit conversion takes no places away"
        factor = 10**places
        return part if factor == 1 else _combined("*", part, _Term(factor, factor, factor), pa.int64())


def _is_exact(kind: pa.DataType) -> bool:
    return is_integer(kind) or bool(pt.is_decimal128(kind))


def _scale(kind: pa.DataType) -> int:
    return 0 if is_integer(kind) else int(kind.scale)


def _combined(op: str, left: _Term, right: _Term, kind: pa.DataType) -> _Term:
    """Return numbers of a type; raise if not all of them fit it and 64 bits."""
    operation = _OPERATIONS[op]
    corners = [operation(a, b) for a in (left.least, left.most) for b in (right.least, right.most)]
    least, most = min(corners), max(corners)
    bound = 1 << (kind.bit_width - 1 if is_integer(kind) else 63)
    if min(least, left.least, right.least) < -bound or max(most, left.most, right.most) >= bound:
        raise _NotNarrowError
    nulls = [part.is_null for part in (left, right) if part.is_null is not None]
    is_null = nulls[0] | nulls[-1] if nulls else None
    return _Term(operation(left.values, right.values), least, most, is_null)
