"""The rules that hold for a whole store at the end of a program."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from elasticscan.base.limits import SILENT_SECONDS
from elasticscan.metadata import IndexInfo
from elasticscan.store.moves.owners import moves_in, steps_in
from elasticscan.store.upkeep.executor import keep, states_of
from elasticscan.store.upkeep.planning import depth_of
from tests.simulation.conditions import always, literal, order_of, some_condition
from tests.simulation.definitions import build
from tests.simulation.oracle import TableOracle, comparable, rows_of
from tests.simulation.reading import advance, check_changes, check_tag
from tests.simulation.tables import DOMAINS
from tests.simulation.world import World

MOST_ROUNDS = 12  # of the last keeper, until nothing is pending


def check_end(world: World) -> None:
    """Check, without further moves, that scans end and snapshots, indexes, changes and files are right."""
    world.noise_left = 0
    for scan in list(world.scans):
        for _ in range(scan.most_pages + 4 * len(world.store.context.shard_names())):
            advance(world, scan)
        assert scan not in world.scans, f"it did not end although nothing moved: {scan.what}"
    if world.style.is_kept:
        _keep_until_nothing_is_due(world)
    for table in world.tables.values():
        for index in world.store.table(table.name).indexes():
            if not index.ready:
                build(world, table.name, index.name, None)
    check_tables(world)
    _check_files(world)
    for table in world.tables.values():
        assert {tag.name: tag.snapshot for tag in world.store.table(table.name).tags()} == table.tags
        for name in table.tags:
            check_tag(world, table, name, 65_536)
    if world.style.is_kept:
        _check_nothing_is_left_over(world)


def check_tables(world: World) -> None:
    """Check every table at its existing snapshots, through every index, and its changes."""
    kept_from, newest = world.clock.now() - world.store.context.known.retention_seconds, world.newest_commit()
    commits = [(number, at) for table in world.tables.values() for number, at, _ in table.history]
    promised = max((number for number, at in commits if at <= kept_from), default=0)
    check_status(world, newest)
    for table in world.tables.values():
        oldest = world.oldest_kept(table)
        assert oldest <= max(promised, table.created), "a snapshot within the retention was given up"
        kept = range(oldest, newest + 1)
        for snapshot in {oldest, newest, *world.random.sample(kept, min(len(kept), 3))}:
            expected = Counter(map(comparable, table.at(snapshot).values()))
            pages = islice(world.store.table(table.name).scan(snapshot=snapshot), len(expected) + 8)
            got = Counter(row for page in pages for row in rows_of(page))
            assert got == expected, f"{table.name} at {snapshot}"
        for index in world.store.table(table.name).indexes():
            if index.ready:
                _check_index(world, table, index, world.random.choice([newest, oldest]))
        check_changes(world, table, oldest, newest)


def check_status(world: World, newest: int) -> None:
    """Check that the row counts of `status` are upper bounds, and exact where it says so."""
    for described in world.store.status()["tables"]:
        rows = len(world.tables[described["name"]].at(newest))
        assert described["rows"] == rows if described["rows_exact"] else described["rows"] >= rows


def _check_files(world: World) -> None:
    """Check that the slots of each fragment are at its shard, and that its file is unchanged."""
    tx = world.store.context.catalog.newest()
    placement = tx.state.placement
    for found in tx.state.fragments():
        assert found.slots <= placement.at(found.shard), "a fragment serves slots that left"
    assert world.store.verify() == []


def _check_index(world: World, table: TableOracle, index: IndexInfo, snapshot: int) -> None:
    """Check that every row is found through every index, in its order."""
    rows, handle = table.where(snapshot, always), world.store.table(table.name)
    if index.kind == "hash":
        values = {name: world.some_value(table, name) for name in index.columns}
        of = order_of(index.columns)
        expected = Counter(comparable(tuple(row.values())) for row in rows if of(row) == of(values))
        text = " AND ".join(
            f"{name} IS NULL" if value is None else f"{name} = {literal(value)}"
            for name, value in values.items()
        )
        scan = handle.scan(None, text, index=index.name, snapshot=snapshot)
        assert Counter(row for page in scan for row in rows_of(page)) == expected, (index, text)
        return
    rows.sort(key=order_of([*index.columns, *table.primary_key]))
    domains = {name: DOMAINS[table.name][name] for name in index.columns}
    for text, means in (("", always), *(some_condition(world.random, domains) for _ in range(2))):
        descending = world.random.random() < 0.5
        scan = handle.scan(
            filter=text or None,
            index=index.name,
            snapshot=snapshot,
            order_by=[f"{name} DESC" if descending else name for name in index.columns],
            page_rows=world.random.choice([25, 100, 1_000]),
        )
        got = [row for page in scan for row in rows_of(page)]
        wanted = [comparable(tuple(row.values())) for row in rows if means(row) is True]
        assert got == (wanted[::-1] if descending else wanted), (index, descending, text)


def _keep_until_nothing_is_due(world: World) -> None:
    world.clock.advance(SILENT_SECONDS + 1)  # so that silent owners on other machines count as dead
    for _ in range(MOST_ROUNDS):
        kept = keep(world.store.context, world.policy)
        assert kept.problems == []
        if not kept.steps:
            break
    else:
        raise AssertionError(f"after {MOST_ROUNDS} rounds there is still something to do: {kept}")
    tx = world.store.context.catalog.newest()
    assert (steps_in(tx), moves_in(tx)) == ([], [])
    policy = world.policy
    sites = (here for table in tx.state.infos() for here in states_of(tx.state, table.id).values())
    for site in sites:
        history = [part for fragment, part in site.history if fragment.superseded_at is not None]
        assert depth_of(site.current, policy) <= policy.slot_fragments
        assert depth_of(history, policy) <= policy.history_fragments


def _check_nothing_is_left_over(world: World) -> None:
    for _ in range(2):  # the first run marks files, the second one removes them
        world.store.collect_garbage(grace_seconds=0, orphan_seconds=0, share=1.0)
    context = world.store.context
    expected = context.catalog.newest().state.known_paths()
    there = {
        (shard, path)
        for shard in context.shard_names()
        for path, _ in context.disk_of(shard).list()
        if path.startswith("t")
    }
    assert there == expected, "orphans, or missing files"
