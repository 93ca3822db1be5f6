"""Steps that read: pages of scans in progress, rows by their keys, tags and changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import (
    Busy,
    ElasticScanError,
    InvalidCall,
    InvalidOption,
    SnapshotExpired,
    TableChanged,
)
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.store import Scan
from elasticscan.store.context.leases import FRESH_LEASE, keep_lease, kept_seconds
from tests.simulation.conditions import Condition, always, order_of, some_condition
from tests.simulation.oracle import Row, TableOracle, comparable, rows_of
from tests.simulation.tables import DEFINITIONS, DOMAINS, VALUES, WIDER
from tests.simulation.world import ReadScan, World, step
from tests.simulation.writing import some_snapshot


@step
def get(world: World) -> None:
    """Read rows by their keys, with steps of others in between."""
    table = world.some_table()
    oldest, newest = world.oldest_kept(table), world.newest_commit()
    snapshot = world.random.choice([newest, world.random.randint(oldest, newest)])
    asked = world.random.choices(list(world.some_rows(table)), k=world.random.randint(1, 40))
    rows, names = table.at(snapshot), table.schema.names
    try:
        got = world.some_store.table(table.name).get(asked, names, snapshot, keep_missing=True)
    except SnapshotExpired:
        assert world.oldest_kept(table) > snapshot, "it is there"
        return
    nothing = (None,) * len(names)
    expected = [comparable(rows.get(key, nothing)) for key in asked]
    assert rows_of(got) == expected, f"keys of {table.name} at {snapshot}"


@step
def start_scan(world: World) -> None:
    table = world.some_table()
    names = table.schema.names
    snapshot = _scanned_snapshot(world, table, world.newest_commit())
    some = world.random.sample(names, world.random.randint(1, len(names)))
    columns = world.random.choice([names, some])
    index, order, descending = _some_path(world, table)
    text, means = _some_condition(world, table, index)
    pages: dict[str, Any] = {
        "page_rows": world.random.choice(world.page_rows),
        "page_bytes": world.random.choice(world.page_bytes),
    }
    path = f"{index}, {order}, {descending}, {pages}"
    what = f"{table.name} at {snapshot}: {columns} where {text or 'all'}; {path}"
    world.say(what)
    try:
        scan = world.store.table(table.name).scan(
            columns,
            text or None,
            index=index,
            snapshot=snapshot,
            order_by=[f"{name} DESC" if descending else name for name in order] if order else None,
            **pages,
        )
    except InvalidOption:
        assert index == "key" or DEFINITIONS[table.name][index][1] == "hash", what
        return
    except Busy:
        building = world.index(table, index)
        assert building is not None and not building.ready, what
        return
    except SnapshotExpired:
        assert _kept_seconds(world, table, snapshot) <= 0, what
        return
    rows = table.where(snapshot, means)
    # A page of all rows has one or finishes a shard, others may have to skip many.
    most_pages = len(rows) if index == "none" and not text else 2 * world.versions
    if order:
        by = [*DEFINITIONS[table.name][index][0], *table.primary_key]
        rows.sort(key=order_of(by), reverse=descending)
    ordered = [comparable(tuple(row[name] for name in columns)) for row in rows]
    if scan.key is None:
        assert not ordered and not scan.slots, f"it reads nothing: {what}"
        return
    _resume(world, scan.key, [], what, Counter(ordered), ordered if order else None, most_pages + 4)


def _scanned_snapshot(world: World, table: TableOracle, newest: int) -> int:
    if world.style.changes_columns and table.tags and world.random.random() < 0.4:
        return world.random.choice(list(table.tags.values()))
    if world.random.random() < 0.4:
        return world.random.randint(world.oldest_kept(table), newest)
    return newest


def _kept_seconds(world: World, table: TableOracle, snapshot: int) -> float:
    """The seconds for which retention still keeps a snapshot."""
    context = world.store.context
    tx = context.catalog.newest()
    retention = context.retention_of(world.store.table(table.name).definition)
    return kept_seconds(tx, snapshot, retention)


def _some_path(world: World, table: TableOracle) -> tuple[str, list[str] | None, bool]:
    indexes = world.store.table(table.name).indexes()
    if world.style.is_by_key and world.random.random() < 0.8:
        return world.random.choice(["key", "key", "none", "auto"]), None, False
    if not indexes or world.random.random() < world.direct:
        return world.random.choice(["none", "auto"]), None, False
    index = world.random.choice(indexes)
    if index.kind == "hash":
        return index.name, None, False
    order = list(index.columns) if world.random.random() < world.merged else None
    return index.name, order, world.random.random() < 0.5


def _some_condition(world: World, table: TableOracle, index: str) -> Condition:
    names, domains, chance = table.schema.names, DOMAINS[table.name], world.random
    if world.style.is_by_key:
        keys = world.some_rows(table)
        drawn = {name: sorted({key[at] for key in keys}) for at, name in enumerate(table.primary_key)}
        tested = [*table.primary_key, *chance.sample(names[: len(domains)], 1)]
        return some_condition(chance, {name: (domains | drawn)[name] for name in tested}, 1)
    decided = index in DEFINITIONS[table.name]
    if chance.random() < (0.3 if decided else 0.6):
        return "", always
    last = names[-1]
    kind = table.schema.field(last).type
    if (
        world.style.changes_columns
        and kind in WIDER
        and not pa.types.is_string(kind)
        and chance.random() < 0.7
    ):
        value = chance.choice(VALUES[kind])
        return f"{last} = {value}", lambda row: None if row[last] is None else row[last] == value
    if len(names) > len(domains) and chance.random() < 0.3:
        return f"{last} IS NULL", lambda row: row[last] is None
    tested = list(domains)
    if decided and chance.random() < 0.6:
        tested = DEFINITIONS[table.name][index][0]  # what the index decides alone
    return some_condition(chance, {name: domains[name] for name in tested})


def _resume(world: World, key: str, got: list[Row], *must: Any) -> None:
    """Resume a scan from a key, in another object."""
    opened = world.store.context.sealer.open(key)
    read_only = world.random.random() < 0.5
    context = world.store.context
    table, base = keep_lease(context, opened), context.base_topology(opened.base_topology)
    scan = Scan(context, table, base, opened, ends_lease=not read_only)
    now = world.clock.now()
    _note_lease(world, opened.lease)
    world.scans.append(
        ReadScan(*must, scan, opened.lease, opened.index, now, read_only, iter(scan), list(got))
    )


@step
def advance_one(world: World) -> None:
    if world.scans:
        advance(world, world.random.choice(world.scans))


@step
def read_only_page(world: World) -> None:
    """Read a page of a scan that writes nothing, while writers wait."""
    fresh = world.clock.now() - LEASE_SECONDS / 2
    scans = [scan for scan in world.scans if scan.read_only and scan.opened_at > fresh]
    if scans:
        advance(world, world.random.choice(scans))


def advance(world: World, scan: ReadScan) -> None:
    """Read one page. Only a scan whose lease has ended may fail because its snapshot is gone."""
    if scan not in world.scans:
        return
    there, before = scan.index not in world.dropped, scan.scan.stats.pages
    try:
        page = next(scan.pages, None)
    except (SnapshotExpired, TableChanged) as error:
        _check_ended(world, scan, error)
        _forget(world, scan)
        return
    except InvalidCall:
        return  # this is a nested step in the middle of a page of this scan
    except ElasticScanError:
        _forget(world, scan)
        scan.check(ended=False)
        raise
    assert there or scan.scan.stats.pages == before, "it read an index that was dropped before"
    if page is None:
        scan.check(ended=True)
        _forget(world, scan)
        return
    scan.got += rows_of(page)
    if page.key is None:
        if not scan.read_only:
            world.lease_ends[scan.lease] = 0.0
        return
    if world.clock.now() >= scan.opened_at + LEASE_SECONDS / 2:
        scan.opened_at = world.clock.now()
        _note_lease(world, scan.lease)
    if world.random.random() < 0.3:
        scan.marks.append((page.key, len(scan.got)))


def _note_lease(world: World, lease: str) -> None:
    """A scan that checks its lease renews it, unless another scan with the same key just did."""
    least = world.clock.now() + FRESH_LEASE * LEASE_SECONDS
    world.lease_ends[lease] = max(world.lease_ends.get(lease, 0.0), least)


def _forget(world: World, scan: ReadScan) -> None:
    if scan in world.scans:
        world.scans.remove(scan)


def _check_ended(world: World, scan: ReadScan, error: Exception) -> None:
    scan.check(ended=False)
    if isinstance(error, TableChanged):
        assert scan.index in world.dropped, "its index is still there"
    elif world.fault is None or not world.fault.catalog:
        assert world.clock.now() > world.lease_ends[scan.lease], "a leased snapshot expired"


@step
def hand_over(world: World) -> None:
    """Resume a scan in the other process, from its current key or from an old one."""
    if not world.scans:
        return
    scan = world.random.choice(world.scans)
    key, marks = scan.scan.key, list(scan.marks)
    if key is not None and scan.scan._reader is None:
        marks.append((key, len(scan.got)))
    if not marks:
        return
    key, returned = world.random.choice(marks)
    try:
        must = (scan.what, scan.expected, scan.ordered, scan.most_pages)
        _resume(world, key, scan.got[:returned], *must)
    except (SnapshotExpired, TableChanged) as error:
        _check_ended(world, scan, error)


@contextmanager
def closed(world: World) -> Iterator[None]:
    """End both processes for a while. Scans in progress are resumed from their keys in the next ones."""
    suspended = [(scan.scan.key, scan) for scan in world.scans if scan.scan._reader is None]
    world.scans.clear()
    world.end()
    yield
    for _ in range(2):
        world.stores.append(world.opened())
    for key, scan in suspended:
        if key is not None:
            _resume(world, key, scan.got, scan.what, scan.expected, scan.ordered, scan.most_pages)


@step
def reopen(world: World) -> None:
    with closed(world):
        pass


@step
def wait(world: World) -> None:
    """Wait until leases of inactive scans end, or slightly less."""
    world.clock.advance(world.random.choice([LEASE_SECONDS / 2 - 100, LEASE_SECONDS + 1]))


# Tags and changes


@step
def tag(world: World) -> None:
    table = world.some_table()
    snapshot, name = some_snapshot(world, table), f"t{world.tags_made}"
    world.tags_made += 1
    world.say(f"{name} of {table.name} at {snapshot}")
    assert world.some_store.table(table.name).tag(name, snapshot).snapshot == snapshot
    table.tags[name] = snapshot


@step
def drop_tag(world: World) -> None:
    some = [(table, name) for table in world.tables.values() for name in table.tags]
    if some:
        table, name = world.random.choice(some)
        world.some_store.table(table.name).drop_tag(name)
        del table.tags[name]


@step
def read_tag(world: World) -> None:
    """Read all rows of a tag's snapshot; steps of others in between may drop the tag."""
    some = [(table, name) for table in world.tables.values() for name in table.tags]
    if some:
        table, name = world.random.choice(some)
        began = world.clock.now()
        try:
            check_tag(world, table, name, world.random.choice([2, 10, 65_536]))
        except SnapshotExpired:
            assert world.clock.now() > began + LEASE_SECONDS, "a leased snapshot expired"


def check_tag(world: World, table: TableOracle, name: str, page_rows: int) -> None:
    snapshot, names = table.tags[name], table.schema.names
    expected = Counter(map(comparable, table.at(snapshot).values()))
    scan = world.some_store.table(table.name).scan(names, snapshot=name, page_rows=page_rows)
    got = Counter(row for page in scan for row in rows_of(page))
    assert got == expected, f"tag {name} of {table.name} at {snapshot}"


@step
def read_changes(world: World) -> None:
    """Check that the changes between two snapshots lead from the rows of one to those of the other."""
    table, began = world.some_table(), world.clock.now()
    after, upto = sorted((some_snapshot(world, table), some_snapshot(world, table)))
    try:
        check_changes(world, table, after, upto)
    except SnapshotExpired:
        assert world.clock.now() > began + LEASE_SECONDS, "changes expired although they have a lease"


def check_changes(world: World, table: TableOracle, oldest: int, newest: int) -> None:
    """Check that the change feed has every change, with all current columns."""
    before, after = (
        {key: comparable(row) for key, row in table.at(number).items()} for number in (oldest, newest)
    )
    places = [table.schema.names.index(name) for name in table.primary_key]
    for batch in world.store.table(table.name).changes(oldest, newest, page_rows=50).batches():
        for change in zip(*batch.to_pydict().values(), strict=True):
            row, kind = comparable(change[:-3]), change[-3]
            key = tuple(row[at] for at in places)
            if kind in ("update_preimage", "delete"):
                assert before.pop(key) == row, "a change of a row that was not so"
            else:
                before[key] = row
    assert before == after, "the changes do not lead to the newest rows"
