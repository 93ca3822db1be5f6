"""Records on their way into the log: each gets its number, time and digest under the log's lock."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import msgpack

from elasticscan.catalog.codec import pack_value
from elasticscan.catalog.entries import (
    ROWS,
    STATISTICS,
    TOPOLOGY,
    VALUE,
    LogRow,
    Part,
)
from elasticscan.catalog.state import StoreState
from elasticscan.metadata import FORMATS, STORE, MoveSwitched, Record, split_statistics, table_of

RECORD_BYTES = 256  # a record of a tail counts for so much more than its value
_MOVE_BYTES = 4 << 10  # folding a move takes as long as folding so much else
_MOST_BYTES = 64 << 10  # the rows of a larger commit are written to files


@dataclass(frozen=True, slots=True)
class Append:
    """A record on its way into the log.

    Attributes:
        rows: of a small commit, as a record batch message.
        app: (application, version) under which it is committed once.
        metadata: by the user, as JSON.
        topology: the number and the bytes of a row of the topology history, which its entry seals.
        beyond: its number will be greater than this.
    """

    record: Record
    rows: bytes | None = None
    app: tuple[str, int] | None = None
    metadata: str | None = None
    topology: tuple[int, bytes] | None = None
    beyond: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A record that has no number yet.

    Attributes:
        id: by which its append is found.
        what: without statistics, which are a part.
        parts: that are kept apart from its entry.
    """

    id: bytes
    what: Append
    parts: Mapping[Part, bytes]

    @classmethod
    def of(cls, what: Append) -> Draft:
        assert what.rows is None or len(what.rows) <= _MOST_BYTES, "larger commits are written to files"
        record, statistics = split_statistics(what.record)
        table = table_of(record)
        parts = {(table, VALUE): pack_value(record)}
        if what.rows is not None:
            parts[table, ROWS] = what.rows
        if statistics:
            parts[table, STATISTICS] = msgpack.packb(statistics)
        return cls(os.urandom(16), replace(what, record=record), parts)

    def row(self, clock: int) -> LogRow:
        """Return its row, which also seals the row of the topology history that comes with it."""
        what, record, parts = self.what, self.what.record, dict(self.parts)
        if what.topology is not None:
            parts[STORE, TOPOLOGY] = what.topology[1]
        hashes = [[table, name, sha256(content).digest()] for (table, name), content in sorted(parts.items())]
        kind, (app_id, app_version) = type(record).__name__, what.app or (None, None)
        return LogRow(
            self.id,
            kind,
            FORMATS[kind][1],
            getattr(record, "operation", None),
            clock,
            table_of(record),
            getattr(record, "rows", 0),
            getattr(record, "bytes", 0),
            app_id,
            app_version,
            what.metadata,
            msgpack.packb(hashes),
        )

    @property
    def tail_bytes(self) -> int:
        """The bytes by which the tail that processes fold grows: its value, and more for a move."""
        size = sum(len(content) for (_, part), content in self.parts.items() if part == VALUE)
        return size + RECORD_BYTES + _MOVE_BYTES * isinstance(self.what.record, MoveSwitched)


def time_after(state: StoreState | None, clock: int) -> int:
    """Return the time of the record after a state: times grow with the numbers."""
    return clock if state is None else max(clock, state.time + 1)


def row_values(row: LogRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in LogRow.__slots__}
