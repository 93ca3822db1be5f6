"""Spark's loop around a streaming source, as Spark 4.3 runs it, without Spark; and what must come out."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from elasticscan.connector import ElasticScanSource
from elasticscan.connector.deletions import Deletions
from elasticscan.connector.streams.reader import ElasticScanStreamReader
from elasticscan.store import Store, publish, stage

Row = tuple[Any, ...]


def rows(start: int, end: int, v: float = 0.5) -> dict[int, Row]:
    return {i: (i, f"n{i % 7}", v) for i in range(start, end)}


class KilledError(Exception):
    """The query's process died here."""


def carried(value: Any) -> Any:
    """As it comes out of Spark's checkpoint."""
    return json.loads(json.dumps(value))


@dataclass
class Query:
    """A query with its checkpoint. `batches` are the rows of each batch as the sink has them."""

    uri: str
    options: dict[str, str] = field(default_factory=dict)
    schema: StructType | None = None
    available_now: bool = False
    ends: list[dict[str, Any]] = field(default_factory=list)  # the offset log
    done: int = 0  # how many batches are in the commit log
    batches: list[list[Row]] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)  # rows of each task, by batch
    reports: list[dict[str, Any] | None] = field(default_factory=list)
    reader: ElasticScanStreamReader | None = None
    committed: int = 0  # batches that `commit` was called for
    meanwhile: Callable[[], object] = bool  # called between planning and reading

    def source(self) -> ElasticScanSource:
        return ElasticScanSource({"store": self.uri, "table": "t", **self.options})

    def made(self) -> ElasticScanStreamReader:
        reader = self.source().streamReader(self.schema or self.source().schema())
        assert isinstance(reader, ElasticScanStreamReader)
        return reader

    def started(self) -> ElasticScanStreamReader:
        """The reader alongside the driver; a new one repeats the batch that was not finished."""
        if self.reader is None:
            self.reader = self.made()
            if self.available_now:
                self.reader.prepareForTriggerAvailableNow()
            self.committed = self.done
            if len(self.ends) > self.done:
                self.run(len(self.ends) - 1)
        return self.reader

    def start_of(self, number: int) -> dict[str, Any]:
        assert self.reader is not None
        return self.ends[number - 1] if number else carried(self.reader.initialOffset())

    def step(self, limit: ReadLimit | None = None, die: str | None = None) -> bool:
        """One round; False when there was nothing new. `die` names a point to be killed at."""
        reader = self.started()
        number = len(self.ends)
        start = self.start_of(number)
        end = carried(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))
        self.reports.append(carried(reader.reportLatestOffset()))
        if number and end == start:
            return False
        self.ends.append(end)
        try:
            if die == "logged":
                raise KilledError
            if self.committed < self.done:
                reader.commit(self.ends[self.done - 1])
                self.committed = self.done
            self.run(number, die == "read")
        except KilledError:
            self.reader = None
        return True

    def run(self, number: int, dies: bool = False) -> None:
        rows, sizes = self.rows_between(self.start_of(number), self.ends[number])
        del self.batches[number:], self.sizes[number:]  # a sink that repeats a batch replaces it
        self.batches.append(rows)
        self.sizes.append(sizes)
        if dies:
            raise KilledError
        self.done = number + 1

    def rows_between(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[list[Row], list[int]]:
        assert self.reader is not None
        tasks = self.reader.partitions(start, end)
        self.meanwhile()
        return read_all(self.made(), tasks)

    def run_to_the_end(self, limit: ReadLimit | None = None) -> list[Row]:
        for _ in range(10_000):
            if not self.step(limit):
                return self.rows
        raise AssertionError("the query never came to an end")

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]

    def restart(self) -> None:
        self.reader = None


def read_all(reader: DataSourceStreamReader, partitions: Any) -> tuple[list[Row], list[int]]:
    """Rows of all tasks, in other processes, and how many each had."""
    tasks: list[InputPartition] = pickle.loads(pickle.dumps(list(partitions)))
    elsewhere: DataSourceStreamReader = pickle.loads(CPickleSerializer().dumps(reader))
    rows: list[Row] = []
    sizes = []
    for task in tasks:
        before = len(rows)
        for batch in elsewhere.read(task):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.num_rows
            rows += zip(*batch.to_pydict().values(), strict=True)
        sizes.append(len(rows) - before)
    return rows, sizes


@dataclass
class NotedCommit:
    """What one commit did, in plain Python."""

    number: int
    kind: str
    new: list[Row]
    feed: list[Row]  # (id, name, v, change type, commit)


class History:
    """A table `t` that is written to, alongside a dictionary that says what must have changed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.state: dict[int, Row] = {}
        self.commits: list[NotedCommit] = []
        self.states: list[tuple[int, dict[int, Row]]] = [(store.table("t").definition.created_commit, {})]

    def write(self, rows: dict[int, Row], overwrite: bool = False) -> int:
        columns = list(zip(*rows.values(), strict=True))
        table = self.store.table("t")
        schema = table.schema
        data = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
        number = (table.overwrite if overwrite else table.upsert)(data)
        feed: list[Row] = []
        gone = [key for key in self.state if overwrite and key not in rows]
        feed += [(*self.state.pop(key), "delete", number) for key in gone]
        for key, row in rows.items():
            if key in self.state:
                feed.append((*self.state[key], "update_preimage", number))
                feed.append((*row, "update_postimage", number))
            else:
                feed.append((*row, "insert", number))
            self.state[key] = row
        self._note(NotedCommit(number, "overwrite" if overwrite else "write", list(rows.values()), feed))
        return number

    def delete(self, keys: list[int]) -> int:
        number = self.store.table("t").delete(pa.table({"id": pa.array(keys, pa.int64())}))
        feed = [(*self.state.pop(key), "delete", number) for key in keys if key in self.state]
        self._note(NotedCommit(number, "delete", [], feed))
        return number

    def merge(self, rows: dict[int, Row], keys: list[int]) -> int:
        """Upsert rows and delete keys in one commit, as a sink with a `deleteColumn` does."""
        table = self.store.table("t").definition
        marked = table.schema.append(pa.field("gone", pa.bool_()))
        both = [*((*row, False) for row in rows.values()), *((key, None, None, True) for key in keys)]
        columns = list(zip(*both, strict=True))
        arrays = [pa.array(c, f.type) for c, f in zip(columns, marked, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, names=marked.names)
        changes = Deletions("gone", marked).changes([batch], table, replacing=False)
        number = publish(self.store.context, table, stage(self.store.context, table, changes))
        feed: list[Row] = [(*self.state.pop(key), "delete", number) for key in keys if key in self.state]
        for key, row in rows.items():
            if key in self.state:
                feed.append((*self.state[key], "update_preimage", number))
            feed.append((*row, "update_postimage" if key in self.state else "insert", number))
            self.state[key] = row
        kind = next(commit.kind for commit in self.store.table("t").history() if commit.number == number)
        self._note(NotedCommit(number, kind, list(rows.values()), feed))
        return number

    def _note(self, message: NotedCommit) -> None:
        self.commits.append(message)
        self.states.append((message.number, dict(self.state)))

    def at(self, snapshot: int) -> list[Row]:
        return list([state for number, state in self.states if number <= snapshot][-1].values())

    def after(self, commit: int, skip: bool = False) -> list[Row]:
        return [row for message in self._since(commit, skip) for row in message.new]

    def feed_after(self, commit: int, skip: bool = False) -> list[Row]:
        return [row for message in self._since(commit, skip) for row in message.feed]

    def _since(self, commit: int, skip: bool) -> list[NotedCommit]:
        return [t for t in self.commits if t.number > commit and not (skip and t.kind != "write")]

    def expected(self, query: Query, snapshot: int | None, commit: int) -> Counter[Row]:
        """What a query must have read: a snapshot, if it began with one, and all that came later."""
        skip = query.options.get("skipChangeCommits") == "true"
        if query.options.get("readChangeFeed") == "true":
            first = [(*row, "insert", snapshot) for row in self.at(snapshot)] if snapshot is not None else []
            return Counter([*first, *self.feed_after(commit, skip)])
        return Counter([*(self.at(snapshot) if snapshot is not None else []), *self.after(commit, skip)])


def without_times(query: Query, rows: list[Row]) -> Counter[Row]:
    """Rows without the time of their commit."""
    return (
        Counter(row[:-1] for row in rows) if query.options.get("readChangeFeed") == "true" else Counter(rows)
    )
