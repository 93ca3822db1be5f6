"""Arguments of aggregates: columns as the table spells them, without an alias before them."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from elasticscan.connector.sql.query import Session
from elasticscan.filters import STUMBLES, FilterSql


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
