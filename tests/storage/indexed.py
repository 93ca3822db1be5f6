"""Indexed tables made at random, and what plain Python says an index scan of them gives.

The oracle holds versions as tuples and sorts Python values: it knows of no file, no run, no bisection.
"""

from __future__ import annotations

import decimal
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

from elasticscan.base.hashing import slots_of
from elasticscan.base.key_encoding import END, encode_value, encode_values, index_hash, inverted, successor
from elasticscan.metadata import HASH, SORTED, Bounds, Fragment, IndexInfo, StagedFragment, TableInfo
from elasticscan.protocol import Cursor, Cursors
from elasticscan.storage.copying import Destination, Keep
from elasticscan.storage.disk import Disk
from elasticscan.storage.fragment import COMMIT, DELETED, SLOT, FragmentReader, fragment_schema
from elasticscan.storage.fragment_writer import Contents, FragmentTarget, write_fragment
from elasticscan.storage.indexes.pages import IndexSource
from elasticscan.storage.indexes.run import RunReader, build_runs
from elasticscan.storage.pages import PageSource
from elasticscan.storage.view import View
from elasticscan.topology import SlotSet
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import ORIGIN, copy_all

Key = tuple[Any, ...]
Values = tuple[Any, ...]

NAN = math.nan
VALUES: dict[str, tuple[pa.DataType, tuple[Any, ...]]] = {
    "f": (pa.float64(), (None, NAN, -math.inf, math.inf, -1.5, -0.0, 0.0, 2.5)),
    "t": (pa.string(), (None, "", "a", "a\0", "a\0b", "b", "ba", "ä", "\U0001f600", "b" * 80, "b" * 81)),
    "i": (pa.int16(), (None, -300, -1, 0, 1, 2, 300)),
    "l": (pa.list_(pa.int8()), (None, [], [1], [2, None])),
}
COLUMNS = tuple(VALUES)

KEYS: dict[str, tuple[tuple[pa.Field, ...], Callable[[random.Random, int], Key]]] = {
    "int": ((pa.field("k", pa.int64(), False),), lambda rng, n: (n - 9,)),
    "text": (
        (pa.field("k", pa.string(), False), pa.field("j", pa.int32(), False)),
        lambda rng, n: (rng.choice(("", "a", "a\0", "ä")), n),
    ),
    "decimal and bool": (
        (pa.field("k", pa.decimal128(38, 0), False), pa.field("j", pa.bool_(), False)),
        lambda rng, n: (
            decimal.Decimal(rng.choice((-1, 1)) * n * 10 ** rng.choice((0, 25))),
            rng.random() < 0.5,
        ),
    ),
    "bytes": ((pa.field("k", pa.binary(3), False),), lambda rng, n: (bytes((n % 2, n, 255 - n)),)),
}

INDEXES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (SORTED, ("f",), ()),
    (SORTED, ("t",), ("i",)),
    (SORTED, ("i", "t"), ("l",)),
    (SORTED, ("i", "k"), ()),
    (SORTED, ("f", "i"), ("t", "l")),
    (HASH, ("t",), ()),
    (HASH, ("i", "f"), ("t",)),
)


@dataclass(frozen=True)
class Version:
    """One version of a row; `values` is None for a tombstone."""

    key: Key
    commit: int
    values: Values | None
    slot: int


class Indexed:
    """A table with one index at one shard: its commits, fragments and runs."""

    def __init__(self, seed: int, disk: Disk | None = None, compression: str | None = None) -> None:
        self.rng = rng = random.Random(seed)
        fields, make = KEYS[rng.choice(sorted(KEYS))]
        names = tuple(field.name for field in fields)
        schema = pa.schema([*fields, *(pa.field(name, kind) for name, (kind, _) in VALUES.items())])
        compression = compression or rng.choice((None, None, "lz4"))
        self.table = TableInfo(7, "t", schema, names, names[:1], compression, 1, 1)
        kind, columns, include = rng.choice(INDEXES)
        self.index = IndexInfo(3, 7, "by", kind, columns, include)
        self.disk = disk or MemoryDisk()
        self.slot_count = rng.choice((1, 2, 4, 16))
        self.fragments: list[Fragment] = []
        self.versions: list[Version] = []
        self.overwrites: list[int] = []
        self.oldest = 0
        self._ids = 0
        pool = sorted({make(rng, n) for n in range(rng.choice((1, 4, 12, 40)))})
        self.slots = {key: self._slot_of(key) for key in pool}
        self.commits = rng.randint(0, 7)
        self._commit_all(pool)

    def _slot_of(self, key: Key) -> int:
        column = pa.array([key[0]], self.table.schema.field(self.table.shard_key[0]).type)
        return int(slots_of([column], self.slot_count)[0])

    # ------------------------------------------------------------------------------- its life

    def _commit_all(self, pool: Sequence[Key]) -> None:
        rng = self.rng
        pending: list[Version] = []
        for commit in range(1, self.commits + 1):
            if rng.random() < 0.1:
                self.overwrites.append(commit)
            pending += self._commit(commit, self._untouched(pool, pending))
            if rng.random() < 0.6:  # else: its rows share a fragment with those of the next commit
                self._settle(pending)
                pending = []
                if rng.random() < 0.3:
                    self._compact(commit)
        self._settle(pending)

    def _untouched(self, pool: Sequence[Key], pending: Sequence[Version]) -> Sequence[Key]:
        """Now and then only keys that the commits before have not written: they share a fragment."""
        if self.rng.random() < 0.6:
            return pool
        written = {version.key for version in pending}
        return [key for key in pool if key not in written]

    def _commit(self, commit: int, pool: Sequence[Key]) -> list[Version]:
        rng = self.rng
        chosen = rng.sample(pool, rng.randint(0, len(pool)))
        deleting = rng.choice((0.0, 0.0, 0.3, 1.0))
        few = rng.random() < 0.5  # the same values again and again
        return [
            Version(key, commit, None if rng.random() < deleting else self._values(few), self.slots[key])
            for key in chosen
        ]

    def _values(self, few: bool) -> Values:
        return tuple(self.rng.choice(values[:3] if few else values) for _, values in VALUES.values())

    def _settle(self, versions: list[Version]) -> None:
        """Write versions as one fragment, or as two that divide the keys or the slots."""
        rng, everything = self.rng, SlotSet.span(0, self.slot_count)
        parts = [(versions, everything)]
        how = rng.choice(("one", "keys", "slots", "struck"))
        if how == "keys":
            keys = {version.key for version in versions if rng.random() < 0.5}
            parts = [([v for v in versions if (v.key in keys) is side], everything) for side in (True, False)]
        elif how == "slots" and self.slot_count > 1:
            at = rng.randint(1, self.slot_count - 1)
            sides = SlotSet.span(0, at), SlotSet.span(at, self.slot_count)
            parts = [([v for v in versions if v.slot in side], side) for side in sides]
        elif how == "struck":  # a tablet of it lives elsewhere by now
            at = rng.randint(0, self.slot_count - 1)
            parts = [(versions, everything - SlotSet.span(at, at + 1))]
        for rows, slots in parts:
            self._write(rows, slots)
        self.versions += [v for rows, slots in parts for v in rows if v.slot in slots]

    def _write(self, versions: Sequence[Version], slots: SlotSet) -> None:
        if not versions or not slots:
            return
        commits = {version.commit for version in versions}
        rows = sorted(versions, key=lambda v: (v.slot, v.key, -v.commit))
        schema = fragment_schema(
            self.table.schema,
            versioned=len(commits) > 1 or self.rng.random() < 0.2,
            tombstones=any(version.values is None for version in rows),
        )
        target = FragmentTarget(self.disk, 1, self.table, schema, ORIGIN)
        unique = len({version.key for version in rows}) == len(rows)
        staged = write_fragment(target, slots, [self._batch(rows, schema)], Contents(unique=unique))
        self._register(staged, min(commits), max(commits))

    def _batch(self, rows: Sequence[Version], schema: pa.Schema) -> pa.RecordBatch:
        columns: dict[str, list[Any]] = {
            name: [version.key[at] for version in rows] for at, name in enumerate(self.table.primary_key)
        }
        for at, name in enumerate(COLUMNS):
            columns[name] = [None if version.values is None else version.values[at] for version in rows]
        columns[SLOT] = [version.slot for version in rows]
        columns[COMMIT] = [version.commit for version in rows]
        columns[DELETED] = [version.values is None for version in rows]
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in schema], schema=schema
        )

    def _register(self, staged: StagedFragment, min_commit: int, max_commit: int) -> None:
        self._ids += 1
        self.fragments.append(staged.entered(self._ids, self.table.id, min_commit, max_commit))

    def _compact(self, commit: int) -> None:
        """Copy the rows of some slots together, keeping the versions of some snapshots."""
        rng = self.rng
        start = rng.randrange(self.slot_count)
        slots = SlotSet.span(start, rng.randint(start + 1, self.slot_count))
        horizon = rng.randint(self.oldest, commit)
        some = rng.random() < 0.5  # then their commits may lie around those of the fragments that stay
        chosen = [f for f in self.fragments if not some or rng.random() < 0.5]
        keep = Keep(horizon, drop_tombstones=not some and rng.random() < 0.5)
        source = replace(self.rows(), view=View(chosen))
        copied = copy_all(source, slots, Bounds(0, commit), keep, Destination(self.disk, 1, ORIGIN))
        left = [replace(f, slots=f.slots - slots) if f in chosen else f for f in self.fragments]
        self.fragments = [fragment for fragment in left if fragment.slots]
        self.oldest = horizon
        if copied is not None:
            self._register(copied.staged, copied.min_commit, copied.max_commit)

    # -------------------------------------------------------------------------------- reading

    def rows(self) -> PageSource:
        return PageSource(self.table, View(self.fragments), self._opener())

    def source(self) -> IndexSource:
        @cache
        def runs(fragment: Fragment) -> list[RunReader]:
            staged = build_runs(self.disk, self.table, self.index, fragment, ORIGIN)
            return [RunReader(self.disk, self.table, self.index, run) for run in staged]

        return IndexSource(self.table, View(self.fragments), self._opener(), index=self.index, runs=runs)

    def _opener(self) -> Callable[[Fragment, tuple[str, ...]], FragmentReader]:
        return cache(
            lambda fragment, columns: FragmentReader(self.disk, fragment.path, columns, fragment.seal)
        )

    def snapshot(self) -> int:
        return self.rng.randint(self.oldest, self.commits)

    def bounds(self, snapshot: int) -> Bounds:
        return Bounds(max((c for c in self.overwrites if c <= snapshot), default=0), snapshot)

    # ----------------------------------------------------------------------------- the oracle

    def visible(self, bounds: Bounds) -> list[tuple[Key, Values]]:
        newest: dict[Key, Version] = {}
        for version in self.versions:
            if bounds.floor <= version.commit <= bounds.snapshot:
                known = newest.get(version.key)
                if known is None or known.commit < version.commit:
                    newest[version.key] = version
        return [(key, v.values) for key, v in newest.items() if v.values is not None]

    def expected(self, bounds: Bounds, descending: bool = False) -> list[tuple[Key, Values]]:
        """What is visible, in the order of the index."""
        rows = self.visible(bounds)
        rows.sort(key=lambda row: (self._sort_key(row), row[0]), reverse=descending)
        return rows

    def _sort_key(self, row: tuple[Key, Values]) -> Any:
        if self.index.kind == HASH:
            return int(index_hash(self._columns(row, self.index.columns))[0])
        return [ordered(self._value(row, name)) for name in self.index.columns]

    def _value(self, row: tuple[Key, Values], name: str) -> Any:
        key, values = row
        if name in self.table.primary_key:
            return key[self.table.primary_key.index(name)]
        return values[COLUMNS.index(name)]

    def _columns(self, row: tuple[Key, Values], names: Sequence[str]) -> list[pa.Array]:
        schema = self.table.schema
        return [pa.array([self._value(row, name)], schema.field(name).type) for name in names]

    def order_key(self, row: tuple[Key, Values]) -> bytes:
        return self.index_key(row) + encode_values(self._columns(row, self.table.primary_key), 0)

    def index_key(self, row: tuple[Key, Values]) -> bytes:
        columns = self._columns(row, self.index.columns)
        if self.index.kind == HASH:
            return encode_value(pa.scalar(int(index_hash(columns)[0]), pa.int32()))
        return encode_values(columns, 0)

    def some_row(self) -> tuple[Key, Values]:
        """Any row; its key is in the table, its values need not be."""
        keys = sorted(self.slots)
        return self.rng.choice(keys), self._values(few=self.rng.random() < 0.5)

    def ranges(self) -> list[tuple[bytes, bytes]]:
        """Some disjoint ranges of index keys: all, points, prefixes, everything between."""
        rng = self.rng
        if rng.random() < 0.3:
            return [(b"", END)]
        edges = {b"", END}
        for _ in range(rng.choice((1, 2, 10, 30))):
            row = self.some_row()
            key = self.index_key(row)
            if self.index.kind == SORTED and rng.random() < 0.5:
                key = encode_values(self._columns(row, self.index.columns[:1]), 0)
            edges |= {key, successor(key)}
        return [piece for piece in pairwise(sorted(edges)) if rng.random() < 0.6]

    def cursors(self, descending: bool) -> Cursors:
        """Some of the slots in pieces, each with a position of its own."""
        rng, left = self.rng, list(range(self.slot_count))
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
    """A value that Python sorts as the index does: nulls first, NaN last, texts by their bytes."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value)
    return (1, value.encode()) if isinstance(value, str) else (1, value)
