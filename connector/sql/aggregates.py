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

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import TokenType, exp, parse_one
from sqlglot.errors import SqlglotError

from elasticscan.base.errors import ElasticScanError
from elasticscan.base.limits import MAX_DECIMAL_DIGITS
from elasticscan.connector.option_values import PartialAggregates
from elasticscan.connector.sql.computed import NotFoldedError, own_text
from elasticscan.connector.sql.joins import SelectBlock
from elasticscan.connector.sql.limits import PLAIN_NODES, is_of, reads_alone
from elasticscan.connector.sql.query import Query, Reference, Session
from elasticscan.filters import STUMBLES, Aggregate, FilterSql, quote_name

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

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
# Spark averages decimals of up to so many digits as doubles, in units of the last place.
_AVERAGED_AS_DOUBLES = 11
# Others it divides to 38 places and then rounds. A quotient of decimals has fewer places: so many digits
# leave it 9 beyond those of the result, and with fewer than 10^9 rows in a group no two roundings differ.
_AVERAGED_EXACTLY = 15
_ENDS = frozenset({"UNION", "EXCEPT", "INTERSECT", "MINUS", ";"})
_BEHIND_GROUP = frozenset({"HAVING", "ORDER BY", "LIMIT", "OFFSET"})
_BEHIND_WHERE = _BEHIND_GROUP | {"GROUP BY"}

Edit = tuple[int, int, str]


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
        argument: over the table's columns alone; None for rows.
        written: the column, as the query names it; None for what is computed.
        first, last: places of tokens.
    """

    function: str
    argument: str | None
    written: str | None
    first: int
    last: int


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
    if not reads_alone(block.select, reference, _SELECT_PARTS) or reference in block.unfiltered:
        raise NotFoldedError("the SELECT has more than a table, conditions, groups and an order")
    return _Rewriting(query, block.select, reference, schema, session).result()


class _Rewriting:
    def __init__(
        self, query: Query, select: exp.Select, reference: Reference, schema: pa.Schema, session: Session
    ) -> None:
        self._query, self._select, self._reference, self._session = query, select, reference, session
        self._schema = schema
        self._columns = {session.folded(name): name for name in schema.names}
        self._aliases = {
            session.folded(shown.alias): shown.this
            for shown in select.expressions
            if isinstance(shown, exp.Alias)
        }
        self._tokens: Sequence[Token] = list(FilterSql().tokenize(query.text))
        self._partial: dict[str, str] = {}  # the text of each partial aggregate, by its column

    def result(self) -> SourceAggregates:
        first, end = self._span()
        where = self._without(TokenType.WHERE, _BEHIND_WHERE, first, end)
        by = self._groups()
        calls, distinct = self._calls(first, end)
        aggregates = [node for part in self._parts() for node in part.find_all(*_AGGREGATES)]
        if sum(_is_distinct(node) for node in aggregates) != distinct:
            raise NotFoldedError("the places of its aggregates are unknown")
        plain = Counter(self._meaning(node) for node in aggregates if not _is_distinct(node))
        if plain != Counter((call.function, call.argument) for call in calls):
            raise NotFoldedError("the places of its aggregates are unknown")
        ends = self._item_ends(first)
        edits = [self._edit(call, ends, adding=True) for call in calls] + where
        if not by and not self._partial:
            raise NotFoldedError("it has no groups and no aggregates")
        self._check_names()
        whole = None
        if not distinct and self._groups_are(by):
            group = self._without(TokenType.GROUP_BY, _BEHIND_GROUP, first, end)
            whole = (*(self._edit(call, ends, adding=False) for call in calls), *where, *group)
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
        columns = {
            self._columns.get(self._session.folded(node.name))
            for node in terms
            if isinstance(node, exp.Column)
        }
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
            if not isinstance(node, _PLAIN) and not _is_inside(node):
                raise NotFoldedError(f"{_shown(node)} may depend on more than groups")
            if isinstance(node, _AGGREGATES) and node.parent is not None and node.find_ancestor(*_AGGREGATES):
                raise NotFoldedError(f"{_shown(node)} stands in another aggregate")

    def _group(self, node: exp.Column) -> str | None:
        """Return the column that a name outside of aggregates means; None for one inside, or an alias."""
        name = self._session.folded(node.name)
        aggregate = node.find_ancestor(*_AGGREGATES)
        inside = aggregate is not None and not _is_distinct(aggregate)
        if not is_of(node, self._reference, self._session):
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
        return meant is None or (
            isinstance(meant, exp.Column) and self._session.folded(meant.name) == self._session.folded(column)
        )

    def _meaning(self, node: exp.Expr) -> tuple[str, str | None]:
        function, argument = _FUNCTIONS[type(node)], node.args.get("this")
        others = any(value for key, value in node.args.items() if key not in ("this", "big_int"))
        if others or not isinstance(argument, exp.Expr):
            raise NotFoldedError(f"{_shown(node)} is not of a column")
        return function, self._argument(function, argument)

    def _argument(self, function: str, node: exp.Expr) -> str | None:
        """Return the argument of an aggregate, over the table's columns alone; None for rows."""
        if function == "count" and isinstance(node, (exp.Star, exp.Literal)):
            return None
        return own_text(node, self._columns, self._session)

    # --------------------------------------------------------------------------- where it stands

    def _span(self) -> tuple[int, int]:
        """Return the tokens of the SELECT, from the word itself to its end."""
        at = next(i for i, token in enumerate(self._tokens) if token.start == self._reference.start)
        first, depth = at, 0
        while depth or self._tokens[first].token_type != TokenType.SELECT:
            first -= 1
            kind = self._tokens[first].token_type
            depth += (kind == TokenType.R_PAREN) - (kind == TokenType.L_PAREN)
            if depth < 0 or first < 0:
                raise NotFoldedError("it begins with FROM")
        end = at
        for end in range(at, len(self._tokens)):
            token = self._tokens[end]
            depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
            if depth < 0 or (not depth and _word(token) in _ENDS):
                return first, end
        return first, len(self._tokens)

    def _calls(self, first: int, end: int) -> tuple[list[_AggregateCall], int]:
        """Return the aggregates that are written in some tokens; and how many more are DISTINCT."""
        calls, distinct, at = [], 0, first
        while at < end - 1:
            word, token = _word(self._tokens[at]).lower(), self._tokens[at + 1]
            at += 1
            if word not in _FUNCTIONS.values() or token.token_type != TokenType.L_PAREN:
                continue
            last = self._closing(at, end)
            inside = self._tokens[at + 1 : last]
            if inside and inside[0].token_type == TokenType.DISTINCT:
                distinct += 1
                continue
            text = [token.text for token in inside]
            if word == "count" and text in (["*"], ["1"]) and inside[0].token_type != TokenType.IDENTIFIER:
                calls.append(_AggregateCall(word, None, "1", at - 1, last))
                continue
            is_name = bool(text) and all(text[place] == "." for place in range(1, len(text), 2))
            node = self._node_of(inside)
            argument = self._argument(word, node)
            if argument is None:
                raise NotFoldedError(f"{word.upper()} is not of a column")
            is_column = is_name and isinstance(node, exp.Column)
            calls.append(_AggregateCall(word, argument, text[-1] if is_column else None, at - 1, last))
        return calls, distinct

    def _closing(self, opening: int, end: int) -> int:
        """Return the token of the parenthesis that closes one."""
        depth = 0
        for at in range(opening, end):
            kind = self._tokens[at].token_type
            depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
            if not depth:
                return at
        raise NotFoldedError("a parenthesis is missing")

    def _node_of(self, tokens: Sequence[Token]) -> exp.Expr:
        """Return the meaning of some tokens alone."""
        text = self._query.text[tokens[0].start : tokens[-1].end + 1] if tokens else ""
        try:
            node = parse_one(text, dialect=FilterSql)
        except (SqlglotError, RecursionError, *STUMBLES):
            raise NotFoldedError(f"{text[:60]} is not understood") from None
        assert isinstance(node, exp.Expr), "sqlglot gives expressions"
        return node

    def _without(self, clause: TokenType, behind: frozenset[str], first: int, end: int) -> list[Edit]:
        """Take a clause away, up to the next one."""
        depth, start, stop = 0, None, end
        for at in range(first, end):
            token = self._tokens[at]
            depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
            if not depth and start is None and token.token_type == clause:
                start = at
            elif not depth and start is not None and _word(token) in behind:
                stop = at
                break
        if start is None:
            return []
        behind_it = self._tokens[stop].start if stop < end else self._tokens[end - 1].end + 1
        return [(self._tokens[start].start, behind_it, "")]

    # ------------------------------------------------------------------------- what is put there

    def _edit(self, call: _AggregateCall, ends: Sequence[int], *, adding: bool) -> Edit:
        """Return the place of an aggregate, and its replacement: over a group's rows, or its one row."""
        text = self._finished(call, adding=adding)
        if call.first < ends[-1]:
            shown = self._select.expressions[bisect_right(ends, call.first)]
            if isinstance(shown, _AGGREGATES):  # then Spark makes a name of it
                if call.written is None:
                    raise NotFoldedError(f"{_shown(shown)} has no name; give it one with AS")
                name = f"{call.function}({call.written})"
                if self._session.folded(name) in self._columns:
                    raise NotFoldedError(f"a column has the name {name}")
                text += f" AS {quote_name(name)}"
            elif not isinstance(shown, exp.Alias):
                raise NotFoldedError(f"{_shown(shown)} has no name; give it one with AS")
        return self._tokens[call.first].start, self._tokens[call.last].end + 1, text

    def _item_ends(self, first: int) -> list[int]:
        """Return the tokens at which the items of the SELECT end: commas, and the FROM."""
        depth, ends = 0, []
        for at in range(first, len(self._tokens)):
            token = self._tokens[at]
            depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
            if not depth and (token.token_type == TokenType.COMMA or _word(token) == "FROM"):
                ends.append(at)
                if token.token_type != TokenType.COMMA:
                    break
        if len(ends) != len(self._select.expressions):
            raise NotFoldedError("the places of its columns are unknown")
        return ends

    def _finished(self, call: _AggregateCall, *, adding: bool) -> str:
        argument = call.argument
        if argument is None:
            return f"coalesce({self._total('count(*)', adding=adding)}, 0L)"
        if not is_foldable(self._aggregate(f"{call.function}({argument})").computed):
            raise NotFoldedError(f"{argument} has a type that is not folded here")
        if call.function == "count":
            return f"coalesce({self._total(f'count({argument})', adding=adding)}, 0L)"
        if call.function in ("min", "max"):
            extreme = self._of(f"{call.function}({argument})")
            return f"{call.function}({extreme})" if adding else extreme
        aggregate = self._aggregate(f"sum({argument})")
        overflows = call.function == "sum" or pt.is_decimal(aggregate.type)
        if overflows and not self._session.ansi and not pt.is_floating(aggregate.type):
            raise NotFoldedError("sums that overflow are no errors in this session")
        if call.function == "avg":
            return self._average(argument, aggregate, adding=adding)
        return self._sum(argument, aggregate, adding=adding)

    def _total(self, text: str, *, adding: bool, of_floats: bool = False) -> str:
        """Return the total of a column of partial rows."""
        column = self._of(text)
        if adding:
            return f"sum({column})"
        return f"({column} + 0.0D)" if of_floats else column  # Spark's sum of -0.0 is 0.0

    def _sum(self, argument: str, aggregate: Aggregate, *, adding: bool) -> str:
        text = self._total(f"sum({argument})", adding=adding, of_floats=pt.is_floating(aggregate.type))
        if pt.is_decimal(aggregate.type) and aggregate.type.precision < MAX_DECIMAL_DIGITS:
            return f"CAST({text} AS DECIMAL({aggregate.type.precision}, {aggregate.type.scale}))"
        return text

    def _average(self, argument: str, total: Aggregate, *, adding: bool) -> str:
        counted = f"count({argument})"
        if not pt.is_decimal(total.type):
            added = self._total(f"avg({argument})", adding=adding, of_floats=True)
            return f"({added} / {self._total(counted, adding=adding)})"
        digits, places = total.computed.precision, total.computed.scale
        exact, count = self._sum(argument, total, adding=adding), self._total(counted, adding=adding)
        if digits <= _AVERAGED_AS_DOUBLES:
            units = f"CAST({exact} * {10**places}BD AS DOUBLE)" if places else f"CAST({exact} AS DOUBLE)"
            quotient = f"{units} / {count} / {10**places}.0D"
        elif digits <= _AVERAGED_EXACTLY:
            quotient = f"{exact} / {count}"
        else:
            raise NotFoldedError(f"the average of {argument}, a decimal of {digits} digits, is left to Spark")
        return f"CAST({quotient} AS DECIMAL({digits + 4}, {places + 4}))"

    def _of(self, text: str) -> str:
        """Return the column of partial rows that has this aggregate."""
        aggregate = self._aggregate(text)
        name = f"partial {aggregate}"
        if aggregate.column is not None:
            text = f"{aggregate.function}({quote_name(aggregate.column)})"
        self._partial[name] = text
        return quote_name(name)

    def _aggregate(self, text: str) -> Aggregate:
        try:
            return Aggregate.parse(text, self._schema)
        except ElasticScanError as why:
            raise NotFoldedError(why.message) from None

    def _check_names(self) -> None:
        for name in self._partial:
            if self._session.folded(name) in {*self._columns, *self._aliases}:
                raise NotFoldedError(f"something has the name {name}")


def is_foldable(kind: pa.DataType) -> bool:
    """Return True for types whose values are grouped and compared here as in Spark."""
    return bool(
        pt.is_integer(kind)
        or pt.is_float32(kind)
        or pt.is_float64(kind)
        or pt.is_boolean(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_date(kind)
        or pt.is_timestamp(kind)
        or (pt.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)
    )


def _is_inside(node: exp.Expr) -> bool:
    """Return True for what an aggregate is computed of, which is judged as a whole."""
    aggregate = node.find_ancestor(*_AGGREGATES)
    return aggregate is not None and not _is_distinct(aggregate) and not isinstance(node, exp.Query)


def _is_distinct(node: exp.Expr) -> bool:
    return isinstance(node.args.get("this"), exp.Distinct)


def _word(token: Token) -> str:
    """Return a word of the language; nothing for what is quoted."""
    quoted = token.token_type in (TokenType.IDENTIFIER, TokenType.STRING, TokenType.RAW_STRING)
    return "" if quoted else " ".join(token.text.upper().split())


def _shown(node: exp.Expr) -> str:
    return node.sql(dialect=FilterSql, comments=False)[:60]
