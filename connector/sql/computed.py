"""Arguments of aggregates, where a task can compute it as Spark would.

`sum(l.price * (1 - l.discount))` is `price * (1 - discount)` of the table, with the columns as it spells
them. Let through is what has the same value, and fails for the same rows, in every session that follows the
ANSI rules in UTC: numbers that are added, subtracted and multiplied, CASE, COALESCE, and conditions that
cannot fail.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from elasticscan.connector.sql.query import Session
from elasticscan.filters import (
    STUMBLES,
    Aggregate,
    And,
    Call,
    Case,
    Cast,
    Column,
    Compare,
    Expression,
    FilterSql,
    In,
    Is,
    Literal,
    Match,
    Not,
    Or,
    always_fits,
    children,
    has_several_constants,
    is_computable,
    is_integer,
    is_number,
    to_text,
    type_name,
)

_ARITHMETIC = frozenset({"+", "-", "*", "NEGATE", "COALESCE"})


class NotFoldedError(Exception):
    """Aggregates are left to Spark; says why."""


def own_text(node: exp.Expr, columns: Mapping[str, str], session: Session) -> str:
    """Return the text of an expression over the table's columns alone, without an alias before them."""
    bare = node.copy()
    for column in list(bare.find_all(exp.Column)):
        name = columns.get(session.folded(column.name))
        if name is None:
            raise NotFoldedError(f"{column.name} is not a column of the table")
        plain = exp.column(exp.to_identifier(name, quoted=True))
        if column is bare:
            bare = plain
        else:
            column.replace(plain)
    text: str = bare.sql(dialect=FilterSql, comments=False)
    try:
        again = parse_one(text, dialect=FilterSql)
    except (SqlglotError, RecursionError, *STUMBLES):
        again = None
    if again != bare:
        raise NotFoldedError("its text cannot be repeated exactly")
    return text


def check_computed(aggregate: Aggregate, session: Session) -> None:
    """Raise `NotFoldedError` where a task might compute or refuse other values than Spark."""
    value = aggregate.value
    if value is None or (isinstance(value, Column) and len(value.path) == 1):
        return
    if not session.ansi or not session.utc:
        raise NotFoldedError(f"{_shown(value)} may mean something else in this session")
    _check(value)
    if aggregate.may_fail:
        if not aggregate.fails_by_group:
            raise NotFoldedError(f"{_shown(value)} may overflow")
        if is_integer(value.type) and has_several_constants(value):
            raise NotFoldedError(f"{_shown(value)} may overflow, and Spark computes its constants first")


def _check(node: Expression) -> None:
    match node:
        case Column():
            if len(node.path) > 1 or not is_computable(node.type):
                raise NotFoldedError(f"{_shown(node)} has a type that is not computed with here")
        case Cast():
            source, target = node.child.type, node.type
            numbers = is_number(source) and is_number(target)
            if not (node.implicit and numbers and always_fits(source, target)):
                raise NotFoldedError(f"it converts {_shown(node.child)} to {type_name(target)}")
        case Call() if node.name not in _ARITHMETIC:
            raise NotFoldedError(f"{_shown(node)} is not computed here")
        case Literal() | Call() | Case() | Compare() | And() | Or() | Not() | Is() | In() | Match():
            pass
    for child in children(node):
        _check(child)


def _shown(node: Expression) -> str:
    return to_text(node)[:60]
