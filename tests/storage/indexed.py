"""Random tables with an index, and the rows of an index scan according to plain Python.

The oracle sorts Python values; it uses no files, no runs and no bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

from elasticscan.base.key_encoding import END, encode_value, encode_values, index_hash, inverted, successor
from elasticscan.metadata import HASH, SORTED, Bounds, Fragment, IndexInfo
from elasticscan.protocol import Cursor, Cursors
from elasticscan.storage.indexes.pages import IndexSource
from elasticscan.storage.indexes.run import RunReader, build_runs
from elasticscan.topology import SlotSet
from tests.simulation.conditions import rank
from tests.storage.versions import ORIGIN, WIDE, Key, Scenario, Values, newest

COLUMNS = tuple(WIDE)
IndexRow = tuple[Key, Values]

INDEXES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (SORTED, ("f",), ()),
    (SORTED, ("t",), ("i",)),
    (SORTED, ("i", "t"), ("l",)),
    (SORTED, ("i", "k"), ()),
    (SORTED, ("f", "i"), ("t", "l")),
    (HASH, ("t",), ()),
    (HASH, ("i", "f"), ("t",)),
)


class Indexed(Scenario):
    """A table with one index at one shard."""

    def __init__(self, seed: int, style: str | None = None) -> None:
        super().__init__(seed, style=style, wide=True)
        self.table, self.disk = self.shelf.table, self.shelf.disk
        kind, columns, include = self.rng.choice(INDEXES)
        self.index = IndexInfo(3, 7, "by", kind, columns, include)

    @property
    def fragments(self) -> list[Fragment]:
        return self.shelf.fragments

    def index_source(self, reader: type[RunReader] = RunReader) -> IndexSource:
        @cache
        def runs(fragment: Fragment) -> list[RunReader]:
            staged = build_runs(self.disk, self.table, self.index, fragment, ORIGIN)
            return [reader(self.disk, self.table, self.index, run) for run in staged]

        source = self.shelf.source()
        return IndexSource(self.table, source.view, source.open, index=self.index, runs=runs)

    def bounds(self, snapshot: int) -> Bounds:
        return Bounds(self.floor(snapshot), snapshot)

    # ----------------------------------------------------------------------------- the oracle

    def expected(self, bounds: Bounds, descending: bool = False) -> list[IndexRow]:
        """The visible rows, in the order of the index."""
        versions = newest(self.shelf.versions(), bounds.floor, bounds.snapshot)
        rows = [(version.key, version.wide) for version in versions if version.value is not None]
        rows.sort(key=lambda row: (self._sort_key(row), row[0]), reverse=descending)
        return rows

    def _sort_key(self, row: IndexRow) -> Any:
        if self.index.kind == HASH:
            return int(index_hash(self._columns(row, self.index.columns))[0])
        return [ordered(self._value(row, name)) for name in self.index.columns]

    def _value(self, row: IndexRow, name: str) -> Any:
        names = self.table.primary_key
        return row[0][names.index(name)] if name in names else row[1][COLUMNS.index(name)]

    def _columns(self, row: IndexRow, names: Sequence[str]) -> list[pa.Array]:
        schema = self.table.schema
        return [pa.array([self._value(row, name)], schema.field(name).type) for name in names]

    def order_key(self, row: IndexRow) -> bytes:
        return self.index_key(row) + encode_values(self._columns(row, self.table.primary_key), 0)

    def index_key(self, row: IndexRow, count: int | None = None) -> bytes:
        columns = self._columns(row, self.index.columns[:count])
        if self.index.kind == HASH:
            return encode_value(pa.scalar(int(index_hash(columns)[0]), pa.int32()))
        return encode_values(columns, 0)

    def some_row(self) -> IndexRow:
        """Any row with an existing key; its values may be missing in the table."""
        return self.rng.choice(sorted(self.slots)), self.some_values(few=self.rng.random() < 0.5)

    def ranges(self) -> list[tuple[bytes, bytes]]:
        """Some disjoint ranges of index keys: all, points, prefixes, everything between."""
        rng = self.rng
        if rng.random() < 0.3:
            return [(b"", END)]
        edges = {b"", END}
        for _ in range(rng.choice((1, 2, 10, 30))):
            prefix = 1 if self.index.kind == SORTED and rng.random() < 0.5 else None
            key = self.index_key(self.some_row(), prefix)
            # Bounds may differ by zero bytes at their ends: inverted, the longer one does not sort first.
            edges |= {key, successor(key)} | ({key + b"\0", key + b"\0\0"} if rng.random() < 0.5 else set())
        return [piece for piece in pairwise(sorted(edges)) if rng.random() < 0.6]

    def index_cursors(self, descending: bool) -> Cursors:
        """Cursors of some of the slots, in parts, each with its own position."""
        rng, left = self.rng, list(range(self.shelf.slot_count))
        rng.shuffle(left)
        cursors: list[Cursor] = []
        while left:
            size = rng.randint(1, len(left))
            slots, left = SlotSet.of((at, at + 1) for at in left[:size]), left[size:]
            key = self.order_key(self.some_row())
            position = None if rng.random() < 0.4 else inverted(key) if descending else key
            if rng.random() < 0.9:
                cursors.append(Cursor(slots, position))
        return tuple(cursors)


def ordered(value: Any) -> tuple[Any, ...]:
    """A sort key with the order of the index: nulls first, NaN last, texts by their bytes."""
    return (0,) if value is None else (1, rank(value))
