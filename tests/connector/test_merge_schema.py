"""Writes whose columns are not the table's, as Spark calls the writer: mergeSchema, partialUpdate."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidOption, RowsChanged, SchemaMismatch, TableChanged
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.options import parse_options
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


@pytest.mark.parametrize(
    ("schema", "advice", "none"),
    [
        (WIDER, ["option 'mergeSchema'"], ["MERGE", "partialUpdate"]),
        (NARROWER, ["option 'mergeSchema'"], []),
        (SCHEMA.remove(1), ["'partialUpdate'"], ["mergeSchema"]),
    ],
    ids=["more", "both", "fewer"],
)
def test_other_columns_are_an_error_with_advice_that_empties_no_row(
    store: Store, schema: pa.Schema, advice: list[str], none: list[str]
) -> None:
    for options in ({}, {"mergeSchema": "false"}):
        with pytest.raises(SchemaMismatch) as caught:
            writer(store, spark_schema(schema), **options)
        assert [part for part in advice if part not in caught.value.message] == []
        assert [part for part in none if part in caught.value.message] == []
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
    ("schema", "error", "text"),
    [
        (pa.schema([*WIDER, pa.field("x", pa.null())]), SchemaMismatch, "has type null"),
        (pa.schema([*WIDER.remove(2), pa.field("v", pa.string())]), SchemaMismatch, "cast it first"),
        (WIDER.remove(0), SchemaMismatch, "missing: id"),
        (pa.schema([*WIDER, pa.field("_slot", pa.int32())]), SchemaMismatch, "taken by the store"),
    ],
    ids=["void", "another type", "no key", "a name of the store's"],
)
def test_what_does_not_fit_adds_nothing(
    store: Store, schema: pa.Schema, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        writer(store, spark_schema(schema), mergeSchema="true")
    assert store.table("t").schema == SCHEMA


# partialUpdate


FEWER = pa.schema([pa.field("ID", pa.int64(), nullable=False), ("v", pa.float64())])


def fewer(*ids: int, v: float = 7.0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"ID": list(ids), "v": [v] * len(ids)}, schema=FEWER)


def test_a_partial_update_keeps_the_other_columns_of_keys_that_are_there(store: Store) -> None:
    before = contents(store)
    write = writer(store, spark_schema(FEWER), partialUpdate="true")
    write.commit([staged(write, fewer(1, 2), fewer(998)), staged(write, fewer(5_000)), staged(write)])
    changed = {i: (before[i][0], 7.0) for i in (1, 2, 998)}
    assert contents(store) == before | changed | {5_000: (None, 7.0)}
    assert store.table("t").history()[-1].rows == 4


def test_a_partial_update_reads_at_one_snapshot_while_tablets_move(store: Store) -> None:
    before = contents(store)
    write = writer(store, spark_schema(FEWER), partialUpdate="true")
    store.table("t").upsert(rows(990, 1_000))  # other keys
    store.expand(["s3"])
    first = staged(write, fewer(*range(400)))
    store.contract("s1")
    write.commit([first, staged(write, fewer(*range(400, 900)))])
    found = contents(store)
    assert {i: found[i] for i in range(900)} == {i: (before[i][0], 7.0) for i in range(900)}
    assert found[995] == (before[995][0], 2.0)


@pytest.mark.parametrize("when", ["before it is read", "after"])
def test_a_partial_update_of_rows_that_others_wrote_meanwhile_writes_nothing(store: Store, when: str) -> None:
    write = writer(store, spark_schema(FEWER), partialUpdate="true")
    message = staged(write, fewer(1, 2)) if when == "after" else None
    store.table("t").upsert(pa.table({"id": [2], "name": ["new"], "v": [0.0]}))
    wanted = contents(store)
    message = message or staged(write, fewer(1, 2))
    with pytest.raises(RowsChanged, match=r"id = 2.*nothing was written"):
        write.commit([message])
    assert contents(store) == wanted
    asked = writer(store, spark_schema(FEWER), partialUpdate="true", ifUnchangedSince="2")
    message = staged(asked, fewer(2))
    with pytest.raises(RowsChanged, match="changed after commit 2"):
        asked.commit([message])
    assert contents(store) == wanted


def test_columns_that_change_below_a_partial_update_are_not_emptied(store: Store) -> None:
    write = writer(store, spark_schema(FEWER), partialUpdate="true")
    store.table("t").add_columns([WIDER.field("n")])
    store.table("t").merge([{"id": 1, "n": 5}], columns=["n"])
    with pytest.raises(TableChanged, match="write again"):
        staged(write, fewer(1))
    assert contents(store)[1] == ("n1", 0.5, 5)


def test_a_partial_update_brings_new_columns_and_is_done_once(store: Store) -> None:
    schema = pa.schema([*FEWER, pa.field("n", pa.int32())])
    data = pa.RecordBatch.from_pydict({"ID": [3], "v": [1.5], "n": [9]}, schema=schema)
    options = {"partialUpdate": "true", "mergeSchema": "true", "txnAppId": "a", "txnVersion": "1"}
    for _ in range(2):
        write = writer(store, spark_schema(schema), **options)
        write.commit([staged(write, data)])
    assert contents(store)[3] == ("n3", 1.5, 9)
    assert len(store.table("t").history()) == 3


@pytest.mark.parametrize(("schema", "text"), [(SCHEMA.remove(0), "id"), (NARROWER, "option 'mergeSchema'")])
def test_a_partial_update_needs_the_keys_of_its_rows_and_no_new_columns(
    store: Store, schema: pa.Schema, text: str
) -> None:
    with pytest.raises(SchemaMismatch, match=text):
        writer(store, spark_schema(schema), partialUpdate="true")
    with pytest.raises(InvalidOption, match="foreachBatch"):
        parse_options({"path": f"{store.uri}/t", "partialUpdate": "true"}, stream_write=True)


def test_a_column_without_nulls_cannot_be_left_out(store: Store) -> None:
    store.create_table(
        "u", pa.schema([SCHEMA.field("id"), pa.field("v", pa.float64(), nullable=False)]), ["id"]
    )
    source = ElasticScanSource({"store": store.uri, "table": "u", "partialUpdate": "true"})
    with pytest.raises(SchemaMismatch, match="every row needs a value of v"):
        source.writer(spark_schema(pa.schema([SCHEMA.field("id")])), False)
