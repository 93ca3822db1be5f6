"""Computation of aggregates: rows become partial rows, one for each group, and these become the result.

    fold = Fold(aggregates, ["city"], schema)
    for page in pages:
        fold.add(page)
    fold.result()                   # or fold.partial_rows(), which Spark adds up

A few pages together become partial rows. When there are twice as many partial rows as after the last merge,
they are merged. So memory depends on the number of groups (and of the distinct values that are counted), not
on the number of rows, and each row is merged only a few times.

Sums of whole numbers and of decimals are exact in any order of rows. A page is added up in 64 bits if no
overflow is possible, otherwise in a decimal that holds any sum. The result must fit its type, or it is an
error, as in Spark. Groups follow Spark: null is a group; NaN is one group, above all numbers; -0.0 is 0.0. An
average of whole numbers is computed from their exact sum. Spark adds them up as floats, so beyond 2^53 its
result depends on the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.base.errors import FilterError
from elasticscan.base.key_encoding import float_codes, floats_of
from elasticscan.filters.aggregates import AVG, COUNT, COUNT_DISTINCT, COUNT_ROWS, MAX, MIN, SUM, Aggregate
from elasticscan.filters.coercion import computed_type

# Pages are folded together when they have so many rows or bytes: each fold has a fixed cost.
FOLDED_ROWS, FOLDED_BYTES = 1 << 20, 64 << 20
# Fewer partial rows than this are not worth merging.
LEAST_MERGED_ROWS = 1 << 18
# A fold is full at so many bytes of merged partial rows.
MOST_PARTIAL_BYTES = 64 << 20
# Or if there are nearly as many partial rows as rows: then merging does not reduce them.
_HARDLY_FEWER = 0.9

_ANY_INTEGER = pa.decimal128(38, 0)
# 10^10 decimals of so many digits have a sum of at most 38 digits.
_ADDABLE_DIGITS = 28
_MOST_ROWS = 1 << 31  # so many whole numbers of 32 bits have a sum of 64 bits


@dataclass(frozen=True, slots=True)
class _State:
    """A column of partial rows: a function of a column."""

    function: str
    column: str | None
    type: pa.DataType

    @property
    def name(self) -> str:
        return f"{self.function} of {self.column}"

    @property
    def merge(self) -> str:
        return self.function if self.function in (MIN, MAX) else SUM

    def prepared(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the values of a page in a type that Arrow folds correctly."""
        values = _with_kernels(values)
        if self.function == SUM:
            return _addends(values, self.type)
        if self.function in (MIN, MAX) and not _is_ordered(values):
            return _ordered(values)
        return values

    def of_page(self, grouped: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return the column of a page's partial rows."""
        if self.function == COUNT_DISTINCT:  # counted at the end
            return pa.nulls(grouped.num_rows, self.type)
        values = grouped.column("count_all" if self.column is None else f"{self.name}_{self.function}")
        is_float = self.function in (MIN, MAX) and pt.is_floating(values.type)
        return (_ordered(values) if is_float else values).cast(self.type)


class Fold:
    """The partial rows of all rows that were added.

    Args:
        aggregates: the aggregates; their columns must be in every batch.
        group_by: columns of the batches. Without any, all rows are one group, which exists also without rows.
        schema: the types of the columns.
    """

    def __init__(self, aggregates: Sequence[Aggregate], group_by: Sequence[str], schema: pa.Schema) -> None:
        self._aggregates, self._group_by, self._schema = tuple(aggregates), tuple(group_by), schema
        self._keys = [f"group {number}" for number in range(len(group_by))]
        states = [state for aggregate in aggregates for state in _states_of(aggregate)]
        self._states = tuple(dict.fromkeys(states)) or (_State(COUNT_ROWS, None, pa.int64()),)
        self._distinct = {
            state: Fold((), (*group_by, state.column), schema)
            for state in self._states
            if state.function == COUNT_DISTINCT and state.column is not None
        }
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._partial: list[pa.Table] = []
        self._rows = self._merged_rows = self._folded_rows = 0
        used = [*self._group_by, *(name for aggregate in aggregates for name in aggregate.columns)]
        nothing = [schema.field(name) for name in dict.fromkeys(used)] or [pa.field("", pa.null())]
        self._fold(pa.schema(nothing).empty_table())

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows; all batches have the same columns."""
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= FOLDED_ROWS or self._waiting_bytes >= FOLDED_BYTES:
            self._fold_waiting()

    def _fold_waiting(self) -> None:
        if self._waiting:
            rows, self._waiting = pa.Table.from_batches(self._waiting), []
            self._waiting_rows = self._waiting_bytes = 0
            self._fold(rows)

    def _fold(self, rows: pa.Table) -> None:
        self._folded_rows += rows.num_rows
        columns = {
            key: _as_group(rows.column(name)) for key, name in zip(self._keys, self._group_by, strict=True)
        }
        asked: list[tuple[str | list[str], str]] = []
        for state in self._states:
            if state.column is None:
                asked.append(([], "count_all"))
            elif state.function != COUNT_DISTINCT:
                columns[state.name] = state.prepared(rows.column(state.column))
                asked.append((state.name, state.function))
        if not columns:
            columns["rows"] = pa.nulls(rows.num_rows)
        grouped = pa.table(columns).group_by(self._keys, use_threads=False).aggregate(asked)
        self._partial.append(self._rows_of(grouped, [state.of_page(grouped) for state in self._states]))
        self._rows += grouped.num_rows
        if self._rows > max(LEAST_MERGED_ROWS, 2 * self._merged_rows):
            self._merge()
        for fold in self._distinct.values():
            values = rows.column(fold._group_by[-1])
            fold._fold(rows.filter(values.is_valid()) if values.null_count else rows)

    def result(self) -> pa.Table:
        """Return one row for each group: the columns of the groups, then one column for each aggregate.

        Raises:
            FilterError: a sum or an average does not fit its type.
        """
        self._fold_waiting()
        self._merge()
        if self._distinct:
            self._count_distinct()
        whole = self._partial[0]
        return self._shaped(whole, [_value(one, whole) for one in self._aggregates])

    @property
    def size(self) -> int:
        """Return the present number of partial rows, without rows that wait to be folded."""
        return self._rows

    @property
    def is_full(self) -> bool:
        """Return True if the caller should take the partial rows: they are large, or merging is useless."""
        if self._rows > LEAST_MERGED_ROWS and self._rows > _HARDLY_FEWER * self._folded_rows:
            return True
        return self._rows == self._merged_rows and self._partial[0].nbytes > MOST_PARTIAL_BYTES

    def partial_rows(self) -> pa.Table:
        """Return and remove the partial rows, in the columns of `result`. Raises the same errors as `result`.

        The caller adds them up (counts and sums by sums) to get the result. An average is represented by its
        sum as a double; it must not be of decimals.
        """
        self._fold_waiting()
        self._merge()
        whole, self._partial = self._partial[0], [self._partial[0].slice(0, 0)]
        self._rows = self._merged_rows = self._folded_rows = 0
        sums = {
            one: whole.column(f"{SUM} of {one.column}") for one in self._aggregates if one.function == AVG
        }
        values = [_as_float(sums[one]) if one in sums else _value(one, whole) for one in self._aggregates]
        return self._shaped(whole, values)

    def _shaped(self, whole: pa.Table, values: Sequence[pa.ChunkedArray]) -> pa.Table:
        """Return rows in the columns of `result`."""
        fields = [self._schema.field(name) for name in self._group_by]
        arrays = [whole.column(key).cast(field.type) for key, field in zip(self._keys, fields, strict=True)]
        fields += [pa.field(aggregate.name, aggregate.type) for aggregate in self._aggregates]
        return pa.Table.from_arrays([*arrays, *values], schema=pa.schema(fields))

    def _merge(self) -> None:
        self._partial = [rows for rows in self._partial if rows.num_rows] or self._partial[:1]
        if len(self._partial) > 1:
            together = pa.concat_tables(self._partial, promote_options="default")
            grouped = together.group_by(self._keys, use_threads=False)
            merged = grouped.aggregate([(state.name, state.merge) for state in self._states])
            results = [
                merged.column(f"{state.name}_{state.merge}").cast(state.type) for state in self._states
            ]
            self._partial = [self._rows_of(merged, results)]
        self._rows = self._merged_rows = self._partial[0].num_rows

    def _rows_of(self, grouped: pa.Table, states: Sequence[pa.ChunkedArray | pa.Array]) -> pa.Table:
        """Return a table of the groups and their states."""
        names = [*self._keys, *(state.name for state in self._states)]
        return pa.Table.from_arrays([*map(grouped.column, self._keys), *states], names=names)

    def _count_distinct(self) -> None:
        """Add a partial row for each distinct value, whose other states are null."""
        for state in self._states:
            if state.function == COUNT_DISTINCT:
                fold = self._distinct[state]
                fold._merge()
                ones = pa.repeat(pa.scalar(1, pa.int64()), fold._merged_rows)
                self._partial.append(fold._partial[0].select(self._keys).append_column(state.name, ones))
        self._merge()


def _states_of(aggregate: Aggregate) -> list[_State]:
    column, kind = aggregate.column, aggregate.computed
    match aggregate.function:
        case "min" | "max":
            as_integers = pt.is_floating(kind) or pt.is_duration(kind)
            return [_State(aggregate.function, column, pa.int64() if as_integers else kind)]
        case "sum":
            return [_State(SUM, column, _sum_type(kind))]
        case "avg":
            return [_State(SUM, column, _sum_type(kind)), _State(COUNT, column, pa.int64())]
    return [_State(aggregate.function, column, pa.int64())]


def _sum_type(kind: pa.DataType) -> pa.DataType:
    """Return a type that holds the sum of any number of values."""
    if pt.is_floating(kind):
        return pa.float64()
    if pt.is_integer(kind):
        return _ANY_INTEGER
    return (
        pa.decimal128(38, kind.scale) if kind.precision <= _ADDABLE_DIGITS else pa.decimal256(76, kind.scale)
    )


def _addends(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return numbers in a type that holds their sum: in 64 bits if possible."""
    if pt.is_integer(values.type):
        return values if adds_up(values) else values.cast(kind)
    # Arrow adds up decimals of any precision in 38 digits.
    fits = pt.is_float64(values.type) or (pt.is_decimal(values.type) and kind.bit_width == 128)
    return values if fits else values.cast(kind)


def adds_up(values: pa.ChunkedArray) -> bool:
    """Return True if every sum of these whole numbers fits 64 bits."""
    if values.type.bit_width < 64:
        return len(values) < _MOST_ROWS
    least, most = (bound.as_py() or 0 for bound in pc.min_max(values).values())
    return bool(max(-least, most) * len(values) < 1 << 63)


def _with_kernels(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values in a type for which Arrow has kernels."""
    kind = values.type
    return values.cast(computed_type(kind)) if pt.is_decimal32(kind) or pt.is_decimal64(kind) else values


def _is_ordered(values: pa.ChunkedArray) -> bool:
    """Return True for floats that Arrow compares as Spark does: without a NaN, which Arrow ignores."""
    return (pt.is_float64(values.type) or pt.is_float32(values.type)) and not pc.any(
        pc.is_nan(values)
    ).as_py()


def _ordered(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values in a form that Arrow orders as Spark does: floats as integers, NaN above all."""
    if pt.is_duration(values.type):
        return values.cast(pa.int64())
    if not pt.is_floating(values.type):
        return values
    return _by_bits(values.cast(pa.float64()))


def ordered_floats(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floats as integers that sort as in Spark: -0.0 is 0.0, and NaN is above all numbers."""
    return _by_bits(pc.add(values.cast(pa.float64()), 0.0))


def _by_bits(floats: pa.ChunkedArray) -> pa.ChunkedArray:
    codes = float_codes(pc.fill_null(floats, 0.0).to_numpy())
    return pa.chunked_array([pa.array(codes, mask=floats.is_null().to_numpy())])


def _as_group(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values in a form whose bytes are equal if the values are equal in Spark."""
    if not pt.is_floating(values.type):
        return _with_kernels(values)
    floats = pc.add(values.cast(pa.float64()), 0.0)  # -0.0 + 0.0 is 0.0
    return pc.if_else(pc.is_nan(floats), float("nan"), floats)


def _value(aggregate: Aggregate, whole: pa.Table) -> pa.ChunkedArray:
    """Return the values of an aggregate from merged partial rows."""
    if aggregate.function in (SUM, AVG):
        total = whole.column(f"{SUM} of {aggregate.column}")
        if aggregate.function == SUM:
            return _fitting(aggregate, total, aggregate.type)
        return _average(aggregate, total, whole.column(f"{COUNT} of {aggregate.column}"))
    values = whole.column(f"{aggregate.function} of {aggregate.column}")
    return _extreme(aggregate, values) if aggregate.function in (MIN, MAX) else pc.fill_null(values, 0)


def _extreme(aggregate: Aggregate, values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pt.is_floating(aggregate.computed):
        return values.cast(aggregate.type)
    floats = pa.array(floats_of(pc.fill_null(values, 0).to_numpy()), mask=values.is_null().to_numpy())
    return pa.chunked_array([floats.cast(aggregate.type)])


def _average(aggregate: Aggregate, total: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pt.is_decimal128(aggregate.computed):
        counts = pc.if_else(pc.equal(count, 0), None, count).cast(pa.float64(), safe=False)
        return pc.divide(_as_float(total), counts)
    digits, scale = aggregate.computed.precision + 10, aggregate.computed.scale
    total = _fitting(aggregate, total, pa.decimal128(min(digits, 38), scale))
    counts = pc.if_else(pc.equal(count, 0), None, count).cast(pa.decimal256(19, 0))
    exact = pc.divide(total.cast(pa.decimal256(min(digits, 38), scale)), counts)
    places = aggregate.type.scale
    for rounded in (38, places):  # Spark divides to 38 places, then rounds to the places of the type
        if exact.type.scale > rounded:
            exact = pc.round(exact, rounded, "half_towards_infinity")
    return _fitting(aggregate, exact, aggregate.type)


def _as_float(total: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return sums as floats. Whole numbers are converted to integers first, so that they are rounded once."""
    with suppress(pa.ArrowInvalid):
        total = total.cast(pa.int64()) if pt.is_decimal(total.type) else total
    return total.cast(pa.float64(), safe=False)


def _fitting(aggregate: Aggregate, values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the values in a type; raises if a value does not fit it."""
    with suppress(pa.ArrowInvalid):
        return values.cast(kind)
    shown = "long" if pt.is_int64(kind) else str(kind)
    raise FilterError(
        f"[ARITHMETIC_OVERFLOW] {shown} overflow: a group's {aggregate} does not fit; widen its column",
        column=aggregate.column,
    )
