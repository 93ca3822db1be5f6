"""Writes whose columns are not the table's, as Spark calls the writer: mergeSchema, partialUpdate."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import RowsChanged, TableChanged
from elasticscan.connector.conversion import spark_schema
from elasticscan.store import Store
from tests.connector.conftest import SCHEMA
from tests.connector.conftest import batch as rows
from tests.connector.test_writing import staged, writer

WIDER = pa.schema([*SCHEMA, pa.field("n", pa.int32()), pa.field("tags", pa.list_(pa.string()))])


def contents(store: Store) -> dict[int, dict[str, Any]]:
    return {row.pop("id"): row for row in store.table("t").scan().to_table().to_pylist()}


COLUMNS = {field.name: field.type for field in WIDER} | {"N2": pa.int8()}


def value_of(chance: random.Random, kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return chance.choice([None, [], ["x"]])
    return None if chance.random() < 0.2 else chance.randrange(9) if kind != pa.string() else "new"


@pytest.mark.parametrize("seed", range(6))
def test_random_writes_of_some_columns_and_of_new_ones_leave_what_a_dictionary_has(
    store: Store, seed: int
) -> None:
    """A write may be whole (what it lacks is null) or partial (it keeps that), overwrite, or delete rows."""
    chance, rows = random.Random(seed), contents(store)
    for number in range(5):
        way = chance.choice(["append", "append", "overwrite", "partial", "partial", "deletes"])
        names = chance.sample([name for name in COLUMNS if name != "id"], chance.randint(1, 4))
        schema = pa.schema([WIDER.field("id"), *((name, COLUMNS[name]) for name in names)])
        ids = chance.sample(range(900, 1_100), 60)
        given = [{"id": i, **{name: value_of(chance, COLUMNS[name]) for name in names}} for i in ids]
        options = {"mergeSchema": "TRUE"}
        if way == "partial":
            options["partialUpdate"] = "true"
        if way == "deletes":
            options["deleteColumn"] = "gone"
            schema = schema.append(pa.field("gone", pa.bool_()))
            given = [{**row, "gone": chance.choice([True, False, None])} for row in given]
        options |= {"txnAppId": "random", "txnVersion": str(number)}
        write = writer(store, spark_schema(schema), way == "overwrite", **options)
        tasks = [pa.RecordBatch.from_pylist(part, schema=schema) for part in (given[:20], given[20:])]
        first = staged(write, tasks[0])
        if chance.random() < 0.3:  # others write other rows, and tablets move
            rows[number] = dict.fromkeys(store.table("t").schema.names[1:])
            store.table("t").upsert([{"id": number, **rows[number]}])
            tablet = chance.choice(store.context.placement().tablets)
            store.move(tablet.id, "s2" if tablet.shard == 1 else "s1")
        write.commit([first, staged(write, tasks[1]), staged(write)])
        if chance.random() < 0.3:  # is done once
            write = writer(store, spark_schema(schema), way == "overwrite", **options)
            write.commit([staged(write, tasks[0])])
        columns = dict.fromkeys(store.table("t").schema.names[1:])
        assert columns.keys() >= set(names)
        old = rows
        rows = {} if way == "overwrite" else {i: columns | row for i, row in rows.items()}
        for row in given:
            i, gone = row.pop("id"), row.pop("gone", None)
            rows[i] = columns | (old.get(i, {}) if way == "partial" else {}) | row
            if gone:
                del rows[i]
        assert contents(store) == rows, way


def test_a_column_that_came_after_a_write_was_planned_is_not_asked_of_it(store: Store) -> None:
    write = writer(store)
    first = staged(write, rows(1_000, 1_010))
    store.table("t").add_columns([WIDER.field("n")])
    store.table("t").create_index("by_n", ["n"])
    second = staged(write, rows(1_010, 1_020))
    store.expand(["s3"])
    write.commit([first, second])
    for i in (1_005, 1_015):
        assert contents(store)[i] == {"name": f"n{i % 7}", "v": 2.0, "n": None}
    assert store.table("t").scan(filter="n IS NULL", index="by_n").to_table().num_rows == 1_020


# partialUpdate


FEWER = pa.schema([pa.field("ID", pa.int64(), nullable=False), ("v", pa.float64())])


def fewer(*ids: int, v: float = 7.0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"ID": list(ids), "v": [v] * len(ids)}, schema=FEWER)


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
    assert contents(store)[1] == {"name": "n1", "v": 0.5, "n": 5}
