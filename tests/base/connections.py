"""Connections of a catalog in a file, as tests prepare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticscan.catalog import Catalog

# Is called with each statement, and with what executes it.
Gate = Callable[[str, Callable[[], Any]], Any]


class _GatedConnection:
    """A connection whose statements go through a gate."""

    def __init__(self, connection: Any, gate: Gate) -> None:
        self._connection, self._gate = connection, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str | bytes, *values: Any) -> Any:
        text = statement.decode() if isinstance(statement, bytes) else statement  # as a server's come
        return self._gate(text, lambda: self._connection.execute(statement, *values))


def prepare_connections(catalog: Catalog, prepare: Callable[[Any], Any]) -> Callable[[], None]:
    """Let a function replace each connection that a catalog opens from now on; returns what ends that."""
    home: Any = catalog.home
    connect = home._connect

    def end() -> None:
        home.close()
        home._connect = connect

    home.close()
    home._connect = lambda: prepare(connect())
    return end


def gate_statements(catalog: Catalog, gate: Gate) -> Callable[[], None]:
    """Let the statements of a catalog go through a gate; returns what ends that."""
    return prepare_connections(catalog, lambda connection: _GatedConnection(connection, gate))


def call_at_statements(catalog: Catalog, call: Callable[[str], object]) -> Callable[[], None]:
    """Call with each statement that a catalog is about to execute; returns what ends that."""

    def gate(statement: str, execute: Callable[[], Any]) -> Any:
        call(statement)
        return execute()

    return gate_statements(catalog, gate)
