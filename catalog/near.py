"""Questions to SQLite on a shorter way: it answers in microseconds, to which SQLAlchemy adds many more.

Statements that are kept are compiled once, by SQLAlchemy, and then asked at the driver. So ask transactions
that change nothing. Values are numbers and texts, which SQLite takes and gives as they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from sqlalchemy import Connection, Executable

from elasticscan.catalog.connections import unsafe_fork
from elasticscan.catalog.exchange import Answer
from elasticscan.catalog.failures import driver_error
from elasticscan.catalog.pipeline import answer_of, is_kept, words_of
from elasticscan.catalog.server import ServerTransaction


class NearTransaction:
    """A transaction of SQLite that changes nothing, used as SQLAlchemy's connection is."""

    def __init__(self, connection: Connection) -> None:
        self.engine, self.dialect, self._connection = connection.engine, connection.dialect, connection
        self._driver: Any = connection.connection.driver_connection
        self._process = os.getpid()

    def execute(self, statement: Executable, values: Any = None) -> Any:
        if not is_kept(statement):
            return self._connection.execute(statement, values)
        return self._ask(statement, values or {})

    def _ask(self, statement: Executable, values: Mapping[str, Any]) -> Answer:
        if os.getpid() != self._process:
            raise unsafe_fork()
        try:
            return answer_of(self._driver.execute(*words_of(statement, values, self.dialect)))
        except self.dialect.loaded_dbapi.Error as error:
            raise driver_error(error, self.dialect) from error


AnyTransaction: TypeAlias = Connection | NearTransaction | ServerTransaction
