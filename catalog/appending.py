"""Records on their way into the log, and the transaction that appends them.

A record is drafted outside of the log's lock, and gets its number, time and digest under it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from elasticscan.catalog import tables
from elasticscan.catalog.checks import check
from elasticscan.catalog.codec import pack_value
from elasticscan.catalog.entries import (
    ROWS,
    STATISTICS,
    TOPOLOGY,
    VALUE,
    LogEntry,
    LogRow,
    Part,
    chained,
    row_of,
)
from elasticscan.catalog.home import LogHome, Row, Transaction, micros
from elasticscan.catalog.leases import lease_rows, put_row, remove_lease
from elasticscan.catalog.state import StoreState, apply
from elasticscan.metadata import STORE, MoveSwitched, Record, split_statistics, table_of

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
        beyond: the number that its own exceeds at least.
    """

    record: Record
    rows: bytes | None = None
    app: tuple[str, int] | None = None
    metadata: str | None = None
    topology: tuple[int, bytes] | None = None
    beyond: int | None = None

    def divided(self) -> tuple[Record, dict[Part, bytes]]:
        """Return the record without statistics, and the parts that are kept apart from its entry."""
        record, statistics = split_statistics(self.record)
        table = table_of(record)
        parts = {(table, VALUE): pack_value(record)}
        if self.rows is not None:
            parts[table, ROWS] = self.rows
        if statistics:
            parts[table, STATISTICS] = msgpack.packb(statistics)
        return record, parts


@dataclass(frozen=True, slots=True)
class Draft:
    """A record that has no number yet, under the id by which its append is found."""

    id: bytes
    what: Append
    parts: Mapping[Part, bytes]

    @classmethod
    def of(cls, what: Append) -> Draft:
        assert what.rows is None or len(what.rows) <= _MOST_BYTES, "larger commits are written to files"
        record, parts = what.divided()
        return cls(os.urandom(16), replace(what, record=record), parts)

    def row(self, clock: int) -> LogRow:
        """Return its row, which also seals the row of the topology history that comes with it."""
        what, parts = self.what, self.parts
        if what.topology is not None:
            parts = {**parts, (STORE, TOPOLOGY): what.topology[1]}
        return row_of(self.id, what.record, parts, what.app, what.metadata, clock)

    @property
    def value_bytes(self) -> int:
        """The size of its value, which every process folds; of a move more, for that takes long."""
        size = sum(len(content) for (_, part), content in self.parts.items() if part == VALUE)
        return size + _MOVE_BYTES * isinstance(self.what.record, MoveSwitched)


class LogTransaction:
    """Records that are appended one after another, and are in the log together or not at all.

    Attributes:
        state: after them.
        appended: how many there are; appended_bytes: of their values.
    """

    def __init__(self, home: LogHome, sql: Transaction, state: StoreState | None, digest: bytes) -> None:
        self._home, self._sql, self._begun = home, sql, digest
        self._state, self._base = state, -1 if state is None else state.number
        self.execute = sql.execute
        self._first: bytes | None = None  # the id of the first record
        self._leases: dict[str, list[Row]] = {}  # their rows as it left them
        self.appended = self.appended_bytes = 0

    @property
    def state(self) -> StoreState:
        assert self._state is not None, "the first record creates the store"
        return self._state

    def append(self, what: Append) -> int:
        """Append a record, and return its number; raises where the state does not allow it, see `checks`."""
        return self.append_draft(Draft.of(what))

    def append_draft(self, draft: Draft) -> int:
        state, what = self._state, draft.what
        if state is not None:
            check(state, what.record)
        clock = micros(self._home.clock.now())
        number = self._next_number(what)
        at = clock if state is None else max(clock, state.time + 1)
        row = draft.row(clock)
        before = self._begun if state is None else state.digest
        entry = LogEntry(number, at, row, chained(before, number, at, row.seal))
        self._state = apply(state, entry, what.record)
        self.execute(tables.INSERT_ENTRY, _values(entry))
        for (table, part), content in draft.parts.items():
            self.execute(
                tables.INSERT_PART, {"number": number, "table": table, "part": part, "bytes": content}
            )
        if what.topology is not None:
            own, content = what.topology
            self.execute(tables.PUT_TOPOLOGY, {"number": own, "record": number, "bytes": content})
        self._first = self._first or draft.id
        self.appended, self.appended_bytes = self.appended + 1, self.appended_bytes + draft.value_bytes
        return number

    def _next_number(self, what: Append) -> int:
        if what.beyond is not None:
            return max(what.beyond, self.state.number) + 1
        return 0 if self._state is None else self._state.number + 1

    # Leases

    def put_lease(self, row: Row) -> None:
        """Enter the row of a lease, in the place of the one with its id."""
        put_row(self._sql, row)
        self._leases[row[0]] = [row]

    def remove_lease(self, id: str) -> None:  # noqa: A002
        remove_lease(self._sql, id)
        self._leases[id] = []

    # The end

    def finish(self) -> None:
        """Move the head to the last record."""
        if self.appended:
            state = self.state
            head = {"number": state.number, "digest": state.digest, "time": state.time}
            self.execute(tables.MOVE_HEAD, head | {"layout": state.layout, "before": self._begun})

    def is_there(self, sql: Transaction) -> bool:
        """Return whether it was committed, as another transaction sees it."""
        if self._first is not None:
            return bool(sql.execute(tables.BY_ID, {"after": self._base, "id": self._first}))
        return all(lease_rows(sql, id) == rows for id, rows in self._leases.items())  # noqa: A001


def row_values(row: LogRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in LogRow.__slots__}
    return values


def _values(entry: LogEntry) -> dict[str, Any]:
    return row_values(entry.row) | {"number": entry.number, "time": entry.time, "digest": entry.digest}
