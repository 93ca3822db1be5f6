"""The writer as Spark calls it: staged by tasks, one commit by the driver, or nothing."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VarcharType,
    VariantType,
)

from elasticscan.base.errors import (
    AlreadyExists,
    ElasticScanError,
    FilterError,
    InvalidCall,
    InvalidOption,
    NotFound,
    RowsChanged,
    SchemaMismatch,
    TableChanged,
)
from elasticscan.connector import ElasticScanSource
from elasticscan.connector import store_cache as access
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.writing import ElasticScanStreamWriter, ElasticScanWriter, StagedMessage
from elasticscan.store import Store
from tests.base.topology_changes import change_topology
from tests.connector.conftest import SCHEMA, contents, files, kinds, made_again
from tests.connector.conftest import batch as rows
from tests.seeds import seeds

COLUMNS = spark_schema(SCHEMA)


def writer(
    made: Store, schema: StructType = COLUMNS, overwrite: bool = False, **options: str
) -> ElasticScanWriter:
    """A writer, carried to another process and back."""
    source = ElasticScanSource({"store": made.uri, "table": "t", **options})
    carried: DataSourceWriter = pickle.loads(CPickleSerializer().dumps(source.writer(schema, overwrite)))
    assert isinstance(carried, ElasticScanWriter)
    return carried


def staged(write: ElasticScanWriter | ElasticScanStreamWriter, *batches: pa.RecordBatch) -> StagedMessage:
    """What a task sends to the driver."""
    message = pickle.loads(pickle.dumps(write.write(iter(batches))))
    assert isinstance(message, StagedMessage)
    return message


# Whether a write overwrites, and its options.
WAYS: list[tuple[bool, dict[str, Any]]] = [
    (False, {}),
    (False, {"insertOnly": "true"}),
    (False, {"ifUnchangedSince": "now"}),
    (False, {"partialUpdate": "true"}),
    (False, {"deleteColumn": "gone"}),
    (True, {}),
    (True, {"replaceWhere": "id < 600 AND ID >= 0"}),
]
MORE = [pa.field("n", pa.int32()), pa.field("tags", pa.list_(pa.string())), pa.field("N2", pa.int8())]
KINDS = {field.name: field.type for field in (*SCHEMA, *MORE)}


def value_of(draw: random.Random, kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return draw.choice([None, [], ["x"]])
    return None if draw.random() < 0.2 else draw.randrange(9) if kind != pa.string() else "new"


def whole_rows(made: Store) -> dict[int, dict[str, Any]]:
    return {row.pop("id"): row for row in made.table("t").scan().to_table().to_pylist()}


@pytest.mark.usefixtures("unflushed")
@pytest.mark.parametrize("seed", seeds(20, short=6))
def test_a_write_is_one_commit_of_the_rows_that_spark_names_or_nothing(store: Store, seed: int) -> None:
    """Whatever else is written and moved between its tasks and its commit, and if it is done again.

    Rows have some of the table's columns, and new ones: what they lack is null, or kept by a partial update.
    """
    draw, state = random.Random(seed), whole_rows(store)
    for number in range(8):
        overwrite, given = draw.choice(WAYS)
        options = {"mergeSchema": "TRUE", **given}
        if "ifUnchangedSince" in options:
            options["ifUnchangedSince"] = str(store.status()["snapshot"])
        if again := draw.random() < 0.3:
            options |= {"txnAppId": "nightly", "txnVersion": str(number)}
        keys = draw.sample(range(600 if overwrite else 1_200), draw.choice([1, 40, 200]))
        if "insertOnly" in options and draw.random() < 0.5:
            keys = [key + 2_000 * (number + 1) for key in keys]
        names = draw.sample([name for name in KINDS if name != "id"], draw.randint(1, 4))
        schema = pa.schema([SCHEMA.field("id"), *((name, KINDS[name]) for name in names)])
        lines = [{"id": key, **{name: value_of(draw, KINDS[name]) for name in names}} for key in keys]
        if "deleteColumn" in options:
            schema = schema.append(pa.field("gone", pa.bool_()))
            lines = [{**line, "gone": draw.choice([True, False, None])} for line in lines]
        parts = [lines[task::3] for task in range(3)]
        if twice := draw.random() < 0.15:
            parts[1].append(lines[0])
        columns = spark_schema(schema)
        write = writer(store, columns, overwrite, **options)
        for part in draw.sample(parts, draw.randint(0, 2)):  # attempts whose executors were lost
            staged(write, pa.RecordBatch.from_pylist([{"id": line["id"]} for line in part], schema))
        tasks = [pa.RecordBatch.from_pylist(part, schema) for part in parts]
        messages = [*(staged(write, task) for task in tasks), staged(write)]
        nothing, changed = dict.fromkeys(store.table("t").schema.names[1:]), set[int]()
        keeps = "partialUpdate" in options and set(names) < nothing.keys()
        if draw.random() < 0.4:
            changed = {*draw.sample(range(1_200), 30)}
            store.table("t").upsert([{"id": key, **nothing} for key in changed])
            state |= dict.fromkeys(changed, nothing)
        with suppress(InvalidCall):
            change_topology(store, draw, f"n{number}")
        commits = len(kinds(store))
        refusals = {
            SchemaMismatch: twice,
            AlreadyExists: "insertOnly" in options and not state.keys().isdisjoint(keys),
            RowsChanged: ("ifUnchangedSince" in options or keeps) and not changed.isdisjoint(keys),
        }
        if any(refusals.values()):
            with pytest.raises(tuple(error for error, is_met in refusals.items() if is_met)):
                write.commit(messages)
            write.abort([*messages, None])
        else:
            write.commit(messages)
            write.abort(messages)  # removes nothing that was committed
            old = {key: nothing | row for key, row in state.items()}
            kept = {key: row for key, row in old.items() if key >= 600} if "replaceWhere" in options else {}
            state = kept if overwrite else dict(old)
            for line in lines:
                key, gone = line["id"], line.pop("gone", None)
                state[key] = (old.get(key, nothing) if keeps else nothing) | line
                del state[key]["id"]
                if gone:
                    del state[key]
            commits += 1
            if again:
                write = writer(store, columns, overwrite, **options)
                write.commit([staged(write, tasks[0])])
        state = {key: nothing | row for key, row in state.items()}
        assert whole_rows(store) == state
        assert len(kinds(store)) == commits
    store.collect_garbage(grace_seconds=0, orphan_seconds=0)
    assert store.verify() == []
    assert whole_rows(store) == state


@pytest.mark.usefixtures("rows_in_files")
def test_what_is_refused_or_given_up_leaves_no_file(store: Store) -> None:
    before, write = files(store), writer(store, insertOnly="true")
    messages = [staged(write, rows(1_001, 1_010)), staged(write, rows(999, 1_001)), None]
    assert files(store) > before
    with pytest.raises(AlreadyExists, match="id = 999"):
        write.commit(messages)
    write.abort(messages)
    broken = rows(0, 10).set_column(0, SCHEMA.field("id"), pa.array([None] * 10, pa.int64()))
    with pytest.raises(SchemaMismatch, match="'id' is null in 10 rows"):
        staged(writer(store), rows(2_000, 2_010), broken)
    write = writer(store, overwrite=True, replaceWhere="id < 100")
    with pytest.raises(InvalidOption, match=r"row id = 100 does not meet replaceWhere='id < 100'"):
        staged(write, rows(90, 110))
    assert files(store) == before


def test_a_commit_is_called_after_its_mode_and_bears_what_is_said_of_it(store: Store) -> None:
    before = store.status()["snapshot"]
    for least, (overwrite, options) in enumerate(
        [(False, {"userMetadata": '{"job": "nightly"}'}), *WAYS[-2:]]
    ):
        write = writer(store, overwrite=overwrite, **options)
        write.commit([staged(write, rows(least, 10))])
    assert kinds(store) == ["create", "write", "write", "overwrite", "merge"]
    assert store.table("t").history()[2].user_metadata == {"job": "nightly"}
    assert store.table("t").scan(snapshot=before).to_table().num_rows == 1_000


@pytest.mark.parametrize("what", ["table", "store"])
def test_a_table_or_store_that_was_made_again_is_noticed(store: Store, what: str) -> None:
    write = writer(store)
    messages = [staged(write, rows(0, 10))]
    calls: list[Callable[[], Any]] = [lambda: write.commit(messages), lambda: staged(write, rows(0, 10))]
    store = made_again(store, what)
    if what == "store":
        access.opened.cache_clear()  # as in a worker that has not seen the old store
        calls.append(lambda: write.abort(messages))
    for call in calls:
        with pytest.raises(TableChanged, match="nothing was committed"):
            call()
    assert contents(store) == {}


# What is said before any task runs


def column(kind: DataType) -> StructType:
    return StructType([*COLUMNS.fields, StructField("w", kind)])


APPEND, OVERWRITE, STREAM = "append", "overwrite", "a stream"
MERGE, PARTIAL = {"mergeSchema": "true"}, {"partialUpdate": "true"}
FRESH: dict[str, Any] = {"primaryKey": "id", "table": "fresh"}
NARROWER = pa.schema([SCHEMA.field("id"), pa.field("N", pa.int32(), nullable=False)])
WIDER = pa.schema([*SCHEMA, pa.field("n", pa.int32())])
MARKED = SCHEMA.append(pa.field("gone", pa.bool_()))
FEED = SCHEMA.append(pa.field("_change_type", pa.string())).append(pa.field("_commit_version", pa.int64()))
MARKED_FEED, TEXT_VERSION = (
    FEED.append(MARKED.field("gone")),
    FEED.set(4, pa.field(FEED.names[4], pa.string())),
)
REFUSED: list[Any] = [
    *[
        (OVERWRITE, SCHEMA, {option: value}, InvalidOption, f"'{option}' is for mode append")
        for option, value in (("insertOnly", "true"), ("ifUnchangedSince", "2"), ("partialUpdate", "true"))
    ],
    (OVERWRITE, SCHEMA, {"replaceWhere": "day = 5"}, NotFound, "day"),
    (OVERWRITE, SCHEMA, {"replaceWhere": "id <"}, FilterError, "is missing"),
    (APPEND, SCHEMA, {"replaceWhere": "id < 5"}, InvalidOption, "'replaceWhere' is for mode overwrite"),
    (APPEND, SCHEMA, {"ifUnchangedSince": "1000"}, NotFound, "1000|1,000"),
    (APPEND, SCHEMA, {"primaryKey": "name,id"}, InvalidOption, "has 'id'"),
    (APPEND, SCHEMA, {"primaryKey": "id", "shardKey": "name"}, InvalidOption, "'shardKey'"),
    # Columns that the table or the rows lack, each with the one option that helps.
    (APPEND, WIDER, {}, SchemaMismatch, "^((?!partialUpdate).)*columns, n; set the option 'mergeSchema'$"),
    (APPEND, NARROWER, {"mergeSchema": "false"}, SchemaMismatch, "option 'mergeSchema'"),
    (APPEND, NARROWER, PARTIAL, SchemaMismatch, "option 'mergeSchema'"),
    (APPEND, SCHEMA.remove(2), {}, SchemaMismatch, "lack the columns v; set the option 'partialUpdate'$"),
    (APPEND, SCHEMA.remove(0), PARTIAL, SchemaMismatch, "id"),
    (APPEND, WIDER.remove(0), MERGE, SchemaMismatch, "missing: id"),
    (APPEND, SCHEMA.remove(2).remove(1), PARTIAL | {"table": "u"}, SchemaMismatch, "missing: v"),
    (APPEND, SCHEMA.set(2, pa.field("v", pa.string())), MERGE, SchemaMismatch, "'v' is .*cast it first"),
    (APPEND, SCHEMA.append(pa.field("_slot", pa.int8())), MERGE, SchemaMismatch, "is reserved"),
    (APPEND, SCHEMA.append(pa.field("ID", pa.int64())), {}, SchemaMismatch, "one is repeated"),
    (APPEND, column(VariantType()), {}, SchemaMismatch, "'w' is variant"),
    *[
        # Columns that could never hold a value are in no table, whether it is there or not.
        (APPEND, column(kind), MERGE | table, SchemaMismatch, text)
        for table in ({}, FRESH)
        for kind, text in (
            (NullType(), "has type null"),
            (ArrayType(NullType()), "has type null"),
            (
                ArrayType(NullType(), containsNull=False),
                r"cast it \(.*\) or drop it",
            ),  # what array() is in Spark
            (MapType(StringType(), NullType()), "has type null"),
            (VarcharType(3), r"cast it \(CHAR and VARCHAR to STRING\) or drop it"),
        )
    ],
    (STREAM, SCHEMA, {"txnAppId": "app", "txnVersion": "1"}, InvalidOption, "is for write, not for"),
    (STREAM, SCHEMA, PARTIAL, InvalidOption, "is for write, not for"),
    (STREAM, SCHEMA, {"filter": "id > 1"}, InvalidOption, "is for read"),
    (STREAM, SCHEMA, {"table": "fresh"}, NotFound, "set the option 'primaryKey'"),
    (STREAM, MARKED, {"deleteColumn": "gon"}, NotFound, "did you mean 'gone'"),
    (STREAM, SCHEMA, {"deleteColumn": "xxxxx"}, NotFound, "they have id, name, v"),
    (STREAM, SCHEMA, {"deleteColumn": "v"}, SchemaMismatch, "is double; the option 'deleteColumn'"),
    (STREAM, SCHEMA, {"deleteColumn": "id"}, SchemaMismatch, "is int64; the option 'deleteColumn'"),
    (STREAM, FEED, {}, SchemaMismatch, "set the option deleteColumn='_change_type'"),
    (STREAM, TEXT_VERSION, {"deleteColumn": "_change_type"}, SchemaMismatch, "cast it to bigint"),
    (STREAM, MARKED_FEED, {"deleteColumn": "gone"}, SchemaMismatch, "new columns, _change_type;"),
]


@pytest.mark.parametrize(("way", "schema", "options", "error", "message"), REFUSED)
def test_what_cannot_be_written_is_refused_by_the_driver(
    store: Store, way: str, schema: Any, options: dict[str, str], error: type[ElasticScanError], message: str
) -> None:
    store.create_table("u", SCHEMA.remove(1).set(1, SCHEMA.field("v").with_nullable(False)), ["id"])
    source = ElasticScanSource({"store": store.uri, "table": "t", **options})
    make = source.streamWriter if way == STREAM else source.writer
    with pytest.raises(error) as refused:
        make(schema if isinstance(schema, StructType) else spark_schema(schema), way == OVERWRITE)
    assert re.search(message, refused.value.message)
    assert [table.name for table in store.tables()] == ["t", "u"]
    assert store.table("t").schema == SCHEMA


# Tables that a write makes


@pytest.mark.parametrize(
    ("asked", "form"), [({}, "lz4"), ({"compression": "ZSTD"}, "zstd"), ({"compression": "none"}, None)]
)
def test_a_missing_table_is_made_from_the_columns_and_as_asked(
    store: Store, asked: dict[str, Any], form: str | None
) -> None:
    write = writer(store, table="fresh", primaryKey="NAME, id", shardKey="name", **asked)
    assert [table.name for table in store.tables()] == ["t"], "its first rows make it"
    write.commit([staged(write, rows(0, 10))])
    table = store.table("fresh")
    assert (table.primary_key, table.shard_key) == (("name", "id"), ("name",))
    assert not table.schema.field("name").nullable
    assert table.definition.compression == form
    writer(store, table="fresh", primaryKey="NAME,ID")
    assert sorted(contents(store, "fresh")) == list(range(10))
    writer(store, table="fresh", primaryKey="name,id", compression="zstd")  # it is there: nothing is changed
    assert store.table("fresh").definition.compression == form
