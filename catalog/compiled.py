"""Compiled statements, kept for all catalogs in SQLite that this process opens.

SQLAlchemy keeps them for one engine. A process that opens one store after another, as a worker of Spark may,
would have all statements compiled for each of them: a third of what it takes to open a store, or to make one.
All of them speak to one library, so what was compiled for one engine serves the next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Engine, Select
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement
from sqlalchemy.util import LRUCache

from elasticscan.catalog.tables import metadata

_STATEMENTS: Final = 1_000  # there are some hundreds


class _Compiled(LRUCache[Any, Any]):
    """As SQLAlchemy's own, whose keys name the dialect of one engine."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_of_any_engine(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_of_any_engine(key), value)


def _of_any_engine(key: Any) -> tuple[Any, ...]:
    return tuple(part for part in key if not isinstance(part, Dialect))


_COMPILED: Final = _Compiled(_STATEMENTS)


def share_compiled(engine: Engine) -> None:
    """Let an engine of SQLite use what was compiled for others.

    What it compiles keeps its dialect alive for good: no listener of that may hold more.
    """
    engine.update_execution_options(compiled_cache=_COMPILED)


@cache
def sqlite_dialect() -> Dialect:
    """Return the dialect that belongs to no engine."""
    dialect: Dialect = sqlite.dialect()
    return dialect


@cache
def _server_dialect(kind: Callable[..., Dialect]) -> Dialect:
    """Return a server's dialect without an engine, whose parameters are the server's own: $1, $2, …"""
    return kind(paramstyle="numeric_dollar")


def own_dialect(dialect: Dialect) -> Dialect:
    """Return the dialect to compile in what is kept: no engine's."""
    kind: Any = type(dialect)
    return sqlite_dialect() if dialect.name == "sqlite" else _server_dialect(kind)


@lru_cache(maxsize=16)
def sql_of(query: Select[Any], dialect: Dialect) -> str:
    """Return a query without values in SQL; `dialect` as `own_dialect` gives it."""
    return str(query.compile(dialect=dialect))


def make_tables(sql: Connection) -> None:
    """Make those tables and indexes of a catalog in SQLite that are not there."""
    for statement in _definitions():
        sql.exec_driver_sql(statement)


@cache
def _definitions() -> tuple[str, ...]:
    made: list[ExecutableDDLElement] = []
    for table in metadata.sorted_tables:
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        made.append(CreateTable(table, if_not_exists=True))
        made.extend(CreateIndex(index, if_not_exists=True) for index in indexes)
    return tuple(str(statement.compile(dialect=sqlite_dialect())) for statement in made)
