"""Tables that gain columns: how rows that are older read, by every path and alongside everything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    FragmentDamaged,
    InvalidOption,
    TableChanged,
)
from elasticscan.metadata import Fragment
from elasticscan.storage import BatchCache, FragmentReader
from elasticscan.store import Store

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
NOTE = pa.struct([pa.field("tags", pa.list_(pa.string()), nullable=False), ("at", pa.timestamp("us"))])
NEW = [pa.field("n", pa.int32()), pa.field("note", NOTE), pa.field("by", pa.map_(pa.string(), pa.int64()))]
COUNT = 300

Row = dict[str, Any]


@pytest.fixture(params=[None, "zstd"], ids=["mapped", "compressed"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Two shards, a table of 300 rows: commit 2."""
    with Store.create(tmp_path / "store", ["a", "b"], tablets=8, slots=32) as made:
        made.create_table("t", SCHEMA, ["id"], compression=request.param)
        made.table("t").upsert(old_rows(range(COUNT)))
        yield made


def old_rows(ids: Any, v: str = "old") -> pa.Table:
    return pa.table({"id": list(ids), "v": [v] * len(ids)}, schema=SCHEMA)


def new_row(i: int) -> Row:
    note = {"tags": ["x", None], "at": None} if i % 3 else None
    return {"id": i, "v": "new", "n": i % 7 if i % 5 else None, "note": note, "by": [("k", i)]}


def new_rows(ids: Any) -> pa.Table:
    return pa.Table.from_pylist([new_row(i) for i in ids], schema=pa.schema([*SCHEMA, *NEW]))


def gain(made: Store) -> None:
    """New columns, and rows that have them among and alongside the old ones: commit 3."""
    made.table("t").add_columns(NEW)
    made.table("t").upsert(new_rows(range(0, COUNT + 50, 4)))


def test_a_column_that_is_there_already_is_passed_over(store: Store) -> None:
    store.table("t").add_columns(NEW[:1])
    before = store.context.catalog.versions()
    assert store.table("t").add_columns([*SCHEMA, NEW[0]]).names == ["id", "v", "n"]
    assert store.context.catalog.versions() == before
    assert store.table("t").add_columns(pa.schema(NEW)).names == ["id", "v", "n", "note", "by"]


def test_types_may_be_given_by_their_names(store: Store) -> None:
    table = store.table("t")
    assert table.add_columns({"a": "int32", "b": pa.date32()}).field("a").type == pa.int32()
    assert table.widen_column("a", "int64").field("a").type == pa.int64()
    with pytest.raises(InvalidOption, match=r"type='long' .*such as int64"):
        table.widen_column("a", "long")


def fragments(made: Store) -> tuple[Fragment, ...]:
    with made.context.catalog.reading() as tx:
        return tx.state.fragments()


def some_fragment(made: Store) -> tuple[Any, Any]:
    fragment = fragments(made)[0]
    return made.context.disk_of(fragment.shard), fragment


@pytest.mark.usefixtures("rows_in_files")
def test_a_file_only_lacks_columns_that_came_after_it_or_went_before(store: Store) -> None:
    disk, fragment = some_fragment(store)
    first = store.table("t").definition
    with pytest.raises(FragmentDamaged):
        FragmentReader(disk, fragment.path, ["id", "n"], fragment.seal)
    with pytest.raises(FragmentDamaged, match="has no column 'n'"):
        FragmentReader(disk, fragment.path, ["id", "n"], fragment.seal, first)
    gain(store)
    now = store.table("t").definition
    reader = FragmentReader(disk, fragment.path, ["id", "n"], fragment.seal, now)
    assert reader.batch(0).column("n").null_count == fragment.rows
    newer = max(fragments(store), key=lambda one: one.min_commit)
    newer_disk = store.context.disk_of(newer.shard)
    of_then = replace(now, columns=(*now.columns[:-1], replace(now.columns[-1], stored="other")))
    with pytest.raises(FragmentDamaged, match="has no column 'by'"):
        FragmentReader(newer_disk, newer.path, ["by"], newer.seal, of_then)
    with pytest.raises(TableChanged, match="were changed while"):
        FragmentReader(newer_disk, newer.path, ["by"], newer.seal, replace(of_then, definition=1, names_of=2))
    never_null = [*now.columns[:2], replace(now.columns[2], nullable=False), *now.columns[3:]]
    table = replace(now, columns=tuple(never_null), schema=pa.schema([NEW[0].with_nullable(False)]))
    with pytest.raises(FragmentDamaged, match="never null"):
        FragmentReader(disk, fragment.path, ["n"], fragment.seal, table)


@pytest.mark.usefixtures("rows_in_files")
def test_columns_that_a_file_has_are_not_copied_for_those_that_it_lacks(store: Store) -> None:
    disk, fragment = some_fragment(store)
    store.table("t").add_columns(NEW)
    table, cache = store.table("t").definition, BatchCache()
    wide = table.schema
    readers = [
        FragmentReader(disk, fragment.path, columns, fragment.seal, table, cache)
        for columns in (wide.names, SCHEMA.names)
    ]
    with_nulls, plain = (reader.batch(0) for reader in readers)
    assert with_nulls.schema.names == [*wide.names, "_slot"]
    assert with_nulls.select(SCHEMA.names).equals(plain.select(SCHEMA.names))
    assert [with_nulls.column(field.name).null_count for field in NEW] == [len(plain)] * len(NEW)
    if store.table("t").definition.compression is None:
        places = [batch.column("id").buffers()[1].address for batch in (with_nulls, plain)]
        assert places[0] == places[1], "both point into the file's bytes"
