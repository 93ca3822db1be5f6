"""A log as plain values, and a log that is filled from them, for backups.

Entries, values, checkpoints and topologies go out and in as they are: their digests prove them there as here.
Leases stay behind, since their owners are processes of the original.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeAlias

from elasticscan.catalog import tables
from elasticscan.catalog.home import NOTHING, Row

Dump: TypeAlias = dict[str, list[list[Any]]]  # the rows of each table

_COPIED: Final = ("head", "log", "payload", "checkpoint", "topology_history")


class _Source(Protocol):
    def execute(self, statement: str, values: Any = NOTHING) -> list[Row]: ...


def dump(source: _Source) -> Dump:
    """Return the rows of all tables but the leases."""
    return {name: [list(row) for row in source.execute(tables.EVERYTHING[name])] for name in _COPIED}


def fill(target: _Source, rows: Dump) -> None:
    """Enter what was dumped into tables that are empty."""
    target.execute(tables.DELETE_HEAD)
    for name in _COPIED:
        for row in rows[name]:
            values = {f"c{number}": value for number, value in enumerate(row)}
            target.execute(tables.insert_all(name, len(row)), values)
