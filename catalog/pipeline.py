"""Statements that go to the driver by a shorter way than through SQLAlchemy.

Several are sent to a server together: one wait for all of their answers. One that is kept is compiled once,
by SQLAlchemy, and then asked at the driver.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Dialect, Executable, Insert, Select

from elasticscan.catalog.compiled import own_dialect

# A statement, and what it is asked with.
Question = tuple[Any, Mapping[str, Any]]
# A statement with the values of each time that it is carried out; words of SQL are carried out once.
Sent = tuple[Any, Sequence[Mapping[str, Any]]]


_KEPT = "kept"


def kept(statement: Select[Any]) -> Select[Any]:
    """Mark a statement that is built once and asked again and again."""
    return statement.execution_options(**{_KEPT: True})


def is_kept(statement: Executable) -> bool:
    """True for a statement that is worth to be compiled for good."""
    return _KEPT in statement.get_execution_options()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a statement."""

    rows: Sequence[Any]
    rowcount: int

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def all(self) -> Sequence[Any]:
        return self.rows

    def scalar(self) -> Any:
        return self.rows[0][0] if self.rows else None


def send_together(driver: Any, dialect: Dialect, statements: Sequence[Sent]) -> list[Answer]:
    """Send statements, and only then wait for their answers; if one fails, those behind it are not done."""
    # All of it before the first is sent, with which a lock may be taken that others wait for.
    ready = [
        [(statement,)] if isinstance(statement, str) else [words_of(statement, row, dialect) for row in rows]
        for statement, rows in statements
    ]
    sent, refused = list[list[Any]](), None
    with driver.pipeline():
        try:
            for words in ready:
                sent.append([driver.execute(*said) for said in words])
        except dialect.loaded_dbapi.Error as error:  # to leave the block with it would log it as well
            refused = error
    if refused is not None:
        raise refused
    return [answer_of(cursors) for cursors in sent]


@lru_cache(maxsize=256)
def table_of(statement: Any) -> str:
    """The name of the table that a question is about. SQLAlchemy takes a millisecond to tell it."""
    return str(statement.get_final_froms()[0].name)


def words_of(statement: Any, values: Mapping[str, Any], dialect: Dialect) -> tuple[str, Any]:
    """A statement in SQL, and all of its values, as the driver takes them."""
    compiled = _compiled(statement, tuple(values), own_dialect(dialect))
    if isinstance(statement, Select):  # it may have values of its own, and as many words as one is long
        state = compiled.construct_expanded_state(dict(values))
        return state.statement, state.positional_parameters if compiled.positional else state.parameters
    return compiled.string, values


@lru_cache(maxsize=256)
def _compiled(statement: Any, names: tuple[str, ...], dialect: Dialect) -> Any:
    keys = list(names) if isinstance(statement, Insert) else None
    return statement.compile(dialect=dialect, column_keys=keys)


def answer_of(cursors: Sequence[Any]) -> Answer:
    """The rows of a statement, or how many of them it changed in all the times that it was carried out."""
    first = cursors[0]
    names = _names_of(first)
    if not names:
        return Answer((), sum(cursor.rowcount for cursor in cursors))
    row_of = _row_of(names)
    rows = [row_of(*row) for row in first.fetchall()]
    return Answer(rows, len(rows))


def _names_of(cursor: Any) -> tuple[str, ...]:
    """The columns of the rows of an answer; none where it has no rows, but tells how many were changed."""
    result = getattr(cursor, "pgresult", None)
    if result is None:
        return tuple(column[0] for column in cursor.description or ())
    # Of each column that psycopg describes it makes an object, which takes longer than all else here.
    return tuple(result.fname(number).decode() for number in range(result.nfields))


@lru_cache(maxsize=64)
def _row_of(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)
