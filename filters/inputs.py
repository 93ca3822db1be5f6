"""Values of rows that are folded: columns as they are, and what is computed of them, each once.

    inputs = Inputs(rows, set_aside)
    inputs.values(value), inputs.addends(value, kind), inputs.failed

Batches are computed one by one, so that what is made on the way stays in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.base.errors import FilterError
from elasticscan.filters.coercion import computed_type, is_integer
from elasticscan.filters.exact import Units
from elasticscan.filters.expression import Expression, column_names, is_column, to_text
from elasticscan.filters.kernels import ARROW_REFUSALS, Rows, compile_expression
from elasticscan.filters.units import as_decimals

_MOST_ROWS, _MOST = 1 << 31, 1 << 63
_MOST_FOUND = 64  # rows that are set aside one by one, which are found by halves; then in parts of a batch


_compiled = lru_cache(64)(compile_expression)  # each page asks for the same ones


class Inputs:
    """The values of some rows.

    Args:
        rows: with every column that a value names.
        set_aside: values that are null where Arrow cannot compute them; `failed` has the numbers of the rows.
    """

    def __init__(self, rows: pa.Table, set_aside: Collection[Expression]) -> None:
        self._rows, self._set_aside = rows, set_aside
        self._batches = [Rows(batch) for batch in rows.to_batches()]
        self._exact = [Units(batch) for batch in self._batches]
        self._values: dict[Expression, pa.ChunkedArray] = {}
        self._units: dict[Expression, pa.ChunkedArray | None] = {}
        self.failed: dict[Expression, list[int]] = {}

    def values(self, value: Expression) -> pa.ChunkedArray:
        """Return the value of each row.

        Raises:
            FilterError: it cannot be computed for some row, and is not to be set aside.
        """
        if is_column(value):
            (name,) = column_names(value)
            return with_kernels(self._rows.column(name))
        if value not in self._values:
            arrays, before = [], 0
            for rows in self._batches:
                arrays += self._of_batch(value, rows, before)
                before += rows.length
            self._values[value] = pa.chunked_array(arrays, value.type)
        return self._values[value]

    def present(self, value: Expression) -> pa.ChunkedArray:
        """Any values that are null in the rows in which this one is."""
        units = self._units.get(value)
        return self.values(value) if units is None else units

    def addends(self, value: Expression, kind: pa.DataType) -> tuple[pa.ChunkedArray, bool]:
        """Return numbers to add up: in 64 bits if these hold any sum of them, else of a type that does.

        True says that they are whole numbers of units of a decimal's last place.
        """
        if value not in self._units:
            self._units[value] = None if is_column(value) and is_integer(value.type) else self._whole(value)
        units = self._units[value]
        if units is not None and adds_up(units):
            return units, pt.is_decimal128(value.type)
        values = self.values(value)
        if pt.is_float16(values.type):
            return values.cast(pa.float32()), False
        as_they_are = pt.is_floating(values.type) or (pt.is_integer(values.type) and adds_up(values))
        return values if as_they_are else values.cast(kind), False

    def _whole(self, value: Expression) -> pa.ChunkedArray | None:
        units = [batch.of(value) for batch in self._exact]
        return pa.chunked_array(units) if units and None not in units else None

    def _of_batch(self, value: Expression, rows: Rows, before: int) -> list[pa.Array]:
        """Return the values of a batch with so many rows before it."""
        try:
            return [rows.array(_compiled(value)(rows))]
        except ARROW_REFUSALS as error:
            if value not in self._set_aside:
                raise FilterError(f"{to_text(value)} fails: {error}") from error
        failed = self.failed.setdefault(value, [])
        if rows.length == 1 or len(failed) >= _MOST_FOUND:
            failed += range(before, before + rows.length)
            return [pa.nulls(rows.length, value.type)]
        half = rows.length // 2
        first = self._of_batch(value, Rows(rows.batch.slice(0, half)), before)
        return first + self._of_batch(value, Rows(rows.batch.slice(half)), before + half)


def with_kernels(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values of types that Arrow has no kernels for as of others."""
    kind = values.type
    return values.cast(computed_type(kind)) if pt.is_decimal32(kind) or pt.is_decimal64(kind) else values


def adds_up(values: pa.ChunkedArray) -> bool:
    """Return True if no sum of some of these whole numbers leaves 64 bits."""
    if values.type.bit_width < 64:
        return len(values) < _MOST_ROWS
    least, most = (bound.as_py() or 0 for bound in pc.min_max(values).values())
    return max(-least, most) * len(values) < _MOST


def from_units(sums: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Convert sums in units to decimals of a type that holds them."""
    exact = as_decimals(sums.combine_chunks(), pa.decimal128(38, kind.scale))
    return exact if pt.is_decimal128(kind) else exact.cast(kind)
