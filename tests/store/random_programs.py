"""Random programs against a real store on a disk, alongside a plain dict of every snapshot.

A program writes, deletes, overwrites, moves, splits, joins, expands, contracts, compacts, collects garbage,
makes indexes (and kills who builds them), drops them, adds columns and reads pages of several scans, in an
order that one seed decides. Wherever the store would let another process in, others do something: before, in
the middle of and after a page, between staging and committing a write, between merging and swapping a
compaction, between building a run and entering it, and at each point where a mover could be suspended or
killed. Half of the writes go through a second `Store`, which has caches of its own. Files, runs, batches and
rounds of a page are small, so that few rows are enough to meet their borders.

    with Programs(directory) as programs:
        programs.run(seed)

raises an error that names the seed when any scan returned other rows than its snapshot had.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

from elasticscan import storage
from elasticscan.base import limits
from elasticscan.base.errors import (
    AlreadyExists,
    InvalidOption,
    InvalidTopologyChange,
    NotReady,
    RowsChanged,
    ScanConsumed,
    SnapshotExpired,
    TableChanged,
    TryAgain,
)
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.metadata import IndexInfo
from elasticscan.optimizer import binding
from elasticscan.storage import copying, fragment, ingest
from elasticscan.storage.indexes import iterator as index_iterator
from elasticscan.storage.indexes import pages as index_pages
from elasticscan.storage.indexes import run as index_run
from elasticscan.store import Page, Scan, Store, Table
from elasticscan.store.context import memory
from elasticscan.store.context.leases import FRESH_LEASE, kept_seconds
from elasticscan.store.moves import mover
from elasticscan.store.moves.mover import Mover
from elasticscan.store.moves.owners import machine, new_owner
from elasticscan.store.moves.under_way import enter_moves, move_of
from elasticscan.store.upkeep.compaction import merge_fragments
from elasticscan.store.upkeep.flushing import flush
from elasticscan.store.writing import indexing, preconditions
from elasticscan.topology import Move, SlotSet, Tablet
from tests.base.connections import prepare_connections
from tests.base.manual_clock import ManualClock
from tests.store.conditions import Condition, always, literal, order_of, some_condition
from tests.store.copies_of_stores import copied_store
from tests.store.random_tables import (
    ADDED_KINDS,
    ALL_WEIGHTS,
    BY_KEY,
    CHANGING,
    CHECKING,
    COLUMN_NAMES,
    DEFINITIONS,
    DOMAINS,
    KEPT_CHANGING,
    MOST_COLUMNS,
    STYLES,
    STYLES_BY_NAME,
    TABLES,
    VALUES,
    WIDER,
)

Key = tuple[Any, ...]
Row = tuple[Any, ...]
# Of a scan: its table, the scan for people, its rows, these in their order if they have one, its most pages.
Must = tuple[str, str, Counter[Row], list[Row] | None, int]

# Later than any file is made, so that garbage collection without grace takes every file it may.
START = 4_000_000_000.0
POINTS = ("copying", "copied", "caught_up", "switching", "target_serves")
DEAD_OWNER = f"{machine()}:{(1 << 22) + 1}:0:0"  # no process can have this id


class MoverStoppedError(Exception):
    """What a test raises in a mover to make its move fail or its process seem dead."""


class BuilderKilled(BaseException):
    """The process that built an index died here; so nobody catches it by name."""


@dataclass(slots=True)
class ReadScan:
    """A scan of the program: what it returned, and what it must have returned at its end.

    Attributes:
        what: the scan, for people.
        most_pages: how many pages it may need when nothing moves any more.
        ordered: the rows in the order in which they must come, if there is one.
        read_only: its pages never write to the catalog while its lease is fresh.
        marks: (a key, rows returned until then).
    """

    table: str
    what: str
    expected: Counter[Row]
    ordered: list[Row] | None
    most_pages: int
    scan: Scan
    lease: str
    index: int | None
    opened_at: float
    read_only: bool
    pages: Iterator[Page]
    got: list[Row]
    marks: list[tuple[str, int]] = field(default_factory=list)

    def check(self, ended: bool) -> None:
        """What it returned are its rows in their order; all of them, if it has ended."""
        lost, more = self.expected - Counter(self.got), Counter(self.got) - self.expected
        assert not more and not (ended and lost), f"{self.what}: lost {lost}, too many {more}"
        if self.ordered is not None:
            assert self.got == self.ordered[: len(self.got)], f"rows in a wrong order: {self.what}"


class Programs:
    """Makes stores quickly (copies of two that were made once, not flushed) and runs programs.

    `kinds` are the programs of styles that are more than a mixture of operations.
    """

    def __init__(self, directory: Path, kinds: Mapping[str, type[Program]] | None = None) -> None:
        self.directory, self._kinds = directory, kinds or {}
        self._patch = pytest.MonkeyPatch()
        self._program: Program | None = None
        self._building = False

    def __enter__(self) -> Programs:
        self._patch.setattr(os, "fsync", lambda handle: None)
        self._let_others_into_builds()
        for retention in (0, 60):
            with Store.create(
                self.directory / f"template{retention}",
                ["s1", "s2", "s3"],
                tablets=8,
                slots=64,
                retention_seconds=retention,
                clock=ManualClock(START),
            ) as store:
                for name, (schema, primary_key, shard_key) in TABLES.items():
                    store.create_table(name, schema, primary_key, shard_key)
        return self

    def _let_others_into_builds(self) -> None:
        build_some, build_runs = indexing._build_some, storage.build_runs

        def as_builder(*args: Any) -> Any:
            with self._built(True):
                return build_some(*args)

        def before_entering(*args: Any) -> Any:
            runs = build_runs(*args)
            if self._building:  # else the catalog may be locked, or it is the work of a writer
                with self._built(False):
                    self._point()
                    assert self._program is not None
                    self._program.die_if_it_is_time()
            return runs

        self._patch.setattr(indexing, "completed", _completed_in_turn)
        for module in (indexing, ingest):
            self._patch.setattr(module, "parallel", all_in_turn)
        self._patch.setattr(indexing, "_build_some", as_builder)
        self._patch.setattr(indexing, "build_runs", before_entering)

    @contextmanager
    def _built(self, building: bool) -> Iterator[None]:
        before, self._building = self._building, building
        try:
            yield
        finally:
            self._building = before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patch.undo()

    def run(self, seed: int, style: str | None = None) -> None:
        """Run the program of a seed; `style` is one of all styles, by default the seed's own."""
        rng = random.Random(seed)
        style = style or rng.choice(list(STYLES))
        retention, place, clock = rng.choice([0, 60]), self.directory / f"store{seed}", ManualClock(START)
        try:
            uri = self.make(place, retention)
            with pytest.MonkeyPatch.context() as patch, fast_store(uri, clock, self._point) as store:
                _make_small(patch, rng)
                if style == CHECKING:
                    patch.setattr(preconditions, "SMALL_REST_ROWS", rng.choice([0, 10, 1_000]))
                with fast_store(uri, clock, self._point) as other:
                    self._program = self._kinds.get(style, Program)(store, other, clock, rng, style)
                    self._program.run()
        except BaseException as error:
            error.add_note(f"style {style!r}; replay with: ELASTICSCAN_SEEDS={seed} pytest {TEST_FILE}")
            raise
        finally:
            self._program = None
            shutil.rmtree(place)

    def make(self, place: Path, retention: int) -> Path | str:
        """A new store whose files are at a place; returns its uri."""
        return copied_store(self.directory / f"template{retention}", place, ManualClock(START))

    def _point(self, _: str = "") -> None:
        """Let others in wherever another process could come between two steps."""
        if self._program is not None:
            self._program.let_others_in()


TEST_FILE = "tests/store/test_random_programs.py"


def all_in_turn(work: Callable[[Any], Any], items: Sequence[Any], _threads: int) -> list[Any]:
    """Run the work without threads, so that one seed gives one schedule."""
    return [work(item) for item in items]


@contextmanager
def _completed_in_turn(
    work: Callable[[Any], Any], items: Sequence[Any], _threads: int
) -> Iterator[Iterator[Future[Any]]]:
    """Run the work without threads, so that one seed gives one schedule."""

    def outcomes() -> Iterator[Future[Any]]:
        for item in items:
            outcome = Future[Any]()
            try:
                outcome.set_result(work(item))
            except BaseException as error:
                outcome.set_exception(error)
            yield outcome

    yield outcomes()


def _make_small(patch: pytest.MonkeyPatch, rng: random.Random) -> None:
    rows = rng.choice([2, 5, 65_536])
    patch.setattr(fragment, "BATCH_ROWS", rows)
    patch.setattr(copying, "BATCH_ROWS", rows)
    patch.setattr(mover, "SMALL_REST_ROWS", rng.choice([0, 10, 1_000]))
    patch.setattr(limits, "INLINE_BYTES", rng.choice([0, 0, 1_000, 1 << 16, 1 << 16]))
    patch.setattr(memory, "_FEW_ROWS", rng.choice([0, 20, 256]))
    patch.setattr(index_run, "BATCH_ROWS", rng.choice([2, 5, 65_536]))
    patch.setattr(index_run, "RUN_ROWS", rng.choice([12, 40, 1 << 22]))
    patch.setattr(index_pages, "LEAST_ENTRIES", rng.choice([1, 20, 65_536]))
    patch.setattr(index_pages, "_LEAST_SHARE", rng.choice([1, 16]))
    patch.setattr(index_pages, "_FIRST_ROUND", rng.choice([1, 8, 4_096]))
    patch.setattr(index_iterator, "RANGES_PER_ROUND", rng.choice([1, 256]))
    patch.setattr(binding, "MAX_RANGES", rng.choice([2, 1_000]))


def fast_store(
    uri: Path | str, clock: ManualClock, checkpoint: Callable[[str], None] = lambda _: None
) -> Store:
    """A store whose catalog does not wait for the disk: nobody pulls the plug on a test."""
    store = Store.open(uri, clock=clock, checkpoint=checkpoint, upkeep="off")
    if isinstance(store.context.catalog._home, SqliteHome):
        prepare_connections(store.context.catalog, _without_waiting)
    return store


def _without_waiting(connection: Any) -> Any:
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def rows_of(page: Page) -> list[Row]:
    return [comparable(row) for row in zip(*page.rows.to_pydict().values(), strict=True)]


def comparable(row: Row) -> Row:
    """A row in which NaN equals NaN."""
    return tuple("NaN" if value != value else value for value in row)


class Program:
    """One program."""

    def __init__(
        self, store: Store, other: Store, clock: ManualClock, rng: random.Random, style: str
    ) -> None:
        self.store, self.other, self.clock, self.random = store, other, clock, rng
        self.schemas = {name: schema for name, (schema, _, _) in TABLES.items()}
        # Rows are kept with a value for each column that there ever was; these are the places of those left.
        self.places = {name: list(range(len(schema))) for name, schema in self.schemas.items()}
        self.widths = {name: len(schema) for name, schema in self.schemas.items()}
        # Of each table's definitions, by their numbers: the schema and the places of its columns.
        self.definitions: dict[str, dict[int, tuple[pa.Schema, list[int]]]] = {name: {} for name in TABLES}
        for name in TABLES:
            self._note_definition(name)
        self.now_rows: dict[str, dict[Key, Row]] = {name: {} for name in TABLES}
        # What each table held after each of its commits: (commit, time, rows).
        self.history: dict[str, list[tuple[int, float, dict[Key, Row]]]] = {
            name: [(store.table(name).definition.created_commit, START, {})] for name in TABLES
        }
        # The keys that each commit wrote or deleted.
        self.touched: dict[str, list[tuple[int, frozenset[Key]]]] = {name: [] for name in TABLES}
        self.scans: list[ReadScan] = []
        self.lease_ends: dict[str, float] = {}
        self.under_way: list[Move] = []
        self.lives: list[int | None] = []  # of builders, innermost last: runs until it dies
        self.dropped: set[int] = set()  # ids of indexes
        self.versions = 0  # rows written in all
        # Draws of its own, so that a seed's other draws are what they would be without compression.
        self.forms = copy(rng)
        for name in TABLES:
            self._pack_otherwise(name)
        self.keys = rng.choice([5, 40, 150])
        self.weights = {"write": 10} | (STYLES | STYLES_BY_NAME)[style]
        if "mixture" in style:
            # Every program likes some operations, never does others, and is more or less disturbed.
            self.weights = {name: n * rng.choice([0, 1, 1, 5]) for name, n in self.weights.items()}
            self.weights["write"] = ALL_WEIGHTS["write"]
        self.noise, self.noise_left = rng.choice([0.0, 0.1, 0.4]), 25
        if "mixture" not in style:
            self.noise, self.noise_left = 0.4, 50
        # How many of the scans through a sorted index are merged, and how many scans take no index.
        self.merged, self.direct = rng.choice([0.3, 0.7]), 0.35
        if style.startswith("merged"):
            self.merged, self.direct = 1.0, 0.1
        self.by_key, self.changes_columns = style == BY_KEY, style in (CHANGING, KEPT_CHANGING)
        self.depth = 0
        self.writers_wait = False  # inside the switch of a move: the catalog is locked
        self.collections = 0
        self.new_shards = 0

    def run(self) -> None:
        noise, self.noise = self.noise, 0.0
        for _ in range(self.random.randint(0, 3)):
            self._write()
        for _ in range(self.random.randint(0, 3) if self.weights.get("create_index") else 0):
            self._create_index()
        self.noise = noise
        for _ in range(self.random.randint(10, 35)):
            self._operation()
        self.noise_left = 0
        for scan in list(self.scans):
            for _ in range(scan.most_pages + 4 * len(self.store.context.shard_names())):
                self._advance(scan)
            assert scan not in self.scans, f"it did not end although nothing moved: {scan.what}"
        self._check_everything()

    @property
    def some_store(self) -> Store:
        """This process, or another one."""
        return self.random.choice([self.store, self.other])

    # Interleaving

    def let_others_in(self, noise: float | None = None) -> None:
        chance = self.noise if noise is None else noise
        if self.noise_left <= 0 or self.depth >= 3 or self.random.random() >= chance:
            return
        self.depth += 1
        self.noise_left -= 1
        try:
            for _ in range(self.random.randint(1, 3)):
                if self.writers_wait:
                    self._read_only_page()
                else:
                    self._operation()
        finally:
            self.depth -= 1

    def _operation(self) -> None:
        self.clock.advance(self.random.choice([0, 1, 1, 10, 10, 100]))
        name = self.random.choices(list(self.weights), list(self.weights.values()))[0]
        getattr(self, f"_{name}")()

    # Writing

    def _rows(self, table: str) -> dict[Key, Row]:
        chosen = self.random.sample(range(self.keys), self.random.randint(1, min(self.keys, 40)))
        self.versions += len(chosen)
        value = self.random.randrange(1_000)
        added = list(self.schemas[table])[len(TABLES[table][0]) :]
        rows: dict[Key, Row] = {}
        for key in chosen:
            k = self._value(table, "k")
            more = [self.random.choice([None, *VALUES[field.type]]) for field in added]
            if table == "one":
                rows[key,] = (key, k, self._value(table, "d"), self._value(table, "s"), value, *more)
            else:  # few values of the shard key, so that slots hold many rows each
                rows[key % 4, f"k{key}"] = (key % 4, f"k{key}", k, value if key % 3 else None, *more)
        return rows

    def _value(self, table: str, column: str) -> Any:
        return self.random.choice([None, *DOMAINS[table][column]])

    def _write(self) -> None:
        self._commit(Table.upsert, upserts=True)

    def _overwrite(self) -> None:
        self._commit(Table.overwrite, upserts=False)

    def _commit(self, write: Callable[[Table, Any], int], upserts: bool) -> None:
        table = self.random.choice(list(TABLES))
        rows, schema = self._rows(table), self.schemas[table]
        columns = zip(*rows.values(), strict=True)
        data = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
        rows = {key: self._whole(table, row) for key, row in rows.items()}
        number = self._try(lambda: write(self.some_store.table(table), data))
        if number is not None:
            # Whoever was let in before the commit has a smaller number, so its rows are there already.
            before = self.now_rows[table]
            self._note(table, number, (before if upserts else {}) | rows, rows if upserts else before | rows)

    def _delete(self) -> None:
        table = self.random.choice(list(TABLES))
        gone = self._rows(table)
        schema, primary_key, _ = TABLES[table]
        key_schema = pa.schema([schema.field(name) for name in primary_key])
        keys = pa.Table.from_pylist([dict(zip(primary_key, k, strict=True)) for k in gone], schema=key_schema)
        number = self._try(lambda: self.store.table(table).delete(keys))
        if number is not None:
            left = {key: row for key, row in self.now_rows[table].items() if key not in gone}
            self._note(table, number, left, gone)

    def _note(self, table: str, number: int, rows: dict[Key, Row], touched: Iterable[Key]) -> None:
        assert number > self.history[table][-1][0], "commit numbers must grow"
        self.now_rows[table] = rows
        self.touched[table].append((number, frozenset(touched)))
        self.history[table].append((number, self.clock.now(), rows))

    def _whole(self, table: str, row: Row) -> Row:
        """A row with nulls for the columns that were dropped."""
        values = dict(zip(self.places[table], row, strict=True))
        return tuple(values.get(place) for place in range(self.widths[table]))

    def _touched(self, table: str, after: int, upto: int) -> frozenset[Key]:
        """The keys that commits in (after, upto] wrote or deleted."""
        some = (keys for number, keys in self.touched[table] if after < number <= upto)
        return frozenset[Key]().union(*some)

    # Writing, with checks

    def _checked_write(self) -> None:
        """A write that requires something of its keys, of which others may write some meanwhile."""
        table = self.random.choice(list(TABLES))
        chosen = self._rows(table)
        rows = dict(self.random.sample(list(chosen.items()), self.random.randint(1, min(len(chosen), 6))))
        oldest = self.store.table(table).definition.oldest_snapshot
        newest = self.store.context.catalog.versions()[1]
        since = self.random.choice(
            [newest, newest, max(oldest, newest - 2), self.random.randint(oldest, newest)]
        )
        columns = zip(*rows.values(), strict=True)
        whole = self.schemas[table]
        data = pa.table([pa.array(c, f.type) for c, f in zip(columns, whole, strict=True)], schema=whole)
        written = {key: self._whole(table, row) for key, row in rows.items()}
        how, began = self.random.choice(["upsert", "delete", "insert"]), self.clock.now()
        handle = self.some_store.table(table)
        try:
            if how == "insert":
                number = self._try(lambda: handle.insert(data))
            else:
                asked = data if how == "upsert" else data.select(TABLES[table][1])
                number = self._try(lambda: getattr(handle, how)(asked, if_unchanged_since=since))
        except (RowsChanged, AlreadyExists) as error:
            at = error.fields["newest"]
            there = self.rows_at(table, at) if how == "insert" else self._touched(table, since, at)
            assert rows.keys() & set(there), f"{how} of {list(rows)} since {since} was refused for no reason"
            return
        except SnapshotExpired:
            assert how != "insert"
            assert self.clock.now() > began + LEASE_SECONDS, "what a check needs expired"
            return
        if number is None:
            return
        before = self.now_rows[table]
        there = before if how == "insert" else self._touched(table, since, number - 1)
        lost = rows.keys() & set(there)
        assert not lost, f"{how} since {since} as commit {number} went over {lost}"
        left = {key: row for key, row in before.items() if key not in rows}
        self._note(table, number, left if how == "delete" else before | written, rows)

    def _change_where(self) -> None:
        """A delete or an update by condition: as if done at one moment since it began."""
        table = self.random.choice(list(TABLES))
        text, means = some_condition(self.random, DOMAINS[table])
        began, deletes = self.history[table][-1][0], self.random.random() < 0.5
        handle = self.some_store.table(table)
        number = self._try(
            (lambda: handle.delete(where=text)) if deletes else (lambda: handle.update({"v": "v + 1"}, text))
        )
        if number is None:
            return
        now, names = self.rows_at(table, number - 1), self.schemas[table].names
        at = names.index("v")
        candidates = []
        for moment in [n for n, _, _ in self.history[table] if began <= n]:
            rows = self.rows_at(table, moment)
            met = {k for k, row in rows.items() if means(dict(zip(names, row, strict=True))) is True}
            if not met & self._touched(table, moment, number):
                added = {
                    k: (*r[:at], None if r[at] is None else r[at] + 1, *r[at + 1 :]) for k, r in now.items()
                }
                left = {k: row for k, row in now.items() if k not in met}
                candidates.append((left if deletes else left | {k: added[k] for k in met}, met))
        noise, self.noise_left = self.noise_left, 0
        got = Counter(row for page in handle.scan(snapshot=number) for row in rows_of(page))
        self.noise_left = noise
        fitting = [one for one in candidates if Counter(map(comparable, one[0].values())) == got]
        assert fitting, f"where {text} as commit {number} is as at no moment since {began}"
        left, met = fitting[-1]
        self._note(table, number, {key: self._whole(table, row) for key, row in left.items()}, met)

    def _try(self, operation: Callable[[], int]) -> int | None:
        """It may be refused only when somebody collected its files as garbage meanwhile."""
        collections = self.collections
        try:
            return operation()
        except TryAgain as error:
            if "keys" in error.fields:  # of a write by condition, which others came before each time
                return None
            assert self.collections > collections, "refused for no reason"
            return None

    def rows_at(self, table: str, snapshot: int, definition: int | None = None) -> dict[Key, Row]:
        """Rows as the newest definition has them, or another: with nulls in columns that came after them."""
        rows = next(rows for number, _, rows in reversed(self.history[table]) if number <= snapshot)
        places = self.places[table] if definition is None else self.definitions[table][definition][1]
        width = self.widths[table]
        whole = {key: (*row, *[None] * (width - len(row))) for key, row in rows.items()}
        return {key: tuple(row[place] for place in places) for key, row in whole.items()}

    # Columns and indexes

    def _add_column(self) -> None:
        table = self.random.choice(list(TABLES))
        schema = self.schemas[table]
        if self.random.random() < 0.1:  # as whoever did not hear that it went well
            assert self.some_store.table(table).add_columns(schema).names == schema.names
        elif len(schema) < MOST_COLUMNS:
            kinds = self.random.choices(list(ADDED_KINDS), k=self.random.choice([1, 1, 2]))
            new = [pa.field(f"c{len(schema) + at}", kind) for at, kind in enumerate(kinds)]
            added = self.some_store.table(table).add_columns(new).names
            self._gain(table, new)
            assert added == self.schemas[table].names

    def _gain(self, table: str, new: list[pa.Field]) -> None:
        self.schemas[table] = pa.schema([*self.schemas[table], *new])
        self.places[table] += range(self.widths[table], self.widths[table] + len(new))
        self.widths[table] += len(new)
        self._note_definition(table)

    def _note_definition(self, table: str) -> None:
        """Call it as soon as the columns were changed."""
        number = self.store.table(table).definition.definition
        self.definitions[table][number] = (self.schemas[table], list(self.places[table]))

    def _change_column(self) -> None:
        """Add, drop, rename or widen a column that came later; names that were dropped come again."""
        table = self.random.choice(list(TABLES))
        schema, handle = self.schemas[table], self.some_store.table(table)
        added = list(range(len(TABLES[table][0]), len(schema)))
        free = [name for name in COLUMN_NAMES if name not in schema.names]
        how = self.random.choice(["add", "drop", "rename", "widen", "widen"])
        at = self.random.choice(added) if added else 0
        field = schema.field(at)
        if free and (how == "add" or not added):
            new = pa.field(self.random.choice(free), self.random.choice(list(WIDER)))
            handle.add_columns([new])
            self._gain(table, [new])
        elif how == "drop":
            handle.drop_columns([field.name])
            self.schemas[table] = schema.remove(at)
            self.places[table].pop(at)
        elif how == "rename" and free:
            field = field.with_name(self.random.choice(free))
            handle.rename_column(schema.field(at).name, field.name)
            self.schemas[table] = schema.set(at, field)
        elif how == "widen" and WIDER[field.type] is not None:
            handle.widen_column(field.name, WIDER[field.type])
            self.schemas[table] = schema.set(at, field.with_type(WIDER[field.type]))
        assert handle.schema.names == self.schemas[table].names
        assert handle.schema.types == self.schemas[table].types
        self._note_definition(table)

    def _index(self, table: str, name: str) -> IndexInfo | None:
        return next((i for i in self.store.table(table).indexes() if i.name == name), None)

    def _create_index(self) -> None:
        table = self.random.choice(list(TABLES))
        name = self.random.choice(list(DEFINITIONS[table]))
        known = self._index(table, name)
        if known is None or not known.ready:
            self._build(table, name, self.random.choice([None, None, 1, 2]))

    def _build_on(self) -> None:
        left = [(table, i.name) for table in TABLES for i in self.store.table(table).indexes() if not i.ready]
        if left:
            self._build(*self.random.choice(left), self.random.choice([None, 1]))

    def _build(self, table: str, name: str, life: int | None) -> None:
        columns, kind, include = DEFINITIONS[table][name]
        self.lives.append(life)
        try:
            made = self.store.table(table).create_index(name, columns, kind, include)
        except BuilderKilled:
            return
        finally:
            self.lives.pop()
        found = self._index(table, name)
        assert found is None or found.id != made.id or found.ready, "it was built and cannot be used"

    def die_if_it_is_time(self) -> None:
        life = self.lives[-1]
        if life is not None:
            if life <= 1:
                raise BuilderKilled
            self.lives[-1] = life - 1

    def _drop_index(self) -> None:
        known = [(table, index.name) for table in TABLES for index in self.store.table(table).indexes()]
        if known:
            table, name = self.random.choice(known)
            found = self._index(table, name)
            assert found is not None
            self.store.table(table).drop_index(name)
            self.dropped.add(found.id)

    # Reading

    def _get(self) -> None:
        """Rows by their keys, while others are let in."""
        table = self.random.choice(list(TABLES))
        definition, newest = self.store.table(table).definition, self.store.context.catalog.versions()[1]
        snapshot = self.random.choice([newest, self.random.randint(definition.oldest_snapshot, newest)])
        asked = self.random.choices(list(self._rows(table)), k=self.random.randint(1, 40))
        rows = self.rows_at(table, snapshot)
        names = self.schemas[table].names
        try:
            got = self.some_store.table(table).get(asked, names, snapshot, keep_missing=True)
        except SnapshotExpired:
            assert self.store.table(table).definition.oldest_snapshot > snapshot, "it is there"
            return
        message = [comparable(row) for row in zip(*got.to_pydict().values(), strict=True)]
        nothing = (None,) * len(names)
        assert message == [comparable(rows.get(key, nothing)) for key in asked], f"{table} at {snapshot}"

    def _start_scan(self) -> None:
        table = self.random.choice(list(TABLES))
        names = self.schemas[table].names
        newest = self.store.context.catalog.versions()[1]
        snapshot = self._scanned_snapshot(table, newest)
        columns = self.random.choice([names, self.random.sample(names, self.random.randint(1, len(names)))])
        index, order, descending = self._some_path(table)
        text, means = self._some_condition(table, index)
        pages: dict[str, Any] = {
            "page_rows": self.random.choice([1, 1, 2, 3, 10, 65_536]),
            "page_bytes": self.random.choice([1, 50, 400, 16 << 20, 16 << 20]),
        }
        what = (
            f"{table} at {snapshot}: {columns} where {text or 'all'}; {index}, {order}, {descending}, {pages}"
        )
        try:
            scan = self.store.table(table).scan(
                columns,
                text or None,
                index=index,
                snapshot=snapshot,
                order_by=[f"{name} DESC" if descending else name for name in order] if order else None,
                **pages,
            )
        except InvalidOption:
            assert index == "key" or DEFINITIONS[table][index][1] == "hash", what
            return
        except NotReady:
            building = self._index(table, index)
            assert building is not None and not building.ready, what
            return
        except SnapshotExpired:
            assert self._kept_seconds(table, snapshot) <= 0, what
            return
        rows = [dict(zip(names, row, strict=True)) for row in self.rows_at(table, snapshot).values()]
        rows = [row for row in rows if means(row) is True]
        if order:
            _, primary_key, _ = TABLES[table]
            rows.sort(key=order_of([*DEFINITIONS[table][index][0], *primary_key]), reverse=descending)
        ordered = [comparable(tuple(row[name] for name in columns)) for row in rows]
        # A page of all rows has one or finishes a shard, others may have to skip many.
        most_pages = len(rows) if index == "none" and not text else 2 * self.versions
        if scan.key is None:
            assert not ordered and not scan.slots, f"it reads nothing: {what}"
            return
        self._resume(
            scan.key, [], (table, what, Counter(ordered), ordered if order else None, most_pages + 4)
        )

    def _scanned_snapshot(self, table: str, newest: int) -> int:
        if self.random.random() < 0.4:
            return self.random.randint(self.store.table(table).definition.oldest_snapshot, newest)
        return newest

    def _kept_seconds(self, table: str, snapshot: int) -> float:
        """For how long retention still keeps a snapshot."""
        context = self.store.context
        with context.catalog.reading() as tx:
            return kept_seconds(tx, snapshot, context.retention_of(self.store.table(table).definition))

    def _some_path(self, table: str) -> tuple[str, list[str] | None, bool]:
        indexes = self.store.table(table).indexes()
        if self.by_key and self.random.random() < 0.8:
            return self.random.choice(["key", "key", "none", "auto"]), None, False
        if not indexes or self.random.random() < self.direct:
            return self.random.choice(["none", "auto"]), None, False
        index = self.random.choice(indexes)
        if index.kind == "hash":
            return index.name, None, False
        order = list(index.columns) if self.random.random() < self.merged else None
        return index.name, order, self.random.random() < 0.5

    def _some_condition(self, table: str, index: str) -> Condition:
        names = self.schemas[table].names
        if self.by_key:
            domains = dict(DOMAINS[table])
            keys = self._rows(table)
            for at, name in enumerate(TABLES[table][1]):
                domains[name] = sorted({key[at] for key in keys})
            tested = [*TABLES[table][1], *self.random.sample(names[: len(domains)], 1)]
            return some_condition(self.random, {name: domains[name] for name in tested}, 1)
        decided = index in DEFINITIONS[table]
        if self.random.random() < (0.3 if decided else 0.6):
            return "", always
        kind = self.schemas[table].field(names[-1]).type
        if (
            self.changes_columns
            and kind in WIDER
            and not pa.types.is_string(kind)
            and self.random.random() < 0.7
        ):
            value = self.random.choice(VALUES[kind])
            return (
                f"{names[-1]} = {value}",
                lambda row: None if row[names[-1]] is None else row[names[-1]] == value,
            )
        if len(names) > len(DOMAINS[table]) and self.random.random() < 0.3:
            return f"{names[-1]} IS NULL", lambda row: row[names[-1]] is None
        tested = list(DOMAINS[table])
        if decided and self.random.random() < 0.6:
            tested = DEFINITIONS[table][index][0]  # what the index decides alone
        return some_condition(self.random, {name: DOMAINS[table][name] for name in tested})

    def _resume(self, key: str, got: list[Row], must: Must) -> None:
        """Go on from a key, in another object."""
        opened = self.store.context.sealer.open(key)
        read_only = self.random.random() < 0.5
        scan = self.store.resume_part(opened, ends_lease=not read_only)
        now = self.clock.now()
        self._note_lease(opened.lease)
        self.scans.append(
            ReadScan(*must, scan, opened.lease, opened.index, now, read_only, iter(scan), list(got))
        )

    def _advance_one(self) -> None:
        if self.scans:
            self._advance(self.random.choice(self.scans))

    def _advance(self, scan: ReadScan) -> None:
        """One page. Only a scan whose lease has ended may be reported that its snapshot is gone."""
        if scan not in self.scans:
            return
        there, before = scan.index not in self.dropped, scan.scan.stats.pages
        try:
            page = next(scan.pages, None)
        except (SnapshotExpired, TableChanged) as error:
            self._check_ended(scan, error)
            self._forget(scan)
            return
        except ScanConsumed:
            return  # it is in the middle of a page, and this was let in
        assert there or scan.scan.stats.pages == before, "it read an index that was dropped before"
        if page is None:
            scan.check(ended=True)
            self._forget(scan)
            return
        scan.got += rows_of(page)
        if page.key is None:
            if not scan.read_only:
                self.lease_ends[scan.lease] = 0.0
            return
        if self.clock.now() >= scan.opened_at + LEASE_SECONDS / 2:
            scan.opened_at = self.clock.now()
            self._note_lease(scan.lease)
        if self.random.random() < 0.3:
            scan.marks.append((page.key, len(scan.got)))

    def _note_lease(self, lease: str) -> None:
        """A scan that looks at its lease renews it, unless another one of the same key just did."""
        least = self.clock.now() + FRESH_LEASE * LEASE_SECONDS
        self.lease_ends[lease] = max(self.lease_ends.get(lease, 0.0), least)

    def _forget(self, scan: ReadScan) -> None:
        if scan in self.scans:
            self.scans.remove(scan)

    def _read_only_page(self) -> None:
        fresh = self.clock.now() - LEASE_SECONDS / 2
        scans = [scan for scan in self.scans if scan.read_only and scan.opened_at > fresh]
        if scans:
            self._advance(self.random.choice(scans))

    def _check_ended(self, scan: ReadScan, error: Exception) -> None:
        scan.check(ended=False)
        if isinstance(error, TableChanged):
            assert scan.index in self.dropped, "its index is still there"
        else:
            assert self.clock.now() > self.lease_ends[scan.lease], "a leased snapshot expired"

    def _hand_over(self) -> None:
        """A scan goes on elsewhere, from the key that it has now or from one of long ago."""
        if not self.scans:
            return
        scan = self.random.choice(self.scans)
        key = scan.scan.key
        marks = list(scan.marks)
        if key is not None and scan.scan._reader is None:
            marks.append((key, len(scan.got)))
        if not marks:
            return
        key, returned = self.random.choice(marks)
        try:
            must = (scan.table, scan.what, scan.expected, scan.ordered, scan.most_pages)
            self._resume(key, scan.got[:returned], must)
        except (SnapshotExpired, TableChanged) as error:
            self._check_ended(scan, error)

    # Elasticity

    def _tablets(self) -> list[Tablet]:
        """Those that no live mover is at."""
        moving = {plan.tablet for plan in self.under_way}
        return [t for t in self.store.context.placement().tablets if t.id not in moving]

    def _some_move(self) -> tuple[Tablet, tuple[int, str]] | None:
        names = self.store.context.shard_names()
        moves = [(t, shard) for t in self._tablets() for shard in names.items() if shard[0] != t.shard]
        return self.random.choice(moves) if moves else None

    def _move(self) -> None:
        chosen = self._some_move()
        if chosen is not None:
            self.store.move(chosen[0].id, chosen[1][1])

    def _move_and_return(self) -> None:
        chosen = self._some_move()
        if chosen is not None:
            tablet, (_, name) = chosen
            home = self.store.context.shard_names()[tablet.shard]
            self.store.move(tablet.id, name)
            self.let_others_in()
            if self.store.context.placement().tablet(tablet.id) in self._tablets():
                self._go_home(tablet.id, home)

    def _go_home(self, tablet: int, home: str) -> None:
        names = self.store.context.shard_names()
        found = self.store.context.placement().tablet(tablet)
        if found is not None and home in names.values() and names[found.shard] != home:
            self.store.move(tablet, home)

    def _suspended_move(self) -> None:
        """A move that others come between at each point; it may fail, or its process may die."""
        chosen = self._some_move()
        if chosen is None:
            return
        tablet, (target, _) = chosen
        plan = Move(tablet.id, tablet.shard, target)
        fate = self.random.choice(["arrives", "arrives", "fails", "dies"])
        stop_at = self.random.choice(POINTS)

        def checkpoint(point: str) -> None:
            self.writers_wait = point == "switching"
            try:
                self.let_others_in(noise=0.7)
            finally:
                self.writers_wait = False
            if fate != "arrives" and point == stop_at:
                raise MoverStoppedError

        owner = DEAD_OWNER if fate == "dies" else new_owner()
        with self.store.context.catalog.writing() as tx:
            busy = move_of(tx, tablet.id)
            if busy is not None:
                return  # left behind by a process that died: a matter of `resume_moves`
            enter_moves(tx, [plan], owner)
        carrier = Mover(self.store.context, owner, checkpoint=checkpoint)
        if fate == "dies":
            carrier._undo = lambda move: None  # type: ignore[method-assign]
        self.under_way += [] if fate == "dies" else [plan]
        collections = self.collections
        try:
            carrier.carry_out(plan)
        except MoverStoppedError:
            pass
        except InvalidTopologyChange:
            pass  # the tablet or the target changed, or the move was taken over
        except TryAgain:
            assert self.collections > collections, "a move was refused for no reason"
        finally:
            if fate != "dies":
                self.under_way.remove(plan)

    def _resume_moves(self) -> None:
        self.store.resume_moves()

    def _split(self) -> None:
        tablets = [tablet for tablet in self._tablets() if len(tablet.slots) > 1]
        if tablets:
            self.store.split(self.random.choice(tablets).id)

    def _join(self) -> None:
        tablets = self._tablets()
        pairs = [(a, b) for a, b in pairwise(tablets) if a.end == b.start and a.shard == b.shard]
        if pairs:
            left, right = self.random.choice(pairs)
            self.store.join(left.id, right.id)

    def _expand(self) -> None:
        if len(self.store.context.shard_names()) < 5:
            self.new_shards += 1
            # Names of removed shards come back; their ids never do.
            taken = set(self.store.context.shard_names().values())
            free = next(name for name in ("s1", "s2", "s3", "s4", "s5", "s6") if name not in taken)
            self.store.expand(self._with_root(free))

    def _with_root(self, name: str) -> list[str] | dict[str, str]:
        """A new shard, with a place for it where the catalog is not in a directory of the store's own."""
        context = self.store.context
        if context.location.directory is not None:
            return [name]
        other = Path(context.root_of(min(context.shard_names())))
        return {name: str(other.with_name(f"{name}-{self.new_shards}"))}

    def _contract(self) -> None:
        busy = {shard for plan in self.under_way for shard in (plan.source, plan.target)}
        names = self.store.context.shard_names()
        free = [shard for shard in names if shard not in busy]
        if len(names) > 1 and free:
            self.store.contract(names[self.random.choice(free)])

    # Upkeep

    def _pack_otherwise(self, name: str) -> None:
        """Give the next files of a table a form; those that are there keep theirs, side by side."""
        self.store.table(name).set_compression(self.forms.choice(["none", "lz4", "zstd"]))

    def _compact(self) -> None:
        name = self.random.choice([None, *TABLES])
        self._pack_otherwise(name or "one")
        self._try(self.store.compact if name is None else lambda: self.store.table(name).compact())

    def _flush(self) -> None:
        """Let rows in the log become files; in between, others may change what is flushed."""
        store, table = self.some_store, self.store.table(self.random.choice(list(TABLES))).definition.id
        self._try(lambda: flush(store.context, table))

    def _merge(self) -> None:
        """Merge some fragments of a shard; in between, others may change these."""
        table = self.store.table(self.random.choice(list(TABLES))).definition
        with self.store.context.catalog.reading() as tx:
            fragments = tx.state.fragments(table=table.id)
        if fragments:
            shard = self.random.choice(fragments).shard
            here = [fragment.id for fragment in fragments if fragment.shard == shard]
            some = self.random.sample(here, self.random.randint(1, len(here)))
            start = self.random.choice([0, 0, 16])
            slots = None if self.random.random() < 0.7 else SlotSet.span(start, 40)
            self._try(
                lambda: len(merge_fragments(self.some_store.context, table, shard, some, slots=slots).gone)
            )

    def _collect_garbage(self) -> None:
        self.collections += 1
        self.store.collect_garbage(grace_seconds=self.random.choice([0, 0, 30]), share=1.0)

    def _wait(self) -> None:
        """Long enough for leases of scans that stand still to end, or not quite."""
        self.clock.advance(self.random.choice([LEASE_SECONDS / 2 - 100, LEASE_SECONDS + 1]))

    # The end

    def _check_everything(self) -> None:
        for table in TABLES:
            for index in self.store.table(table).indexes():
                if not index.ready:
                    self._build(table, index.name, None)
        now, retention = self.clock.now(), self.store.context.info.retention_seconds
        newest = self.store.context.catalog.versions()[1]
        commits = [(number, at) for table in TABLES for number, at, _ in self.history[table]]
        promised = max((number for number, at in commits if at <= now - retention), default=0)
        self._check_status(newest)
        for name in TABLES:
            oldest = self.store.table(name).definition.oldest_snapshot
            created = self.history[name][0][0]
            assert oldest <= max(promised, created), "a snapshot within the retention was given up"
            kept = range(oldest, newest + 1)
            for snapshot in {oldest, newest, *self.random.sample(kept, min(len(kept), 3))}:
                expected = Counter(map(comparable, self.rows_at(name, snapshot).values()))
                pages = islice(self.store.table(name).scan(snapshot=snapshot), len(expected) + 8)
                got = Counter(row for page in pages for row in rows_of(page))
                assert got == expected, f"{name} at {snapshot}"
            for index in self.store.table(name).indexes():
                self._check_index(name, index, self.random.choice([newest, oldest]))
            self._check_changes(name, oldest, newest)
        self._check_files()

    def _check_status(self, newest: int) -> None:
        """The rows that a status tells are never too few, and just so many where it says so."""
        for message in self.store.status()["tables"]:
            rows = len(self.rows_at(message["name"], newest))
            assert message["rows"] == rows if message["rows_exact"] else message["rows"] >= rows

    def _check_files(self) -> None:
        """What a fragment serves lives at its shard, and its file is what was written."""
        with self.store.context.catalog.reading() as tx:
            placement = tx.state.placement
            for found in tx.state.fragments():
                assert found.slots <= placement.at(found.shard), "a fragment serves slots that left"
        assert self.store.verify() == []

    def _check_index(self, table: str, index: IndexInfo, snapshot: int) -> None:
        """Every row is found through every index, in its order."""
        names, (_, primary_key, _) = self.schemas[table].names, TABLES[table]
        rows = [dict(zip(names, row, strict=True)) for row in self.rows_at(table, snapshot).values()]
        if index.kind == "hash":
            values = {name: self._value(table, name) for name in index.columns}
            found = Counter(
                comparable(tuple(row.values()))
                for row in rows
                if all(order_of([name])(row) == order_of([name])(values) for name in values)
            )
            text = " AND ".join(
                f"{name} IS NULL" if value is None else f"{name} = {literal(value)}"
                for name, value in values.items()
            )
            scan = self.store.table(table).scan(None, text, index=index.name, snapshot=snapshot)
            assert Counter(row for page in scan for row in rows_of(page)) == found, (index, text)
            return
        rows.sort(key=order_of([*index.columns, *primary_key]))
        domains = {name: DOMAINS[table][name] for name in index.columns}
        for text, means in (
            ("", always),
            *(some_condition(self.random, domains) for _ in range(2)),
        ):
            descending = self.random.random() < 0.5
            scan = self.store.table(table).scan(
                filter=text or None,
                index=index.name,
                snapshot=snapshot,
                order_by=[f"{name} DESC" if descending else name for name in index.columns],
                page_rows=self.random.choice([25, 100, 1_000]),
            )
            got = [row for page in scan for row in rows_of(page)]
            wanted = [comparable(tuple(row.values())) for row in rows if means(row) is True]
            assert got == (wanted[::-1] if descending else wanted), (index, descending, text)

    def _check_changes(self, table: str, oldest: int, newest: int) -> None:
        """The change feed tells every change with all columns that there are now."""
        before, after = (
            {key: comparable(row) for key, row in self.rows_at(table, number).items()}
            for number in (oldest, newest)
        )
        schema, primary_key, _ = TABLES[table]
        places = [schema.names.index(name) for name in primary_key]
        for batch in self.store.table(table).changes(oldest, newest, page_rows=50).batches():
            for message in zip(*batch.to_pydict().values(), strict=True):
                row, kind = comparable(message[:-3]), message[-3]
                key = tuple(row[at] for at in places)
                if kind in ("update_preimage", "delete"):
                    assert before.pop(key) == row, "a change of a row that was not so"
                else:
                    before[key] = row
        assert before == after, "the changes do not lead to the newest rows"
