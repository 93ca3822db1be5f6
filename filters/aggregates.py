"""Aggregate functions: SQL text such as `sum(km) AS total` as a value, with the type that Spark gives it.

    aggregate = Aggregate.parse("avg(km)", schema)
    aggregate.function, aggregate.columns, aggregate.type     # 'avg', ('km',), double

The argument is a column, not an expression. An aggregate whose result might differ from Spark's is refused
when it is parsed.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from elasticscan.base.errors import InvalidOption
from elasticscan.base.formatting import brief
from elasticscan.base.limits import MAX_DECIMAL_DIGITS, MAX_FILTER_BYTES
from elasticscan.filters.coercion import computed_type
from elasticscan.filters.expression import COLUMN
from elasticscan.filters.parser import STUMBLES, FilterSql, check_quotes, parse_value

COUNT_ROWS, COUNT, COUNT_DISTINCT = "count(*)", "count", "count distinct"
SUM, MIN, MAX, AVG = "sum", "min", "max", "avg"

FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Count: COUNT, exp.Sum: SUM, exp.Min: MIN, exp.Max: MAX, exp.Avg: AVG,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function over the rows of a group.

    Attributes:
        function: one of the names above.
        column: its argument; None for `count(*)`.
        name: the name of its column in the result.
        computed: the type that values are converted to before; null for `count(*)`.
        type: the type of the result.
    """

    function: str
    column: str | None
    name: str
    computed: pa.DataType
    type: pa.DataType

    @classmethod
    def parse(cls, text: str, schema: pa.Schema) -> Aggregate:
        """Parse an aggregate over a column of a schema.

        Raises:
            InvalidOption: the text cannot be parsed, or is not supported.
            NotFound: the column is unknown or ambiguous.
            FilterError: the argument cannot be parsed, or the text has double quotes.
        """
        if len(text) > MAX_FILTER_BYTES:
            raise _refused(text, "is too long")
        check_quotes(text)
        try:
            node = parse_one(text, dialect=FilterSql)
        except (SqlglotError, RecursionError, *STUMBLES):
            raise _refused(text, "is not understood") from None
        name = text.strip()
        if isinstance(node, exp.Alias):
            node, name = node.this, node.alias
        function = FUNCTIONS.get(type(node))
        argument, is_distinct = node.args.get("this"), False
        if isinstance(argument, exp.Distinct):
            is_distinct = True
            several = argument.expressions
            argument = several[0] if len(several) == 1 and not argument.args.get("on") else None
        others = any(value for key, value in node.args.items() if key not in ("this", "big_int"))
        if function is None or others or (is_distinct and function not in (COUNT, MIN, MAX)):
            raise _refused(text, "is not supported")
        is_star = isinstance(argument, exp.Star) and not any(argument.args.values())
        if function == COUNT and not is_distinct and (is_star or isinstance(argument, exp.Literal)):
            return cls(COUNT_ROWS, None, name, pa.null(), pa.int64())
        if argument is None or isinstance(argument, (exp.Star, exp.Distinct)):
            raise _refused(text, "is not supported")
        value = parse_value(argument.sql(dialect=FilterSql, comments=False), schema)
        if value.op != COLUMN or len(value.value) > 1:
            raise _refused(text, "is not of a column as a whole")
        (column,) = value.value
        stored = schema.field(column).type
        check_groupable(column, stored, text)
        function = COUNT_DISTINCT if is_distinct and function == COUNT else function
        return cls(function, column, name, *_types(text, function, stored))

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the aggregate reads."""
        return () if self.column is None else (self.column,)

    def __str__(self) -> str:
        if self.column is None:
            return COUNT_ROWS
        distinct = "DISTINCT " if self.function == COUNT_DISTINCT else ""
        return f"{self.function.removesuffix(' distinct')}({distinct}{self.column})"


def check_groupable(column: str, kind: pa.DataType, what: str) -> None:
    """Raise if values of a type cannot be compared as in Spark; `what` begins the error's text."""
    if pt.is_nested(kind) or pt.is_null(kind) or pt.is_interval(kind) or pt.is_decimal256(kind):
        raise InvalidOption(
            f"{what}: values of column {column!r} ({kind}) cannot be compared; name another column",
            column=column,
        )


def _types(text: str, function: str, stored: pa.DataType) -> tuple[pa.DataType, pa.DataType]:
    """Return the type of the computation, and the type of the result."""
    kind = computed_type(stored)
    if pt.is_float16(kind):
        kind = pa.float32()
    if function in (COUNT, COUNT_DISTINCT):
        return kind, pa.int64()
    if function in (MIN, MAX):
        return kind if pt.is_decimal(stored) or pt.is_floating(stored) else stored, stored
    if pt.is_uint64(kind):  # Spark's type for them
        kind = pa.decimal128(20, 0)
    if pt.is_integer(kind):
        return kind, pa.int64() if function == SUM else pa.float64()
    if pt.is_floating(kind):
        return kind, pa.float64()
    if pt.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        digits, places = (10, 0) if function == SUM else (4, 4)
        precision, scale = kind.precision + digits, kind.scale + places
        return kind, pa.decimal128(min(precision, MAX_DECIMAL_DIGITS), min(scale, MAX_DECIMAL_DIGITS))
    raise InvalidOption(f"{brief(text)}: the column is {stored}; name a column of numbers", option="values")


def _refused(text: str, why: str) -> InvalidOption:
    supported = "count, sum, min, max or avg of columns, or count(*)"
    return InvalidOption(f"the aggregate {brief(text)} {why}; use {supported}", option="values")
