"""Transcripts of Spark's readers and writers, without Spark: stories of a store (`tests/transcripts`).

- `plan r OPTIONS` plans a batch read of the table `t`, and `read r` carries it out; `feed OPTIONS` reads
  changes in a batch.
- `write w mode=overwrite OPTIONS` plans a write of a table's columns, or of `columns=id,v`; `task w ROWS`
  stages rows of a task, and `commit w` commits what all tasks staged.
- `stream q OPTIONS` makes a query of `t` with a checkpoint, `step q` is a micro-batch of it (`step q
  die=logged` one whose process dies once its end is logged), `restart q OPTIONS` goes on from the checkpoint,
  and `drain q` reads what there is now.
- `sink s OPTIONS` makes the sink of a stream, and `batch s 0 ROWS / ROWS` writes a micro-batch in two tasks;
  the answer is the newest commit. A sink called `unnamed` has no query id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from elasticscan.base.errors import NotFound
from elasticscan.connector import ElasticScanSource, store_cache
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.writing import ElasticScanWriter, StagedMessage
from tests.connector.conftest import serve
from tests.connector.stream_query import Query, Row, read_all
from tests.transcripts.test_transcripts import Story, check, rows_of

_CHANGES = [("insert",), ("update_preimage",), ("update_postimage",), ("delete",)]
STORIES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


class SparkStory(Story):
    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(place, patch)
        self.queries = dict[str, Query]()
        self.writers = dict[str, tuple[pa.Schema, ElasticScanWriter, list[StagedMessage]]]()
        self.sinks = dict[str, tuple[pa.Schema, Callable[[], Any]]]()
        self.plans = dict[str, tuple[DataSourceReader, Sequence[InputPartition]]]()
        self.query_id: str | None = None
        task = SimpleNamespace(getLocalProperty=lambda _: self.query_id)
        patch.setattr(TaskContext, "get", staticmethod(lambda: task))

    def _incoming(
        self, columns: Sequence[str], options: dict[str, Any]
    ) -> tuple[pa.Schema, ElasticScanSource]:
        """Return the schema of a write, with the types of the table where none are given, and its source."""
        serve(self.store)
        known = pa.schema([("id", pa.int64()), ("v", pa.string())])
        with suppress(NotFound):
            known = self.store.table(options.get("table", "t")).schema
        pairs = [column.partition(":") for column in columns]
        fields = [
            (name, pa.type_for_alias(kind) if kind else known.field(name).type) for name, _, kind in pairs
        ]
        texts = _options(options)
        return pa.schema(fields), Query(self.store.uri, texts).source()

    def do_write(
        self, name: str, mode: str = "append", columns: Sequence[str] = ("id", "v"), **options: Any
    ) -> None:
        schema, source = self._incoming(columns, options)
        writer = source.writer(spark_schema(schema), mode == "overwrite")
        assert isinstance(writer, ElasticScanWriter)
        self.writers[name] = schema, writer, []

    def do_sink(
        self, name: str, mode: str = "append", columns: Sequence[str] = ("id", "v"), **options: Any
    ) -> None:
        schema, source = self._incoming(columns, options)
        self.sinks[name] = schema, partial(source.streamWriter, spark_schema(schema), mode == "overwrite")

    def do_batch(self, name: str, number: str, *rows: str) -> str:
        schema, sink = self.sinks[name]
        self.query_id = None if name == "unnamed" else name
        tasks = [rows_of(schema, task.split()) for task in " ".join(rows).split("/")]
        sink().commit([sink().write(iter(task.to_batches())) for task in tasks], int(number))
        newest = max(
            (commit for table in self.store.tables() for commit in table.history()), key=attrgetter("number")
        )
        return self.shown(newest)

    def do_task(self, name: str, *rows: str) -> None:
        schema, writer, messages = self.writers[name]
        messages.append(writer.write(iter(rows_of(schema, rows).to_batches())))

    def do_commit(self, name: str) -> None:
        _, writer, messages = self.writers[name]
        writer.commit(messages)

    def do_compact(self, table: str) -> None:
        self.store.table(table).compact()

    def do_rotate(self, *revoke: str) -> None:
        """Replace the store's secrets, and revoke the old ones; other processes know a while later."""
        self.store.rotate_secret(revoke=bool(revoke))
        store_cache.opened.cache_clear()
        serve(self.store)

    def do_plan(self, name: str, **options: object) -> None:
        serve(self.store)
        source = Query(self.store.uri, _options(options)).source()
        reader = source.reader(source.schema())
        self.plans[name] = reader, reader.partitions()

    def do_read(self, name: str) -> str:
        return _shown(read_all(*self.plans[name])) or "no rows"

    def do_stream(self, name: str, **options: object) -> None:
        serve(self.store)
        self.queries[name] = Query(self.store.uri, _options(options))

    def do_step(self, name: str, die: str | None = None) -> str:
        query = self.queries[name]
        return _batch(query) if query.step(die=die) else "nothing new"

    def do_restart(self, name: str, **options: object) -> None:
        self.queries[name].options |= _options(options)
        self.queries[name].restart()

    def do_drain(self, name: str) -> str:
        query = self.queries[name]
        query.restart()
        query.available_now = True
        query.started()
        query.run_to_the_end()
        return _batch(query)

    def do_lag(self, name: str) -> str:
        """Show what Spark's progress says of the lag after the last micro-batch."""
        report = self.queries[name].reports[-1] or {}
        return ", ".join(f"{key} {value}" for key, value in report.items())

    def do_streams(self) -> list[str]:
        """Show the streams with a name that `status` lists, and how far each is behind."""
        streams = self.store.status()["streams"]
        return [
            f"{each['name']} at commit {each['commit']}, behind {each['behind_commits']} commits of "
            f"{each['behind_rows']} rows"
            for each in streams
        ]

    def do_feed(self, **options: object) -> str:
        self.do_stream("", readChangeFeed="true", **options)
        source = self.queries[""].source()
        reader = source.reader(source.schema())
        parts = reader.partitions()
        return _shown(read_all(reader, parts)) or "no rows"


def _options(given: dict[str, Any]) -> dict[str, str]:
    return {key: ",".join(value) if isinstance(value, list) else str(value) for key, value in given.items()}


def _batch(query: Query) -> str:
    """Show the rows of the newest micro-batch, and where it ends."""
    end = query.ends[-1]
    place = f"snapshot {end['at']}" if "at" in end else f"commit {end['commit']}"
    slot = f" and slots before {end['slot']} of the next one" if end["slot"] and "at" not in end else ""
    slot = f", slots before {end['slot']}" if "at" in end else slot
    rows = (_shown(query.batches[-1]) or "no rows") if query.done == len(query.ends) else "not read"
    return f"{rows}\nup to {place}{slot}"


def _shown(rows: list[Row]) -> str:
    """Show rows by key; of changes also what they are, by commit."""
    if rows and rows[0][2:3] in _CHANGES:  # (id, v, change, commit)
        ordered = sorted(rows, key=lambda row: (row[3], row[0], row[2] != "update_preimage"))
        return " ".join(f"{row[2]} {row[0]}={row[1]}" for row in ordered)
    lines = [(row[0], ",".join("" if value is None else str(value) for value in row[1:])) for row in rows]
    return " ".join(f"{key}={values}" for key, values in sorted(lines))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
@pytest.mark.usefixtures("unflushed")
def test_spark_reads_and_writes_as_the_transcript_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SparkStory(tmp_path, monkeypatch)) as played:
        check(played, path)
