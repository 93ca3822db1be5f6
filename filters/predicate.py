"""A filter: SQL text that is parsed and checked once, then evaluated on record batches.

    predicate = Predicate.parse("distance > 500 AND origin IN ('JFK', 'LGA')", schema)
    kept = batch.filter(predicate.mask(batch))

The text is a boolean expression in Spark's SQL. It has the meaning of Spark 4 in ANSI mode with the time zone
UTC: three-valued logic, NaN equal to itself and above all other numbers, text compared by its bytes, overflow
and division by zero as errors. An expression that cannot have exactly this meaning is refused when it is
parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
from sqlglot import exp

from elasticscan.base.errors import FilterError
from elasticscan.filters.expression import Expression, column_names, literal, shortened, to_sql, to_text
from elasticscan.filters.kernels import ARROW_REFUSALS, evaluator_of
from elasticscan.filters.parser import parse_condition

_TRUE = literal(True, pa.bool_())
# Parsed filters that stay in memory: planning a query, each of its tasks and each resumed key parse the same
# text. A long filter takes megabytes.
_CACHED = 16


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on rows. Predicates are equal if their conditions are, and may be shared.

    `columns` are the top-level columns that it reads. A batch for `mask` must have these and may have others.
    `str` returns SQL text with the same meaning, with columns spelt as in the schema. `text` is the user's
    text, for errors.
    """

    condition: Expression
    text: str = field(default="", compare=False, repr=False)
    columns: frozenset[str] = field(init=False, compare=False)
    _evaluate: Callable[[pa.RecordBatch], pa.Array] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", column_names(self.condition))
        object.__setattr__(self, "_evaluate", evaluator_of(self.condition))

    @classmethod
    def parse(cls, text: str, schema: pa.Schema) -> Predicate:
        """Parse a filter for rows of a schema.

        Raises `FilterError` for text that is no supported condition, is longer than 64 KB or nested too
        deeply, or compares types that cannot be compared. Raises `NotFound` for an unknown or ambiguous
        column.
        """
        return _parse(text, schema)

    @classmethod
    def parse_for_change(cls, text: str, schema: pa.Schema) -> Predicate:
        """Parse the condition of a delete, an update or an overwrite.

        It must name a column or be TRUE: any other constant is a mistake that changes all rows or none.
        """
        predicate = cls.parse(text, schema)
        if not predicate.columns and predicate.condition != _TRUE:
            raise FilterError(
                f"the condition {predicate._show()} names no column; write TRUE for all rows", filter=text
            )
        return predicate

    @classmethod
    def of_tree(cls, node: exp.Expr, schema: pa.Schema) -> Predicate:
        """Return the filter of a condition in sqlglot's tree. Raises the same errors as `parse`."""
        return cls._checked(parse_condition(node, schema), "", schema)

    @classmethod
    def _checked(cls, condition: Expression, text: str, schema: pa.Schema) -> Predicate:
        try:
            predicate = cls(condition, text)
            # An evaluation on no rows raises already if Arrow does not support these types.
            needed = pa.schema([field for field in schema if field.name in predicate.columns])
            predicate.mask(pa.RecordBatch.from_pylist([], needed))
        except ARROW_REFUSALS as error:
            raise FilterError(f"the filter cannot be evaluated: {error}", filter=text) from error
        return predicate

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return true, false or null (unknown) for each row; `batch.filter` keeps the true ones.

        Raises `FilterError` where Spark would also fail, as in a division by zero or an overflow.
        """
        try:
            return self._evaluate(batch)
        except FilterError as error:
            raise FilterError(f"{error.message} (in the filter {self._show()})", filter=str(self)) from None
        except ARROW_REFUSALS as error:
            raise FilterError(f"the filter {self._show()} fails: {error}", filter=str(self)) from error

    def __str__(self) -> str:
        return to_sql(self.condition)

    def shown(self) -> str:
        """Return the condition for people, without type suffixes of numbers."""
        return to_text(self.condition)

    def _show(self) -> str:
        return shortened(self.text or to_text(self.condition))


@lru_cache(_CACHED)
def _parse(text: str, schema: pa.Schema) -> Predicate:
    return Predicate._checked(parse_condition(text, schema), text.strip(), schema)
