"""The sink as Spark calls it: a micro-batch is there once, however often it is written."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.serializers import CPickleSerializer
from pyspark.sql.types import StructType

from elasticscan.base.errors import (
    ContinuationKeyError,
)
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.writing import ElasticScanStreamWriter
from elasticscan.storage import spill
from elasticscan.store import Store
from tests.connector.conftest import SCHEMA, contents, kinds
from tests.connector.conftest import batch as rows
from tests.connector.test_writing import FEED, MARKED, staged
from tests.seeds import seeds

COLUMNS = spark_schema(SCHEMA)
FEED_OPTION: dict[str, Any] = {"deleteColumn": "_change_type"}


QUERY = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": "query-1"}.get)


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task is of this query."""
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: QUERY))


def sink(
    made: Store, schema: StructType = COLUMNS, overwrite: bool = False, **options: Any
) -> ElasticScanStreamWriter:
    """A sink, carried to another process and back; Spark makes one for the tasks, one to commit."""
    source = ElasticScanSource({"store": made.uri, "table": "t", **options})
    carried = pickle.loads(CPickleSerializer().dumps(source.streamWriter(schema, overwrite)))
    assert isinstance(carried, ElasticScanStreamWriter)
    return carried


def run(made: Store, number: int, *tasks: pa.RecordBatch, schema: pa.Schema = SCHEMA, **options: Any) -> None:
    """A whole micro-batch, each of its tasks with one batch of rows."""
    columns = spark_schema(schema)
    messages = [staged(sink(made, columns, **options), batch) for batch in tasks]
    sink(made, columns, **options).commit(messages, number)


BEFORE = dict.fromkeys(range(1_000), 0.5)


# Once each

WORDS = ["insert", "update", "update_postimage", None, "update_preimage", "delete"]
FORMS = {"rows": SCHEMA, "marks": MARKED, "feed": FEED, "feed without versions": FEED.remove(4)}


def some_changes(draw: random.Random, form: str) -> list[dict[str, Any]]:
    """Changes of some keys; several of one key only where a version says which is the newest."""
    keys = draw.sample(range(20), draw.choice([0, 1, 4, 12]))
    if form == "feed":
        keys += draw.sample(keys, len(keys) // 2)
    changes = [
        {
            "id": key,
            "name": "xy"[key % 2],
            "v": float(draw.randrange(99)),
            "gone": draw.choice([True, False, None]),
            "_change_type": draw.choice(WORDS),
            "_commit_version": number,
        }
        for number, key in enumerate(keys)
    ]
    draw.shuffle(changes)
    return changes


def changed(
    state: dict[int, float], changes: list[dict[str, Any]], form: str, replaces: bool
) -> dict[int, float]:
    """What a table of these rows holds after a micro-batch."""
    after = {} if replaces else dict(state)
    for change in sorted(changes, key=lambda change: change["_commit_version"]):
        word = change["_change_type"] if form.startswith("feed") else None
        if word == "update_preimage":
            continue
        after.pop(change["id"], None)
        if word != "delete" and not (form == "marks" and change["gone"]):
            after[change["id"]] = change["v"]
    return after


def tasks_of(
    changes: list[dict[str, Any]], form: str, count: int, by_key: bool
) -> list[list[pa.RecordBatch]]:
    """The batches of some tasks, two changes in each; all changes of a key in one task, or not."""
    parts: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for number, change in enumerate(changes):
        parts[(change["id"] if by_key else number) % count].append(change)
    pairs = [[part[at : at + 2] for at in range(0, len(part), 2)] for part in parts]
    return [[pa.RecordBatch.from_pylist(pair, FORMS[form]) for pair in part] for part in pairs]


@pytest.mark.parametrize("seed", seeds(24, short=8))
def test_random_micro_batches_are_written_once_whatever_deletes_or_comes_again(
    tmp_path: Path, seed: int
) -> None:
    play(tmp_path, seed)


def play(directory: Path, seed: int) -> None:
    draw = random.Random(seed)
    keys = draw.choice(["id", "name, id"])
    with (
        pytest.MonkeyPatch.context() as patch,
        Store.create(directory / "sink.store", ["s1", "s2"], tablets=4, slots=32) as store,
    ):
        patch.setattr(spill, "WRITE_BUFFER_BYTES", draw.choice([1, 1 << 20]))
        patch.setattr(TaskContext, "get", staticmethod(lambda: QUERY))
        state: dict[int, float] = {}
        commits = 0
        for number in range(8):
            form, replaces = draw.choice(list(FORMS)), draw.random() < 0.2
            options = {"table": "fresh", "primaryKey": keys}
            options |= {"rows": {}, "marks": {"deleteColumn": draw.choice(["gone", "GONE"])}}.get(
                form, FEED_OPTION
            )
            columns, changes = spark_schema(FORMS[form]), some_changes(draw, form)
            for again in range(draw.choice([1, 2])):  # with its rows in other tasks
                tasks = tasks_of(changes, form, draw.choice([1, 2, 3]), by_key=not again)
                sent = [staged(sink(store, columns, replaces, **options), *batches) for batches in tasks]
                sink(store, columns, replaces, **options).commit([*sent, None], number)
            if any(message.staged for message in sent) or replaces:
                state = changed(state, changes, form, replaces)
                commits += 1
            if commits:
                assert contents(store, "fresh") == state
                assert store.table("fresh").schema.names == SCHEMA.names
                assert len(kinds(store, "fresh")) == 1 + commits
            else:
                assert not store.tables()
        assert store.collect_garbage(grace_seconds=0, orphan_seconds=0).removed == 0


def offsets(checkpoint: Path, number: int, end: str, planned_at: int = 0) -> None:
    """What Spark writes down before it plans a micro-batch."""
    log = checkpoint / "offsets" / str(number)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f'v1\n{{"batchTimestampMs":{planned_at}}}\n{end}', encoding="utf-8")


@pytest.mark.parametrize("scheme", ["", "file://", "FILE:", "file://localhost"])
def test_a_number_that_comes_again_with_other_offsets_is_refused(
    store: Store, tmp_path: Path, scheme: str
) -> None:
    """Hadoop takes all of a path as it stands: nothing in it is encoded."""
    place = tmp_path / "a b%20ü" / "c"
    where: dict[str, Any] = {"checkpointLocation": f"{scheme}{place}"}
    for planned_at in (0, 9):  # the same, whenever it was planned
        offsets(place, 0, '{"commit": 5}\n-', planned_at)
        run(store, 0, rows(0, 5), **where)
    offsets(place, 0, '{"commit": 8}\n-')
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
    checkpoint = tmp_path / "c"
    if place == "no log":
        (checkpoint / "offsets").mkdir(parents=True)
        (checkpoint / "offsets" / "0").write_text("-", encoding="utf-8")
    where: dict[str, Any] = {"none": {}, "no such files": {"checkpointLocation": "dbfs:///streams/c"}}
    for value in (3.0, 4.0):
        run(store, 0, rows(0, 5, v=value), **where.get(place, {"checkpointLocation": str(checkpoint)}))
        offsets(checkpoint, 0, '{"commit": 5}')
    assert contents(store) == BEFORE | dict.fromkeys(range(5), 3.0)
    assert caplog.text.count("cannot be read in the driver") == (place in ("nothing there", "no such files"))


def test_rows_that_delete_need_no_values_but_their_key(store: Store) -> None:
    strict = pa.schema([pa.field(f.name, f.type, nullable=False) for f in SCHEMA])
    store.create_table("strict", strict, ["id"])
    store.table("strict").upsert(pa.Table.from_batches([rows(0, 3)]).cast(strict))
    lines = [{"id": 0, "gone": True}, {"id": 1, "name": "b", "v": 8.0, "gone": False}]
    task = pa.RecordBatch.from_pylist(lines, MARKED)
    run(store, 0, task, schema=MARKED, table="strict", deleteColumn="gone")
    assert contents(store, "strict") == {1: 8.0, 2: 2.0}
