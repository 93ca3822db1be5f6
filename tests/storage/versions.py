"""Tables made at random, and what plain Python says is in them.

`Scenario(seed)` holds versions of rows as tuples, the fragments that were written from them, and
`visible`, the oracle: no NumPy, no Arrow, no sorting by encoded keys.
"""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pyarrow as pa

from elasticscan.base.hashing import slots_of
from elasticscan.base.key_encoding import encode_row
from elasticscan.metadata import Fragment, Origin, StagedFragment, TableInfo
from elasticscan.protocol import Cursor, Cursors, PageRequest, PageRows
from elasticscan.storage.copying import Copied, copy_slots
from elasticscan.storage.disk import Disk
from elasticscan.storage.fragment import COMMIT, DELETED, SLOT, FragmentReader, fragment_schema
from elasticscan.storage.fragment_writer import Contents, FragmentTarget, write_fragment
from elasticscan.storage.pages import PageSource, cursors_of, pieces_of
from elasticscan.storage.view import View
from elasticscan.topology import SlotSet
from tests.storage.memory_disk import MemoryDisk

Key = tuple[Any, ...]

_DAY = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)
_TEXTS = ("", "a", "a\0", "a\0b", "a\0\xff", "b", "ba", "ä", "\uffff", "\U0001f600", "zz")


@dataclass(frozen=True)
class KeyKind:
    """Key columns, and how to make the n-th value of each."""

    fields: tuple[pa.Field, ...]
    make: Callable[[random.Random, int], Key]
    shard_columns: int = 1


def _text(rng: random.Random) -> str:
    return "".join(rng.choice(_TEXTS) for _ in range(rng.randint(0, 3)))


KEY_KINDS: dict[str, KeyKind] = {
    "int": KeyKind((pa.field("k", pa.int64()),), lambda r, n: (r.choice((n, -n, n << 40)),)),
    "string": KeyKind((pa.field("k", pa.string()),), lambda r, n: (_text(r) + str(n % 3),)),
    "string and int": KeyKind(
        (pa.field("s", pa.string()), pa.field("i", pa.int32())), lambda r, n: (r.choice("ab"), n - 9)
    ),
    "decimal": KeyKind(
        (pa.field("d", pa.decimal128(38, 10)),),
        lambda r, n: (decimal.Decimal(r.choice((1, -1)) * n * 10 ** r.choice((0, 9, 20))).scaleb(-10),),
    ),
    "small decimal": KeyKind(
        (pa.field("d", pa.decimal128(9, 2)),), lambda r, n: (decimal.Decimal(n - 9).scaleb(-2),)
    ),
    "timestamp": KeyKind(
        (pa.field("t", pa.timestamp("us", "UTC")),),
        lambda r, n: (_DAY + datetime.timedelta(microseconds=(n - 9) * r.choice((1, 10**12))),),
    ),
    "bool and binary": KeyKind(
        (pa.field("b", pa.bool_()), pa.field("x", pa.binary())),
        lambda r, n: (r.random() < 0.5, _text(r).encode() + bytes([n % 3])),
    ),
    "date and fixed binary": KeyKind(
        (pa.field("d", pa.date32()), pa.field("x", pa.binary(2))),
        lambda r, n: (_DAY.date() + datetime.timedelta(days=r.randint(-1, 1)), bytes([n, r.randint(0, 1)])),
        shard_columns=2,
    ),
}


ORIGIN = Origin(
    store="0" * 32,
    slots=16,
    hash="spark",
    operation="write",
    write="1" * 32,
    after_commit=0,
    began_at=0.0,
    epochs=((0, 1 << 16, 1),),
)


@dataclass(frozen=True)
class Version:
    """One version of a row; `value` is None for a tombstone."""

    key: Key
    commit: int
    value: str | None
    slot: int


@dataclass
class Shelf:
    """A table at one shard: fragments, the versions in each, and the disk they are on."""

    table: TableInfo
    slot_count: int
    disk: Disk = field(default_factory=MemoryDisk)
    fragments: list[Fragment] = field(default_factory=list)
    contents: dict[int, list[Version]] = field(default_factory=dict)

    def slot_of(self, key: Key) -> int:
        kinds = [self.table.schema.field(name).type for name in self.table.shard_key]
        columns = [pa.array([value], kind) for value, kind in zip(key, kinds, strict=False)]
        return int(slots_of(columns, self.slot_count)[0])

    def add(
        self,
        versions: Sequence[Version],
        slots: SlotSet | None = None,
        versioned: bool | None = None,
        marked: bool = False,
    ) -> Fragment:
        """Write versions as one fragment that serves `slots` (all, by default).

        With `marked` it says of each row whether it is a tombstone, also if none is.
        """
        commits = {version.commit for version in versions}
        rows = sorted(versions, key=lambda v: (v.slot, v.key, -v.commit))
        with_commit = len(commits) > 1 if versioned is None else versioned
        tombstones = marked or any(version.value is None for version in rows)
        schema = fragment_schema(self.table.schema, with_commit, tombstones)
        batch = rows_of(rows, self.table, schema)
        target = FragmentTarget(self.disk, 1, self.table, schema, ORIGIN)
        unique = len({version.key for version in rows}) == len(rows)
        spoken_for = SlotSet.span(0, self.slot_count) if slots is None else slots
        staged = write_fragment(target, spoken_for, [batch], Contents(unique=unique))
        staged = replace(staged, slots_left=len({row.slot for row in rows if row.slot not in spoken_for}))
        number = len(self.fragments) + 1
        return self.register(staged, number, min(commits), max(commits), rows)

    def register(
        self, staged: StagedFragment, number: int, min_commit: int, max_commit: int, rows: Sequence[Version]
    ) -> Fragment:
        fragment = staged.entered(number, self.table.id, min_commit, max_commit)
        self.fragments.append(fragment)
        self.contents[number] = list(rows)
        return fragment

    def source(self, fragments: Sequence[Fragment] | None = None, floor: int = 0) -> PageSource:
        @cache
        def open_fragment(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
            return FragmentReader(self.disk, fragment.path, columns, fragment.seal)

        view = View(self.fragments if fragments is None else fragments)
        return PageSource(self.table, view, open_fragment, floor)

    def everything(self) -> Cursors:
        return (Cursor(SlotSet.span(0, self.slot_count)),)

    def versions(self) -> list[Version]:
        """Every version in a slot that its fragment serves."""
        return [
            version
            for fragment in self.fragments
            for version in self.contents[fragment.id]
            if version.slot in fragment.slots
        ]


Limits = tuple[int, int]  # rows and bytes of a page


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
    **more: Any,
) -> list[PageRows]:
    """Page after page, each from the cursors of the one before it, as if by another process."""
    pages: list[PageRows] = []
    while cursors:
        page_rows, page_bytes = next(limits)
        page = read(source, request_of(cursors, snapshot, columns, (page_rows, page_bytes), **more))
        assert page.rows.schema.names == list(columns)
        assert page.rows.num_rows == len(page.slots) <= page_rows
        assert page.rows.num_rows <= 1 or page.rows.nbytes <= page_bytes
        # Either rows or the end: no page without rows can be followed by another, so none loops.
        assert page.rows.num_rows or not page.after
        pages.append(page)
        cursors = page.after
        assert set(cursors) == set(cursors_of(pieces_of(cursors)))
    return pages


def varying(rng: random.Random) -> Iterator[Limits]:
    while True:
        yield rng.choice((1, 2, 3, 5, 9, 100)), rng.choice((1, 30, 100, 300, 1 << 20))


def together(pages: Sequence[PageRows], shelf: Shelf) -> list[tuple[int, Key, Any]]:
    """(slot, key, value) of all rows, in the order in which they came."""
    return [
        (slot, key, value)
        for page in pages
        for slot, key, value in zip(
            page.slots.to_pylist(),
            keys_of(page.rows, shelf.table),
            page.rows.column("v").to_pylist(),
            strict=True,
        )
    ]


def position_of(slot: int, *values: Any) -> bytes:
    """The position of a row whose primary key has these values, 64-bit numbers."""
    return slot.to_bytes(2, "big") + encode_row([pa.array([value], pa.int64()) for value in values], 0)


def visible(versions: Sequence[Version], floor: int, snapshot: int) -> dict[Key, str]:
    """The oracle: the newest version of each key between floor and snapshot, unless a tombstone."""
    newest: dict[Key, Version] = {}
    for version in versions:
        if floor <= version.commit <= snapshot:
            known = newest.get(version.key)
            if known is None or known.commit < version.commit:
                newest[version.key] = version
    return {key: v.value for key, v in newest.items() if v.value is not None}


def rows_of(rows: Sequence[Version], table: TableInfo, schema: pa.Schema) -> pa.RecordBatch:
    """Versions as an Arrow batch of a fragment's schema, in the order given."""
    columns: dict[str, list[Any]] = {
        name: [version.key[at] for version in rows] for at, name in enumerate(table.primary_key)
    }
    columns["v"] = [version.value for version in rows]
    columns["n"] = [None if version.value is None else version.commit for version in rows]
    columns[SLOT] = [version.slot for version in rows]
    columns[COMMIT] = [version.commit for version in rows]
    columns[DELETED] = [version.value is None for version in rows]
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )


def table_of(kind: KeyKind, compression: str | None = None) -> TableInfo:
    names = tuple(field.name for field in kind.fields)
    fields = [field.with_nullable(False) for field in kind.fields]
    schema = pa.schema([*fields, pa.field("v", pa.string()), pa.field("n", pa.int32())])
    return TableInfo(7, "t", schema, names, names[: kind.shard_columns], compression, 1, 1)


class Scenario:
    """A table of some commits: writes, deletes and overwrites, in fragments that overlap."""

    def __init__(self, seed: int, kind: str | None = None, disk: Disk | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.kind = KEY_KINDS[kind or rng.choice(sorted(KEY_KINDS))]
        compression = rng.choice((None, None, "lz4"))
        self.shelf = Shelf(table_of(self.kind, compression), rng.choice((1, 2, 4, 16)), disk or MemoryDisk())
        pool = sorted({self.kind.make(rng, n) for n in range(rng.choice((1, 3, 12, 30)))})
        self.slots = {key: self.shelf.slot_of(key) for key in pool}
        self.commits = rng.randint(0, 7)
        self.overwrites: list[int] = []
        pending: list[Version] = []
        for commit in range(1, self.commits + 1):
            if rng.random() < 0.15:
                self.overwrites.append(commit)
            pending += self._commit(commit, pool)
            if rng.random() < 0.6:  # else: its rows share a fragment with those of the next commit
                self._settle(pending)
                pending = []
        self._settle(pending)

    def _commit(self, commit: int, pool: Sequence[Key]) -> list[Version]:
        rng = self.rng
        chosen = rng.sample(pool, rng.randint(0, len(pool)))
        deleting = rng.choice((0.0, 0.0, 0.3, 1.0))
        return [
            Version(
                key,
                commit,
                None if rng.random() < deleting else f"{commit}" + "x" * rng.choice((0, 0, 3, 40)),
                self.slots[key],
            )
            for key in chosen
        ]

    def _settle(self, versions: list[Version]) -> None:
        """Write versions as one fragment, or as two that divide the slots or the keys."""
        rng = self.rng
        everything = SlotSet.span(0, self.shelf.slot_count)
        how = rng.choice(("one", "one", "keys", "slots", "struck"))
        if how == "keys":
            keys = {version.key for version in versions if rng.random() < 0.5}
            parts = [([v for v in versions if (v.key in keys) is side], everything) for side in (True, False)]
        elif how == "slots" and self.shelf.slot_count > 1:
            at = rng.randint(1, self.shelf.slot_count - 1)
            low, high = SlotSet.span(0, at), SlotSet.span(at, self.shelf.slot_count)
            parts = [([v for v in versions if v.slot in side], side) for side in (low, high)]
        elif how == "struck":  # a tablet of it lives elsewhere by now
            at = rng.randint(0, self.shelf.slot_count - 1)
            parts = [(versions, everything - SlotSet.span(at, at + 1))]
        else:
            parts = [(versions, everything)]
        for rows, slots in parts:
            if rows and slots:
                self.shelf.add(rows, slots, True if rng.random() < 0.2 else None)

    def floor(self, snapshot: int) -> int:
        return max((commit for commit in self.overwrites if commit <= snapshot), default=0)

    def visible(self, snapshot: int) -> dict[Key, str]:
        return visible(self.shelf.versions(), self.floor(snapshot), snapshot)


def keys_of(batch: pa.RecordBatch, table: TableInfo) -> list[Key]:
    return list(zip(*(batch.column(name).to_pylist() for name in table.primary_key), strict=True))


def committed(fragment: Fragment, **changes: Any) -> Fragment:
    return replace(fragment, **changes)


def addresses(reader: FragmentReader) -> set[int]:
    """Where the values of a fragment's batches are in memory."""
    columns = [column for batch in reader for column in batch.columns]
    return {buffer.address for column in columns for buffer in column.buffers() if buffer is not None}


def copy_all(*args: Any) -> Copied | None:
    """A copy that keeps all together, so that it is one fragment at most."""
    copies = copy_slots(*args)
    return copies[0] if copies else None
