"""Folds rows into partial rows, one for each group, and these into the result.

    fold = Fold(aggregates, ["city"], schema)
    for page in pages:
        fold.add(page)
    fold.result()                   # or fold.partial_rows(), for others to add up

A few pages together become partial rows. These are merged whenever they are twice as many as they were after
the merge before, so memory is bounded by the groups (and by the distinct values that are counted), never by
the rows, and each row is merged a few times only.

Sums of whole numbers and of decimals are exact whatever the order of rows: a page adds up in 64 bits
where no overflow is possible, everything else in decimals that hold any sum. Only the result must fit
its type; else it is an error, as in Spark. Groups follow Spark: null is a group, NaN is one and above all
numbers, and -0.0 is 0.0. An average of whole numbers is that of their exact sum, where Spark, which adds them
up as floats, depends on the order of rows beyond 2^53.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.base.errors import FilterError
from elasticscan.filters.aggregates import AVG, COUNT, COUNT_DISTINCT, COUNT_ROWS, MAX, MIN, SUM, Aggregate
from elasticscan.filters.coercion import computed_type
from elasticscan.filters.exact import is_exact
from elasticscan.filters.expression import Expression, to_text
from elasticscan.filters.inputs import Inputs, adds_up, evaluators, from_units, is_column
from elasticscan.filters.kernels import can_fail

# Pages wait until they are so many rows or bytes together: each fold has a cost of its own.
FOLDED_ROWS, FOLDED_BYTES = 1 << 20, 64 << 20
# Fewer partial rows than this are not worth merging.
LEAST_MERGED_ROWS = 1 << 18
# Partial rows for another process to add up are handed over at so many bytes, merged.
MOST_PARTIAL_BYTES = 64 << 20
# Or when this part of the rows are groups of their own: then merging would not make them fewer.
_HARDLY_FEWER = 0.9

# Counts rows whose number does not fit the type that Spark computes it with.
BEYOND = "beyond"
# So many times the greatest number, the sum of a group leaves its type whatever else is added to it.
_CERTAIN_OVERFLOW = 5
_ANY_INTEGER = pa.decimal128(38, 0)
# A decimal of so many digits can be added up 10^10 times without leaving 38 digits.
_ADDABLE_DIGITS = 28
_EXACT = Context(prec=76)
_MAGNITUDE = np.int64((1 << 63) - 1)
_NAN_BITS = np.float64("nan").view(np.int64) & _MAGNITUDE


@dataclass(frozen=True, slots=True)
class _State:
    """A column of partial rows: a function of a value, and how partial rows of it are merged."""

    function: str
    value: Expression | None
    type: pa.DataType

    @property
    def name(self) -> str:
        return _name(self.function, self.value)

    @property
    def merge(self) -> str:
        return self.function if self.function in (MIN, MAX) else SUM

    @property
    def is_exact_sum(self) -> bool:
        """Return True for numbers that are added up in units; whole columns are added as they are."""
        value = self.value
        is_whole = value is not None and is_column(value) and pt.is_integer(value.type)
        return self.function == SUM and value is not None and is_exact(value) and not is_whole

    def folded(self, inputs: Inputs) -> pa.ChunkedArray:
        """Return the values in the form in which a page is folded."""
        assert self.value is not None, "rows are counted without a value"
        if self.function == COUNT:
            return inputs.present(self.value)
        values = inputs.values(self.value)
        if self.function in (MIN, MAX):
            return values if _is_ordered(values) else _ordered(values)
        if pt.is_floating(values.type):
            return values.cast(pa.float32()) if pt.is_float16(values.type) else values
        if pt.is_integer(values.type) and adds_up(values):
            return values
        return values.cast(self.type)


class Fold:
    """Partial rows of what was added, in bounded memory.

    Args:
        aggregates: what to compute; their columns must be in every batch.
        group_by: columns of the batches; without any, everything is one group, also where there are no rows.
        schema: the types of the columns.
    """

    def __init__(self, aggregates: Sequence[Aggregate], group_by: Sequence[str], schema: pa.Schema) -> None:
        self._aggregates, self._group_by, self._schema = tuple(aggregates), tuple(group_by), schema
        self._keys = [f"group {number}" for number in range(len(group_by))]
        states = [state for aggregate in aggregates for state in _states_of(aggregate)]
        self._states = tuple(dict.fromkeys(states)) or (_State(COUNT_ROWS, None, pa.int64()),)
        distinct = [name for a in aggregates if a.function == COUNT_DISTINCT for name in a.columns]
        self._distinct = {column: Fold((), (*group_by, column), schema) for column in dict.fromkeys(distinct)}
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._partial: list[pa.Table] = []
        self._rows = self._merged_rows = self._folded_rows = 0
        self._evaluators = evaluators(state.value for state in self._states if state.value is not None)
        used = [*self._group_by, *(name for aggregate in aggregates for name in aggregate.columns)]
        nothing = [schema.field(name) for name in dict.fromkeys(used)] or [pa.field("", pa.null())]
        self._fold(pa.schema(nothing).empty_table())

    def add(self, rows: pa.RecordBatch) -> None:
        """Fold more rows in, all batches with the same columns."""
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
        inputs, units = Inputs(rows, self._evaluators), set()
        asked: list[tuple[str | list[str], str] | None] = []
        for number, state in enumerate(self._states):
            name = str(number)
            if state.value is None:
                asked.append(([], "count_all"))
                continue
            if state.is_exact_sum or state.function == BEYOND:
                addends = inputs.addends(state.value, _sum_type(state.value.type))
                values = addends.values if state.is_exact_sum else addends.beyond
                if state.is_exact_sum and addends.are_units:
                    units.add(number)
            else:
                values = state.folded(inputs)
            if values is None:
                asked.append(None)
                continue
            columns[name] = values
            asked.append((name, state.merge if state.function == BEYOND else state.function))
        if not columns:
            columns["rows"] = pa.nulls(rows.num_rows)
        grouped = (
            pa.table(columns)
            .group_by(self._keys, use_threads=False)
            .aggregate([one for one in asked if one is not None])
        )
        results = []
        for number, (state, one) in enumerate(zip(self._states, asked, strict=True)):
            if one is None:
                results.append(pa.array(np.zeros(grouped.num_rows, np.int64)))
                continue
            values = grouped.column("count_all" if state.value is None else f"{number}_{one[1]}")
            is_extreme = state.function in (MIN, MAX) and pt.is_floating(values.type)
            if number in units:
                results.append(from_units(values, state.type))
            else:
                results.append((_ordered(values) if is_extreme else values).cast(state.type))
        self._keep([*map(grouped.column, self._keys), *results])
        for column, fold in self._distinct.items():
            if column in rows.schema.names:
                values = rows.column(column)
                fold._fold(rows.filter(values.is_valid()) if values.null_count else rows)

    def result(self) -> pa.Table:
        """One row for each group: the groups' columns, then one for each aggregate.

        Raises:
            FilterError: a sum or an average does not fit its type.
        """
        self._fold_waiting()
        self._merge()
        whole = self._partial[0]
        if self._distinct:
            whole = self._with_distinct(whole)
        fields = [self._schema.field(name) for name in self._group_by]
        arrays = [whole.column(key).cast(field.type) for key, field in zip(self._keys, fields, strict=True)]
        values = [_value(aggregate, whole) for aggregate in self._aggregates]
        fields += [pa.field(aggregate.name, aggregate.type) for aggregate in self._aggregates]
        return pa.Table.from_arrays([*arrays, *values], schema=pa.schema(fields))

    @property
    def size(self) -> int:
        """Count the partial rows that there are now, without those of rows that wait to be folded."""
        return self._rows

    @property
    def is_full(self) -> bool:
        """Return True if partial rows should be handed over: they are large, or as many as the rows."""
        if self._rows > LEAST_MERGED_ROWS and self._rows > _HARDLY_FEWER * self._folded_rows:
            return True
        return self._rows == self._merged_rows and self._partial[0].nbytes > MOST_PARTIAL_BYTES

    def partial_rows(self) -> pa.Table:
        """Partial rows of all that was added since they were last taken, shaped like the result.

        Added up by others (counts and sums by sums) they are the result; an average, which is
        of no decimal, is given by its sum as a double. A sum that does not fit its type is given as two rows
        that do not fit together either, so that it fails where they are added.
        """
        self._fold_waiting()
        self._merge()
        whole, self._partial = self._partial[0], [self._partial[0].slice(0, 0)]
        self._rows = self._merged_rows = self._folded_rows = 0
        fields = [self._schema.field(name) for name in self._group_by]
        groups = [whole.column(key).cast(field.type) for key, field in zip(self._keys, fields, strict=True)]
        schema = pa.schema([*fields, *(pa.field(value.name, value.type) for value in self._aggregates)])
        values, beyond = [], []
        for place, aggregate in enumerate(self._aggregates, len(groups)):
            if aggregate.function not in (SUM, AVG):
                values.append(_value(aggregate, whole))
                continue
            total = whole.column(_name(SUM, aggregate.value))
            if aggregate.function == AVG:
                values.append(_as_float(total))
                continue
            try:
                fitting = total.cast(aggregate.type)
            except pa.ArrowInvalid:
                fitting, excess = _divided(total, aggregate.type)
                beyond.append((place, excess))
            if (unfit := _unfit(aggregate, whole)) is not None:
                most = pa.scalar(_most(aggregate.type), aggregate.type)
                fitting = pc.if_else(unfit, most, fitting)
                beyond += [(place, pc.if_else(unfit, most, None))] * _CERTAIN_OVERFLOW
            values.append(fitting)
        parts = [pa.Table.from_arrays([*groups, *values], schema=schema)]
        for place, excess in beyond:
            arrays = [*groups, *(pa.nulls(whole.num_rows, value.type) for value in values)]
            arrays[place] = excess
            parts.append(pa.Table.from_arrays(arrays, schema=schema).filter(excess.is_valid()))
        return pa.concat_tables(parts)

    def _keep(self, arrays: Sequence[pa.ChunkedArray]) -> None:
        names = [*self._keys, *(state.name for state in self._states)]
        partial = pa.Table.from_arrays(arrays, names=names)
        self._partial.append(partial)
        self._rows += partial.num_rows
        if self._rows > max(LEAST_MERGED_ROWS, 2 * self._merged_rows):
            self._merge()

    def _merge(self) -> None:
        self._partial = [rows for rows in self._partial if rows.num_rows] or self._partial[:1]
        if len(self._partial) > 1:
            grouped = pa.concat_tables(self._partial).group_by(self._keys, use_threads=False)
            merged = grouped.aggregate([(state.name, state.merge) for state in self._states])
            results = [
                merged.column(f"{state.name}_{state.merge}").cast(state.type) for state in self._states
            ]
            names = [*self._keys, *(state.name for state in self._states)]
            self._partial = [pa.Table.from_arrays([*map(merged.column, self._keys), *results], names=names)]
        self._rows = self._merged_rows = self._partial[0].num_rows

    def _with_distinct(self, whole: pa.Table) -> pa.Table:
        """Return the partial rows with a column for each count of distinct values, null for none."""
        counts = []
        for column, fold in self._distinct.items():
            fold._merge()
            values = (
                fold._partial[0]
                .select(self._keys)
                .append_column(_distinct(column), pa.array(np.ones(fold._merged_rows, dtype=np.int64)))
            )
            counts.append(values)
        # A group has one partial row of the other states; nulls alongside it change neither sums nor
        # extremes.
        grouped = pa.concat_tables([whole, *counts], promote_options="default")
        asked = [(state.name, state.merge) for state in self._states]
        asked += [(_distinct(column), SUM) for column in self._distinct]
        merged = grouped.group_by(self._keys, use_threads=False).aggregate(asked)
        names = [name.removesuffix(f"_{function}") for name, function in asked]
        arrays = [merged.column(f"{name}_{function}") for name, function in asked]
        types = [*(state.type for state in self._states), *(pa.int64() for _ in self._distinct)]
        cast = [array.cast(kind) for array, kind in zip(arrays, types, strict=True)]
        return pa.Table.from_arrays([*map(merged.column, self._keys), *cast], names=[*self._keys, *names])


def _states_of(aggregate: Aggregate) -> list[_State]:
    value, kind = aggregate.value, aggregate.computed
    may_be_beyond = value is not None and is_exact(value) and can_fail(value)
    beyond = [_State(BEYOND, value, pa.int64())] if may_be_beyond else []
    match aggregate.function:
        case "count(*)":
            return [_State(COUNT_ROWS, None, pa.int64())]
        case "count":
            return [_State(COUNT, value, pa.int64())]
        case "min" | "max":
            return [_State(aggregate.function, value, _extreme_type(kind))]
        case "sum":
            return [_State(SUM, value, _sum_type(kind)), *beyond]
        case "avg":
            return [_State(SUM, value, _sum_type(kind)), *beyond, _State(COUNT, value, pa.int64())]
    return []


def _sum_type(kind: pa.DataType) -> pa.DataType:
    """Return a type that holds the sum of any number of values."""
    if pt.is_floating(kind):
        return pa.float64()
    if pt.is_integer(kind):
        return _ANY_INTEGER
    return (
        pa.decimal128(38, kind.scale) if kind.precision <= _ADDABLE_DIGITS else pa.decimal256(76, kind.scale)
    )


def _extreme_type(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pt.is_floating(kind) or pt.is_duration(kind) else kind


def _is_ordered(values: pa.ChunkedArray) -> bool:
    """Return True for floats that Arrow compares as Spark does: of a NaN it takes no notice."""
    return (pt.is_float64(values.type) or pt.is_float32(values.type)) and not pc.any(
        pc.is_nan(values)
    ).as_py()


def _ordered(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values in a form that Arrow orders as Spark does: floats as integers, NaN above all."""
    if pt.is_duration(values.type):
        return values.cast(pa.int64())
    if not pt.is_floating(values.type):
        return values.cast(computed_type(values.type), safe=False) if _is_narrow(values.type) else values
    return _by_bits(values.cast(pa.float64()))


def ordered_floats(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats as integers that sort as Spark sorts them: -0.0 is 0.0, and NaN is above all numbers."""
    return _by_bits(pc.add(values.cast(pa.float64()), 0.0))


def _by_bits(floats: pa.ChunkedArray) -> pa.ChunkedArray:
    bits = pc.fill_null(floats, 0.0).to_numpy().view(np.int64)
    bits = np.where((bits & _MAGNITUDE) > np.float64("inf").view(np.int64), _NAN_BITS, bits)
    return pa.chunked_array([pa.array(_flip(bits), mask=floats.is_null().to_numpy())])


def _is_narrow(kind: pa.DataType) -> bool:
    """Return True for types that Arrow has no kernels for."""
    return bool(pt.is_decimal32(kind) or pt.is_decimal64(kind))


def _flip(
    bits: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Bits of floats as integers of the same order, and back."""
    return bits ^ ((bits >> 63) & _MAGNITUDE)


def _as_group(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values in a form whose bytes are equal where Spark calls them equal."""
    kind = values.type
    if _is_narrow(kind):
        return values.cast(computed_type(kind))
    if not pt.is_floating(kind):
        return values
    floats = pc.add(values.cast(pa.float64()), 0.0)  # -0.0 + 0.0 is 0.0
    return pc.if_else(pc.is_nan(floats), float("nan"), floats)


def _name(function: str, value: Expression | None) -> str:
    return f"{function} of {None if value is None else to_text(value)}"


def _distinct(column: str) -> str:
    return f"distinct of {column}"


def _value(aggregate: Aggregate, whole: pa.Table) -> pa.ChunkedArray:
    """Return an aggregate of partial rows that are complete."""
    match aggregate.function:
        case "count(*)" | "count":
            return pc.fill_null(whole.column(_name(aggregate.function, aggregate.value)), 0)
        case "count distinct":
            return pc.fill_null(whole.column(_distinct(*aggregate.columns)), 0)
        case "min" | "max":
            return _extreme(aggregate, whole.column(_name(aggregate.function, aggregate.value)))
    if _unfit(aggregate, whole) is not None:
        raise _overflow(aggregate, aggregate.computed)
    total = whole.column(_name(SUM, aggregate.value))
    if aggregate.function == AVG:
        return _average(aggregate, total, whole.column(_name(COUNT, aggregate.value)))
    return _fitting(aggregate, total, aggregate.type)


def _extreme(aggregate: Aggregate, values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pt.is_floating(aggregate.computed):
        return values.cast(aggregate.type)
    bits = pc.fill_null(values, 0).to_numpy()
    floats = pa.array(_flip(bits).view(np.float64), mask=values.is_null().to_numpy())
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
    for rounded in (38, places):  # Spark divides to 38 places, then rounds to those of the type
        if exact.type.scale > rounded:
            exact = pc.round(exact, rounded, "half_towards_infinity")
    return _fitting(aggregate, exact, aggregate.type)


def _as_float(total: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return sums as floats: whole numbers by way of integers, which round once."""
    with suppress(pa.ArrowInvalid):
        total = total.cast(pa.int64()) if pt.is_decimal(total.type) else total
    return total.cast(pa.float64(), safe=False)


def _fitting(aggregate: Aggregate, values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the values in a type that may be too narrow for them."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        pass
    raise _overflow(aggregate, kind)


def _overflow(aggregate: Aggregate, kind: pa.DataType) -> FilterError:
    shown = "long" if pt.is_int64(kind) else str(kind)
    return FilterError(
        f"[ARITHMETIC_OVERFLOW] {shown} overflow: a group's {aggregate} does not fit; widen its column",
        column=", ".join(aggregate.columns),
    )


def _unfit(aggregate: Aggregate, whole: pa.Table) -> pa.ChunkedArray | None:
    """Return True for the groups that have a number that does not fit its type; None if none has."""
    name = _name(BEYOND, aggregate.value)
    if name not in whole.column_names:
        return None
    unfit = pc.greater(whole.column(name), 0)
    return unfit if pc.any(unfit).as_py() else None


def _most(kind: pa.DataType) -> int | Decimal:
    """Return the greatest number of a type."""
    if pt.is_integer(kind):
        return (1 << 63) - 1
    return _EXACT.multiply(Decimal(10**kind.precision - 1), Decimal(1).scaleb(-kind.scale))


def _divided(total: pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Cut sums to the range of a type, and return the least excess of each cut sum, else null."""
    most_units = (1 << 63) - 1 if pt.is_integer(kind) else 10**kind.precision - 1
    least_units = -most_units - 1 if pt.is_integer(kind) else -most_units
    unit = Decimal(1) if pt.is_integer(kind) else Decimal(1).scaleb(-kind.scale)
    bounds = [_EXACT.multiply(Decimal(units), unit) for units in (least_units, most_units)]
    least, most = (pa.scalar(bound, total.type) for bound in bounds)
    low, high = pc.less(total, least), pc.greater(total, most)
    fitting = pc.if_else(low, least, pc.if_else(high, most, total)).cast(kind)
    # `if_else` is null where its condition is.
    units = [pa.scalar(sign * unit, total.type).cast(kind) for sign in (-1, 1)]
    return fitting, pc.if_else(low, units[0], pc.if_else(high, units[1], pa.scalar(None, kind)))
