"""Steps that change columns and indexes."""

from __future__ import annotations

import pyarrow as pa

from tests.simulation.tables import ADDED_KINDS, COLUMN_NAMES, DEFINITIONS, MOST_COLUMNS, TABLES, WIDER
from tests.simulation.world import Killed, World, step


@step
def add_column(world: World) -> None:
    table = world.some_table()
    schema = table.schema
    if world.random.random() < 0.1:  # as a process that did not hear that it went well
        assert world.some_store.table(table.name).add_columns(schema).names == schema.names
    elif len(schema) < MOST_COLUMNS:
        kinds = world.random.choices(list(ADDED_KINDS), k=world.random.choice([1, 1, 2]))
        new = [pa.field(f"c{len(schema) + at}", kind) for at, kind in enumerate(kinds)]
        handle = world.some_store.table(table.name)
        added = handle.add_columns(new).names
        table.gain(new, handle)
        assert added == table.schema.names


@step
def change_column(world: World) -> None:
    """Add, drop, rename or widen a column that came later; names that were dropped come again."""
    table = world.some_table()
    schema, handle = table.schema, world.some_store.table(table.name)
    added = list(range(len(TABLES[table.name][0]), len(schema)))
    free = [name for name in COLUMN_NAMES if name not in schema.names]
    how = world.random.choice(["add", "drop", "rename", "widen", "widen"])
    at = world.random.choice(added) if added else 0
    field = schema.field(at)
    world.say(f"{how} one of {table.name}")
    if free and (how == "add" or not added):
        new = pa.field(world.random.choice(free), world.random.choice(list(WIDER)))
        handle.add_columns([new])
        table.gain([new], handle)
    elif how == "drop":
        handle.drop_columns([field.name])
        table.schema = schema.remove(at)
        table.places.pop(at)
    elif how == "rename" and free:
        field = field.with_name(world.random.choice(free))
        handle.rename_column(schema.field(at).name, field.name)
        table.schema = schema.set(at, field)
    elif how == "widen" and WIDER[field.type] is not None:
        handle.widen_column(field.name, WIDER[field.type])
        table.schema = schema.set(at, field.with_type(WIDER[field.type]))
    assert handle.schema.names == table.schema.names
    assert handle.schema.types == table.schema.types
    table.note_definition(handle)


@step
def create_index(world: World) -> None:
    table = world.some_table()
    name = world.random.choice(list(DEFINITIONS[table.name]))
    known = world.index(table, name)
    if known is None or not known.ready:
        build(world, table.name, name, world.random.choice([None, None, 1, 2]))


@step
def build_on(world: World) -> None:
    left = [(table, i.name) for table in TABLES for i in world.store.table(table).indexes() if not i.ready]
    if left:
        build(world, *world.random.choice(left), world.random.choice([None, 1]))


def build(world: World, table: str, name: str, life: int | None) -> None:
    """Build an index whose builder may die."""
    columns, kind, include = DEFINITIONS[table][name]
    world.say(f"{name} of {table}")
    world.builders.append(life)
    try:
        made = world.store.table(table).create_index(name, columns, kind, include)
    except Killed:
        return
    finally:
        world.builders.pop()
    found = world.index(world.tables[table], name)
    assert found is None or found.id != made.id or found.ready, "it was built and cannot be used"


@step
def drop_index(world: World) -> None:
    known = [(table, index) for table in TABLES for index in world.store.table(table).indexes()]
    if known:
        table, index = world.random.choice(known)
        world.say(f"{index.name} of {table}")
        world.store.table(table).drop_index(index.name)
        world.dropped.add(index.id)
