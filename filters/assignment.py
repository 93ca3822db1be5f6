"""New values of a column: SQL over the columns of the same row, evaluated like a filter.

    assignment = Assignment.parse("km * 2 + 1", schema.field("km"), schema)
    values = assignment.values(batch)

A number for a column of decimals is rounded half away from zero to the column's digits, as in SQL. A number
for a column of whole numbers must be whole. A text literal becomes a date or a time. Every other change of a
type needs a CAST. A value out of the column's range is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.base.errors import FilterError
from elasticscan.filters.casts import can_cast, cast_array
from elasticscan.filters.coercion import computed_type, is_integer, is_number, type_name
from elasticscan.filters.expression import COLUMN, Expression, column_names, shortened, to_text
from elasticscan.filters.kernels import ARROW_REFUSALS, evaluator_of
from elasticscan.filters.nodes import convert
from elasticscan.filters.parser import parse_value

_DATES = (pt.is_date32, pt.is_timestamp)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The new value of a column, which reads `columns`. `text` is the user's text, for errors."""

    field: pa.Field
    value: Expression
    text: str = field(compare=False)
    columns: frozenset[str] = field(init=False, compare=False)
    _evaluate: Callable[[pa.RecordBatch], pa.Array] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", column_names(self.value))
        object.__setattr__(self, "_evaluate", evaluator_of(self.value))

    @classmethod
    def parse(cls, text: str, field: pa.Field, schema: pa.Schema) -> Assignment:
        """Parse the new value of a column of a table.

        Raises:
            FilterError: the text cannot be parsed, or its type does not fit the column.
            NotFound: the text names an unknown column.
        """
        assignment = cls(field, _fitting(parse_value(text, schema), field), text.strip())
        # An evaluation on no rows raises already if Arrow does not support this.
        assignment.values(pa.RecordBatch.from_pylist([], schema))
        return assignment

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Compute the new value of each row, of the column's type.

        Raises `FilterError` where Spark would also fail, as in an overflow, and where a conversion would
        change a value.
        """
        if self.value.op == COLUMN and len(self.value.value) == 1:
            copied = batch.column(self.value.value[0])
            if copied.type == self.field.type:
                return copied  # unchanged, also if Spark lacks the type, as with nanoseconds
        try:
            return self._stored(self._evaluate(batch))
        except FilterError as error:
            raise FilterError(f"{error.message} (in {self})", column=self.field.name) from None
        except ARROW_REFUSALS as error:
            raise FilterError(f"{self} fails: {error}; CAST it", column=self.field.name) from error

    def _stored(self, values: pa.Array) -> pa.Array:
        computed = computed_type(self.field.type)
        if is_number(values.type) and is_number(computed) and not is_integer(computed):
            values = cast_array(values, computed)  # rounds
        return pc.cast(pc.cast(values, computed), self.field.type)

    def __str__(self) -> str:
        return f"{self.field.name} = {shortened(self.text)}"


def _fitting(value: Expression, field: pa.Field) -> Expression:
    """Return the expression if its type may go into a column."""
    computed = computed_type(field.type)
    if value.type == computed or pt.is_null(value.type):
        return value
    if value.is_literal and pt.is_string(value.type) and any(kind(computed) for kind in _DATES):
        return convert(value, computed)
    if pt.is_date32(value.type) and pt.is_timestamp(computed):
        return convert(value, computed)
    if is_number(value.type) and (is_number(computed) or pt.is_unsigned_integer(computed)):
        return value
    hint = "CAST it" if can_cast(value.type, computed) else "give a value of that type"
    raise FilterError(
        f"{to_text(value)} is {type_name(value.type)}, column {field.name!r} {type_name(computed)}; {hint}",
        column=field.name,
    )
