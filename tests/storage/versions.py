"""Random tables, and their rows according to plain Python.

`Scenario(seed)` has versions of rows as tuples, and the fragments that were written from them, some of them
compacted later. `visible` is the oracle: it uses no NumPy, no Arrow and no encoded keys.
"""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from elasticscan.base.hashing import slots_of
from elasticscan.base.key_encoding import encode_row
from elasticscan.metadata import (
    Bounds,
    Fragment,
    FragmentStatistics,
    Origin,
    StagedFragment,
    TableInfo,
    unpack_statistics,
)
from elasticscan.protocol import Cursor, Cursors, PageRequest, PageRows
from elasticscan.storage.batches.reader import BatchCache
from elasticscan.storage.copying import Keep, copy_slots
from elasticscan.storage.disk import Disk
from elasticscan.storage.fragment import COMMIT, DELETED, SLOT, FragmentReader, fragment_schema
from elasticscan.storage.fragment_writer import Contents, Destination, write_fragment
from elasticscan.storage.pages import PageSource, cursors_of, pieces_of
from elasticscan.storage.view import View
from elasticscan.store.upkeep.compaction import keep_for
from elasticscan.topology import SlotSet
from tests.storage.memory_disk import MemoryDisk

Key = tuple[Any, ...]
Values = tuple[Any, ...]
Limits = tuple[int, int]  # rows and bytes of a page
Row = tuple[int, Key, Any]  # slot, key, value

SEEDS = st.integers(0, 1 << 32)
PLENTY: Limits = (1 << 20, 1 << 30)
NAN = math.nan
_DAY = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)
_TEXTS = ("", "a", "a\0", "a\0b", "a\0\xff", "b", "ba", "ä", "\uffff", "\U0001f600", "zz")

# Columns of wide tables, with few values each.
WIDE: dict[str, tuple[pa.DataType, Values]] = {
    "f": (pa.float64(), (None, NAN, -math.inf, math.inf, -1.5, -0.0, 0.0, 2.5)),
    "t": (pa.string(), (None, "", "a", "a\0", "a\0b", "b", "ba", "ä", "\U0001f600", "b" * 80, "b" * 81)),
    "i": (pa.int16(), (None, -300, -1, 0, 1, 2, 300)),
    "l": (pa.list_(pa.int8()), (None, [], [1], [2, None])),
    "_row": (pa.int8(), (None, 1)),  # a name that the store itself uses in other places
}


class KeyKind:
    """Key columns of some types, and functions that return the n-th value of each."""

    def __init__(
        self, make: Callable[[random.Random, int], Key], *types: pa.DataType, shard_columns: int = 1
    ) -> None:
        self.make, self.shard_columns = make, shard_columns
        self.fields = [pa.field(name, of, nullable=False) for name, of in zip("kj", types, strict=False)]


def _text(rng: random.Random) -> str:
    return "".join(rng.choice(_TEXTS) for _ in range(rng.randint(0, 3)))


def _number(r: random.Random, n: int) -> Key:
    return (r.choice((n, -n, n << 40, n - (1 << 63), ~n + (1 << 63))),)


def _small_number(n: int) -> int:
    return (n - 9, n - (1 << 31), ~n + (1 << 31))[n % 3]


def _decimal(r: random.Random, n: int) -> Key:
    return (decimal.Decimal(r.choice((1, -1)) * n * 10 ** r.choice((0, 9, 20))).scaleb(-10),)


def _time(r: random.Random, n: int) -> Key:
    return (_DAY + datetime.timedelta(microseconds=(n - 9) * r.choice((1, 10**12))),)


def _day_and_bytes(r: random.Random, n: int) -> Key:
    return _DAY.date() + datetime.timedelta(days=r.randint(-1, 1)), bytes([n, r.randint(0, 1)])


KEY_KINDS: dict[str, KeyKind] = {
    "int": KeyKind(_number, pa.int64()),
    "string": KeyKind(lambda r, n: (_text(r) + str(n % 3),), pa.string()),
    "string and int": KeyKind(lambda r, n: (r.choice("ab"), _small_number(n)), pa.string(), pa.int32()),
    "decimal": KeyKind(_decimal, pa.decimal128(38, 10)),
    "small decimal": KeyKind(lambda r, n: (decimal.Decimal(n - 9).scaleb(-2),), pa.decimal128(9, 2)),
    "timestamp": KeyKind(_time, pa.timestamp("us", "UTC")),
    "bool and binary": KeyKind(
        lambda r, n: (r.random() < 0.5, _text(r).encode() + bytes([n % 3])), pa.bool_(), pa.binary()
    ),
    "date and fixed binary": KeyKind(_day_and_bytes, pa.date32(), pa.binary(2), shard_columns=2),
}


ORIGIN = Origin(
    store="0" * 32,
    store_slots=16,
    store_hash="spark",
    operation="write",
    write="1" * 32,
    after_commit=0,
    began_at=0.0,
    epochs=((0, 1 << 16, 1),),
)


@dataclass(frozen=True)
class Version:
    """One version of a row; `value` is None for a tombstone. Versions of wide tables have more columns."""

    key: Key
    commit: int
    value: str | None
    slot: int
    wide: Values = ()


@dataclass
class Shelf:
    """A table at one shard: its fragments, the versions in each, and their disk."""

    table: TableInfo
    slot_count: int
    disk: Disk = field(default_factory=MemoryDisk)
    fragments: list[Fragment] = field(default_factory=list)
    contents: dict[int, list[Version]] = field(default_factory=dict)
    statistics: dict[int, FragmentStatistics] = field(default_factory=dict)

    @property
    def slots(self) -> SlotSet:
        return SlotSet.span(0, self.slot_count)

    def slot_of(self, key: Key) -> int:
        kinds = [self.table.schema.field(name).type for name in self.table.shard_key]
        columns = [pa.array([value], kind) for value, kind in zip(key, kinds, strict=False)]
        return int(slots_of(columns, self.slot_count)[0])

    def version(self, key: Key, commit: int, value: str | None) -> Version:
        return Version(key, commit, value, self.slot_of(key))

    def encoded(self, key: Key) -> bytes:
        kinds = [self.table.schema.field(name).type for name in self.table.primary_key]
        return encode_row([pa.array([value], kind) for value, kind in zip(key, kinds, strict=True)], 0)

    def add(
        self,
        versions: Sequence[Version],
        slots: SlotSet | None = None,
        versioned: bool | None = None,
        marked: bool = False,
    ) -> Fragment:
        """Write versions as one fragment that serves `slots` (all, by default).

        With `marked` it has a tombstone mark for each row, even if no row is a tombstone.
        """
        commits = {version.commit for version in versions}
        rows = sorted(versions, key=lambda v: (v.slot, v.key, -v.commit))
        with_commit = len(commits) > 1 if versioned is None else versioned
        tombstones = marked or any(version.value is None for version in rows)
        schema = fragment_schema(self.table.schema, with_commit, tombstones)
        batch = rows_of(rows, self.table, schema)
        to = Destination(self.disk, 1, ORIGIN)
        unique = len({version.key for version in rows}) == len(rows)
        spoken_for = self.slots if slots is None else slots
        contents = Contents(min(commits), max(commits), unique)
        staged = write_fragment(to, self.table, spoken_for, [batch], contents)
        staged = replace(staged, slots_left=len({row.slot for row in rows if row.slot not in spoken_for}))
        return self.register(staged, rows=rows)

    def register(self, staged: StagedFragment, commit: int = 0, rows: Sequence[Version] = ()) -> Fragment:
        number = len(self.contents) + 1
        fragment = staged.entered(number, self.table.id, commit)
        self.fragments.append(fragment)
        self.contents[number] = list(rows)
        self.statistics[number] = unpack_statistics(staged.statistics)
        return fragment

    def source(
        self, fragments: Sequence[Fragment] | None = None, floor: int = 0, kept: BatchCache | None = None
    ) -> PageSource:
        """A source of pages that keeps its files open."""

        @cache
        def open_fragment(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
            return FragmentReader(self.disk, fragment.path, columns, fragment.seal, self.table, kept)

        view = View(self.fragments if fragments is None else fragments)
        return PageSource(
            self.table, view, open_fragment, floor, lambda fragment: self.statistics[fragment.id]
        )

    def everything(self) -> Cursors:
        return (Cursor(self.slots),)

    def versions(self, fragments: Sequence[Fragment] | None = None) -> list[Version]:
        """Every version in a slot that its fragment serves."""
        return [
            version
            for fragment in (self.fragments if fragments is None else fragments)
            for version in self.contents[fragment.id]
            if version.slot in fragment.slots
        ]


def shelf_of(
    *layers: Sequence[tuple[int, int, str | None]], slots: int = 1, disk: Disk | None = None
) -> Shelf:
    """A table of fragments, each of (key, commit, value)."""
    shelf = Shelf(table_of(KEY_KINDS["int"]), slots, disk or MemoryDisk())
    for layer in layers:
        shelf.add([shelf.version((key,), commit, value) for key, commit, value in layer])
    return shelf


def request_of(
    cursors: Cursors, snapshot: int, columns: Sequence[str], limits: Limits, **more: Any
) -> PageRequest:
    return PageRequest(7, 1, cursors, snapshot, tuple(columns), *limits, **more)


def read_all(
    read: Callable[[PageSource, PageRequest], PageRows],
    source: PageSource,
    cursors: Cursors,
    snapshot: int,
    columns: Sequence[str],
    limits: Iterator[Limits],
    whole_keys: bool = False,
    **more: Any,
) -> list[PageRows]:
    """Read all pages, each from the cursors of the page before, as if in another process.

    With `whole_keys` a page of only one key may exceed its limits.
    """
    pages: list[PageRows] = []
    while cursors:
        page_rows, page_bytes = next(limits)
        page = read(source, request_of(cursors, snapshot, columns, (page_rows, page_bytes), **more))
        page.rows.validate(full=True)
        assert page.rows.schema.names[: len(columns)] == list(columns)
        assert page.rows.num_rows == len(page.slots)
        if not whole_keys:
            assert page.rows.num_rows <= page_rows
            assert page.rows.num_rows <= 1 or page.rows.nbytes <= page_bytes
        # A page without rows must be the last one, so no reader can loop.
        assert page.rows.num_rows or not page.after
        pages.append(page)
        cursors = page.after
        assert set(cursors) == set(cursors_of(pieces_of(cursors)))
    return pages


def varying(rng: random.Random, least_bytes: int = 30) -> Iterator[Limits]:
    """Limits of pages, small and large."""
    sizes = (1, least_bytes, 3 * least_bytes, 10 * least_bytes, 1 << 20)
    while True:
        yield rng.choice((1, 2, 3, 5, 9, 100)), rng.choice(sizes)


def together(pages: Sequence[PageRows], shelf: Shelf) -> list[Row]:
    """(slot, key, value) of all rows, in the order in which they came."""
    return [
        row
        for page in pages
        for row in zip(
            page.slots.to_pylist(),
            keys_of(page.rows, shelf.table),
            page.rows.column("v").to_pylist(),
            strict=True,
        )
    ]


def visible(versions: Sequence[Version], floor: int, snapshot: int) -> dict[Key, str]:
    """The oracle: the newest version of each key between floor and snapshot, unless a tombstone."""
    return {v.key: v.value for v in newest(versions, floor, snapshot) if v.value is not None}


def newest(versions: Sequence[Version], floor: int, snapshot: int) -> list[Version]:
    within = [version for version in versions if floor <= version.commit <= snapshot]
    return list({version.key: version for version in sorted(within, key=lambda v: v.commit)}.values())


def needed(versions: Sequence[Version], keep: Keep) -> list[Version]:
    """The versions that compaction keeps: all after the horizon, and the newest one up to it for each key."""
    old = newest(versions, 0, keep.horizon)
    kept = [v for v in old if not (keep.drop_tombstones and v.value is None)]
    return kept + [version for version in versions if version.commit > keep.horizon]


def rows_of(rows: Sequence[Version], table: TableInfo, schema: pa.Schema) -> pa.RecordBatch:
    """Versions as an Arrow batch of a fragment's schema, in the order given."""
    columns: dict[str, list[Any]] = {
        name: [version.key[at] for version in rows] for at, name in enumerate(table.primary_key)
    }
    for at, name in enumerate(WIDE):
        columns[name] = [version.wide[at] if version.wide else None for version in rows]
    columns["v"] = [version.value for version in rows]
    columns["n"] = [None if version.value is None else version.commit for version in rows]
    columns[SLOT] = [version.slot for version in rows]
    columns[COMMIT] = [version.commit for version in rows]
    columns[DELETED] = [version.value is None for version in rows]
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )


def table_of(kind: KeyKind, compression: str | None = None, wide: bool = False) -> TableInfo:
    names = tuple(field.name for field in kind.fields)
    fields = [*kind.fields, pa.field("v", pa.string()), pa.field("n", pa.int32())]
    fields += [pa.field(name, of) for name, (of, _) in WIDE.items() if wide]
    return TableInfo(7, "t", pa.schema(fields), names, names[: kind.shard_columns], compression, 1, 1)


class Scenario:
    """A table of some commits: writes, deletes, overwrites and compactions, in fragments that overlap.

    In the style "layered" it has a large fragment with each key once, and a few fragments with older and
    newer versions of some keys.

    Attributes:
        oldest: the first snapshot whose rows all exist.
        commits: the last commit.
    """

    def __init__(
        self,
        seed: int,
        kind: str | None = None,
        style: str | None = None,
        wide: bool = False,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.kind = KEY_KINDS[kind or rng.choice(sorted(KEY_KINDS))]
        table = table_of(self.kind, rng.choice((None, None, "lz4")), wide)
        self.shelf, self.wide = Shelf(table, rng.choice((1, 2, 4, 16, 64))), wide
        self.overwrites: list[int] = []
        self.oldest = self.commits = 0
        style = style or rng.choice(("mixed", "mixed", "mixed", "layered"))
        sizes = (1, 3, 12, 30) if style == "mixed" else (20, 50)
        pool = sorted({self.kind.make(rng, n) for n in range(rng.choice(sizes))})
        self.slots = {key: self.shelf.slot_of(key) for key in pool}
        {"mixed": self._mix, "layered": self._lay}[style](pool)

    # How the table is made

    def _mix(self, pool: Sequence[Key]) -> None:
        rng, pending = self.rng, list[Version]()
        self.commits = rng.randint(0, 7)
        for commit in range(1, self.commits + 1):
            if rng.random() < 0.15:
                self.overwrites.append(commit)
            written = {version.key for version in pending}
            keys = pool if rng.random() < 0.6 else [key for key in pool if key not in written]
            deleting = rng.choice((0.0, 0.0, 0.3, 1.0))
            pending += self._versions(rng.sample(keys, rng.randint(0, len(keys))), commit, deleting)
            if rng.random() < 0.6:  # otherwise its rows share a fragment with the next commit
                self._settle(pending)
                pending = []
                if rng.random() < 0.4:
                    self._compact(commit)
        self._settle(pending)

    def _lay(self, pool: Sequence[Key]) -> None:
        rng, begun = self.rng, self.rng.randint(1, 4)
        large = rng.sample(pool, max(1, int(len(pool) * rng.choice((0.5, 0.8, 1)))))
        commits = (begun, begun + 1) if rng.random() < 0.3 else (begun,)
        versions = [v for key in large for v in self._versions([key], rng.choice(commits), 0.0)]
        self._add(versions, rng.random() < 0.3)
        share = rng.choice((0.1, 0.4, 1.0))  # keys that other fragments may have
        few = [key for key in pool if rng.random() < share]
        for commit in rng.sample(range(1, 12), rng.randint(1, 4)):
            if commit not in commits:
                touched = [key for key in few if rng.random() < 0.4]
                versions = self._versions(touched, commit, rng.choice((0.0, 0.4, 1.0)))
                if rng.random() < 0.3:  # several versions of a key in one fragment
                    again = [key for key in touched if rng.random() < 0.5]
                    versions += self._versions(again, 20 + commit, 0.3)
                self._add(versions)
        self.commits = max(version.commit for rows in self.shelf.contents.values() for version in rows)

    def _versions(self, keys: Sequence[Key], commit: int, deleting: float) -> list[Version]:
        rng, few = self.rng, self.rng.random() < 0.5  # only few different values
        found = []
        for key in keys:
            text = None if rng.random() < deleting else f"{commit}" + "x" * rng.choice((0, 0, 3, 40))
            found.append(Version(key, commit, text, self.slots[key], self.some_values(few)))
        return found

    def some_values(self, few: bool) -> Values:
        """Values of a wide table's further columns."""
        choices = [values[:3] if few else values for _, values in WIDE.values()]
        return tuple(map(self.rng.choice, choices)) if self.wide else ()

    def _settle(self, versions: list[Version]) -> None:
        """Write versions as one fragment, or as two with different slots or keys."""
        rng, everything, slot_count = self.rng, self.shelf.slots, self.shelf.slot_count
        how = rng.choice(("one", "one", "keys", "slots", "struck"))
        parts = [(versions, everything)]
        if how == "keys":
            keys = {version.key for version in versions if rng.random() < 0.5}
            parts = [([v for v in versions if (v.key in keys) is side], everything) for side in (True, False)]
        elif how == "slots" and slot_count > 1:
            at = rng.randint(1, slot_count - 1)
            sides = SlotSet.span(0, at), SlotSet.span(at, slot_count)
            parts = [([v for v in versions if v.slot in side], side) for side in sides]
        elif how == "struck":  # one of its tablets has moved to another shard
            at = rng.randint(0, slot_count - 1)
            parts = [(versions, everything - SlotSet.span(at, at + 1))]
        for rows, slots in parts:
            if rows and slots:
                self.shelf.add(rows, slots, True if rng.random() < 0.2 else None)

    def _add(self, versions: Sequence[Version], marked: bool = False) -> None:
        """Add a fragment; some slots of some fragments have moved away since."""
        if not versions:
            return
        fragment = self.shelf.add(versions, versioned=marked or None, marked=marked)
        if self.rng.random() < 0.3 and self.shelf.slot_count > 1:
            at = self.rng.randrange(self.shelf.slot_count)
            left = fragment.slots - SlotSet.span(at, at + self.rng.randint(1, 3))
            self.shelf.fragments[-1:] = [replace(fragment, slots=left)] if left else []

    def _compact(self, commit: int) -> None:
        """Compact some slots; keep the versions of some snapshots, and write history to its own file."""
        rng, shelf = self.rng, self.shelf
        start = rng.randrange(shelf.slot_count)
        slots = SlotSet.span(start, rng.randint(start + 1, shelf.slot_count))
        horizon = rng.choice((self.oldest, rng.randint(self.oldest, commit)))
        some = rng.random() < 0.5  # then the other fragments may have older and newer commits
        parts = [replace(f, slots=f.slots & slots) for f in shelf.fragments if f.slots & slots]
        chosen = [part for part in parts if not some or rng.random() < 0.5]
        if not chosen:
            return
        others = [part for part in parts if part not in chosen]
        bounds = Bounds(self.floor(horizon), commit, since=horizon)
        keep = keep_for(chosen, others, (), horizon, self.floor(commit))
        copies = copy_slots(shelf.source(chosen), slots, bounds, keep, Destination(shelf.disk, 1, ORIGIN))
        rows = needed([v for v in shelf.versions(chosen) if v.commit >= bounds.floor], keep)
        taken = {part.id for part in chosen}
        left = [replace(f, slots=f.slots - slots) if f.id in taken else f for f in shelf.fragments]
        shelf.fragments = [fragment for fragment in left if fragment.slots]
        self.oldest = horizon
        for copied in reversed(copies):  # history is in its own file, the first file has the rest
            there = {(v.key, v.commit) for v in versions_in(shelf, copied, copied.min_commit)}
            own = [v for v in rows if copied is copies[0] or (v.key, v.commit) in there]
            rows = [v for v in rows if v not in own]
            shelf.register(copied, rows=own)

    # Random requests

    def snapshot(self) -> int:
        return self.rng.randint(self.oldest, self.commits)

    def floor(self, snapshot: int) -> int:
        return max((commit for commit in self.overwrites if commit <= snapshot), default=0)

    def source(self, snapshot: int) -> PageSource:
        return self.shelf.source(floor=self.floor(snapshot))

    def visible(self, snapshot: int) -> dict[Key, str]:
        return visible(self.shelf.versions(), self.floor(snapshot), snapshot)

    def rows(self, snapshot: int) -> list[Row]:
        """All visible rows, in the order of a scan."""
        return sorted((self.slots[key], key, value) for key, value in self.visible(snapshot).items())

    def columns(self) -> list[str]:
        return [*self.shelf.table.primary_key, "v"]

    def some_key(self) -> Key:
        """A key that may be missing."""
        return self.kind.make(self.rng, self.rng.randint(0, 30))

    def cursors(self) -> tuple[Cursors, Callable[[Sequence[Row]], list[Row]]]:
        """Cursors of all or some slots, as in a scan, and those of the given rows that are after them.

        Their positions come from other shards: their keys may be missing here, or invisible. The rest of a
        partly read slot comes first.
        """
        rng, left = self.rng, list(range(self.shelf.slot_count))
        if rng.random() < 0.4:
            return self.shelf.everything(), lambda rows: sorted(rows, key=lambda row: row[:2])
        rng.shuffle(left)
        cursors: list[Cursor] = []
        positions: dict[int, tuple[int, Key] | None] = {}
        while left:
            size = rng.randint(1, len(left))
            chosen, left = left[:size], left[size:]
            at, key = rng.choice([*chosen, rng.randrange(self.shelf.slot_count)]), self.some_key()
            begun, asked = rng.random() < 0.6, rng.random() < 0.9
            if asked:
                position = at.to_bytes(2, "big") + self.shelf.encoded(key) if begun else None
                cursors.append(Cursor(SlotSet.of((slot, slot + 1) for slot in chosen), position))
                positions.update(dict.fromkeys(chosen, (at, key) if begun else None))

        def beyond(rows: Sequence[Row]) -> list[Row]:
            found = []
            for slot, key, value in rows:
                after = positions.get(slot, (1 << 16, ()))
                if after is None or (slot, key) > after:
                    found.append((after is None or after[0] != slot, slot, key, value))
            return [row[1:] for row in sorted(found, key=lambda row: row[:3])]

        return tuple(cursors), beyond


def versions_in(shelf: Shelf, staged: StagedFragment, commit: int = 1) -> list[Version]:
    """The versions in a fragment's file, row by row; `commit` is used for a file with one commit."""
    found = list[Version]()
    for batch in FragmentReader(shelf.disk, staged.path, shelf.table.schema.names, staged.seal, shelf.table):
        has, count = batch.schema.names, batch.num_rows
        commits = batch.column(COMMIT).to_pylist() if COMMIT in has else [commit] * count
        deleted = batch.column(DELETED).to_pylist() if DELETED in has else [False] * count
        values = [None if gone else v for gone, v in zip(deleted, batch.column("v").to_pylist(), strict=True)]
        columns = keys_of(batch, shelf.table), commits, values, batch.column(SLOT).to_pylist()
        found += [Version(*row) for row in zip(*columns, strict=True)]
    return found


def keys_of(batch: pa.RecordBatch, table: TableInfo) -> list[Key]:
    return list(zip(*(batch.column(name).to_pylist() for name in table.primary_key), strict=True))


def addresses(batches: Sequence[pa.RecordBatch]) -> set[int]:
    """The memory addresses of the values of batches."""
    columns = [column for batch in batches for column in batch.columns]
    return {buffer.address for column in columns for buffer in column.buffers() if buffer is not None}
