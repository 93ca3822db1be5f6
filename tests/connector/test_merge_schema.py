"""Writes whose columns are not the table's, as Spark calls the writer: mergeSchema, partialUpdate."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.connector.conversion import spark_schema
from elasticscan.store import Store
from tests.connector.conftest import SCHEMA
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
