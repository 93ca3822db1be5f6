"""The way to a catalog, which can be cut."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, event

from elasticscan.store import Store


class Line:
    """The way to the catalog: it is cut at the n-th statement or commit, and stays so for a while.

    Args:
        store: whose catalog is meant.
        cut_at: the statement or commit (counted from 1) that gets no answer.
        attempts: how many more are refused.
        carried_out: whether a commit that gets no answer is carried out.
    """

    def __init__(self, store: Store, cut_at: int, attempts: int = 0, carried_out: bool = False) -> None:
        self._engine = store.context.catalog._engine
        self._cut_at, self._attempts, self._carried_out = cut_at, attempts, carried_out
        self.count = 0
        self.cut = False

    def _pass(self) -> bool:
        self.count += 1
        if self.count < self._cut_at or self.count > self._cut_at + self._attempts:
            return True
        self.cut = True
        return False

    def _statement(self, conn: Connection, *_: Any) -> None:
        if not self._pass():
            conn.invalidate()
            raise sqlite3.OperationalError("server closed the connection unexpectedly")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        dialect = self._engine.dialect
        commit = dialect.do_commit

        def do_commit(connection: Any) -> None:
            if self._pass():
                commit(connection)
                return
            if self._carried_out:
                commit(connection)
            else:
                connection.rollback()
            raise sqlite3.OperationalError("server closed the connection unexpectedly")

        event.listen(self._engine, "before_cursor_execute", self._statement)
        dialect.do_commit = do_commit  # type: ignore[method-assign]
        try:
            yield
        finally:
            dialect.do_commit = commit  # type: ignore[method-assign]
            event.remove(self._engine, "before_cursor_execute", self._statement)
