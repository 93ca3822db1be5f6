"""Stores to be damaged, and what they must answer: the oracle of the damage programs.

A `Template` is a store on a disk that lived a little: two shards, a table whose files have many batches and
segments and one whose files are read at once, indexes of both kinds, deletions, an overwrite, a move there
and back, a compaction, a column that came later. Programs take copies of it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from elasticscan.storage import Disk, open_disk
from elasticscan.store import Store
from tests.base.manual_clock import ManualClock
from tests.store.conditions import Means, Values

Key = tuple[Any, ...]
Row = tuple[Any, ...]
Rows = dict[Key, Row]

# Later than any file is made, so that garbage collection without grace takes every file it may.
START = 4_000_000_000.0
BIG_ROWS = 6_000
NAMES = {"big": ("id", "k", "s", "v", "added"), "small": ("a", "b", "k", "v")}
KEYS = {"big": ("id",), "small": ("a", "b")}
BIG = pa.schema([("id", pa.int64()), ("k", pa.int32()), ("s", pa.string()), ("v", pa.int64())])
SMALL = pa.schema([("a", pa.int64()), ("b", pa.string()), ("k", pa.int64()), ("v", pa.int64())])
ADDED = pa.field("added", pa.int64())
SCHEMAS = {"big": BIG.append(ADDED), "small": SMALL}
# By table: name of the index, columns, kind, included columns.
INDEXES = {
    "big": [("by_k", ["k"], "sorted", ["v", "s"]), ("by_s", ["s"], "hash", [])],
    "small": [("by_v", ["v", "k"], "sorted", []), ("by_b", ["b"], "hash", ["k"])],
}


# The values that a column has, besides nulls.
DOMAINS: dict[str, dict[str, list[Any]]] = {
    "big": {
        "id": [3, 100, BIG_ROWS - 1],
        "k": [0, 2, 3, 5],
        "s": ["", "é", "text 7"],
        "v": [0, 500, 900],
        "added": [1, 501, 901],
    },
    "small": {"a": [0, 2, 3], "b": ["k1", "k7", "k11"], "k": [0, 1], "v": [0, 500, 900]},
}
EQUAL = {"big": ("s", "text 7"), "small": ("b", "k7")}  # decided by the hash index alone


@dataclass(slots=True)
class Model:
    """What a store must answer.

    Attributes:
        states: by table, its rows after each of its commits, oldest first.
        feeds: by (table, after, upto), the change feed.
        ever: by table, every version of a row that there ever was.
        live: by (name of the shard's root, path), the digest of each file that the catalog refers to.
    """

    states: dict[str, list[tuple[int, Rows]]] = field(default_factory=dict)
    feeds: dict[tuple[str, int, int], Counter[Row]] = field(default_factory=dict)
    ever: dict[str, set[Row]] = field(default_factory=dict)
    live: dict[tuple[str, str], int] = field(default_factory=dict)

    def copy(self) -> Model:
        states = {name: list(found) for name, found in self.states.items()}
        return Model(states, self.feeds, {name: set(rows) for name, rows in self.ever.items()}, self.live)

    def at(self, table: str, snapshot: int) -> Rows:
        return next((rows for number, rows in reversed(self.states[table]) if number <= snapshot), {})

    def enter(self, table: str, number: int, rows: Rows) -> None:
        """Rows after a commit; who put an older catalog in place gave up the newer commits."""
        self.states[table] = [state for state in self.states[table] if state[0] < number] + [(number, rows)]
        self.ever[table].update(rows.values())

    def rows_where(self, table: str, snapshot: int, means: Means) -> list[Values]:
        """The rows of a snapshot of which a condition is true."""
        rows = [dict(zip(NAMES[table], row, strict=True)) for row in self.at(table, snapshot).values()]
        return [row for row in rows if means(row) is True]


def rows_of(data: pa.Table | pa.RecordBatch) -> list[Row]:
    return list(zip(*data.to_pydict().values(), strict=True)) if data.num_columns else []


def some_rows(rng: random.Random, table: str, count: int, added: bool) -> tuple[pa.Table, Rows]:
    """Rows to write, as data and as the model knows them."""
    if table == "small":
        keys = rng.sample(range(120), count)
        made = [(key % 4, f"k{key}", key % 3, rng.randrange(1_000)) for key in keys]
        return _table(SMALL, made), {row[:2]: row for row in made}
    ids = rng.sample(range(BIG_ROWS), count)
    rows = [
        (
            number,
            rng.choice([None, 0, 1, 2, 3, 4, 5, 6]),
            rng.choice(["", "é", f"text {number % 50}", *[f"{rng.getrandbits(320):080x}"] * 3]),
            rng.randrange(1_000),
        )
        for number in ids
    ]
    if not added:
        return _table(BIG, rows), {(row[0],): (*row, None) for row in rows}
    wide = [(*row, row[3] if row[3] % 2 else None) for row in rows]
    return _table(SCHEMAS[table], wide), {(row[0],): row for row in wide}


def _table(schema: pa.Schema, rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def keys_table(table: str, keys: Iterable[Key]) -> pa.Table:
    schema = pa.schema([f for f in (BIG if table == "big" else SMALL) if f.name in KEYS[table]])
    return _table(schema, list(keys))


def root_of(place: Path, shard: str) -> Path:
    return place / "shards" / shard


def files_below(place: Path) -> dict[tuple[str, str], Path]:
    """Every file of the shards of a store, by (name of the shard's root, path)."""
    files = [path for path in (place / "shards").rglob("*") if path.is_file()]
    found = {}
    # Names are random: one seed is to choose the same file each time.
    for path in sorted(files, key=lambda path: (path.stat().st_size, path)):
        parts = path.relative_to(place / "shards").parts
        found[parts[0], "/".join(parts[1:])] = path
    return found


def digest_of(path: Path) -> int:
    return xxhash.xxh3_64_intdigest(path.read_bytes())


def opened(place: Path, disks: Callable[[str], Disk] = open_disk) -> Store:
    return Store.open(place, clock=ManualClock(START), disks=disks, upkeep="off")


def live_files(store: Store) -> set[tuple[str, str]]:
    """Every file that the catalog refers to for what is readable now, by (name of the root, path)."""
    names = store.context.shard_names()
    with store.context.catalog.reading() as tx:
        fragments = {fragment.id: fragment for fragment in tx.state.fragments()}
        runs = [run for table in tx.state.infos() for run in tx.state.runs(table.id)]
    found = {(names[f.shard], f.path) for f in fragments.values()}
    return found | {(names[fragments[run.fragment].shard], run.path) for run in runs}


class Template:
    """A store that was made once, with its model and an older copy of its catalog."""

    def __init__(self, place: Path, variant: int) -> None:
        self.place, self.model = place, Model()
        self._random = random.Random(variant)
        with Store.create(
            place, ["s1", "s2"], tablets=4, slots=32, retention_seconds=3_600, clock=ManualClock(START)
        ) as store:
            self._live_a_little(store, variant)
            self._remember(store)

    def _live_a_little(self, store: Store, variant: int) -> None:
        rng = self._random
        for table, schema in (("big", BIG), ("small", SMALL)):
            info = store.create_table(
                table, schema, list(KEYS[table]), compression=(None, "lz4")[variant % 2]
            )
            self.model.states[table] = [(info.definition.created_commit, {})]
            self.model.ever[table] = set()
        self._write(store, "big", BIG_ROWS)
        for table, indexes in INDEXES.items():
            for name, columns, kind, include in indexes:
                store.table(table).create_index(name, columns, kind, include)
        for count in (60, 20, 5):
            self._write(store, "small", count)
        tablet = rng.choice(store.topology.placement.tablets)
        home, away = ("s1", "s2") if tablet.shard == 1 else ("s2", "s1")
        self._delete(store, "small", 8)
        store.move(tablet.id, away)
        self._write(store, "big", 200)
        self._delete(store, "big", 100)
        if variant % 2:
            data, rows = some_rows(rng, "small", 40, added=False)
            self.model.enter("small", store.table("small").overwrite(data), rows)
        store.move(tablet.id, home)
        store.table("big").add_columns([ADDED])
        if variant // 2 % 2:
            store.table("big").compact()
        self._write(store, "big", 100, added=True)
        self._write(store, "small", 10)

    def _write(self, store: Store, table: str, count: int, added: bool = False) -> None:
        data, rows = some_rows(self._random, table, count, added)
        number = store.table(table).upsert(data)
        self.model.enter(table, number, {**self.model.states[table][-1][1], **rows})

    def _delete(self, store: Store, table: str, count: int) -> None:
        before = self.model.states[table][-1][1]
        gone = self._random.sample(sorted(before), count)
        number = store.table(table).delete(keys_table(table, gone))
        self.model.enter(table, number, {key: row for key, row in before.items() if key not in set(gone)})

    def _remember(self, store: Store) -> None:
        for table, states in self.model.states.items():
            numbers = [number for number, _ in states]
            for number, rows in states:
                assert sorted(rows_of(store.table(table).scan(snapshot=number).to_table())) == sorted(
                    rows.values()
                ), "the oracle and an intact store differ"
            for after, upto in [*pairwise(numbers), (numbers[0], numbers[-1])]:
                feed = store.table(table).changes(after, upto).to_table()
                self.model.feeds[table, after, upto] = Counter(rows_of(feed))
        self.model.live = {
            (root, path): digest_of(root_of(self.place, root) / path) for root, path in live_files(store)
        }
        assert store.verify() == []
