"""Random programs against a real store on a disk, beside a plain dict: the harness of the model tests.

A program writes, deletes, overwrites, moves, splits, joins, expands, contracts, compacts, collects
garbage and reads pages of several scans, in an order that one seed decides. Wherever the store
would let another process in, the harness does so: before, in the middle of and after a page,
between staging and committing a write, between merging and swapping a compaction, and at each
point where a mover could be suspended or killed.

    with Kitchen(directory) as kitchen:
        kitchen.run(seed)

raises an error that names the seed when any scan returned other rows than its snapshot had.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from sqlalchemy import event

from elasticscan.base.errors import InvalidTopologyChange, ScanInUse, SnapshotExpired, TryAgain
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.storage import copying, fragment
from elasticscan.store import Page, Scan, Store, Table, mover
from elasticscan.store.mover import Mover
from elasticscan.store.owners import machine, new_owner
from elasticscan.topology import Move, Tablet
from tests.base.manual_clock import ManualClock

Key = tuple[Any, ...]
Row = tuple[Any, ...]

# Later than any file is made, so that garbage collection without grace takes every file it may.
START = 4_000_000_000.0
POINTS = ("copying", "copied", "caught_up", "switching", "target_serves")
DEAD_OWNER = f"{machine()}:{(1 << 22) + 1}:0:0"  # no process can have this id
ONE = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
TWO = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])
# By name: the schema, the primary key, the shard key.
Tables = dict[str, tuple[pa.Schema, list[str], list[str]]]
TABLES: Tables = {"one": (ONE, ["id"], ["id"]), "two": (TWO, ["a", "b"], ["a"])}

# The operations, and how often each is done.
WEIGHTS = {
    "write": 10,
    "overwrite": 1,
    "delete": 4,
    "start_scan": 6,
    "advance_one": 16,
    "hand_over": 3,
    "move": 5,
    "move_and_return": 2,
    "suspended_move": 5,
    "resume_moves": 1,
    "split": 2,
    "join": 2,
    "expand": 1,
    "contract": 1,
    "compact": 4,
    "collect_garbage": 3,
    "wait": 1,
}
# Some programs look into a corner where few rules meet; a mixture likes what chance likes.
STYLES: dict[str, dict[str, int] | None] = {
    "mixture": None,
    "another mixture": None,
    "a third mixture": None,
    "compaction below movers": {"delete": 8, "suspended_move": 20, "compact": 8, "start_scan": 1},
    "leases": {
        "delete": 3,
        "start_scan": 10,
        "advance_one": 5,
        "hand_over": 2,
        "compact": 8,
        "wait": 2,
    },
}


class MoverStoppedError(Exception):
    """What a test raises in a mover to make its move fail or its process seem dead."""


@dataclass(slots=True)
class SoupScan:
    """A scan of the program: what it returned, and what it must have returned at its end."""

    table: str
    scan: Scan
    lease: str
    expected: Counter[Row]
    opened_at: float
    read_only: bool  # its pages never write to the catalog while its lease is fresh
    pages: Iterator[Page]
    got: list[Row] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)  # (a key, rows returned until then)

    def check(self) -> None:
        got = Counter(self.got)
        assert got == self.expected, (
            f"scan of {self.table} at {self.scan.snapshot}: "
            f"lost {self.expected - got}, too many {got - self.expected}"
        )


class Kitchen:
    """Makes stores quickly (copies of two that were made once, not flushed) and runs programs."""

    tables: ClassVar[Tables] = TABLES
    test_file: ClassVar[str] = "tests/store/test_model.py"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._patch = pytest.MonkeyPatch()
        self._soup: Soup | None = None

    def __enter__(self) -> Kitchen:
        self._patch.setattr(os, "fsync", lambda handle: None)
        for retention in (0, 60):
            with Store.create(
                self.directory / f"template{retention}",
                ["s1", "s2", "s3"],
                tablets=8,
                slots=64,
                retention_seconds=retention,
                clock=ManualClock(START),
            ) as store:
                for name, (schema, primary_key, shard_key) in self.tables.items():
                    store.create_table(name, schema, primary_key, shard_key)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patch.undo()

    def run(self, seed: int, style: str | None = None) -> None:
        """Run the program of a seed; `style` is one of `STYLES`, by default the seed's own."""
        rng = random.Random(seed)
        template = self.directory / f"template{rng.choice([0, 60])}"
        place = self.directory / f"store{seed}"
        shutil.copytree(template, place)
        try:
            with pytest.MonkeyPatch.context() as patch, fast_store(place, self._point) as store:
                store.context.catalog.settle()  # the copy has secrets of its own before any key is made
                rows = rng.choice([2, 5, 65_536])
                patch.setattr(fragment, "BATCH_ROWS", rows)
                patch.setattr(copying, "BATCH_ROWS", rows)
                patch.setattr(mover, "SMALL_REST_ROWS", rng.choice([0, 10, 1_000]))
                self._soup = self._program(store, rng, style)
                self._soup.run()
        except BaseException as error:
            error.add_note(f"replay with: ELASTICSCAN_SEEDS={seed} pytest {self.test_file}")
            raise
        finally:
            self._soup = None
            shutil.rmtree(place)

    def _program(self, store: Store, rng: random.Random, style: str | None) -> Soup:
        return Soup(store, rng, style or rng.choice(list(STYLES)))

    def _point(self, _: str = "") -> None:
        """Let others in wherever another process could come between two steps."""
        if self._soup is not None:
            self._soup.let_others_in()


def fast_store(place: Path, checkpoint: Callable[[str], None] = lambda _: None) -> Store:
    """A store whose catalog does not wait for the disk: nobody pulls the plug on a test."""
    store = Store.open(place, clock=ManualClock(START), checkpoint=checkpoint)
    engine = store.context.catalog._engine
    engine.dispose()

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    return store


def rows_of(page: Page) -> list[Row]:
    return [comparable(row) for row in zip(*page.rows.to_pydict().values(), strict=True)]


def comparable(row: Row) -> Row:
    """A row in which NaN equals NaN."""
    return tuple("NaN" if value != value else value for value in row)


class Soup:
    """One program."""

    tables: ClassVar[Tables] = TABLES

    def __init__(self, store: Store, rng: random.Random, style: str) -> None:
        self.store, self.random = store, rng
        clock = store.context.clock
        assert isinstance(clock, ManualClock)
        self.clock = clock
        self.now_rows: dict[str, dict[Key, Row]] = {name: {} for name in self.tables}
        # What each table held after each of its commits: (commit, time, rows).
        self.history: dict[str, list[tuple[int, float, dict[Key, Row]]]] = {
            name: [(store.table(name).definition.created_commit, START, {})] for name in self.tables
        }
        self.scans: list[SoupScan] = []
        self.lease_ends: dict[str, float] = {}
        self.under_way: list[Move] = []
        self.keys = rng.choice([5, 40, 150])
        # Every program likes some operations, never does others, and is more or less disturbed.
        chance = {name: weight * rng.choice([0, 1, 1, 5]) for name, weight in WEIGHTS.items()}
        self.weights = {"write": 10} | (STYLES[style] or chance)
        self.noise = rng.choice([0.0, 0.1, 0.4])
        self.noise_left = 25
        self.depth = 0
        self.writers_wait = False  # inside the switch of a move: the catalog is locked
        self.collections = 0
        self.new_shards = 0

    def run(self) -> None:
        for _ in range(self.random.randint(10, 35)):
            self._operation()
        self.noise_left = 0
        for scan in list(self.scans):
            # Nothing moves any more: each page returns a row or finishes what its shard has.
            for _ in range(sum(scan.expected.values()) + len(self.store.context.shard_names()) + 1):
                self._advance(scan)
            assert scan not in self.scans, "a scan did not end although nothing moved any more"
        self._check_everything()

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
        value = self.random.randrange(1_000)
        if table == "one":
            return {(key,): (key, value, f"text {value}" * (key % 3)) for key in chosen}
        # Few values of the shard key, so that slots hold many rows each.
        return {(key % 4, f"k{key}"): (key % 4, f"k{key}", value) for key in chosen}

    def _write(self) -> None:
        self._commit(Table.upsert, upserts=True)

    def _overwrite(self) -> None:
        self._commit(Table.overwrite, upserts=False)

    def _commit(self, write: Callable[[Table, Any], int], upserts: bool) -> None:
        table = self.random.choice(list(self.tables))
        rows = self._rows(table)
        schema = self.tables[table][0]
        data = pa.Table.from_pylist(
            [dict(zip(schema.names, row, strict=True)) for row in rows.values()], schema=schema
        )
        number = self._try(lambda: write(self.store.table(table), data))
        if number is not None:
            # Whoever was let in before the commit has a smaller number, so its rows are there already.
            self._note(table, number, (self.now_rows[table] if upserts else {}) | rows)

    def _delete(self) -> None:
        table = self.random.choice(list(self.tables))
        gone = self._rows(table)
        schema, primary_key, _ = self.tables[table]
        key_schema = pa.schema([schema.field(name) for name in primary_key])
        keys = pa.Table.from_pylist([dict(zip(primary_key, k, strict=True)) for k in gone], schema=key_schema)
        number = self._try(lambda: self.store.table(table).delete(keys))
        if number is not None:
            left = {key: row for key, row in self.now_rows[table].items() if key not in gone}
            self._note(table, number, left)

    def _note(self, table: str, number: int, rows: dict[Key, Row]) -> None:
        assert number > self.history[table][-1][0], "commit numbers must grow"
        self.now_rows[table] = rows
        self.history[table].append((number, self.clock.now(), rows))

    def _try(self, operation: Callable[[], int]) -> int | None:
        """It may be refused only when somebody collected its files as garbage meanwhile."""
        collections = self.collections
        try:
            return operation()
        except TryAgain:
            assert self.collections > collections, "refused for no reason"
            return None

    def rows_at(self, table: str, snapshot: int) -> dict[Key, Row]:
        return next(rows for number, _, rows in reversed(self.history[table]) if number <= snapshot)

    # Reading

    def _start_scan(self) -> None:
        table = self.random.choice(list(self.tables))
        info = self.store.table(table).definition
        newest = self.store.context.catalog.versions()[1]
        snapshot = newest
        if self.random.random() < 0.4:
            snapshot = self.random.randint(info.oldest_snapshot, newest)
        names = self.tables[table][0].names
        columns = self.random.choice([names, names, ["v"]])
        scan = self.store.table(table).scan(
            columns=columns,
            snapshot=snapshot,
            page_rows=self.random.choice([1, 2, 3, 10, 65_536]),
            page_bytes=self.random.choice([1, 50, 400, 16 << 20, 16 << 20]),
        )
        rows = self.rows_at(table, snapshot).values()
        expected = Counter(tuple(row[names.index(name)] for name in columns) for row in rows)
        assert scan.key is not None
        self.scans.append(self._resumed(table, expected, scan.key, []))

    def _resumed(self, table: str, expected: Counter[Row], key: str, got: list[Row]) -> SoupScan:
        opened = self.store.context.sealer.open(key)
        read_only = self.random.random() < 0.5
        scan = self.store.resume_part(opened, ends_lease=not read_only)
        self.lease_ends[opened.lease] = self.clock.now() + LEASE_SECONDS
        return SoupScan(
            table, scan, opened.lease, expected, self.clock.now(), read_only, iter(scan), list(got)
        )

    def _advance_one(self) -> None:
        if self.scans:
            self._advance(self.random.choice(self.scans))

    def _advance(self, scan: SoupScan) -> None:
        """One page. Only a scan whose lease has ended may be told that its snapshot is gone."""
        if scan not in self.scans:
            return
        try:
            page = next(scan.pages, None)
        except SnapshotExpired:
            assert self.clock.now() > self.lease_ends[scan.lease], "a leased snapshot expired"
            self._forget(scan)
            return
        except ScanInUse:
            return  # it is in the middle of a page, and this was let in
        if page is None:
            scan.check()
            self._forget(scan)
            return
        scan.got += rows_of(page)
        if page.key is None:
            if not scan.read_only:
                self.lease_ends[scan.lease] = 0.0
            return
        if self.clock.now() >= scan.opened_at + LEASE_SECONDS / 2:
            scan.opened_at = self.clock.now()
            self.lease_ends[scan.lease] = self.clock.now() + LEASE_SECONDS
        if self.random.random() < 0.3:
            scan.marks.append((page.key, len(scan.got)))

    def _forget(self, scan: SoupScan) -> None:
        if scan in self.scans:
            self.scans.remove(scan)

    def _read_only_page(self) -> None:
        fresh = self.clock.now() - LEASE_SECONDS / 2
        scans = [scan for scan in self.scans if scan.read_only and scan.opened_at > fresh]
        if scans:
            self._advance(self.random.choice(scans))

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
            self.scans.append(self._resumed(scan.table, scan.expected, key, scan.got[:returned]))
        except SnapshotExpired:
            assert self.clock.now() > self.lease_ends[scan.lease], "a leased snapshot expired"

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
            busy = tx.move(tablet.id)
            if busy is not None:
                return  # left behind by a process that died: a matter of `resume_moves`
            tx.plan_move(plan, owner)
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
            self.store.expand([free])

    def _contract(self) -> None:
        busy = {shard for plan in self.under_way for shard in (plan.source, plan.target)}
        names = self.store.context.shard_names()
        free = [shard for shard in names if shard not in busy]
        if len(names) > 1 and free:
            self.store.contract(names[self.random.choice(free)])

    # Upkeep

    def _compact(self) -> None:
        name = self.random.choice([None, *self.tables])
        self._try(self.store.compact if name is None else lambda: self.store.table(name).compact())

    def _collect_garbage(self) -> None:
        self.collections += 1
        self.store.collect_garbage(self.random.choice([0, 0, 30]))

    def _wait(self) -> None:
        """Long enough for leases of scans that stand still to end, or not quite."""
        self.clock.advance(self.random.choice([LEASE_SECONDS / 2 - 100, LEASE_SECONDS + 1]))

    # The end

    def _check_everything(self) -> None:
        now, retention = self.clock.now(), self.store.context.info.retention_seconds
        newest = self.store.context.catalog.versions()[1]
        commits = [(number, at) for table in self.tables for number, at, _ in self.history[table]]
        promised = max((number for number, at in commits if at <= now - retention), default=0)
        for name in self.tables:
            oldest = self.store.table(name).definition.oldest_snapshot
            created = self.history[name][0][0]
            assert oldest <= max(promised, created), "a snapshot within the retention was given up"
            kept = range(oldest, newest + 1)
            for snapshot in {oldest, newest, *self.random.sample(kept, min(len(kept), 3))}:
                expected = Counter(map(comparable, self.rows_at(name, snapshot).values()))
                pages = islice(self.store.table(name).scan(snapshot=snapshot), len(expected) + 8)
                got = Counter(row for page in pages for row in rows_of(page))
                assert got == expected, f"{name} at {snapshot}"
        self._check_files()

    def _check_files(self) -> None:
        """What a fragment serves lives at its shard, and its file is what was written."""
        with self.store.context.catalog.reading() as tx:
            placement = tx.placement()
            for found in tx.fragments():
                assert found.slots <= placement.at(found.shard), "a fragment serves slots that left"
        assert self.store.verify() == []
