"""Steps that write rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from elasticscan.base.errors import AlreadyExists, RowsChanged, SnapshotExpired
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.store import Table
from tests.simulation.conditions import some_condition
from tests.simulation.oracle import Key, Rows, TableOracle, comparable, rows_of
from tests.simulation.tables import DOMAINS
from tests.simulation.world import World, step


@step
def write(world: World) -> None:
    table = world.some_table()
    commit(world, table, world.some_rows(table), Table.upsert)


@step
def overwrite(world: World) -> None:
    table = world.some_table()
    commit(world, table, world.some_rows(table), Table.overwrite)


def commit(world: World, table: TableOracle, rows: Rows, write: Callable[[Table, Any], int]) -> None:
    """Write rows as one commit."""
    world.say(f"{len(rows)} rows to {table.name}")
    data, rows = table.data(rows), table.whole(rows)
    number = world.attempt(lambda: write(world.some_store.table(table.name), data))
    if number is None:
        return
    before = table.before(number)
    overwrites = write == Table.overwrite
    world.note(table, number, rows if overwrites else before | rows, before | rows if overwrites else rows)
    if overwrites:
        table.overwrites.append(number)


@step
def delete(world: World) -> None:
    table = world.some_table()
    delete_keys(world, table, world.some_rows(table))


def delete_keys(world: World, table: TableOracle, gone: Collection[Key]) -> None:
    world.say(f"{len(gone)} keys of {table.name}")
    number = world.attempt(lambda: world.store.table(table.name).delete(table.keys(gone)))
    if number is not None:
        left = {key: row for key, row in table.before(number).items() if key not in gone}
        world.note(table, number, left, gone)


@step
def checked_write(world: World) -> None:
    """A write that requires something of its keys, of which others may write some meanwhile."""
    table = world.some_table()
    chosen = world.some_rows(table)
    rows = dict(world.random.sample(list(chosen.items()), world.random.randint(1, min(len(chosen), 6))))
    oldest, newest = world.oldest_kept(table), world.newest_commit()
    since = world.random.choice(
        [newest, newest, max(oldest, newest - 2), world.random.randint(oldest, newest)]
    )
    data, written = table.data(rows), table.whole(rows)
    how = world.random.choice(["upsert", "delete", "insert"])
    world.say(f"{how} {list(rows)} of {table.name} since {since}")
    handle = world.some_store.table(table.name)
    try:
        if how == "insert":
            number = world.attempt(lambda: handle.insert(data))
        else:
            asked = data if how == "upsert" else data.select(table.primary_key)
            number = world.attempt(lambda: getattr(handle, how)(asked, if_unchanged_since=since), True)
    except (RowsChanged, AlreadyExists) as error:
        at = error.fields["newest"]
        there = table.at(at) if how == "insert" else table.touched_in(since, at)
        assert rows.keys() & set(there), f"{how} of {list(rows)} since {since} was refused for no reason"
        return
    if number is None:
        return
    before = table.before(number)
    there = before if how == "insert" else table.touched_in(since, number - 1)
    lost = rows.keys() & set(there)
    assert not lost, f"{how} since {since} as commit {number} went over {lost}"
    left = {key: row for key, row in before.items() if key not in rows}
    world.note(table, number, left if how == "delete" else before | written, rows)


@step
def change_where(world: World) -> None:
    """A delete or an update by condition: as if done at one moment since it began."""
    table = world.some_table()
    text, means = some_condition(world.random, DOMAINS[table.name])
    first, deletes = table.newest, world.random.random() < 0.5
    world.say(f"{'delete' if deletes else 'update'} {table.name} where {text}")
    handle = world.some_store.table(table.name)
    change = partial(handle.delete, where=text) if deletes else partial(handle.update, {"v": "v + 1"}, text)
    number = world.attempt(change, is_leased=True)
    if number is None:
        return
    now, names = table.at(number - 1), table.schema.names
    at = names.index("v")
    candidates: list[tuple[Rows, set[Any]]] = []
    for moment in [number for number, _, _ in table.history if first <= number]:
        rows = table.at(moment)
        met = {key for key, row in rows.items() if means(dict(zip(names, row, strict=True))) is True}
        if not met & table.touched_in(moment, number):
            added = {k: (*r[:at], None if r[at] is None else r[at] + 1, *r[at + 1 :]) for k, r in now.items()}
            left = {key: row for key, row in now.items() if key not in met}
            candidates.append((left if deletes else left | {key: added[key] for key in met}, met))
    with world.alone():
        got = Counter(row for page in handle.scan(snapshot=number) for row in rows_of(page))
    fitting = [one for one in candidates if Counter(map(comparable, one[0].values())) == got]
    assert fitting, f"where {text} as commit {number} is as at no moment since {first}"
    left, met = fitting[-1]
    world.note(table, number, table.whole(left), met)


@step
def restore(world: World) -> None:
    """Give a table the rows of a snapshot, or of a tag."""
    table = world.some_table()
    named, to = table.tags, some_snapshot(world, table)
    name = world.random.choice(list(named)) if named and world.random.random() < 0.5 else None
    to, began = named.get(name or "", to), world.clock.now()
    world.say(f"{table.name} to {name or to}")
    handle = world.some_store.table(table.name)
    try:
        number = world.attempt(lambda: handle.restore(to))
    except SnapshotExpired:
        oldest, late = handle.definition.oldest_snapshot, world.clock.now() > began + LEASE_SECONDS
        assert oldest > to or late, f"{table.name} can be read at {to}, and not be restored to it"
        assert name not in named or late, "a tag keeps its snapshot"
        return
    if number is not None:
        before, after = table.at(number - 1), table.at(to)
        there = before.keys() | after.keys()
        replaced = any(to < other < number for other in table.overwrites)
        touched = there if replaced else there & table.touched_in(to, number - 1)
        world.note(table, number, table.whole(after), touched)


def some_snapshot(world: World, table: TableOracle) -> int:
    """A snapshot that is kept."""
    oldest, newest = world.oldest_kept(table), world.newest_commit()
    return world.random.choice([newest, oldest, world.random.randint(oldest, newest)])
