"""Stores for faults: one with some history, steps that examine it, and the rules that must hold.

Each step on a damaged store returns right rows or raises a typed error. If `verify` finds nothing, everything
must be right; if a full scan fails, `verify` must report damage. No file that the intact catalog refers to
may be removed or changed, unless another one replaced it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from elasticscan.base.errors import ElasticScanError
from elasticscan.store import Store, Table, repair_store
from tests.simulation.checks import check_status, check_tables
from tests.simulation.conditions import always
from tests.simulation.definitions import add_column, build
from tests.simulation.faults import files_below
from tests.simulation.oracle import comparable, rows_of
from tests.simulation.reading import advance, start_scan
from tests.simulation.world import World, step
from tests.simulation.writing import commit, delete_keys

MANY_KEYS = 3_000
WEIGHTS = {
    "scan_all": 10, "advance_one": 3, "hand_over": 3, "get": 2, "read_changes": 3, "write": 3, "delete": 2,
    "compact": 2, "move": 2, "create_index": 1, "collect_garbage": 3, "verify": 2, "status": 1, "reopen": 2,
    "repair": 1,
}  # fmt: skip


def make_large(world: World) -> None:
    """Set up the world for files with many segments, and without steps of others."""
    world.keys, world.long_texts, world.noise_left = {"one": MANY_KEYS, "two": 120}, True, 0
    world.versions = MANY_KEYS
    world.page_rows, world.page_bytes = [100, 1_000, 65_536], [16 << 20]


def live_a_little(world: World, variant: int) -> None:
    """Give a store large and small files, both kinds of indexes, history and a tablet that moved."""
    one, two = world.tables["one"], world.tables["two"]
    chance = world.random
    make_large(world)
    world.store.table("one").set_compression(("none", "lz4")[variant % 2])
    commit(world, one, world.rows_of_keys(one, range(MANY_KEYS)), Table.upsert)
    for table, name in (("one", "by_kd"), ("one", "hash_sk"), ("two", "by_bk"), ("two", "hash_k")):
        build(world, table, name, None)
    for count in (60, 20, 5):
        commit(world, two, world.rows_of_keys(two, chance.sample(range(120), count)), Table.upsert)
    tablet = chance.choice(world.store.topology.placement.tablets)
    home, away = ("s1", "s2") if tablet.shard == 1 else ("s2", "s1")
    delete_keys(world, two, chance.sample(sorted(two.before(two.newest + 1)), 8))
    world.store.move(tablet.id, away)
    commit(world, one, world.rows_of_keys(one, chance.sample(range(MANY_KEYS), 200)), Table.upsert)
    delete_keys(world, one, chance.sample(sorted(one.before(one.newest + 1)), 100))
    if variant % 2:
        commit(world, two, world.rows_of_keys(two, chance.sample(range(120), 40)), Table.overwrite)
    world.store.move(tablet.id, home)
    add_column(world)
    if variant // 2 % 2:
        world.store.table("one").compact()
    commit(world, one, world.some_rows(one), Table.upsert)
    commit(world, two, world.some_rows(two), Table.upsert)


def live_files(store: Store) -> set[tuple[str, str]]:
    """Every file that the catalog refers to for what is readable now, by (name of the root, path)."""
    names = store.context.shard_names()
    tx = store.context.catalog.newest()
    fragments = {fragment.id: fragment for fragment in tx.state.fragments()}
    runs = [run for table in tx.state.infos() for run in tx.state.runs(table.id)]
    found = {(names[f.shard], f.path) for f in fragments.values()}
    return found | {(names[fragments[run.fragment].shard], run.path) for run in runs}


def digest_of(path: Path) -> int:
    return xxhash.xxh3_64_intdigest(path.read_bytes())


# Steps


@step
def scan_all(world: World) -> None:
    before = len(world.scans)
    start_scan(world)
    for scan in world.scans[before:]:
        while scan in world.scans:
            advance(world, scan)


@step
def status(world: World) -> None:
    check_status(world, world.newest_commit())


@step
def verify(world: World) -> None:
    # A catalog that was open before the damage is read from its connection's cached pages.
    if world.store.verify() == [] and world.fault is not None and world.fault.lasting:
        _check_everything(world, "although verify found nothing")


@step
def repair(world: World) -> None:
    """Repair the store from its files: every row must have been written, and no key exists twice."""
    with tempfile.TemporaryDirectory(dir=world.place.parent) as directory:
        into = Path(directory) / "new"
        report = repair_store(world.place, into, disks=world.disk_of)
        with Store.open(into, clock=world.clock, upkeep="off") as made:
            for name in report.tables:
                table, handle = world.tables[name], made.table(name)
                found = [(field.name, field.type) for field in handle.schema]
                assert found == [(f.name, f.type) for f in table.schema][: len(found)], (
                    f"columns of {name}: {found}"
                )
                rows = rows_of(handle.scan().to_table())
                at = [table.schema.names.index(column) for column in table.primary_key]
                keys = Counter(tuple(row[i] for i in at) for row in rows)
                # Repair may have found only files from before a column was added.
                wrong = set(rows) - table.ever() if len(found) == len(table.schema) else set()
                assert not wrong and max(keys.values(), default=1) == 1, f"rows of {name}: {list(wrong)[:3]}"


# The end


@contextmanager
def _opened_again(world: World) -> Iterator[None]:
    stores, world.stores = world.stores, [world.opened()]
    try:
        yield
    finally:
        world.store.close()
        world.stores = stores


def _check_everything(world: World, why: str) -> None:
    """Check every table at every snapshot by every access path, and every change, in a reopened store."""
    try:
        with _opened_again(world):
            check_tables(world)
    except ElasticScanError as error:
        raise AssertionError(f"{why}, something cannot be read: {error}") from error


@step
def check_whole(world: World) -> None:
    """Check that `verify` reports damage if a direct full scan fails, and that rows are right otherwise."""
    failed = [table.name for table in world.tables.values() if not _reads(world, table.name)]
    if world.fault is not None and not world.fault.lasting:
        return
    with _opened_again(world):
        found = world.store.verify()
    if not found:
        assert not failed, f"{failed} cannot be read, and verify found nothing"
        _check_everything(world, "although verify found nothing")


def _reads(world: World, name: str) -> bool:
    """Return whether a table can be read; if so, check its rows."""
    table = world.tables[name]
    try:
        with _opened_again(world):
            scan = world.store.table(name).scan(table.schema.names, index="none")
            found = Counter(rows_of(scan.to_table()))
    except ElasticScanError:
        return False
    expected = table.where(scan.snapshot, always)
    assert found == Counter(comparable(tuple(row.values())) for row in expected), f"{name} at the end"
    return True


def check_damaged_end(world: World) -> None:
    """Check that scans end right or with an error, damage is found, live files exist, and healing works."""
    while world.scans:
        world.examine("finish a scan", lambda: advance(world, world.scans[0]))
    world.make("check_whole")
    assert world.damage is not None
    there = files_below(world.place)
    live = {key: digest for key, digest in world.live.items() if key not in world.damage.files}
    changed = [key for key in live if key in there and digest_of(there[key]) != live[key]]
    gone = {key for key in live if key not in there}
    if gone and not (world.fault is None or world.fault.catalog):
        with Store.open(world.place, clock=world.clock, upkeep="off") as store:
            gone &= live_files(store)
    assert not changed and not gone, f"live files were removed: {gone}, or changed: {changed}"
    if world.damage.heal is not None:
        world.damage.heal()
        for name in world.tables:
            assert _reads(world, name), f"{name} cannot be read, and all is healed"
