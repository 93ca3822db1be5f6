"""Aggregates of a SELECT that tasks compute of their own rows, for Spark to add up.

`SELECT city, count(*), avg(km) FROM trips WHERE km > 2 GROUP BY city` becomes, over partial rows,

    SELECT city, coalesce(sum(`partial count(*)`), 0L) AS `count(1)`,
        (sum(`partial avg(km)`) / sum(`partial count(km)`)) AS `avg(km)` FROM … GROUP BY city

Only the aggregates change, and the WHERE goes, all of which is tested where the table is read. What groups,
filters and sorts stays as it was written: partial rows have every column that is named outside of aggregates,
so they are groups as fine as Spark's or finer. `count(DISTINCT a)` thus stays, too, over partial rows by `a`.
Where one reader folded everything, each group is there once: then nothing is left to add up, the GROUP BY
goes as well, and Spark has a projection of rows at hand in place of a job with an exchange. What is not
certain is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import TokenType, exp

from elasticscan.base.errors import ElasticScanError
from elasticscan.base.limits import MAX_DECIMAL_DIGITS
from elasticscan.connector.option_values import PartialAggregates
from elasticscan.connector.sql.clauses import call_at, clauses_behind
from elasticscan.connector.sql.joins import SelectBlock
from elasticscan.connector.sql.limits import PLAIN_NODES, is_of, reads_alone
from elasticscan.connector.sql.query import Query, Reference, Session
from elasticscan.filters import Aggregate, FilterSql, quote_name

_SELECT_PARTS = frozenset(
    {"with_", "expressions", "distinct", "from_", "where", "group", "having", "order", "limit", "offset"}
)
_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Count: "count", exp.Sum: "sum", exp.Min: "min", exp.Max: "max", exp.Avg: "avg",
}  # fmt: skip
_AGGREGATES = tuple(_FUNCTIONS)
# Expressions and clauses that give the same for equal columns. No Star: only `count(*)` has one here.
_PLAIN = (
    *(node for node in PLAIN_NODES if node is not exp.Star), *_AGGREGATES, exp.Group, exp.Having, exp.Order,
    exp.Ordered, exp.Distinct, exp.Var, exp.Round, exp.Abs, exp.Floor, exp.Ceil, exp.Year, exp.Month, exp.Day,
    exp.TsOrDsToDate, exp.TimestampTrunc, exp.DateTrunc, exp.Extract, exp.Substring, exp.Length, exp.Trim,
    exp.Concat, exp.Nullif, exp.Like, exp.ILike, exp.RegexpLike,
)  # fmt: skip
# Where a column of floats may stand: elsewhere -0.0 and 0.0, which are one group, may give different values.
_WHOLE = (exp.Alias, exp.Select, exp.Group, exp.Ordered, exp.Distinct)
_FOLDABLE = (
    pt.is_integer, pt.is_float32, pt.is_float64, pt.is_boolean, pt.is_string, pt.is_large_string,
    pt.is_binary, pt.is_large_binary, pt.is_date, pt.is_timestamp,
)  # fmt: skip

Edit = tuple[int, int, str]


class NotFoldedError(Exception):
    """Aggregates are left to Spark; says why."""


@dataclass(frozen=True, slots=True)
class SourceAggregates:
    """The partial rows that tasks make for a SELECT, and the changes of its text.

    Attributes:
        partial: as the option `partialAggregates` takes it.
        edits: (start, end, text) of places to replace.
        edits_of_whole: the same where the relation has each group once; None if Spark has to group even so.
    """

    partial: PartialAggregates
    edits: tuple[Edit, ...]
    edits_of_whole: tuple[Edit, ...] | None

    def are_whole(self, rows: pa.Table) -> bool:
        """Return True if partial rows are the groups themselves, so that `edits_of_whole` are right."""
        if self.edits_of_whole is None:
            return False
        by = list(self.partial.by)
        groups = rows.select(by).group_by(by).aggregate([]).num_rows if by else 1
        return bool(rows.num_rows == groups)  # a sum that does not fit its type has more than one row


@dataclass(frozen=True, slots=True)
class _AggregateCall:
    """An aggregate as it is written.

    Attributes:
        column: of which it is, as the table spells it; None for `count(*)`.
        name: what Spark calls it; None where the query does, or where it is not seen.
        start, end: its place in the text.
    """

    function: str
    column: str | None
    name: str | None
    start: int
    end: int


def is_aggregated(select: exp.Select) -> bool:
    """Return True if a SELECT gives groups, and no rows."""
    parts = [select.args.get(name) for name in ("having", "order")]
    nodes = [*select.expressions, *(part for part in parts if part is not None)]
    grouped = select.args.get("group") or select.args.get("distinct")
    return bool(grouped) or any(node.find(*_AGGREGATES) for node in nodes)


def source_aggregates(
    query: Query, block: SelectBlock, reference: Reference, schema: pa.Schema, session: Session
) -> SourceAggregates:
    """Return the aggregates of a SELECT of one table as tasks can compute them.

    It is for its callers to see that all conditions of the SELECT are tested where the table is read.

    Raises:
        NotFoldedError: they are left to Spark.
    """
    if not reads_alone(block.select, reference, _SELECT_PARTS):
        raise NotFoldedError("the SELECT has more than a table, conditions, groups and an order")
    return _Rewriting(query, block.select, reference, schema, session).result()


class _Rewriting:
    def __init__(
        self, query: Query, select: exp.Select, reference: Reference, schema: pa.Schema, session: Session
    ) -> None:
        self._query, self._select, self._reference, self._session = query, select, reference, session
        self._schema = schema
        self._columns = {name.lower(): name for name in schema.names}
        self._aliases = {
            shown.alias.lower(): shown.this for shown in select.expressions if isinstance(shown, exp.Alias)
        }
        self._tokens = query.tokens
        self._partial: dict[str, str] = {}  # the text of each partial aggregate, by its column

    def result(self) -> SourceAggregates:
        clauses = clauses_behind(self._tokens, self._reference.start)
        without = {clause: [(*place, "")] for clause, place in clauses.items()}
        where = without.get(TokenType.WHERE, [])
        by = self._groups()
        aggregates = [node for part in self._parts() for node in part.find_all(*_AGGREGATES)]
        calls = [self._call(node) for node in aggregates if not _is_distinct(node)]
        edits = [self._edit(call, adding=True) for call in calls] + where
        if not by and not self._partial:
            raise NotFoldedError("it has no groups and no aggregates")
        self._check_names()
        whole = None
        if len(calls) == len(aggregates) and self._groups_are(by):
            group = without.get(TokenType.GROUP_BY, [])
            whole = (*(self._edit(call, adding=False) for call in calls), *where, *group)
        partial = PartialAggregates(tuple(self._partial.values()), by)
        return SourceAggregates(partial, tuple(edits), whole)

    # ------------------------------------------------------------------ what the SELECT is made of

    def _parts(self) -> Iterator[exp.Expr]:
        yield from self._select.expressions
        for name in ("group", "having", "order"):
            if (part := self._select.args.get(name)) is not None:
                yield part

    def _groups(self) -> tuple[str, ...]:
        """Return the columns that are named outside of aggregates."""
        distinct, group = self._select.args.get("distinct"), self._select.args.get("group")
        if distinct is not None and distinct.args.get("on"):
            raise NotFoldedError("it has DISTINCT ON")
        if group is not None and {key for key, value in group.args.items() if value} - {"expressions", "all"}:
            raise NotFoldedError("it groups in several ways")
        for name in ("limit", "offset"):
            clause = self._select.args.get(name)
            if clause is not None and not isinstance(clause.args.get("expression"), exp.Literal):
                raise NotFoldedError("its LIMIT is computed")
        by = dict[str, None]()
        for part in self._parts():
            self._check_nodes(part)
            for node in part.find_all(exp.Column):
                if (column := self._group(node)) is not None:
                    by[column] = None
        return tuple(by)

    def _groups_are(self, by: Sequence[str]) -> bool:
        """Return True if Spark's groups are those of some columns, and nothing else looks at several rows."""
        parts = self._select.args
        if parts.get("distinct") is not None or parts.get("having") is not None:
            return False
        group = parts.get("group")
        if group is None:
            return not by
        terms = [self._term(node) for node in group.expressions]
        if group.args.get("all"):
            shown = [node.this if isinstance(node, exp.Alias) else node for node in self._select.expressions]
            terms = [node for node in shown if not node.find(*_AGGREGATES)]
        columns = {self._columns.get(node.name.lower()) for node in terms if isinstance(node, exp.Column)}
        # Floats stay: Spark makes 0.0 of the -0.0 that a group may have.
        is_exact = not any(pt.is_floating(self._schema.field(name).type) for name in by)
        only_columns = all(isinstance(node, exp.Column) for node in terms)
        return is_exact and only_columns and bool(terms) and columns == set(by)

    def _term(self, node: exp.Expr) -> exp.Expr:
        """Return the expression of a term of GROUP BY, which may be a number of a place in the SELECT."""
        if not isinstance(node, exp.Literal) or node.is_string or not node.name.isdecimal():
            return node
        shown = self._select.expressions[int(node.name) - 1 : int(node.name)]
        return shown[0].unalias() if shown else node

    def _check_nodes(self, part: exp.Expr) -> None:
        for node in part.walk():
            if (
                isinstance(node, exp.Star)
                and isinstance(node.parent, exp.Count)
                and not any(node.args.values())
            ):
                continue
            if not isinstance(node, _PLAIN):
                raise NotFoldedError(f"{_shown(node)} may depend on more than groups")
            if isinstance(node, _AGGREGATES) and node.parent is not None and node.find_ancestor(*_AGGREGATES):
                raise NotFoldedError(f"{_shown(node)} stands in another aggregate")

    def _group(self, node: exp.Column) -> str | None:
        """Return the column that a name outside of aggregates means; None for one inside, or an alias."""
        name = node.name.lower()
        aggregate = node.find_ancestor(*_AGGREGATES)
        inside = aggregate is not None and not _is_distinct(aggregate)
        if not is_of(node, self._reference):
            raise NotFoldedError(f"{_shown(node)} is not a column of the table")
        bare, behind = len(node.parts) == 1, node.find_ancestor(exp.Group, exp.Having, exp.Order)
        if name not in self._columns:
            if bare and not inside and name in self._aliases:
                return None
            raise NotFoldedError(f"{_shown(node)} is not a column of the table")
        column: str = self._columns[name]
        if bare and behind is not None and not self._is_it(self._aliases.get(name), column):
            if isinstance(node.parent, exp.Ordered):
                return None  # sorts by what the SELECT calls so
            raise NotFoldedError(f"{_shown(node)} is a column, and another name in the SELECT")
        if inside:
            return None
        if not is_foldable(self._schema.field(column).type):
            raise NotFoldedError(f"{column} has a type that is not grouped here")
        if pt.is_floating(self._schema.field(column).type) and not isinstance(node.parent, _WHOLE):
            raise NotFoldedError(f"{_shown(node)} is computed with, and 0.0 and -0.0 are one group")
        return column

    def _is_it(self, meant: exp.Expr | None, column: str) -> bool:
        """Return True unless an alias gives a column's name to something else."""
        return meant is None or (isinstance(meant, exp.Column) and meant.name.lower() == column.lower())

    def _call(self, node: exp.Expr) -> _AggregateCall:
        """Return an aggregate of rows or of a column, with its place in the text."""
        function, argument = _FUNCTIONS[type(node)], node.args.get("this")
        others = any(value for key, value in node.args.items() if key not in ("this", "big_int"))
        counts_rows = function == "count" and (
            isinstance(argument, exp.Star) or argument == exp.Literal.number(1)
        )
        if others or not (counts_rows or isinstance(argument, exp.Column)):
            raise NotFoldedError(f"{_shown(node)} is not of a column")
        written = argument.name if isinstance(argument, exp.Column) else "1"
        column = None if counts_rows else self._columns[written.lower()]
        place = call_at(self._tokens, function, node.meta.get("start"))
        if place is None:
            raise NotFoldedError(f"the place of {_shown(node)} is unknown")
        item = node
        while item.parent is not None and item.parent is not self._select:
            item = item.parent
        if item.arg_key != "expressions" or isinstance(item, exp.Alias):
            return _AggregateCall(function, column, None, *place)
        if item is not node:
            raise NotFoldedError(f"{_shown(item)} has no name; give it one with AS")
        name = f"{function}({written})"
        if name.lower() in self._columns:
            raise NotFoldedError(f"a column has the name {name}")
        return _AggregateCall(function, column, name, *place)

    # ------------------------------------------------------------------------- what is put there

    def _edit(self, call: _AggregateCall, *, adding: bool) -> Edit:
        """Return the place of an aggregate, and its replacement: over a group's rows, or its one row."""
        text = self._finished(call, adding=adding)
        return call.start, call.end, text if call.name is None else f"{text} AS {quote_name(call.name)}"

    def _finished(self, call: _AggregateCall, *, adding: bool) -> str:
        if call.column is None:
            return f"coalesce({self._total('count(*)', adding=adding)}, 0L)"
        if not is_foldable(self._schema.field(call.column).type):
            raise NotFoldedError(f"{call.column} has a type that is not folded here")
        column = quote_name(call.column)
        if call.function == "count":
            return f"coalesce({self._total(f'count({column})', adding=adding)}, 0L)"
        if call.function in ("min", "max"):
            extreme = self._of(f"{call.function}({column})")
            return f"{call.function}({extreme})" if adding else extreme
        aggregate = self._aggregate(f"sum({column})")
        if call.function == "sum" and not self._session.ansi and not pt.is_floating(aggregate.type):
            raise NotFoldedError("sums that overflow are no errors in this session")
        if call.function == "avg":
            return self._average(column, aggregate, adding=adding)
        return self._sum(column, aggregate, adding=adding)

    def _total(self, text: str, *, adding: bool, of_floats: bool = False) -> str:
        """Return the total of a column of partial rows."""
        column = self._of(text)
        if adding:
            return f"sum({column})"
        return f"({column} + 0.0D)" if of_floats else column  # Spark's sum of -0.0 is 0.0

    def _sum(self, column: str, aggregate: Aggregate, *, adding: bool) -> str:
        text = self._total(f"sum({column})", adding=adding, of_floats=pt.is_floating(aggregate.type))
        if pt.is_decimal(aggregate.type) and aggregate.type.precision < MAX_DECIMAL_DIGITS:
            return f"CAST({text} AS DECIMAL({aggregate.type.precision}, {aggregate.type.scale}))"
        return text

    def _average(self, column: str, total: Aggregate, *, adding: bool) -> str:
        if pt.is_decimal(total.type):
            raise NotFoldedError(f"the average of {column}, a decimal, is left to Spark")
        added = self._total(f"avg({column})", adding=adding, of_floats=True)
        return f"({added} / {self._total(f'count({column})', adding=adding)})"

    def _of(self, text: str) -> str:
        """Return the column of partial rows that has this aggregate."""
        aggregate = self._aggregate(text)
        name = f"partial {aggregate}"
        self._partial[name] = text
        return quote_name(name)

    def _aggregate(self, text: str) -> Aggregate:
        try:
            return Aggregate.parse(text, self._schema)
        except ElasticScanError as why:
            raise NotFoldedError(why.message) from None

    def _check_names(self) -> None:
        for name in self._partial:
            if name.lower() in {*self._columns, *self._aliases}:
                raise NotFoldedError(f"something has the name {name}")


def is_foldable(kind: pa.DataType) -> bool:
    """Return True for types whose values are grouped and compared here as in Spark."""
    is_exact_decimal = pt.is_decimal128(kind) and 0 <= kind.scale <= kind.precision
    return is_exact_decimal or any(is_of_kind(kind) for is_of_kind in _FOLDABLE)


def _is_distinct(node: exp.Expr) -> bool:
    return isinstance(node.args.get("this"), exp.Distinct)


def _shown(node: exp.Expr) -> str:
    return node.sql(dialect=FilterSql, comments=False)[:60]
