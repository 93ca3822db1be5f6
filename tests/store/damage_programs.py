"""Random damage programs: a store is damaged, and whatever is done with it then is right or a typed error.

One seed takes a copy of a store that lived a little (`damage_model.Template`), damages it before it is opened
or while pages of scans are held, and does random things with it: scans of any kind, changes, writes, moves,
compaction, garbage collection without grace, verification, repair. What may come of each:

- the rows of the oracle, or an `ElasticScanError`: no other row, no other exception, no signal, no hanging;
- what is acknowledged afterwards is readable, or reading it is an `ElasticScanError`;
- where `verify` finds nothing, everything reads as the oracle says; where a scan fails for good, `verify`
  tells of it;
- no file that the intact catalog refers to is removed or changed, unless another one took its place;
- what vanished and comes back is there again.

    python -m tests.store.damage_programs DIRECTORY SEED...

runs programs in this process and prints a line of JSON before and after each; `tests/store/test_damage.py`
does so in child processes, which may die.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import shutil
import sys
import tempfile
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base import limits
from elasticscan.base.errors import ElasticScanError
from elasticscan.storage import copying, fragment, ingest, open_disk
from elasticscan.storage.indexes import run as index_run
from elasticscan.store import Page, Scan, Store, repair_store
from elasticscan.store.writing import indexing
from tests.base.manual_clock import ManualClock
from tests.storage.faulty_disk import FaultyDisk
from tests.store.conditions import always, order_of, some_condition
from tests.store.copies_of_stores import copied_store
from tests.store.damage_kinds import KINDS, Damage, Kind
from tests.store.damage_model import (
    DOMAINS,
    EQUAL,
    INDEXES,
    KEYS,
    NAMES,
    SCHEMAS,
    START,
    Model,
    Row,
    Template,
    digest_of,
    files_below,
    keys_table,
    live_files,
    opened,
    root_of,
    rows_of,
    some_rows,
)
from tests.store.random_programs import all_in_turn

VARIANTS = 4
HANGS_AFTER_SECONDS = 120

# The operations on a damaged store, and how often each is done.
WEIGHTS = {
    "scan": 10,
    "resume": 3,
    "changes": 3,
    "write": 3,
    "delete": 2,
    "compact": 2,
    "move": 2,
    "create_index": 1,
    "collect_garbage": 3,
    "verify": 2,
    "status": 1,
    "reopen": 2,
    "repair": 1,
}


class DamageNotSeenError(AssertionError):
    """The store did what it must not do."""


@dataclass(slots=True)
class Held:
    """A scan of which some pages were taken."""

    wanted: list[Row]
    ordered: bool
    pages: Iterator[Page]
    got: list[Row]
    key: str | None
    what: str


class DamagePrograms:
    """Makes templates when they are first wanted, and runs programs on copies of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._templates: dict[int, Template] = {}

    def template(self, variant: int) -> Template:
        if variant not in self._templates:
            with _small_batches(f"template {variant}"):
                self._templates[variant] = Template(self.directory / f"template{variant}", variant)
        return self._templates[variant]

    def prepare(self) -> None:
        """Make all templates; to be called before a fault is planted, which is not to befall them."""
        for variant in range(VARIANTS):
            self.template(variant)

    def run(self, seed: int, style: str | None = None) -> DamageProgram:
        """Run the program of a seed; `style` is the name of a kind of damage, by default the seed's own."""
        rng = random.Random(seed)
        template = self.template(rng.randrange(VARIANTS))
        place = self.directory / f"store{seed}"
        copied_store(template.place, place, ManualClock(START))
        kind = KINDS[style or rng.choice(sorted(KINDS))]
        program = DamageProgram(place, template.model.copy(), kind, rng)
        try:
            with _small_batches(f"program {seed}"):
                program.run()
        except BaseException as error:
            error.add_note(f"damage: {program.damage}; done: {program.done}")
            error.add_note(f"replay with: ELASTICSCAN_DAMAGE_SEEDS={seed} pytest tests/store/test_damage.py")
            raise
        finally:
            shutil.rmtree(place)
            shutil.rmtree(f"{place}.away", ignore_errors=True)
        return program


@contextmanager
def _small_batches(seed: str) -> Iterator[None]:
    """Files have several batches, their names are the seed's, and nobody pulls the plug on a test."""
    names = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128)))
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(fragment, "BATCH_ROWS", 300)
        patch.setattr(copying, "BATCH_ROWS", 300)
        patch.setattr(index_run, "BATCH_ROWS", 200)
        for module in (indexing, ingest):
            patch.setattr(module, "parallel", all_in_turn)
        in_files = seed.startswith("template") or random.Random(seed).random() < 0.7
        patch.setattr(limits, "INLINE_BYTES", 0 if in_files else limits.INLINE_BYTES)
        yield


class DamageProgram:
    """One program."""

    def __init__(self, place: Path, model: Model, kind: Kind, rng: random.Random) -> None:
        self.place, self.model, self.kind, self.random = place, model, kind, rng
        self.disks: dict[str, FaultyDisk] = {}
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.done: list[str] = []
        self.damage: Damage | None = None
        self.store: Store | None = None
        self.held: list[Held] = []
        self.replaced = False  # a compaction or a move may have taken the place of files
        self.clean = False  # the last look at everything, since which nothing was written, found nothing

    def _disk(self, root: str) -> FaultyDisk:
        name = Path(root).name
        if name not in self.disks:
            self.disks[name] = FaultyDisk(open_disk(root))
        return self.disks[name]

    def run(self) -> None:
        early = self.kind.when == "before" or (self.kind.when == "any" and self.random.random() < 0.5)
        try:
            if early:
                self._damage()
            self._reopen()
            if not early:
                if self.store is None:
                    raise DamageNotSeenError("an intact store cannot be opened")
                for _ in range(self.random.randint(0, 3)):
                    self._hold_a_scan()
                if self.kind.writes_first:
                    self._lose_writes()
                self._damage()
            for held in self.held:
                self._finish_held(held)
            for _ in range(self.random.randint(4, 10)):
                self._operation()
            self._check_whole()
            self._check_files()
            if self.damage is not None and self.damage.heal is not None:
                self.damage.heal()
                self._check_healed()
        finally:
            if self.store is not None:
                self.store.close()

    def _damage(self) -> None:
        for name in ("s1", "s2"):
            self._disk(str(root_of(self.place, name)))
        self.damage = self.kind.inflict(self.place, self.model, self.disks, self.random)

    def _lose_writes(self) -> None:
        for name in ("s1", "s2"):
            self._disk(str(root_of(self.place, name))).flushes = False
        for _ in range(self.random.randint(1, 3)):
            self._write()

    # Operations

    def _try(self, what: str, work: Callable[[], Any]) -> Any:
        """What an operation returns; None after an error that is raised as it should be."""
        self.done.append(what)
        name = what.partition(" ")[0]
        try:
            found = work()
        except ElasticScanError as error:
            if not str(error).startswith("[ES_"):
                raise DamageNotSeenError(f"an error without a code: {error!r}") from error
            self.outcomes[name, error.code] += 1
            self.done[-1] += f" ({error.code})"
            return None
        self.outcomes[name, "right"] += 1
        return found

    def _operation(self) -> None:
        weights = WEIGHTS | dict.fromkeys(self.kind.often, 20)
        name = self.random.choices(list(weights), list(weights.values()))[0]
        if self.store is None and name not in ("reopen", "repair"):
            name = "reopen"
        if name in self.kind.without:
            name = "scan" if self.store is not None else "reopen"
        getattr(self, f"_{name}")()

    def _reopen(self) -> None:
        if self.store is not None:
            self.store.close()
        self.store = self._try("open", lambda: opened(self.place, self._disk))

    @property
    def _opened(self) -> Store:
        assert self.store is not None
        return self.store

    def _scan(self) -> None:
        held = self._start_scan()
        if held is not None:
            self._finish_held(held)

    def _start_scan(self) -> Held | None:
        rng = self.random
        table = rng.choice(["big", "big", "small"])
        columns = rng.sample(NAMES[table], rng.randint(1, len(NAMES[table])))
        text, means = some_condition(rng, DOMAINS[table]) if rng.random() < 0.8 else ("", always)
        name, by, kind, _ = rng.choice([("auto", [], "", []), ("none", [], "", []), *INDEXES[table]])
        order, descending = None, False
        if kind == "sorted":
            order, descending = rng.choice([None, by]), rng.random() < 0.5
        if kind == "hash":
            column, value = EQUAL[table]
            text, means = f"{column} = '{value}'", lambda row: row[column] == value
        numbers = [number for number, _ in self.model.states[table][1:]]
        snapshot = rng.choice([None, None, rng.choice(numbers)])
        page_rows = rng.choice([100, 1_000, 65_536])
        path = f"{name} {order} {descending} {page_rows}"
        what = f"scan {table} {columns} at {snapshot} where {text or 'all'}; {path}"
        scan: Scan | None = self._try(
            what,
            lambda: self._opened.table(table).scan(
                columns,
                text or None,
                index=name,
                snapshot=snapshot,
                page_rows=page_rows,
                order_by=[f"{name} DESC" if descending else name for name in order] if order else None,
            ),
        )
        if scan is None:
            return None
        rows = self.model.rows_where(table, scan.snapshot, means)
        if order:
            rows.sort(key=order_of([*by, *KEYS[table]]), reverse=descending)
        wanted = [tuple(row[name] for name in columns) for row in rows]
        return Held(wanted, order is not None, iter(scan), [], scan.key, what)

    def _hold_a_scan(self) -> None:
        held = self._start_scan()
        if held is not None:
            for page in self._pages(held, self.random.randint(0, 2)):
                held.got += rows_of(page.rows)
                held.key = page.key
            self.held.append(held)

    def _pages(self, held: Held, most: int) -> Iterator[Page]:
        for _ in range(most):
            page = next(held.pages, None)
            if page is None:
                return
            yield page

    def _finish_held(self, held: Held) -> None:
        def finish() -> bool:
            if held.key is not None and self.random.random() < 0.3:
                # Elsewhere, from the key.
                with opened(self.place, self._disk) as other:
                    held.got += [row for page in other.resume(held.key) for row in rows_of(page.rows)]
            else:
                held.got += [row for page in held.pages for row in rows_of(page.rows)]
            return True

        if self._try(f"finish {held.what}", finish):
            _compare(held)

    def _resume(self) -> None:
        held = self._start_scan()
        if held is None:
            return

        def one_page() -> str | None:
            for page in self._pages(held, 1):
                held.got += rows_of(page.rows)
                held.key = page.key
            return held.key

        key = self._try("page", one_page)
        if key is not None and self._try(
            "resume",
            lambda: [held.got.extend(rows_of(page.rows)) for page in self._opened.resume(key)] + [True],
        ):
            _compare(held)

    def _changes(self) -> None:
        table, after, upto = self.random.choice(list(self.model.feeds))
        feed: pa.Table | None = self._try(
            f"changes {table} {after} {upto}",
            lambda: self._opened.table(table).changes(after, upto).to_table(),
        )
        if feed is not None and feed.num_rows + len(self.model.feeds[table, after, upto]):
            _same(Counter(rows_of(feed)), self.model.feeds[table, after, upto], f"changes of {table}")

    def _write(self) -> None:
        table = self.random.choice(["big", "small"])
        data, rows = some_rows(self.random, table, self.random.randint(1, 40), added=True)
        number = self._try(f"write {table}", lambda: self._opened.table(table).upsert(data))
        self.clean = False
        if number is not None:
            self.model.enter(table, number, {**self.model.at(table, number - 1), **rows})

    def _delete(self) -> None:
        table = self.random.choice(["big", "small"])
        keys = set(self.random.sample(sorted(self.model.states[table][-1][1]), 3))
        number = self._try(
            f"delete {table}", lambda: self._opened.table(table).delete(keys_table(table, keys))
        )
        self.clean = False
        if number is not None:
            before = self.model.at(table, number - 1)
            self.model.enter(table, number, {key: row for key, row in before.items() if key not in keys})

    def _compact(self) -> None:
        table = self.random.choice(["big", "small"])
        self.replaced = True
        self._try(f"compact {table}", lambda: self._opened.table(table).compact() + 1)

    def _move(self) -> None:
        self.replaced = True
        tablet, shard = self.random.randint(1, 4), self.random.choice(["s1", "s2"])
        self._try(f"move {tablet} to {shard}", lambda: self._opened.move(tablet, shard))

    def _create_index(self) -> None:
        name, column = self.random.choice([("more", "v"), ("again", "id")])
        self._try(f"create_index {name}", lambda: self._opened.table("big").create_index(name, [column]))

    def _collect_garbage(self) -> None:
        self._try("collect_garbage", lambda: self._opened.collect_garbage(grace_seconds=0) is not None)

    def _verify(self) -> None:
        found = self._try("verify", lambda: [len(self._opened.verify())])
        # A catalog that was open before it was damaged is read from what its connection remembers.
        if found == [0] and self.kind.lasting:
            self._everything_is_right("although verify found nothing")

    def _status(self) -> None:
        self._try("status", self._opened.status)

    def _repair(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.place.parent) as directory:
            into = Path(directory) / "new"
            report = self._try("repair", lambda: repair_store(self.place, into, disks=self._disk))
            if report is None:
                return
            with opened(into) as made:
                for table in report.tables:
                    columns = [(f.name, f.type) for f in made.table(table).schema]
                    if columns != [(f.name, f.type) for f in SCHEMAS[table]][: len(columns)]:
                        raise DamageNotSeenError(f"repair made columns of {table} that never were: {columns}")
                    rows = rows_of(made.table(table).scan().to_table())
                    at = [NAMES[table].index(name) for name in KEYS[table]]
                    keys = Counter(tuple(row[i] for i in at) for row in rows)
                    wrong = set(rows) - self.model.ever[table] if _whole(rows, table) else set()
                    if wrong or max(keys.values(), default=1) > 1:
                        raise DamageNotSeenError(
                            f"repair made rows of {table} that never were: {list(wrong)[:3]}"
                        )

    # The end

    def _full_scan(self, store: Store, table: str, index: str, snapshot: int) -> Counter[Row]:
        return Counter(
            rows_of(
                store.table(table).scan(list(NAMES[table]), None, index=index, snapshot=snapshot).to_table()
            )
        )

    def _everything_is_right(self, why: str) -> None:
        """Every table at every snapshot, through every path, and every change; with a store opened again."""
        try:
            with opened(self.place, self._disk) as store:
                for table, states in self.model.states.items():
                    for number, rows in states[1:]:
                        found = self._full_scan(store, table, "none", number)
                        _same(found, Counter(rows.values()), f"{table} at {number}, {why}")
                    sorted_one = INDEXES[table][0][0]
                    found = self._full_scan(store, table, sorted_one, states[-1][0])
                    _same(found, Counter(states[-1][1].values()), f"{table} by {sorted_one}, {why}")
                for (table, after, upto), feed in self.model.feeds.items():
                    changes = Counter(rows_of(store.table(table).changes(after, upto).to_table()))
                    _same(changes, feed, f"changes of {table} in ({after}, {upto}], {why}")
        except ElasticScanError as error:
            raise DamageNotSeenError(f"{why}, something cannot be read: {error}") from error

    def _check_whole(self) -> None:
        """Where a direct scan of everything fails, verify tells of it; where it does not, rows are right."""
        failed = None
        for table in self.model.states:

            def scan(table: str = table) -> Counter[Row]:
                with opened(self.place, self._disk) as store:
                    newest = store.table(table).scan(list(NAMES[table]), index="none")
                    found = Counter(rows_of(newest.to_table()))
                    wanted = Counter(self.model.at(table, newest.snapshot).values())
                    _same(found, wanted, f"{table} at the end")
                return found

            if self._try(f"check {table}", scan) is None:
                failed = table
        if not self.kind.lasting:
            return

        def verify() -> list[int]:
            with opened(self.place, self._disk) as store:
                return [len(store.verify())]

        if self._try("verify at the end", verify) == [0]:
            if failed is not None:
                raise DamageNotSeenError(f"table {failed!r} cannot be read, and verify found nothing")
            self._everything_is_right("although verify found nothing")

    def _check_files(self) -> None:
        assert self.damage is not None
        there = files_below(self.place)
        live = {key: digest for key, digest in self.model.live.items() if key not in self.damage.files}
        changed = [key for key in live if key in there and digest_of(there[key]) != live[key]]
        gone = {key for key in live if key not in there}
        if gone and self.replaced:
            with opened(self.place) as store:
                gone &= live_files(store)
        if changed or gone:
            raise DamageNotSeenError(f"live files were removed: {gone}, or changed: {changed}")

    def _check_healed(self) -> None:
        """What vanished is there again: it reads as the oracle says, without being opened again."""
        if self.store is None:
            self._reopen()
        for table in self.model.states:
            scan = self._opened.table(table).scan(list(NAMES[table]))
            found = Counter(rows_of(scan.to_table()))
            _same(found, Counter(self.model.at(table, scan.snapshot).values()), f"{table}, healed")


def _whole(rows: list[Row], table: str) -> bool:
    """Whether rows have all columns: repair may have found only files from before one was added."""
    return all(len(row) == len(NAMES[table]) for row in rows)


def _compare(held: Held) -> None:
    if held.ordered and held.got != held.wanted and Counter(held.got) == Counter(held.wanted):
        raise DamageNotSeenError(f"out of order: {held.what}")
    _same(Counter(held.got), Counter(held.wanted), held.what)


def _same(found: Counter[Row], wanted: Counter[Row], what: str) -> None:
    if found != wanted:
        lost, more = wanted - found, found - wanted
        raise DamageNotSeenError(
            f"{what}: {lost.total()} rows lost, {more.total()} too many, "
            f"such as {list(lost)[:2]} {list(more)[:2]}"
        )


def main(directory: str, seeds: list[int]) -> None:
    faulthandler.enable()
    programs = DamagePrograms(Path(directory))
    for seed in seeds:
        faulthandler.dump_traceback_later(HANGS_AFTER_SECONDS, exit=True)
        _say({"begun": seed})
        try:
            program = programs.run(seed)
        except BaseException as error:
            _say({"seed": seed, "failed": "".join(traceback.format_exception(error))})
            continue
        counted = [[*key, count] for key, count in sorted(program.outcomes.items())]
        _say({"seed": seed, "kind": program.kind.name, "outcomes": counted})
    faulthandler.cancel_dump_traceback_later()


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], [int(seed) for seed in sys.argv[2:]])
