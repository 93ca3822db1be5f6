"""Programs of stores: makes the world of a program, and the steps played in it, from a seed.

with Programs(directory) as programs:
    programs.run(seed)                   raises an error if a rule does not hold
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from elasticscan.base import concurrency, limits
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.optimizer import binding
from elasticscan.storage import copying, fragment_writer, open_disk
from elasticscan.storage.indexes import pages as index_pages
from elasticscan.storage.indexes import run as index_run
from elasticscan.store import Store
from elasticscan.store.context import memory
from elasticscan.store.moves import mover
from elasticscan.store.moves.mover import Mover
from elasticscan.store.upkeep import compaction, executor
from elasticscan.store.upkeep.after_commit import AfterCommit
from tests.base.connections import prepare_connections
from tests.base.manual_clock import ManualClock
from tests.simulation import checks, damage, elasticity, upkeep  # noqa: F401 - steps
from tests.simulation.engine import Engine, Step
from tests.simulation.faults import FAULTS, catalog_files
from tests.simulation.oracle import TableOracle
from tests.simulation.tables import STYLES, STYLES_BY_NAME, TABLES, Style
from tests.simulation.world import START, Killed, World
from tests.storage.faulty_disk import FaultyDisk
from tests.store.copies_of_stores import copied_store

FAULTY = "faults"  # a style: each program has one of all faults
VARIANTS = 4  # of the lives of stores that faults befall


@dataclass(frozen=True, slots=True)
class Life:
    """A store that was made once, its expected answers, and digests of the files of its catalog."""

    place: Path
    tables: dict[str, TableOracle]
    live: dict[tuple[str, str], int]


class Programs(Engine[World]):
    """Programs of stores. To save time, stores are copies of prepared ones, and are not flushed."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self._stack = ExitStack()
        self._world: World | None = None
        self._lives: dict[int, Life] = {}

    def __enter__(self) -> Programs:
        patch = self._stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(concurrency, "ThreadPoolExecutor", NoThreads)
        self._leave_what_the_dead_leave(patch)
        for retention in (0, 60):
            self.create(self.directory / f"template{retention}", ["s1", "s2", "s3"], retention)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def create(self, uri: Path | str, shards: Any, retention: int) -> None:
        """Create a store with the tables of all programs."""
        with Store.create(
            uri, shards, tablets=8, slots=64, retention_seconds=retention, clock=ManualClock(START)
        ) as store:
            for name, (schema, primary_key, shard_key) in TABLES.items():
                store.create_table(name, schema, primary_key, shard_key)

    def make(self, place: Path, retention: int) -> Path | str:
        """Make a new store whose files are at a place; returns its uri."""
        return copied_store(self.directory / f"template{retention}", place, ManualClock(START))

    def _leave_what_the_dead_leave(self, patch: pytest.MonkeyPatch) -> None:
        """Skip clean-up in a process that dies: it undoes nothing, and its steps stay entered."""
        work = AfterCommit._work

        def unless_dying(act: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args: None if isinstance(sys.exc_info()[1], Killed) else act(*args)

        def work_alone(after: AfterCommit, *left: Any) -> None:
            """Run the upkeep without steps of others: the oracle does not know the commit yet."""
            with nullcontext() if self._world is None else self._world.alone():
                work(after, *left)

        for owner, name in ((compaction, "discard"), (Mover, "_undo"), (executor, "end_step")):
            patch.setattr(owner, name, unless_dying(getattr(owner, name)))
        patch.setattr(AfterCommit, "_work", work_alone)

    def begin(self, stack: ExitStack, seed: int, style: str | None) -> tuple[World, Iterator[Step]]:
        rng = random.Random(seed)
        style = style or rng.choice(list(STYLES))
        if style == FAULTY:
            style = rng.choice(sorted(FAULTS))
        stack.callback(self._end, seed)
        begin = self._begin_damaged if style in FAULTS else self._begin
        self._world = world = begin(stack, self.directory / f"store{seed}", rng, style)
        stack.callback(world.end)
        return world, _drawn(world, style)

    def _end(self, seed: int) -> None:
        self._world = None
        for left in self.directory.glob(f"store{seed}*"):
            shutil.rmtree(left)

    def make_step(self, world: World, step: Step) -> None:
        world.clock.advance(max(0.0, step.seconds - world.clock.now()))
        noise = world.noise
        world.noise = 0.0 if step.quiet else noise
        if step.name == "end":
            (checks.check_end if world.damage is None else damage.check_damaged_end)(world)
        else:
            world.make(step.name)
        world.noise = noise

    def _begin(self, stack: ExitStack, place: Path, rng: random.Random, style: str) -> World:
        """A world with a new store, whose limits are so small that a few rows fill files, runs and rounds."""
        uri, clock = self.make(place, rng.choice([0, 60])), ManualClock(START)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        set_small_limits(patch, rng)
        kind = (STYLES | STYLES_BY_NAME)[style]
        world = World(lambda: fast_store(uri, clock, self._point), clock, rng, kind)
        if kind.is_kept:
            patch.setattr(compaction, "MOST_AT_ONCE", world.most_at_once)
            patch.setattr(executor, "GARBAGE_SECONDS", 0)
        return world

    def _begin_damaged(self, stack: ExitStack, place: Path, rng: random.Random, style: str) -> World:
        """A world with a store that has some history, and disks that may fail."""
        life, fault = self.life(rng.randrange(VARIANTS)), FAULTS[style]
        copied_store(life.place, place, ManualClock(START))
        set_large_limits(stack.enter_context(pytest.MonkeyPatch.context()), rng, rng.random() < 0.7)
        disks: dict[str, FaultyDisk] = {}
        weights = {name: n for name, n in damage.WEIGHTS.items() if name not in fault.without}
        world = self._large_world(place, disks, rng, weights | dict.fromkeys(fault.often, 20))
        world.tables = {name: table.copied() for name, table in life.tables.items()}
        world.live = life.live
        for disk in disks.values():
            disk.flushes = not fault.unflushed
        world.older_catalog = catalog_files(place)
        return world

    def _large_world(
        self,
        place: Path,
        disks: dict[str, FaultyDisk],
        rng: random.Random,
        weights: dict[str, int],
    ) -> World:
        clock = ManualClock(START)

        def disk_of(root: str) -> FaultyDisk:
            return disks.setdefault(Path(root).name, FaultyDisk(open_disk(root)))

        opened = partial(fast_store, place, clock, self._point, disks=disk_of)
        world = World(opened, clock, rng, Style(weights))
        for name in ("s1", "s2"):
            disk_of(str(place / "shards" / name))
        world.place, world.disks, world.disk_of = place, disks, disk_of
        damage.make_large(world)
        return world

    def make_lives(self) -> None:
        """Make all stores for programs with faults."""
        for variant in range(VARIANTS):
            self.life(variant)

    def life(self, variant: int) -> Life:
        """A store with some history, which programs with faults copy."""
        if variant not in self._lives:
            place, rng = self.directory / f"life{variant}", random.Random(variant)
            self.create(place, ["s1", "s2"], 3_600)
            with pytest.MonkeyPatch.context() as patch:
                set_large_limits(patch, rng, True)
                world = self._large_world(place, {}, rng, {})
                damage.live_a_little(world, variant)
                files = damage.files_below(place)
                live = {key: damage.digest_of(files[key]) for key in damage.live_files(world.store)}
                world.end()
            self._lives[variant] = Life(place, world.tables, live)
        return self._lives[variant]

    def _point(self, name: str) -> None:
        """Call the world at each point where another process could act between two steps."""
        if self._world is not None:
            self._world.let_others_in()
            if name == "runs built":
                self._world.die_if_it_is_time()


def _drawn(world: World, style: str) -> Iterator[Step]:
    """Draw the steps of a program, each after the one before was played."""
    chance, clock = world.random, world.clock

    def some(count: int, name: str) -> Iterator[Step]:
        for _ in range(count):
            yield Step(name, chance.getstate(), clock.now(), quiet=True)

    if style in FAULTS:
        yield from some(chance.randint(0, 3), "start_scan")
        yield from some(chance.randint(0, 3), "advance_one")
        yield from some(min(chance.randint(1, 3), FAULTS[style].writes), "write")
        yield from some(1, style)
        steps = chance.randint(4, 10)
    else:
        yield from some(chance.randint(0, 3), "write")
        yield from some(chance.randint(0, 3) if world.weights.get("create_index") else 0, "create_index")
        steps = chance.randint(10, 35)
    for _ in range(steps):
        name = world.some_step()
        yield Step(name, chance.getstate(), clock.now())
    yield Step("end", chance.getstate(), clock.now())


class NoThreads(ThreadPoolExecutor):
    """A pool on a system without threads: work is done in turn, so that a seed gives one schedule."""

    def submit(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")


def set_small_limits(patch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Set limits so small that a few rows fill files, runs, batches and rounds of a page."""
    rows = rng.choice([2, 5, 65_536])
    patch.setattr(fragment_writer, "BATCH_ROWS", rows)
    patch.setattr(copying, "BATCH_ROWS", rows)
    patch.setattr(mover, "SMALL_REST_ROWS", rng.choice([0, 10, 1_000]))
    patch.setattr(limits, "INLINE_BYTES", rng.choice([0, 0, 1_000, 1 << 16, 1 << 16]))
    patch.setattr(memory, "_FEW_ROWS", rng.choice([0, 20, 256]))
    patch.setattr(index_run, "BATCH_ROWS", rng.choice([2, 5, 65_536]))
    patch.setattr(index_run, "RUN_ROWS", rng.choice([12, 40, 1 << 22]))
    patch.setattr(index_pages, "LEAST_ENTRIES", rng.choice([1, 20, 65_536]))
    patch.setattr(index_pages, "_FIRST_ROUND", rng.choice([1, 8, 4_096]))
    patch.setattr(binding, "MAX_RANGES", rng.choice([2, 1_000]))


def set_large_limits(patch: pytest.MonkeyPatch, rng: random.Random, in_files: bool) -> None:
    """Set limits so that files have several batches of many rows, and names that the seed decides."""
    names = random.Random(rng.random())
    patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128)))
    patch.setattr(fragment_writer, "BATCH_ROWS", 300)
    patch.setattr(copying, "BATCH_ROWS", 300)
    patch.setattr(index_run, "BATCH_ROWS", 200)
    patch.setattr(limits, "INLINE_BYTES", 0 if in_files else limits.INLINE_BYTES)


def fast_store(
    uri: Path | str, clock: ManualClock, sync_point: Callable[[str], None] = lambda _: None, **more: Any
) -> Store:
    """A store whose catalog does not wait for the disk: tests do not lose power."""
    store = Store.open(uri, clock=clock, upkeep="off", **more)
    store.context.sync_point = sync_point
    if isinstance(store.context.catalog.home, SqliteHome):
        prepare_connections(store.context.catalog, _without_waiting)
    return store


def _without_waiting(connection: Any) -> Any:
    connection.execute("PRAGMA synchronous = OFF")
    return connection
