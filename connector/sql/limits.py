"""The rows of a table that suffice for a SELECT with a LIMIT.

Of `SELECT … FROM t WHERE … LIMIT n` any n rows that meet the WHERE will do, if nothing else in the SELECT
looks at several rows: and of `… ORDER BY c LIMIT n` the first n in that order. The LIMIT stays in the query,
so a table may give more rows; it must never give fewer. What is not certain is left alone.
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
# Expressions of one row that give one value. Aggregates, windows, generators and functions by name do not.
PLAIN_NODES = (
    exp.Column, exp.Identifier, exp.Star, exp.Alias, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Neg,
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE,
    exp.NullSafeEQ, exp.And, exp.Or, exp.Not, exp.Is, exp.In, exp.Between, exp.Case, exp.If, exp.Coalesce,
    exp.Cast, exp.TryCast, exp.DataType, exp.Upper, exp.Lower, exp.DPipe,
)  # fmt: skip
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RowLimit:
    """So many rows of a reference suffice: any, or the first of an order.

    Attributes:
        order: as `order_by` of a scan takes it; empty for any rows.
    """

    rows: int
    order: tuple[str, ...] = ()


def row_limit(block: SelectBlock, reference: Reference, schema: pa.Schema) -> RowLimit | None:
    """Return the rows of a reference that suffice for its SELECT; None where it may need all.

    It is for its callers to see that all conditions of the SELECT are tested where the table is read.
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
    """Return what takes `ORDER BY … LIMIT n` from the end of a query that is this SELECT; None without it.

    Without them a relation of the first n rows, in their order, is the answer.
    """
    if select is not query.tree or not select.args.get("order") or select.args.get("offset"):
        return None
    clauses = clause_spans(query.tokens, reference.start)
    return ((clauses[TokenType.ORDER_BY][0], clauses[TokenType.LIMIT][1], ""),)


def reads_alone(select: exp.Select, reference: Reference, understood: frozenset[str]) -> bool:
    """Return True if the FROM is the reference alone, and all clauses are understood."""
    clauses = {name for name, value in select.args.items() if value}
    parts = {name for name, value in reference.node.args.items() if value}
    source = select.args.get("from_")
    return (
        clauses <= understood
        and parts <= TABLE_PARTS
        and source is not None
        and source.this is reference.node
    )


def can_be_listed(names: Sequence[str]) -> bool:
    """Return True if an option can name each of some columns, or terms of an order."""
    listed = all(name and name == name.strip() and "," not in name for name in names)
    return listed and len({name.lower() for name in names}) == len(names)


def _count(clause: exp.Expr) -> int | None:
    """Return the number of a LIMIT or an OFFSET that is written as one."""
    number, others = clause.expression, [value for value in clause.args.values() if value]
    is_plain = isinstance(number, exp.Literal) and not number.is_string and number.name.isdecimal()
    return int(number.name) if is_plain and len(others) == 1 else None


def _term(node: exp.Expr, items: Sequence[exp.Expr], reference: Reference, columns: Mapping[str, str]) -> str:
    """Return an ORDER BY term that is a column of the table, with Spark's default place of nulls; an empty
    text for another."""
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
    """Return True if a column is unqualified or qualified by the alias, and no field of a struct."""
    qualifiers = [part.name.lower() for part in column.parts[:-1]]
    return qualifiers in ([], [reference.alias.lower()])


def _leaves_name(shown: exp.Expr, name: str, reference: Reference) -> bool:
    """Return True if what a SELECT shows certainly gives the name to nothing but the table's column."""
    if isinstance(shown, exp.Alias):
        return shown.alias.lower() != name.lower()
    return isinstance(shown, exp.Star) or (isinstance(shown, exp.Column) and is_of(shown, reference))
