"""The rows of a table that a SELECT with a LIMIT needs.

`SELECT … FROM t WHERE … LIMIT n` needs any n rows that meet the WHERE, if nothing else in the SELECT depends
on several rows. With `ORDER BY c LIMIT n` it needs the first n rows in that order. The LIMIT stays in the
query, so the read may return more rows, but never fewer. A SELECT that is not understood with certainty has
no limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import TokenType, exp

from elasticscan.connector.sql.joins import SelectBlock
from elasticscan.connector.sql.query import Edit, Query, Reference, clause_spans
from elasticscan.store import MOST_FIRST, can_be_sorted

_SELECT_PARTS = frozenset({"with_", "expressions", "from_", "where", "order", "limit", "offset"})
TABLE_PARTS = frozenset({"this", "alias"})
# Expressions with one value for one row, unlike aggregates, windows, generators and unknown functions.
PLAIN_NODES = (
    exp.Column, exp.Identifier, exp.Star, exp.Alias, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Neg,
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE,
    exp.NullSafeEQ, exp.And, exp.Or, exp.Not, exp.Is, exp.In, exp.Between, exp.Case, exp.If, exp.Coalesce,
    exp.Cast, exp.TryCast, exp.DataType, exp.Upper, exp.Lower, exp.DPipe,
)  # fmt: skip
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RowLimit:
    """The number of rows that suffice: of any rows, or of the first in an order (`order_by` of a scan)."""

    rows: int
    order: tuple[str, ...] = ()


def row_limit(block: SelectBlock, reference: Reference, schema: pa.Schema) -> RowLimit | None:
    """Return the number of rows that a SELECT needs from a reference; None if it may need all.

    The caller must ensure that the read of the table tests all conditions of the SELECT.
    """
    select = block.select
    items, order = select.expressions, select.args.get("order")
    counts = [_count(select.args[name]) for name in ("limit", "offset") if select.args.get(name)]
    if select.args.get("limit") is None or not reads_alone(select, reference, _SELECT_PARTS):
        return None
    if not all(isinstance(node, PLAIN_NODES) for item in items for node in item.walk()):
        return None
    if None in counts or (rows := sum(count or 0 for count in counts)) > _MOST:
        return None
    if order is None:
        return RowLimit(rows)
    columns = {name.lower(): name for name in schema.names}
    terms = tuple(_term(node, items, reference, columns) for node in order.expressions)
    certain = all(terms) and rows <= MOST_FIRST and can_be_listed(terms)
    return RowLimit(rows, terms) if certain and can_be_sorted(terms, schema) else None


def ordered_tail(query: Query, select: exp.Select, reference: Reference) -> tuple[Edit, ...] | None:
    """Return the edit that removes `ORDER BY … LIMIT n` from a query; None if the query is not this SELECT.

    A relation of the first n rows, in their order, makes these clauses unnecessary.
    """
    if select is not query.tree or not select.args.get("order") or select.args.get("offset"):
        return None
    clauses = clause_spans(query.tokens, reference.start)
    return ((clauses[TokenType.ORDER_BY][0], clauses[TokenType.LIMIT][1], ""),)


def reads_alone(select: exp.Select, reference: Reference, understood: frozenset[str]) -> bool:
    """Return True if the FROM has only the reference, and all clauses are in `understood`."""
    clauses = {name for name, value in select.args.items() if value}
    parts = {name for name, value in reference.node.args.items() if value}
    is_source = reference.node.parent is select.args.get("from_")
    return is_source and clauses <= understood and parts <= TABLE_PARTS


def can_be_listed(names: Sequence[str]) -> bool:
    """Return True if a comma-separated option can represent these columns, or terms of an order."""
    is_plain = all(name and name == name.strip() and "," not in name for name in names)
    return is_plain and len({name.lower() for name in names}) == len(names)


def _count(clause: exp.Expr) -> int | None:
    """Return the number of a LIMIT or an OFFSET; None for another expression."""
    number, others = clause.expression, [value for value in clause.args.values() if value]
    is_plain = isinstance(number, exp.Literal) and not number.is_string and number.name.isdecimal()
    return int(number.name) if is_plain and len(others) == 1 else None


def _term(node: exp.Expr, items: Sequence[exp.Expr], reference: Reference, columns: Mapping[str, str]) -> str:
    """Return a term of ORDER BY if it is a column of the table with Spark's default order of nulls; else an
    empty text."""
    column, descending = node.this, bool(node.args.get("desc"))
    usual = bool(node.args.get("nulls_first")) != descending and not node.args.get("with_fill")
    if not (usual and isinstance(column, exp.Column) and is_of(column, reference)):
        return ""
    # A name that the SELECT gives to something else hides the table's column of that name.
    if not all(_leaves_name(item, column.name, reference) for item in items):
        return ""
    name = columns.get(column.name.lower(), "")
    term = f"{name} DESC" if descending else name
    return "" if not name or (descending and term.lower() in columns) else term


def is_of(column: exp.Column, reference: Reference) -> bool:
    """Return True if a column has no qualifier but the alias, and is not a field of a struct."""
    qualifiers = [part.name.lower() for part in column.parts[:-1]]
    return qualifiers in ([], [reference.alias.lower()])


def _leaves_name(shown: exp.Expr, name: str, reference: Reference) -> bool:
    """Return True if an item of a SELECT certainly gives this name only to the table's column."""
    if isinstance(shown, exp.Alias):
        return shown.alias.lower() != name.lower()
    return isinstance(shown, exp.Star) or (isinstance(shown, exp.Column) and is_of(shown, reference))
