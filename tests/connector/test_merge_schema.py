"""Writes whose columns are not the table's, as Spark calls the writer: with the option mergeSchema or not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidOption, SchemaMismatch, UnsupportedType
from elasticscan.connector.conversion import spark_schema
from elasticscan.store import Store
from tests.connector.conftest import SCHEMA
from tests.connector.conftest import batch as rows
from tests.connector.test_writing import staged, writer

WIDER = pa.schema([*SCHEMA, pa.field("n", pa.int32()), pa.field("tags", pa.list_(pa.string()))])
NARROWER = pa.schema([SCHEMA.field("id"), pa.field("N", pa.int32(), nullable=False)])


def wide(start: int, end: int) -> pa.RecordBatch:
    count = end - start
    more = [pa.array([7] * count, pa.int32()), pa.array([["x"]] * count, pa.list_(pa.string()))]
    return pa.RecordBatch.from_arrays([*rows(start, end).columns, *more], schema=WIDER)


def narrow(start: int, end: int) -> pa.RecordBatch:
    ids = list(range(start, end))
    return pa.RecordBatch.from_pydict({"id": ids, "N": [8] * len(ids)}, schema=NARROWER)


def contents(store: Store) -> dict[int, tuple[Any, ...]]:
    found = store.table("t").scan().to_table()
    return {row[0]: row[1:] for row in zip(*found.to_pydict().values(), strict=True)}


@pytest.mark.parametrize("schema", [WIDER, NARROWER, SCHEMA.remove(1)], ids=["more", "both", "fewer"])
def test_without_the_option_other_columns_are_an_error_that_names_it(store: Store, schema: pa.Schema) -> None:
    with pytest.raises(SchemaMismatch, match="or set option 'mergeSchema' to true"):
        writer(store, spark_schema(schema))
    with pytest.raises(SchemaMismatch, match="or set option 'mergeSchema' to true"):
        writer(store, spark_schema(schema), mergeSchema="false")
    assert store.table("t").schema == SCHEMA


@pytest.mark.parametrize("overwrite", [False, True])
def test_columns_that_the_table_lacks_are_added_and_those_that_the_rows_lack_are_null(
    store: Store, overwrite: bool
) -> None:
    write = writer(store, spark_schema(WIDER), overwrite, mergeSchema="TRUE")
    write.commit([staged(write, wide(990, 1_010))])
    assert store.table("t").schema == WIDER
    kept = {} if overwrite else {i: (f"n{i % 7}", 0.5, None, None) for i in range(990)}
    wanted = kept | {i: (f"n{i % 7}", 2.0, 7, ["x"]) for i in range(990, 1_010)}
    assert contents(store) == wanted
    write = writer(store, spark_schema(NARROWER), mergeSchema="true")
    write.commit([staged(write, narrow(1_000, 1_003))])
    assert store.table("t").schema == WIDER
    assert contents(store) == wanted | dict.fromkeys(range(1_000, 1_003), (None, None, 8, None))


def test_a_column_that_came_after_a_write_was_planned_is_not_asked_of_it(store: Store) -> None:
    write = writer(store)
    first = staged(write, rows(1_000, 1_010))
    store.table("t").add_columns([WIDER.field("n")])
    store.table("t").create_index("by_n", ["n"])
    second = staged(write, rows(1_010, 1_020))
    store.expand(["s3"])
    write.commit([first, second])
    assert contents(store)[1_005] == (f"n{1_005 % 7}", 2.0, None)
    assert contents(store)[1_015] == (f"n{1_015 % 7}", 2.0, None)
    assert store.table("t").scan(filter="n IS NULL", index="by_n").to_table().num_rows == 1_020


def test_rows_that_delete_may_bring_new_columns_and_lack_others(store: Store) -> None:
    store.table("t").add_columns([WIDER.field("tags")])
    schema = pa.schema([*NARROWER, pa.field("gone", pa.bool_())])
    write = writer(store, spark_schema(schema), mergeSchema="true", deleteColumn="gone")
    data = {"id": [1, 2, 5_000], "N": [4, 5, 6], "gone": [True, False, None]}
    write.commit([staged(write, pa.RecordBatch.from_pydict(data, schema=schema))])
    assert store.table("t").schema.names == ["id", "name", "v", "tags", "N"]
    found = contents(store)
    assert 1 not in found
    assert (found[2], found[5_000]) == ((None, None, None, 5), (None, None, None, 6))
    assert found[3] == ("n3", 0.5, None, None)


@pytest.mark.parametrize(
    ("schema", "error", "told"),
    [
        (pa.schema([*WIDER, pa.field("x", pa.null())]), UnsupportedType, "is void"),
        (pa.schema([*WIDER.remove(2), pa.field("v", pa.string())]), SchemaMismatch, "cast it first"),
        (WIDER.remove(0), SchemaMismatch, "missing: id"),
        (pa.schema([*WIDER, pa.field("_slot", pa.int32())]), SchemaMismatch, "taken by the store"),
    ],
    ids=["void", "another type", "no key", "a name of the store's"],
)
def test_what_does_not_fit_adds_nothing(
    store: Store, schema: pa.Schema, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        writer(store, spark_schema(schema), mergeSchema="true")
    assert store.table("t").schema == SCHEMA


def test_the_option_is_true_or_false(store: Store) -> None:
    with pytest.raises(InvalidOption, match="mergeSchema"):
        writer(store, mergeSchema="yes")
