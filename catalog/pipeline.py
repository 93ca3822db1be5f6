"""Statements that go to the driver by a shorter way than through SQLAlchemy.

Several are sent to a server together: one wait for all of their answers. One that is kept is compiled once,
by SQLAlchemy, and then asked at the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Dialect, Executable, Insert, Select

from elasticscan.catalog.compiled import own_dialect
from elasticscan.catalog.exchange import Answer, exchange, row_type

# A statement, and what it is asked with.
Question = tuple[Any, Mapping[str, Any]]
# A statement with the values of each time that it is carried out; words of SQL are carried out once.
Sent = tuple[Any, Sequence[Mapping[str, Any]]]


_KEPT = "kept"


def kept(statement: Select[Any]) -> Select[Any]:
    """Mark a statement that is built once and asked again and again."""
    return statement.execution_options(**{_KEPT: True})


def is_kept(statement: Executable) -> bool:
    """Return True for a statement that is worth to be compiled for good."""
    return _KEPT in statement.get_execution_options()


def send_together(driver: Any, dialect: Dialect, statements: Sequence[Sent]) -> list[Answer]:
    """Send statements, and only then wait for their answers; if one fails, those behind it are not done."""
    ready = [
        [(statement, ())]
        if isinstance(statement, str)
        else [words_of(statement, row, dialect) for row in rows]
        for statement, rows in statements
    ]
    answers = iter(exchange(driver, [said for each in ready for said in each]))
    return [_added([next(answers) for _ in each]) for each in ready]


def _added(answers: Sequence[Answer]) -> Answer:
    """One answer to all the times that a statement was carried out."""
    return answers[0] if len(answers) == 1 else Answer((), sum(answer.rowcount for answer in answers))


@lru_cache(maxsize=256)
def table_of(statement: Any) -> str:
    """Return the name of the table that a question is about. SQLAlchemy takes a millisecond to tell it."""
    return str(statement.get_final_froms()[0].name)


def words_of(statement: Any, values: Mapping[str, Any], dialect: Dialect) -> tuple[str, Sequence[Any]]:
    """Return a statement in SQL, and all of its values in the order in which it names them."""
    compiled = _compiled(statement, tuple(values), own_dialect(dialect))
    if isinstance(statement, Select):  # it may have values of its own, and as many words as one is long
        state = compiled.construct_expanded_state(dict(values))
        return state.statement, state.positional_parameters
    return compiled.string, [values[name] for name in compiled.positiontup]


@lru_cache(maxsize=256)
def _compiled(statement: Any, names: tuple[str, ...], dialect: Dialect) -> Any:
    keys = list(names) if isinstance(statement, Insert) else None
    return statement.compile(dialect=dialect, column_keys=keys)


def answer_of(cursor: Any) -> Answer:
    """Return the rows that a driver's cursor has."""
    row_of = row_type(tuple(column[0] for column in cursor.description or ()))
    rows = [row_of(*row) for row in cursor.fetchall()]
    return Answer(rows, len(rows))
