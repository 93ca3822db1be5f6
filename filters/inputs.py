"""Values of rows that are folded: columns as they are, and what is computed of them, each once.

    inputs = Inputs(rows, evaluators)
    inputs.values(value), inputs.units(value)

Batches are computed one by one, so that what is made on the way stays in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.base.errors import FilterError
from elasticscan.filters.exact import ExactColumns, Units, scale_of
from elasticscan.filters.expression import Column, Expression, column_names, to_text
from elasticscan.filters.kernels import Evaluator, Rows, compile_expression
from elasticscan.filters.predicate import ARROW_REFUSALS
from elasticscan.filters.units import as_decimals

_MOST_ROWS, _MOST = 1 << 31, 1 << 63


def is_column(value: Expression) -> bool:
    return isinstance(value, Column) and len(value.path) == 1


def evaluators(values: Iterable[Expression]) -> dict[Expression, Evaluator]:
    """Return the evaluators of what has to be computed."""
    return {value: compile_expression(value) for value in values if not is_column(value)}


@dataclass(frozen=True, slots=True)
class Addends:
    """Numbers of a group to add up.

    Attributes:
        values: one for each row.
        are_units: true of whole numbers of units of a decimal's last place.
        beyond: 1 for each row whose number did not fit its type; None for none.
    """

    values: pa.ChunkedArray
    are_units: bool
    beyond: pa.ChunkedArray | None


class Inputs:
    """The values of some rows.

    Args:
        rows: with every column that a value names.
        evaluators: of every value that is no column.
    """

    def __init__(self, rows: pa.Table, evaluators: Mapping[Expression, Evaluator]) -> None:
        self._rows, self._evaluators = rows, evaluators
        self._values: dict[Expression, pa.ChunkedArray] = {}
        self._units: dict[Expression, list[Units]] = {}
        self._exact: list[ExactColumns] | None = None

    def values(self, value: Expression) -> pa.ChunkedArray:
        """Return the value of each row.

        Raises:
            FilterError: it cannot be computed for some row.
        """
        if isinstance(value, Column) and is_column(value):
            return self._rows.column(value.path[0])
        if value not in self._values:
            self._values[value] = self._computed(value)
        return self._values[value]

    def present(self, value: Expression) -> pa.ChunkedArray:
        """Any values that are null in the rows in which this one is."""
        if not self._units.get(value):
            return self.values(value)
        return pa.chunked_array([one.values for one in self._units[value]])

    def addends(self, value: Expression, kind: pa.DataType) -> Addends:
        """Return the numbers of an exact expression: in 64 bits if all sums fit, else of a type."""
        if value not in self._units:
            if self._exact is None:
                self._exact = [ExactColumns(batch) for batch in self._rows.to_batches()]
            self._units[value] = [batch.units(value) for batch in self._exact]
        parts = self._units[value]
        if not parts:
            return Addends(pa.chunked_array([], kind), False, None)
        beyond = None
        if any(part.beyond is not None for part in parts):
            flags = [
                part.beyond if part.beyond is not None else np.zeros(len(part.values), bool) for part in parts
            ]
            beyond = pa.chunked_array([pa.array(one.astype(np.int64)) for one in flags])
        if not any(part.is_wide for part in parts):
            units = pa.chunked_array([part.values for part in parts])
            if adds_up(units):
                return Addends(units, True, beyond)
        exact = pa.decimal128(38, scale_of(value.type))
        wide = [
            (part.values if part.is_wide else as_decimals(part.values, exact)).cast(kind) for part in parts
        ]
        return Addends(pa.chunked_array(wide), False, beyond)

    def _computed(self, value: Expression) -> pa.ChunkedArray:
        names, evaluate = sorted(column_names(value)), self._evaluators[value]
        arrays = []
        try:
            for batch in self._rows.select(names).to_batches():
                rows = Rows(batch)
                arrays.append(rows.array(evaluate(rows)))
        except ARROW_REFUSALS as error:
            raise FilterError(f"{to_text(value)} fails: {error}") from error
        return pa.chunked_array(arrays, value.type)


def adds_up(values: pa.ChunkedArray) -> bool:
    """Return True if no sum of some of these whole numbers leaves 64 bits."""
    if values.type.bit_width < 64:
        return len(values) < _MOST_ROWS
    least, most = (bound.as_py() or 0 for bound in pc.min_max(values).values())
    return max(-least, most) * len(values) < _MOST


def from_units(sums: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Convert sums in units to decimals of a type that holds them."""
    units = sums.combine_chunks() if isinstance(sums, pa.ChunkedArray) else sums
    exact = as_decimals(units, pa.decimal128(38, kind.scale))
    return exact if pt.is_decimal128(kind) else exact.cast(kind)
