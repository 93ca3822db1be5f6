"""Partial aggregates: tasks compute the aggregates of a SELECT over their rows, and Spark adds them up.

`SELECT city, count(*), avg(km) FROM trips WHERE km > 2 GROUP BY city` becomes, over partial rows,

    SELECT city, coalesce(sum(`partial count(*)`), 0L) AS `count(1)`,
        (sum(`partial avg(km)`) / sum(`partial count(km)`)) AS `avg(km)` FROM … GROUP BY city

The aggregates are replaced and the WHERE is removed, since the read of the table tests all of it. GROUP BY,
HAVING and ORDER BY stay as written: partial rows have each column that is named outside of aggregates, so
their groups are those of Spark or parts of them. `count(DISTINCT a)` stays too, over partial rows by `a`.

If one reader folds all rows, each group has one row and nothing is left to add up. Then the GROUP BY is also
removed, and Spark projects local rows instead of running a job with an exchange. A query that is not
understood with certainty is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import TokenType, exp

from elasticscan.base.errors import ElasticScanError
from elasticscan.base.limits import MAX_DECIMAL_DIGITS
from elasticscan.connector.options import PartialAggregates
from elasticscan.connector.sql.limits import PLAIN_NODES, is_of, reads_alone
from elasticscan.connector.sql.query import Edit, Query, Reference, Session, call_at, clause_spans, shown
from elasticscan.connector.sql.tokens import NotUnderstoodError
from elasticscan.filters import FUNCTIONS, Aggregate, quote_name

_SELECT_PARTS = frozenset(
    {"with_", "expressions", "distinct", "from_", "where", "group", "having", "order", "limit", "offset"}
)
_AGGREGATES = tuple(FUNCTIONS)
# Expressions and clauses with the same result for equal columns. No Star: only `count(*)` may have one.
_PLAIN = (
    *(node for node in PLAIN_NODES if node is not exp.Star), *_AGGREGATES, exp.Group, exp.Having, exp.Order,
    exp.Ordered, exp.Distinct, exp.Var, exp.Round, exp.Abs, exp.Floor, exp.Ceil, exp.Year, exp.Month, exp.Day,
    exp.TsOrDsToDate, exp.TimestampTrunc, exp.DateTrunc, exp.Extract, exp.Substring, exp.Length, exp.Trim,
    exp.Concat, exp.Nullif, exp.Like, exp.ILike, exp.RegexpLike,
)  # fmt: skip
# The parents that a column of floats may have. -0.0 and 0.0 are one group, but in other expressions their
# values may differ.
_WHOLE = (exp.Alias, exp.Select, exp.Group, exp.Ordered, exp.Distinct)
_FOLDABLE = (
    pt.is_integer, pt.is_float32, pt.is_float64, pt.is_boolean, pt.is_string, pt.is_large_string,
    pt.is_binary, pt.is_large_binary, pt.is_date, pt.is_timestamp,
)  # fmt: skip
# For each aggregate: its text over partial aggregates, the function that merges them, and their names. If
# each group has one row, the function is omitted.
_MERGED = {
    "count": ("coalesce({merge}({0}), 0L)", "sum", "count"),
    "sum": ("({merge}({0}))", "sum", "sum"),
    "min": ("{merge}({0})", "min", "min"),
    "max": ("{merge}({0})", "max", "max"),
    "avg": ("({merge}({0}) / {add}({1}))", "sum", "avg", "count"),
}


def is_aggregated(select: exp.Select) -> bool:
    """Return True if a SELECT returns groups, not rows."""
    grouped = select.args.get("group") or select.args.get("distinct")
    return bool(grouped) or any(part.find(*_AGGREGATES) for part in _parts(select))


def _parts(select: exp.Select) -> Iterator[exp.Expr]:
    yield from select.expressions
    for name in ("group", "having", "order"):
        if (part := select.args.get(name)) is not None:
            yield part


class AggregateRewriting:
    """The partial aggregates of a SELECT from one table, and the edits of its text."""

    def __init__(
        self, query: Query, select: exp.Select, reference: Reference, schema: pa.Schema, session: Session
    ) -> None:
        self._query, self._select, self._reference, self._session = query, select, reference, session
        self._schema = schema
        self._columns = {name.lower(): name for name in schema.names}
        self._aliases = {
            item.alias.lower(): item.this for item in select.expressions if isinstance(item, exp.Alias)
        }
        self._partial: dict[str, str] = {}  # the text of each partial aggregate, by its column's name

    def result(self) -> tuple[PartialAggregates, tuple[Edit, ...], tuple[Edit, ...] | None]:
        """Return the aggregates for tasks, and the edits of `TableScan`: `edits` and `ended`.

        The caller must ensure that the read of the table tests all conditions of the SELECT. Raises
        `NotUnderstoodError` if Spark must compute the aggregates.
        """
        if not reads_alone(self._select, self._reference, _SELECT_PARTS):
            raise NotUnderstoodError("the SELECT has a join, or a clause that is unknown here")
        group = self._select.args.get("group")
        if group is not None and {key for key, value in group.args.items() if value} - {"expressions", "all"}:
            raise NotUnderstoodError("it groups in several ways")
        clauses = clause_spans(self._query.tokens, self._reference.start)
        where, grouped = (
            [(*clauses[clause], "")] if clause in clauses else []
            for clause in (TokenType.WHERE, TokenType.GROUP_BY)
        )
        by, edits, whole = dict[str, None](), list[Edit](where), list[Edit]([*where, *grouped])
        for part in _parts(self._select):
            self._check_nodes(part)
            columns = (self._group(node) for node in part.find_all(exp.Column))
            by |= dict.fromkeys(column for column in columns if column is not None)
            calls = [self._edits(node) for node in part.find_all(*_AGGREGATES) if not _is_distinct(node)]
            edits += [adding for adding, _ in calls]
            whole += [alone for _, alone in calls]
        if not by and not self._partial:
            raise NotUnderstoodError("it has no groups and no aggregates")
        for name in self._partial:
            if name.lower() in {*self._columns, *self._aliases}:
                raise NotUnderstoodError(f"a column or an alias has the name {name}")
        partial = PartialAggregates(tuple(self._partial.values()), tuple(by))
        return partial, tuple(edits), tuple(whole) if self._groups_are(by) else None

    def _groups_are(self, by: Iterable[str]) -> bool:
        """Return True if the SELECT groups by exactly these columns, without DISTINCT or HAVING."""
        parts, group = self._select.args, self._select.args.get("group")
        terms = [] if group is None else group.expressions
        if parts.get("distinct") or parts.get("having") or self._select.find(exp.Distinct):
            return False
        if not all(isinstance(node, exp.Column) for node in terms) or (group is not None and not terms):
            return False
        is_exact = not any(_is_rounded(self._schema.field(name).type) for name in by)
        return is_exact and {self._columns.get(node.name.lower()) for node in terms} == set(by)

    def _check_nodes(self, part: exp.Expr) -> None:
        for node in part.walk():
            is_of_count = isinstance(node, exp.Star) and isinstance(node.parent, exp.Count)
            if not isinstance(node, _PLAIN) and not (is_of_count and not any(node.args.values())):
                raise NotUnderstoodError(f"{shown(node)} may depend on more than groups")
            if isinstance(node, _AGGREGATES) and node.find_ancestor(*_AGGREGATES):
                raise NotUnderstoodError(f"{shown(node)} is within another aggregate")

    def _group(self, node: exp.Column) -> str | None:
        """Return the column of a name outside of aggregates; None for a name inside of one, or an alias."""
        name = node.name.lower()
        aggregate = node.find_ancestor(*_AGGREGATES)
        inside = aggregate is not None and not _is_distinct(aggregate)
        bare, clause = len(node.parts) == 1, node.find_ancestor(exp.Group, exp.Having, exp.Order)
        if bare and not inside and name in self._aliases and name not in self._columns:
            return None
        if not is_of(node, self._reference) or name not in self._columns:
            raise NotUnderstoodError(f"{shown(node)} is not a column of the table")
        column: str = self._columns[name]
        meant = self._aliases.get(name, node)
        if bare and clause is not None and not (isinstance(meant, exp.Column) and meant.name.lower() == name):
            if isinstance(node.parent, exp.Ordered):
                return None  # sorts by the alias
            raise NotUnderstoodError(f"{shown(node)} is a column of the table and an alias")
        if inside:
            return None
        if not is_foldable(self._schema.field(column).type):
            raise NotUnderstoodError(f"{column} has a type that is not grouped here")
        if pt.is_floating(self._schema.field(column).type) and not isinstance(node.parent, _WHOLE):
            raise NotUnderstoodError(f"an expression of {shown(node)} may differ for 0.0 and -0.0")
        return column

    def _edits(self, node: exp.Expr) -> tuple[Edit, Edit]:
        """Return two edits of an aggregate: over several partial rows of a group, and over its only one."""
        function, argument = FUNCTIONS[type(node)], node.args.get("this")
        others = any(value for key, value in node.args.items() if key not in ("this", "big_int"))
        counts_rows = function == "count" and (
            isinstance(argument, exp.Star) or argument == exp.Literal.number(1)
        )
        written = argument.name if isinstance(argument, exp.Column) else "1"
        if others or not (counts_rows or isinstance(argument, exp.Column)):
            raise NotUnderstoodError(f"{shown(node)} is not an aggregate of a column")
        place = call_at(self._query.tokens, function, node.meta.get("start"))
        if place is None:
            raise NotUnderstoodError(f"the place of {shown(node)} is unknown")
        column = "*" if counts_rows else self._columns[written.lower()]
        (adding, alone), name = self._merged(function, column), self._name(node, f"{function}({written})")
        return (*place, adding + name), (*place, alone + name)

    def _name(self, node: exp.Expr, name: str) -> str:
        """Return `AS` with Spark's name of an aggregate; an empty text if it has an alias or is not shown."""
        item = node
        while item.parent is not None and item.parent is not self._select:
            item = item.parent
        if item.arg_key != "expressions" or isinstance(item, exp.Alias):
            return ""
        if item is not node:
            raise NotUnderstoodError(f"{shown(item)} has no name; give it one with AS")
        if name.lower() in self._columns:
            raise NotUnderstoodError(f"a column has the name {name}")
        return f" AS {quote_name(name)}"

    def _merged(self, function: str, name: str) -> tuple[str, str]:
        """Return the texts of an aggregate of a column or `*`: over partial rows, over a group's only one."""
        if name != "*" and not is_foldable(self._schema.field(name).type):
            raise NotUnderstoodError(f"{name} has a type that is not folded here")
        column = "*" if name == "*" else quote_name(name)
        kind = self._aggregate(f"{'sum' if function == 'avg' else function}({column})").type
        if function == "avg" and pt.is_decimal(kind):
            raise NotUnderstoodError(f"the average of {column}, a decimal, is left to Spark")
        if function == "sum" and not self._session.ansi and not pt.is_floating(kind):
            raise NotUnderstoodError("without the ANSI rules a sum may overflow without an error")
        text, merge, *needed = _MERGED[function]
        partial = [self._of(f"{each}({column})") for each in needed]
        zero = "0.0D + " if pt.is_floating(kind) and merge == "sum" else ""  # Spark's sum of -0.0 is 0.0
        adding = text.format(*partial, merge=merge, add="sum")
        alone = text.format(*partial, merge=zero, add="")
        if function == "sum" and pt.is_decimal(kind) and kind.precision < MAX_DECIMAL_DIGITS:
            adding = f"CAST({adding} AS DECIMAL({kind.precision}, {kind.scale}))"
        return adding, alone

    def _of(self, text: str) -> str:
        """Return the column of partial rows with this aggregate."""
        aggregate = self._aggregate(text)
        name = f"partial {aggregate}"
        self._partial[name] = text
        return quote_name(name)

    def _aggregate(self, text: str) -> Aggregate:
        try:
            return Aggregate.parse(text, self._schema)
        except ElasticScanError as why:
            raise NotUnderstoodError(why.message) from None


def _is_rounded(kind: pa.DataType) -> bool:
    """Return True if different values may be equal in Spark: -0.0 and 0.0, or times that are cut."""
    return bool(pt.is_floating(kind) or pt.is_date64(kind) or (pt.is_timestamp(kind) and kind.unit == "ns"))


def is_foldable(kind: pa.DataType) -> bool:
    """Return True for types whose values the store groups and compares as Spark does."""
    is_exact_decimal = pt.is_decimal128(kind) and 0 <= kind.scale <= kind.precision
    return is_exact_decimal or any(is_of_kind(kind) for is_of_kind in _FOLDABLE)


def _is_distinct(node: exp.Expr) -> bool:
    return isinstance(node.args.get("this"), exp.Distinct)
