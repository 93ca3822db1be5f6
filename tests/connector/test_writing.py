"""The writer as Spark calls it: staged by tasks, one commit by the driver, or nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
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
    FilterError,
    InvalidKey,
    InvalidOption,
    NotFound,
    RowsChanged,
    SchemaMismatch,
    TableChanged,
    WriteConflict,
)
from elasticscan.connector import ElasticScanSource
from elasticscan.connector import store_cache as access
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.writing import ElasticScanWriter, StagedMessage
from elasticscan.store import Store
from tests.connector.conftest import SCHEMA, contents, files
from tests.connector.conftest import batch as rows

COLUMNS = spark_schema(SCHEMA)


def writer(
    made: Store, schema: StructType = COLUMNS, overwrite: bool = False, **options: str
) -> ElasticScanWriter:
    """A writer, carried to another process and back."""
    source = ElasticScanSource({"store": made.uri, "table": "t", **options})
    carried: DataSourceWriter = pickle.loads(CPickleSerializer().dumps(source.writer(schema, overwrite)))
    assert isinstance(carried, ElasticScanWriter)
    return carried


def staged(write: ElasticScanWriter, *batches: pa.RecordBatch) -> StagedMessage:
    """What a task sends to the driver."""
    message = pickle.loads(pickle.dumps(write.write(iter(batches))))
    assert isinstance(message, StagedMessage)
    return message


def test_an_append_upserts_rows_of_all_tasks_in_one_commit(store: Store) -> None:
    write = writer(store)
    before = store.status()["snapshot"]
    messages = [staged(write, rows(900, 1_000), rows(1_000, 1_100)), staged(write, rows(1_100, 1_200))]
    assert len(contents(store)) == 1_000
    write.commit(messages)
    assert store.status()["snapshot"] == before + 1
    assert contents(store) == {i: 0.5 if i < 900 else 2.0 for i in range(1_200)}


def test_an_overwrite_replaces_everything_and_older_snapshots_keep_it(store: Store) -> None:
    before = store.status()["snapshot"]
    write = writer(store, overwrite=True)
    write.commit([staged(write, rows(0, 10)), staged(write, rows(10, 20)), staged(write)])
    assert contents(store) == dict.fromkeys(range(20), 2.0)
    assert store.table("t").scan(snapshot=before).to_table().num_rows == 1_000


def test_what_is_said_of_a_write_stands_in_the_history(store: Store) -> None:
    write = writer(store, userMetadata='{"job": "nightly"}')
    write.commit([staged(write, rows(0, 10))])
    assert store.table("t").history()[-1].user_metadata == {"job": "nightly"}


@pytest.mark.usefixtures("rows_in_files")
def test_an_insert_refuses_keys_that_are_there(store: Store) -> None:
    write = writer(store, insertOnly="true")
    message = staged(write, rows(999, 1_001))
    with pytest.raises(AlreadyExists, match="id = 999"):
        write.commit([staged(write, rows(1_001, 1_010)), message])
    write.abort([message])
    assert files(store) == 2
    assert len(contents(store)) == 1_000
    write = writer(store, insertOnly="true", txnAppId="a", txnVersion="1")
    for _ in range(2):
        write.commit([staged(write, rows(1_000, 1_010))])
    assert len(contents(store)) == 1_010


def test_rows_that_were_changed_since_refuse_a_write(store: Store) -> None:
    since = store.status()["snapshot"]
    write = writer(store, ifUnchangedSince=str(since))
    message = staged(write, rows(0, 10))
    store.table("t").delete([9])
    with pytest.raises(RowsChanged, match="id = 9"):
        write.commit([message])
    write.commit([staged(write, rows(0, 9))])
    assert contents(store)[0] == 2.0
    with pytest.raises(NotFound):
        writer(store, ifUnchangedSince="1000")


@pytest.mark.parametrize(
    ("overwrite", "option", "value"),
    [
        (True, "insertOnly", "true"),
        (True, "ifUnchangedSince", "2"),
        (True, "partialUpdate", "true"),
        (False, "replaceWhere", "id < 5"),
    ],
)
def test_what_goes_with_one_mode_alone_is_refused_in_the_other(
    store: Store, overwrite: bool, option: str, value: str
) -> None:
    with pytest.raises(
        InvalidOption, match=f"'{option}' is for mode {'append' if overwrite else 'overwrite'}"
    ):
        writer(store, overwrite=overwrite, **{option: value})


def test_an_overwrite_of_some_rows_leaves_the_others(store: Store) -> None:
    where = "id < 100 AND ID >= 0"
    write = writer(store, overwrite=True, replaceWhere=where)
    messages = [staged(write, rows(0, 10)), staged(write, rows(10, 20)), staged(write)]
    store.table("t").upsert(rows(50, 51, 3.0))  # goes with the others that meet the condition
    write.commit(messages)
    assert contents(store) == dict.fromkeys(range(20), 2.0) | dict.fromkeys(range(100, 1_000), 0.5)
    assert store.table("t").history()[-1].kind == "merge"

    write, before = writer(store, overwrite=True, replaceWhere=where), files(store)
    with pytest.raises(
        InvalidOption, match=r"row id = 100 does not meet replaceWhere='id < 100 AND ID >= 0'"
    ):
        staged(write, rows(90, 110))
    message = staged(write, rows(0, 10))
    write.abort([message])
    assert files(store) == before

    write = writer(store, overwrite=True, replaceWhere=where, txnAppId="a", txnVersion="1")
    for _ in range(2):
        write.commit([staged(write, rows(0, 5))])
        store.table("t").upsert(rows(70, 71))
    assert 70 in contents(store)


def test_rows_that_are_replaced_are_named_by_a_condition_of_the_table(store: Store) -> None:
    for wrong, error in (("day = 5", NotFound), ("id <", FilterError)):
        with pytest.raises(error):
            writer(store, overwrite=True, replaceWhere=wrong)


@pytest.mark.usefixtures("rows_in_files")
def test_only_attempts_that_spark_names_are_committed(store: Store) -> None:
    write = writer(store)
    staged(write, rows(2_000, 2_100))  # an attempt whose executor was lost
    chosen = staged(write, rows(2_000, 2_100))
    staged(write, rows(2_000, 2_100))  # a speculative twin that came second
    write.commit([chosen])
    assert len(contents(store)) == 1_100
    assert store.collect_garbage(grace_seconds=0).removed > 0
    assert len(contents(store)) == 1_100


def test_a_key_from_two_tasks_is_refused_and_nothing_written(store: Store) -> None:
    write = writer(store)
    messages = [staged(write, rows(2_000, 2_010)), staged(write, rows(2_009, 2_020))]
    with pytest.raises(InvalidKey, match="2009"):
        write.commit(messages)
    assert len(contents(store)) == 1_000


@pytest.mark.usefixtures("rows_in_files")
def test_abort_removes_what_was_staged(store: Store) -> None:
    before = files(store)
    write = writer(store)
    messages = [staged(write, rows(2_000, 2_100)), None]
    assert files(store) > before
    write.abort(messages)
    assert files(store) == before
    assert len(contents(store)) == 1_000


def test_abort_after_a_commit_that_went_through_removes_nothing(store: Store) -> None:
    write = writer(store)
    messages = [staged(write, rows(2_000, 2_100))]
    write.commit(messages)
    write.abort(messages)
    assert len(contents(store)) == 1_100
    assert store.verify() == []


def test_a_task_that_fails_leaves_no_file(store: Store) -> None:
    before = files(store)
    broken = rows(0, 10).set_column(0, SCHEMA.field("id"), pa.array([None] * 10, pa.int64()))
    with pytest.raises(InvalidKey, match="'id' is null in 10 rows"):
        staged(writer(store), rows(2_000, 2_010), broken)
    assert files(store) == before


def test_a_transaction_that_was_committed_is_not_done_again(store: Store) -> None:
    app = {"txnAppId": "nightly", "txnVersion": "7"}
    for v in (3.0, 4.0):
        write = writer(store, **app)
        write.commit([staged(write, rows(0, 10, v=v))])
        assert contents(store)[0] == 3.0
    write = writer(store, txnAppId="nightly", txnVersion="8")
    write.commit([staged(write, rows(0, 10, v=4.0))])
    assert contents(store)[0] == 4.0


def test_tablets_that_move_between_staging_and_commit_are_followed(store: Store) -> None:
    write = writer(store)
    messages = [staged(write, rows(n, n + 100)) for n in (1_000, 1_100)]
    store.expand(["s3"])
    store.contract("s1")
    write.commit(messages)
    assert sorted(contents(store)) == list(range(1_200))


def test_the_table_being_made_again_is_noticed(store: Store) -> None:
    write = writer(store)
    messages = [staged(write, rows(0, 10))]
    store.table("t").drop()
    store.create_table("t", SCHEMA, ["id"])
    for call in (lambda: write.commit(messages), lambda: staged(write, rows(0, 10))):
        with pytest.raises(TableChanged, match="nothing was committed"):
            call()


def test_the_store_being_made_again_is_noticed(store: Store, tmp_path: Path) -> None:
    write = writer(store)
    messages = [staged(write, rows(0, 10))]
    Path(store.uri).rename(tmp_path / "old")
    made = Store.create(store.uri, ["s1"], tablets=2, slots=16)
    made.create_table("t", SCHEMA, ["id"])
    access.opened.cache_clear()  # as in a worker that has not seen the old store
    calls: list[Callable[[], Any]] = [
        lambda: write.commit(messages),
        lambda: write.abort(messages),
        lambda: staged(write, rows(0, 10)),
    ]
    for call in calls:
        with pytest.raises(TableChanged):
            call()
    assert contents(made) == {}


# What is said before any task runs


@pytest.mark.parametrize(
    ("schema", "error", "why"),
    [
        (StructType([*COLUMNS[:2]]), SchemaMismatch, "lack the columns v; set the option 'partialUpdate'"),
        (
            StructType([*COLUMNS, StructField("w", LongType())]),
            SchemaMismatch,
            "have new columns, w; set the option",
        ),
        (StructType([*COLUMNS[:2], StructField("v", StringType())]), SchemaMismatch, "'v' is string"),
        (StructType([*COLUMNS, StructField("w", VariantType())]), SchemaMismatch, "'w' is variant"),
    ],
)
def test_rows_that_cannot_fit_are_refused_by_the_driver(
    store: Store, schema: StructType, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        writer(store, schema)


# Tables that a write makes


@pytest.mark.parametrize(
    ("asked", "form"), [({}, "lz4"), ({"compression": "ZSTD"}, "zstd"), ({"compression": "none"}, None)]
)
def test_a_missing_table_is_made_from_the_columns_and_as_asked(
    store: Store, asked: dict[str, str], form: str | None
) -> None:
    write = writer(store, table="fresh", primaryKey="NAME, id", shardKey="name", **asked)
    write.commit([staged(write, rows(0, 10))])
    table = store.table("fresh")
    assert (table.primary_key, table.shard_key) == (("name", "id"), ("name",))
    assert not table.schema.field("name").nullable
    assert table.definition.compression == form
    assert sorted(contents(store, "fresh")) == list(range(10))
    writer(store, table="fresh", primaryKey="name,id", compression="zstd")  # it is there: nothing is changed
    assert store.table("fresh").definition.compression == form


def tables(made: Store) -> list[str]:
    return [table.name for table in made.tables()]


def test_nobody_sees_a_table_before_its_first_rows_are_committed(store: Store) -> None:
    write = writer(store, table="fresh", primaryKey="id")
    message = staged(write, rows(0, 10))
    assert tables(store) == ["t"]  # as it stays when the driver is killed here
    write.commit([message])
    assert tables(store) == ["fresh", "t"]
    assert len(contents(store, "fresh")) == 10
    assert [commit.kind for commit in store.table("fresh").history()] == ["create", "write"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_first_write_that_fails_leaves_no_table(store: Store, overwrite: bool) -> None:
    write = writer(store, overwrite=overwrite, table="fresh", primaryKey="id")
    twice = [staged(write, rows(0, 10)), staged(write, rows(9, 20))]
    with pytest.raises(InvalidKey):
        write.commit(twice)
    write.abort(twice)
    with pytest.raises(InvalidKey):
        staged(write, pa.concat_batches([rows(0, 10), rows(9, 20)]))
    assert tables(store) == ["t"]
    store.collect_garbage(grace_seconds=0)
    assert len(contents(store)) == 1_000


def test_two_first_writes_at_once_share_the_table(store: Store) -> None:
    one, other = (writer(store, table="fresh", primaryKey="id") for _ in range(2))
    first, second = staged(one, rows(0, 10)), staged(other, rows(5, 15, v=3.0))
    one.commit([first])
    other.commit([second])
    assert contents(store, "fresh") == dict.fromkeys(range(5), 2.0) | dict.fromkeys(range(5, 15), 3.0)


def test_a_first_write_does_not_go_into_another_table_of_its_name(store: Store) -> None:
    write = writer(store, table="fresh", primaryKey="id")
    message = staged(write, rows(0, 10))
    store.create_table("fresh", SCHEMA, ["name", "id"])
    with pytest.raises(WriteConflict, match="another definition"):
        write.commit([message])
    write.abort([message])
    assert contents(store, "fresh") == {}


def test_a_table_that_was_dropped_since_its_first_write_began_stays_dropped(store: Store) -> None:
    late, quick = (writer(store, table="fresh", primaryKey="id") for _ in range(2))
    message = staged(late, rows(0, 10))
    quick.commit([staged(quick, rows(0, 5))])
    store.table("fresh").drop()
    with pytest.raises(TableChanged):
        late.commit([message])
    assert tables(store) == ["t"]


def test_a_primary_key_that_is_not_the_tables_is_refused(store: Store) -> None:
    writer(store, primaryKey="ID")
    with pytest.raises(InvalidOption, match="has 'id'"):
        writer(store, primaryKey="name,id")
    with pytest.raises(InvalidOption, match="'shardKey'"):
        writer(store, primaryKey="id", shardKey="name")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (NullType(), "has type null"),
        (ArrayType(NullType()), "has type null"),
        (ArrayType(NullType(), containsNull=False), "cast it or drop it"),  # what array() is in Spark
        (MapType(StringType(), NullType()), "has type null"),
        (VarcharType(3), "make it STRING, since a table checks no lengths, or drop it"),
    ],
    ids=lambda given: given.simpleString() if isinstance(given, DataType) else "",
)
def test_a_column_that_could_never_hold_a_value_is_in_no_new_table(
    store: Store, kind: DataType, text: str
) -> None:
    columns = StructType([*COLUMNS.fields, StructField("x", kind)])
    for table in ("fresh", "t"):
        with pytest.raises(SchemaMismatch, match=text):
            writer(store, columns, table=table, primaryKey="id", mergeSchema="true")
    assert tables(store) == ["t"]
