"""The sink as Spark calls it: a micro-batch is there once, however often it is written."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.serializers import CPickleSerializer
from pyspark.sql.types import StructType

from elasticscan.base.errors import (
    AlreadyExists,
    ContinuationKeyError,
    InvalidKey,
    InvalidOption,
    NotFound,
    SchemaMismatch,
    TableChanged,
)
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.deletions import newest_only
from elasticscan.connector.stream_writing import ElasticScanStreamWriter
from elasticscan.connector.writing import StagedMessage
from elasticscan.storage import spool
from elasticscan.store import Store
from tests.base.examples import examples
from tests.connector.conftest import SCHEMA, contents, files, kinds
from tests.connector.conftest import batch as rows

COLUMNS = spark_schema(SCHEMA)
MARKED = SCHEMA.append(pa.field("gone", pa.bool_()))
FEED = SCHEMA.append(pa.field("_change_type", pa.string())).append(pa.field("_commit_version", pa.int64()))
FEED_OPTION: dict[str, Any] = {"deleteColumn": "_change_type"}


class Task:
    """What Spark tells a task."""

    def __init__(self, query: str | None) -> None:
        self.query = query

    def getLocalProperty(self, name: str) -> str | None:
        return self.query if name == "sql.streaming.queryId" else None


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Every task is of this query, until a test says otherwise."""
    found = Task("query-1")
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: found))
    return found


def marked(ids: range, gone: Any) -> pa.RecordBatch:
    """Rows with the column that says which of them delete: a list, or the same for all."""
    plain = rows(ids.start, ids.stop)
    marks = gone if isinstance(gone, list) else [gone] * len(ids)
    return pa.RecordBatch.from_arrays([*plain.columns, pa.array(marks, pa.bool_())], schema=MARKED)


def feed(*changes: tuple[int, str | None, int | None, float]) -> pa.RecordBatch:
    """(id, what, version, v) for each change."""
    columns: dict[str, list[Any]] = {
        "id": [change[0] for change in changes],
        "name": ["x"] * len(changes),
        "v": [change[3] for change in changes],
        "_change_type": [change[1] for change in changes],
        "_commit_version": [change[2] for change in changes],
    }
    return pa.RecordBatch.from_pydict(columns, schema=FEED)


def sink(
    made: Store, schema: StructType = COLUMNS, overwrite: bool = False, **options: Any
) -> ElasticScanStreamWriter:
    """A sink, carried to another process and back; Spark makes one for the tasks, one to commit."""
    source = ElasticScanSource({"store": made.uri, "table": "t", **options})
    carried = pickle.loads(CPickleSerializer().dumps(source.streamWriter(schema, overwrite)))
    assert isinstance(carried, ElasticScanStreamWriter)
    return carried


def staged(write: ElasticScanStreamWriter, *batches: pa.RecordBatch) -> StagedMessage:
    message = pickle.loads(pickle.dumps(write.write(iter(batches))))
    assert isinstance(message, StagedMessage)
    return message


def run(
    made: Store,
    number: int,
    *tasks: pa.RecordBatch,
    schema: pa.Schema = SCHEMA,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """A whole micro-batch, each of its tasks with one batch of rows."""
    columns = spark_schema(schema)
    messages = [staged(sink(made, columns, overwrite, **options), batch) for batch in tasks]
    sink(made, columns, overwrite, **options).commit(messages, number)


BEFORE = dict.fromkeys(range(1_000), 0.5)


# Once each


def test_a_replayed_batch_with_its_rows_laid_out_otherwise_is_there_once(store: Store) -> None:
    run(store, 0, rows(900, 1_000), rows(1_000, 1_100))
    before = files(store)
    run(store, 0, rows(900, 950), rows(1_050, 1_100), rows(950, 1_050))
    assert kinds(store) == ["create", "write", "write"]
    assert files(store) == before
    run(store, 1, rows(900, 901, v=3.0))
    assert contents(store) == {i: 0.5 if i < 900 else 3.0 if i == 900 else 2.0 for i in range(1_100)}


def offsets(checkpoint: Path, number: int, end: str, planned_at: int = 0) -> None:
    """What Spark writes down before it plans a micro-batch."""
    log = checkpoint / "offsets" / str(number)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f'v1\n{{"batchTimestampMs":{planned_at}}}\n{end}', encoding="utf-8")


@pytest.mark.parametrize("scheme", ["", "file://", "file:", "FILE:", "file://localhost"])
@pytest.mark.parametrize("name", ["c", "a b%20ü"])
def test_a_number_that_comes_again_with_other_offsets_is_refused(
    store: Store, tmp_path: Path, scheme: str, name: str
) -> None:
    """Hadoop takes all of a path as it stands: nothing in it is encoded."""
    tmp_path = tmp_path / name
    where = {"checkpointLocation": f"{scheme}{tmp_path / 'c'}"}
    offsets(tmp_path / "c", 0, '{"commit": 5}\n-')
    run(store, 0, rows(0, 5), **where)
    offsets(tmp_path / "c", 0, '{"commit": 5}\n-', planned_at=9)  # the same, whenever it was planned
    run(store, 0, rows(0, 5), **where)
    offsets(tmp_path / "c", 0, '{"commit": 8}\n-')
    before = contents(store)
    for tasks in ([rows(0, 8)], [rows(0, 4), rows(4, 8)]):
        with pytest.raises(ContinuationKeyError, match=r"micro-batch 0 .* by commit 3, .*new checkpoint"):
            run(store, 0, *tasks, **where)
    assert contents(store) == before
    assert kinds(store) == ["create", "write", "write"]


@pytest.mark.parametrize("place", ["none", "nothing there", "no log", "no such files"])
def test_where_the_offsets_cannot_be_read_the_number_alone_counts(
    store: Store, tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    where = {"checkpointLocation": str(tmp_path / "c")}
    if place == "no log":
        (tmp_path / "c" / "offsets").mkdir(parents=True)
        (tmp_path / "c" / "offsets" / "0").write_text("-", encoding="utf-8")
    elif place == "no such files":
        where = {"checkpointLocation": "dbfs:///streams/c"}
    elif place == "none":
        where = {}
    run(store, 0, rows(0, 5, v=3.0), **where)
    offsets(tmp_path / "c", 0, '{"commit": 5}')
    run(store, 0, rows(0, 5, v=4.0), **where)
    assert contents(store) == BEFORE | dict.fromkeys(range(5), 3.0)
    reported = [record for record in caplog.records if "cannot be read in the driver" in record.message]
    assert len(reported) == (place in ("nothing there", "no such files"))


def test_a_repeated_micro_batch_of_inserts_is_not_refused_because_of_itself(store: Store) -> None:
    for _ in range(2):
        run(store, 0, rows(5_000, 5_010), insertOnly="true")
    with pytest.raises(AlreadyExists):
        run(store, 1, rows(5_009, 5_020), insertOnly="true")
    assert kinds(store) == ["create", "write", "write"]


def test_a_table_that_was_made_again_since_the_stream_began_is_refused(store: Store, task: Task) -> None:
    run(store, 0, rows(0, 3))
    store.table("t").drop()
    store.create_table("t", SCHEMA, ["id"])
    with pytest.raises(TableChanged, match=r"made again since this stream began.*new checkpoint"):
        run(store, 1, rows(3, 5))
    assert contents(store) == {}
    run(store, 1, rows(3, 5), overwrite=True)  # needs nothing that was there
    task.query = "query-2"  # a new checkpoint
    run(store, 0, rows(0, 5))
    assert contents(store) == dict.fromkeys(range(5), 2.0)


def test_a_commit_is_called_after_what_it_does(store: Store) -> None:
    schema = MARKED
    run(store, 0, marked(range(5), [True, False, False, True, False]), schema=schema, deleteColumn="gone")
    run(store, 1, marked(range(5, 9), gone=True), schema=schema, deleteColumn="gone")
    run(store, 2, marked(range(5, 9), gone=False), schema=schema, deleteColumn="gone")
    assert kinds(store) == ["create", "write", "merge", "delete", "write"]


def test_rows_that_delete_need_their_key_alone(store: Store) -> None:
    schema = pa.schema([SCHEMA.field("id"), pa.field("gone", pa.bool_())])
    gone = pa.RecordBatch.from_pydict({"id": [1, 2, 5_000], "gone": [True] * 3}, schema=schema)
    run(store, 0, gone, schema=schema, deleteColumn="gone")
    assert contents(store) == {key: value for key, value in BEFORE.items() if key not in (1, 2)}
    mixed = pa.RecordBatch.from_pydict({"id": [3, 4], "gone": [True, False]}, schema=schema)
    with pytest.raises(SchemaMismatch, match="missing: name, v"):
        run(store, 1, mixed, schema=schema, deleteColumn="gone")
    with pytest.raises(SchemaMismatch, match="lack the columns name, v"):  # else it would empty the table
        run(store, 1, gone, schema=schema, deleteColumn="gone", overwrite=True)
    assert 3 in contents(store)


def test_one_query_counts_for_each_table_it_writes_to(store: Store) -> None:
    store.create_table("u", SCHEMA, ["id"])
    run(store, 0, rows(0, 1))
    run(store, 0, rows(0, 1), table="u")
    assert contents(store, "u") == {0: 2.0}


def test_an_append_of_nothing_makes_no_commit(store: Store) -> None:
    sink(store).commit([staged(sink(store)), staged(sink(store), rows(5, 5)), None], 0)
    assert kinds(store) == ["create", "write"]


# Aborts


def test_the_abort_of_a_stopped_stream_needs_nothing_from_the_store(store: Store, tmp_path: Path) -> None:
    stopped = sink(store)
    Path(store.uri).rename(tmp_path / "away")
    stopped.abort([None, None], 7)


# Mistakes


def test_a_table_made_again_between_tasks_and_commit_gets_none_of_their_rows(store: Store) -> None:
    messages = [staged(sink(store), rows(0, 10))]
    store.table("t").drop()
    store.create_table("t", SCHEMA, ["id"])
    with pytest.raises(TableChanged, match="was dropped"):
        sink(store).commit(messages, 0)
    assert contents(store) == {}


def test_what_makes_no_sense_for_a_stream_is_refused_before_any_task_runs(store: Store) -> None:
    with pytest.raises(InvalidOption, match="'txnVersion' is for batch writes"):
        sink(store, txnAppId="app", txnVersion="1")
    with pytest.raises(InvalidOption, match="is for reads"):
        sink(store, filter="id > 1")
    with pytest.raises(NotFound, match="set the option 'primaryKey'"):
        sink(store, table="fresh")


def test_a_missing_table_is_made_by_the_first_batch(store: Store) -> None:
    for number in range(2):
        run(store, number, rows(number, number + 2), table="fresh", primaryKey="id")
    assert sorted(contents(store, "fresh")) == [0, 1, 2]


def test_a_stream_without_rows_makes_no_table_yet(store: Store) -> None:
    run(store, 0, table="fresh", primaryKey="id")
    assert [table.name for table in store.tables()] == ["t"]


# The name that batches count under


def test_without_a_query_id_the_checkpoint_and_then_the_app_tell_streams_apart(
    store: Store, task: Task
) -> None:
    task.query = None
    names: list[dict[str, Any]] = [
        {"checkpointLocation": "/a"},
        {"checkpointLocation": "/b"},
        {"txnAppId": "a"},
        {"txnAppId": "b"},
    ]
    for number, name in enumerate(names):
        for _ in range(2):
            run(store, 0, rows(2_000 + number, 2_001 + number), **name)
    assert len(kinds(store)) == 2 + len(names)
    assert len(contents(store)) == 1_000 + len(names)


def test_a_stream_without_any_name_is_refused(store: Store, task: Task) -> None:
    task.query = None
    with pytest.raises(InvalidOption, match="'txnAppId'"):
        run(store, 0, rows(0, 1))


def test_the_query_id_is_reported_outside_of_tasks_as_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: None))
    assert staged(sink(store), rows(0, 1)).query is None


# Output mode complete


def test_complete_replaces_the_table_with_every_batch(store: Store) -> None:
    run(store, 0, rows(0, 10), rows(10, 20), overwrite=True)
    assert contents(store) == dict.fromkeys(range(20), 2.0)
    run(store, 1, rows(0, 5, v=3.0), overwrite=True)
    run(store, 1, rows(0, 5, v=3.0), overwrite=True)
    assert contents(store) == dict.fromkeys(range(5), 3.0)
    assert kinds(store) == ["create", "write", "overwrite", "overwrite"]


def test_complete_with_nothing_empties_the_table(store: Store) -> None:
    run(store, 0, rows(0, 0), overwrite=True)
    assert contents(store) == {}
    assert kinds(store)[-1] == "overwrite"


# Rows that delete


@pytest.mark.parametrize("spelling", ["gone", "GONE"])
def test_rows_marked_true_delete_and_the_others_upsert(store: Store, spelling: str) -> None:
    batch = marked(range(996, 1_002), [True, False, None, True, True, None])
    run(store, 0, batch, schema=MARKED, deleteColumn=spelling)
    kept = {i: v for i, v in BEFORE.items() if i not in (996, 999)}
    assert contents(store) == kept | {997: 2.0, 998: 2.0, 1_001: 2.0}


def test_rows_that_delete_need_no_values_but_their_key(store: Store) -> None:
    strict = pa.schema([pa.field(f.name, f.type, nullable=False) for f in SCHEMA])
    store.create_table("strict", strict, ["id"])
    store.table("strict").upsert(pa.Table.from_batches([rows(0, 3)]).cast(strict))
    found = pa.RecordBatch.from_pydict(
        {"id": [0, 1], "name": [None, "b"], "v": [None, 8.0], "gone": [True, False]}, schema=MARKED
    )
    run(store, 0, found, schema=MARKED, table="strict", deleteColumn="gone")
    assert contents(store, "strict") == {1: 8.0, 2: 2.0}
    unkeyed = pa.RecordBatch.from_pydict(
        {"id": [None], "name": ["a"], "v": [1.0], "gone": [True]}, schema=MARKED
    )
    with pytest.raises(InvalidKey, match="'id' is null in 1 rows"):
        run(store, 1, unkeyed, schema=MARKED, table="strict", deleteColumn="gone")
    hollow = pa.RecordBatch.from_pydict(
        {"id": [5], "name": [None], "v": [1.0], "gone": [None]}, schema=MARKED
    )
    with pytest.raises(SchemaMismatch, match="'name' has 1 nulls"):
        run(store, 1, hollow, schema=MARKED, table="strict", deleteColumn="gone")


def test_the_mark_is_stored_where_the_table_has_the_column(store: Store) -> None:
    store.create_table("own", MARKED, ["id"])
    for number, gone in enumerate([[False, None, False], [True, False, None]]):
        run(store, number, marked(range(3), gone), schema=MARKED, table="own", deleteColumn="gone")
    assert store.table("own").scan().to_table().sort_by("id")["gone"].to_pylist() == [False, None]


def test_a_table_that_is_made_has_no_column_for_the_marks(store: Store) -> None:
    given: dict[str, Any] = {"table": "fresh", "primaryKey": "id", **FEED_OPTION}
    run(store, 0, feed((1, "insert", 1, 1.0), (2, "delete", 1, 1.0)), schema=FEED, **given)
    assert store.table("fresh").schema.names == ["id", "name", "v"]
    assert contents(store, "fresh") == {1: 1.0}


# Change feeds


def test_a_change_feed_is_replayed_word_by_word(store: Store) -> None:
    batch = feed(
        (1, "update_preimage", 5, 0.5),
        (1, "update_postimage", 5, 5.0),
        (2, "delete", 5, 0.5),
        (2_000, "insert", 5, 6.0),
        (3, "update", 5, 7.0),
        (4, None, 5, 8.0),
        (5, "update_preimage", 5, 9.0),
    )
    run(store, 0, batch, schema=FEED, **FEED_OPTION)
    kept = {i: v for i, v in BEFORE.items() if i != 2}
    assert contents(store) == kept | {1: 5.0, 2_000: 6.0, 3: 7.0, 4: 8.0}


def test_of_several_changes_of_a_key_the_newest_wins_in_whatever_order_they_come(store: Store) -> None:
    write = sink(store, spark_schema(FEED), **FEED_OPTION)
    batches = [
        feed((1, "update_postimage", 9, 9.0), (2, "insert", 8, 8.0), (3, "delete", 4, 0.0)),
        feed((1, "update_preimage", 9, 7.0), (1, "insert", 7, 7.0), (2, "delete", 9, 0.0)),
        feed((3, "insert", 5, 5.0), (1, "delete", 6, 0.0)),
    ]
    write.commit([staged(write, *batches)], 0)
    assert contents(store) == {i: v for i, v in BEFORE.items() if i != 2} | {1: 9.0, 3: 5.0}


def test_complete_takes_a_change_feed_as_the_rows_that_are_left(store: Store) -> None:
    batch = feed((1, "insert", 1, 1.0), (1, "delete", 2, 0.0), (2, "delete", 1, 0.0), (2, "insert", 2, 2.0))
    run(store, 0, batch, schema=FEED, overwrite=True, **FEED_OPTION)
    assert contents(store) == {2: 2.0}


def test_changes_of_one_key_in_two_tasks_are_refused_with_the_way_out(store: Store) -> None:
    with pytest.raises(InvalidKey, match=r"df\.repartition\('id'\)"):
        run(store, 0, feed((1, "insert", 1, 1.0)), feed((1, "delete", 2, 1.0)), schema=FEED, **FEED_OPTION)
    assert contents(store) == BEFORE


def test_a_replay_that_splits_a_key_over_tasks_is_still_known(store: Store) -> None:
    run(store, 0, feed((1, "insert", 1, 1.0), (1, "update", 2, 2.0)), schema=FEED, **FEED_OPTION)
    run(store, 0, feed((1, "insert", 1, 1.0)), feed((1, "update", 2, 2.0)), schema=FEED, **FEED_OPTION)
    assert contents(store)[1] == 2.0
    assert kinds(store) == ["create", "write", "write"]


@pytest.mark.parametrize(("versions", "columns"), [((3, 3), FEED), ((1, 2), FEED.remove(4))])
def test_changes_of_a_key_of_which_none_is_the_newest_contradict_each_other(
    store: Store, versions: tuple[int, int], columns: pa.Schema
) -> None:
    changes = feed((1, "insert", versions[0], 1.0), (1, "delete", versions[1], 2.0)).select(columns.names)
    with pytest.raises(InvalidKey, match="more than once"):
        run(store, 0, changes, schema=columns, **FEED_OPTION)


def test_a_boolean_mark_goes_with_commit_versions_and_timestamps_too(store: Store) -> None:
    schema = MARKED.append(pa.field("_commit_version", pa.int32())).append(
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC"))
    )
    plain = marked(range(1, 2), False)
    old = pa.RecordBatch.from_arrays(
        [*plain.columns, pa.array([3], pa.int32()), pa.nulls(1, schema[-1].type)], schema=schema
    )
    new = old.set_column(3, MARKED.field("gone"), pa.array([True]))
    new = new.set_column(4, schema.field("_commit_version"), pa.array([4], pa.int32()))
    write = sink(store, spark_schema(schema), deleteColumn="gone")
    write.commit([staged(write, new, old)], 0)
    assert contents(store) == {i: v for i, v in BEFORE.items() if i != 1}


def test_what_cannot_say_whether_a_row_deletes_is_refused_before_any_task_runs(store: Store) -> None:
    with pytest.raises(NotFound, match="did you mean 'gone'"):
        sink(store, spark_schema(MARKED), deleteColumn="gon")
    with pytest.raises(NotFound, match="they have id, name, v"):
        sink(store, deleteColumn="xxxxx")
    with pytest.raises(SchemaMismatch, match="the column is double"):
        sink(store, deleteColumn="v")
    store.create_table("texts", SCHEMA, ["name"])
    with pytest.raises(InvalidOption, match="primary key"):
        sink(store, table="texts", deleteColumn="name")
    with pytest.raises(InvalidOption, match="must be text"):
        sink(store, deleteColumn=" ")
    with pytest.raises(SchemaMismatch, match="set the option deleteColumn='_change_type'"):
        sink(store, spark_schema(FEED))
    odd = FEED.set(4, pa.field("_commit_version", pa.string()))
    with pytest.raises(SchemaMismatch, match="cast it to bigint"):
        sink(store, spark_schema(odd), **FEED_OPTION)
    with pytest.raises(SchemaMismatch, match="new columns, _change_type;"):
        sink(store, spark_schema(FEED.append(pa.field("gone", pa.bool_()))), deleteColumn="gone")


def test_words_that_no_change_feed_has_are_refused_rather_than_guessed(store: Store) -> None:
    before = files(store)
    with pytest.raises(SchemaMismatch, match="has 'D', not delete"):
        run(store, 0, feed((1, "insert", 1, 1.0), (2, "D", 1, 1.0)), schema=FEED, **FEED_OPTION)
    with pytest.raises(SchemaMismatch, match="'_commit_version' has 1 nulls"):
        run(store, 0, feed((1, "insert", None, 1.0)), schema=FEED, **FEED_OPTION)
    assert files(store) == before


# The newest of each key


@settings(deadline=None, max_examples=examples(150))
@given(
    changes=st.lists(st.tuples(st.integers(0, 6), st.sampled_from("ab"), st.integers(0, 5)), max_size=40),
    cut=st.integers(1, 7),
    room=st.sampled_from([1, 1 << 20]),
)
def test_the_newest_of_each_key_is_what_a_dictionary_would_keep(
    changes: list[tuple[int, str, int]], cut: int, room: int
) -> None:
    names = ["k", "l", "_commit_version"]
    schema = pa.schema([("k", pa.int64()), ("l", pa.string()), ("row", pa.int64()), (names[2], pa.int64())])
    lines = [(k, text, n, version) for n, (k, text, version) in enumerate(changes)]
    batches = [
        pa.RecordBatch.from_pylist(
            [dict(zip(schema.names, x, strict=True)) for x in lines[at : at + cut]], schema
        )
        for at in range(0, len(lines), cut)
    ]
    newest: dict[tuple[int, str], int] = {}
    for k, text, version in changes:
        newest[k, text] = max(version, newest.get((k, text), -1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "WRITE_BUFFER_BYTES", room)
        found = [n for batch in newest_only(iter(batches), names[:2]) for n in batch["row"].to_pylist()]
    assert found == [n for n, (k, text, version) in enumerate(changes) if newest[k, text] == version]
