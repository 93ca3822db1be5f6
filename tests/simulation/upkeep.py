"""Steps of upkeep: merges, flushes, garbage collection, keepers that die or fall silent, and backups."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.limits import GC_GRACE_SECONDS
from elasticscan.store import Store
from elasticscan.store.moves.owners import owning
from elasticscan.store.upkeep import compaction, executor
from elasticscan.topology import SlotSet
from tests.simulation.oracle import TableOracle, comparable, rows_of
from tests.simulation.tables import TABLES, WIDER
from tests.simulation.world import Fate, Killed, World, step


@step
def compact(world: World) -> None:
    name = world.random.choice([None, *TABLES])
    world.pack_otherwise(name or "one")
    world.attempt(world.store.compact if name is None else world.store.table(name).compact)


@step
def flush(world: World) -> None:
    """Flush rows of the log to files; in between, others may change these rows."""
    store, table = world.some_store, world.store.table(world.some_table().name).definition.id
    world.attempt(lambda: compaction.flush(store.context, table))


@step
def merge(world: World) -> None:
    """Merge some fragments of a shard; in between, others may change these."""
    table = world.store.table(world.some_table().name).definition
    fragments = world.store.context.catalog.newest().state.fragments(table=table.id)
    if not fragments:
        return
    shard = world.random.choice(fragments).shard
    here = [fragment.id for fragment in fragments if fragment.shard == shard]
    some = world.random.sample(here, world.random.randint(1, len(here)))
    start = world.random.choice([0, 0, 16])
    slots = None if world.random.random() < 0.7 else SlotSet.span(start, 40)
    context = world.some_store.context

    def merge_some() -> int:
        merging = compaction.plan_merge(context, context.catalog.newest(), table.id, shard, some, slots)
        return 0 if merging is None else merging.carry_out().gone

    world.attempt(merge_some)


@step
def collect_garbage(world: World) -> None:
    world.collections += 1
    world.store.collect_garbage(grace_seconds=world.random.choice([0, 0, 30]), orphan_seconds=0, share=1.0)


@step
def keep(world: World) -> None:
    """Run a round of a keeper, which may be killed, or be considered dead and continue."""
    fate = Fate(
        world.random.choice(["ends", "dies", "dies", "is silent"]), world.random.randint(1, 6), world.depth
    )
    store, collections, began = world.some_store, world.collections, world.clock.now()
    world.say(f"it {fate.what}")
    world.keepers.append(fate)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # An owner on another machine, whose processes are not visible here.
            elsewhere = f"elsewhere:1:0:{world.versions, len(world.keepers)}"
            named = (lambda: nullcontext(elsewhere)) if fate.what == "is silent" else owning
            patch.setattr(executor, "owning", named)
            kept = executor.keep(store.context, world.policy)
    except Killed:
        pass
    else:
        # Another keeper may remove files of this merge if a third one replaced them before the grace period.
        outlasted = world.collections > collections or world.clock.now() - began > GC_GRACE_SECONDS
        assert not kept.problems or outlasted, kept.problems
    finally:
        world.keepers.remove(fate)


@step
def back_up(world: World) -> None:
    """Make a backup with steps of others in between, and check the store that is restored from it."""
    if world.backups_made >= 3 or world.backing_up:
        return
    world.backups_made += 1
    target, copy = place_for(world, f"backup{world.backups_made}"), place_for(world, "copy")
    definitions = {name: max(table.definitions) for name, table in world.tables.items()}
    is_only_one = world.random.choice([False, True])
    world.backing_up = True
    world.noise_left += 3  # others may be let in, whatever happened before
    try:
        made = world.some_store.backup(target)
    finally:
        world.backing_up = False
    if is_only_one:  # the others are removed, which this one does not need
        for _, older in world.backups:
            shutil.rmtree(older)
        world.backups.clear()
    world.backups.append((made, target))
    one, place = world.random.choice(world.backups) if world.style.changes_columns else (made, target)
    with world.alone(), Store.from_backup(place, copy, clock=world.clock) as other:
        assert other.verify() == []
        for table in world.tables.values():
            definition = other.table(table.name).definition.definition
            assert one is not made or definition >= definitions[table.name], "a change of columns is missing"
            _check_copy(other, table, one.snapshot)
        if world.style.changes_columns:
            _live_on(world, other, world.some_table(), one.snapshot)
    shutil.rmtree(copy)


def _check_copy(copy: Store, table: TableOracle, newest: int) -> None:
    """A table of a backup has the columns and the rows that it had then, at its tags, too."""
    handle = copy.table(table.name)
    number = handle.definition.definition
    schema, _ = table.definitions[number]
    assert (handle.schema.names, handle.schema.types) == (schema.names, schema.types)
    for snapshot, asked in [(newest, None), *((tag.snapshot, tag.name) for tag in handle.tags())]:
        rows = table.at(snapshot, number).values()
        got = Counter(row for page in handle.scan(snapshot=asked) for row in rows_of(page))
        assert got == Counter(map(comparable, rows)), f"a copy of {table.name}, {asked or 'now'}"


def _live_on(world: World, copy: Store, table: TableOracle, newest: int) -> None:
    """Continue in a copy: give a dropped name to another column, and restore older rows."""
    handle = copy.table(table.name)
    number, added = handle.definition.definition, handle.schema.names[len(TABLES[table.name][0]) :]
    to = world.random.randint(handle.definition.oldest_snapshot, newest)
    expected = [comparable(row) for row in table.at(to, number).values()]
    if added:
        handle.drop_columns(added[-1:])
        handle.add_columns([pa.field(added[-1], world.random.choice(list(WIDER)))])
        expected = [(*row[:-1], None) for row in expected]
    handle.restore(to)
    assert executor.keep(copy.context, world.policy).problems == []
    got = Counter(row for page in handle.scan() for row in rows_of(page))
    assert got == Counter(expected), f"a copy of {table.name} that was restored to {to}"
    assert copy.verify() == []


def place_for(world: World, name: str) -> Path:
    """A place next to the store."""
    place = world.store.context.location.directory
    assert place is not None
    return place.with_name(f"{place.name}-{name}")
