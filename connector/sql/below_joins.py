"""Aggregates below joins: one table of several is folded before Spark joins it.

`SELECT d.name, sum(f.x) FROM f JOIN d ON f.k = d.k GROUP BY d.name` is the same over partial rows of f by k.
What a join makes of a row of f depends on the columns of f that the query names outside of aggregates, and
on nothing else of it; so rows that are equal in these meet the same rows, and one partial row does for all.
That holds as long as each row of f is joined for itself: in inner joins, in semi and anti joins, and on the
kept side of outer ones. Where f is filled with nulls, a row of nulls stands for no row of f, and Spark joins
the rows.

Every name has to be some table's for certain, so all that is joined are tables of the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import TokenType, exp

from elasticscan.connector.sql.computed import NotFoldedError
from elasticscan.connector.sql.joins import SelectBlock
from elasticscan.connector.sql.limits import TABLE_PARTS
from elasticscan.connector.sql.query import Reference, Session

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

_OPENING = (TokenType.L_PAREN, TokenType.CASE)
_CLOSING = (TokenType.R_PAREN, TokenType.END)


def check_joins(block: SelectBlock, reference: Reference) -> None:
    """Raise `NotFoldedError` where a table must not be folded before it is joined."""
    if not block.has_only_tables:
        raise NotFoldedError("it is joined with more than tables of the store")
    for one in block.references:
        parts = {name for name, value in one.node.args.items() if value}
        if not parts <= TABLE_PARTS or one in block.unfiltered or block.natural:
            raise NotFoldedError("the tables that it is joined with are not plain ones")
    if reference not in block.kept:
        raise NotFoldedError("a join gives rows without one of this table")


class JoinedNames:
    """Says whose column a name of a SELECT is."""

    def __init__(
        self, block: SelectBlock, reference: Reference, schemas: Mapping[str, pa.Schema], session: Session
    ) -> None:
        self._session, self._own = session, reference
        self._columns = {
            one: frozenset(session.folded(name) for name in schemas[one.table].names)
            for one in block.references
        }
        joins = block.select.args.get("joins") or []
        merged = [column for join in joins for column in join.args.get("using") or []]
        self._merged = frozenset(session.folded(column.name) for column in merged)

    @property
    def merged(self) -> frozenset[str]:
        """Return the columns of the table, folded, by which it is joined with USING."""
        return self._columns[self._own] & self._merged

    def is_own(self, column: exp.Column, *, merged: bool) -> bool:
        """Return True for a column of the table, false of one of another or of none.

        Args:
            merged: true where a column that USING makes of several may be any of them.

        Raises:
            NotFoldedError: it is not certain.
        """
        *before, name = [self._session.folded(part.name) for part in column.parts]
        owners = [
            one
            for one, columns in self._columns.items()
            if name in columns and before in ([], [self._session.folded(one.alias)])
        ]
        if merged and not before and name in self._merged:
            return self._own in owners
        if len(owners) > 1 or (before and not owners):
            raise NotFoldedError(f"{column.sql()} is not certainly a column of one table")
        return owners == [self._own]

    def is_taken(self, name: str) -> bool:
        """Return True if some column of the tables has a name."""
        return any(self._session.folded(name) in columns for columns in self._columns.values())


def joined_parts(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the conditions of a SELECT's joins."""
    for join in select.args.get("joins") or []:
        if (on := join.args.get("on")) is not None:
            yield on


def conjunct_places(tokens: Sequence[Token], first: int, end: int) -> list[tuple[int, int]]:
    """Return the conditions of the top AND of a WHERE, each as its first token and the one behind it.

    Callers must check that these are the conditions of the query: an OR may connect some.
    """
    places, start, depth, between = [], first, 0, 0
    for at in range(first, end):
        kind = tokens[at].token_type
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if not depth and kind == TokenType.BETWEEN:
            between += 1
        elif not depth and kind == TokenType.AND:
            if between:
                between -= 1
            else:
                places.append((start, at))
                start = at + 1
    return [*places, (start, end)]


def stays(conditions: Collection[exp.Expr], tested: Collection[exp.Expr]) -> bool:
    """Return True unless each of some conditions is tested where its table is read."""
    return not {id(condition) for condition in conditions} <= {id(condition) for condition in tested}
