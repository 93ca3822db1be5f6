"""Spark's loop around a streaming source, as Spark 4.3 runs it, without Spark; and what must come out."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from elasticscan.base.hashing import slots_of
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.deletions import Deletions
from elasticscan.connector.store_cache import open_store
from elasticscan.connector.streams.reader import ElasticScanStreamReader
from elasticscan.store import Store, publish, stage

Row = tuple[Any, ...]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("v", pa.float64())])


def rows(start: int, end: int, v: float = 0.5) -> dict[int, Row]:
    return {i: (i, f"n{i % 7}", v) for i in range(start, end)}


def batch_of(rows: Iterable[Row], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


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
    reports: list[dict[str, Any] | None] = field(default_factory=list)
    reader: ElasticScanStreamReader | None = None
    committed: int = 0  # batches that `commit` was called for
    bounds: list[int | None] = field(default_factory=list)  # the most rows of each batch
    meanwhile: Callable[[], object] = bool  # called between planning and reading

    def source(self) -> ElasticScanSource:
        return ElasticScanSource({"store": self.uri, "table": "t", **self.options})

    def made(self) -> ElasticScanStreamReader:
        reader = self.source().streamReader(self.schema or self.source().schema())
        assert isinstance(reader, ElasticScanStreamReader)
        return reader

    def started(self) -> ElasticScanStreamReader:
        """The reader in the driver; a new one repeats the batch that was not finished."""
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
        start, limit = self.start_of(number), limit or reader.getDefaultReadLimit()
        end = carried(reader.latestOffset(start, limit))
        self.reports.append(carried(reader.reportLatestOffset()))
        if number and end == start:
            return False
        self.ends.append(end)
        self.bounds.append(limit.max_rows if isinstance(limit, ReadMaxRows) else None)
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
        assert self.reader is not None
        tasks = self.reader.partitions(self.start_of(number), self.ends[number])
        self.meanwhile()
        rows = read_all(self.reader, tasks, feed=self.feed)
        most = self.bounds[number]
        if most is not None and len(rows) > most and self.schema is None:
            keys = pa.array({row[0] for row in rows}, pa.int64())
            slots = slots_of([keys], open_store(self.uri).backend.slot_count)
            assert len(set(slots.tolist())) == 1, "a batch is only too large where one slot is"
        self.batches[number:] = [rows]  # a sink that repeats a batch replaces it
        if dies:
            raise KilledError
        self.done = number + 1

    def run_to_the_end(self, limit: ReadLimit | None = None) -> list[Row]:
        for _ in range(10_000):
            if not self.step(limit):
                return self.rows
        raise AssertionError("the query never came to an end")

    @property
    def feed(self) -> bool:
        return self.options.get("readChangeFeed") == "true" and self.schema is None

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]

    def restart(self) -> None:
        self.reader = None


def read_all(
    reader: DataSourceStreamReader | DataSourceReader, partitions: Any, feed: bool = False
) -> list[Row]:
    """Rows of all tasks, in other processes; of a feed each key's in their order."""
    tasks: list[InputPartition] = pickle.loads(pickle.dumps(list(partitions)))
    elsewhere: DataSourceStreamReader | DataSourceReader = pickle.loads(CPickleSerializer().dumps(reader))
    rows: list[Row] = []
    for task in tasks:
        before = len(rows)
        for batch in elsewhere.read(task):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.num_rows
            rows += zip(*batch.to_pydict().values(), strict=True)
        newest: dict[int, int] = {}
        for row in rows[before:] if feed else ():
            assert newest.get(row[0], 0) <= row[-2], "changes of a key come in the order of their commits"
            newest[row[0]] = row[-2]
    return rows


@dataclass
class NotedCommit:
    """What one commit did, in plain Python."""

    number: int
    kind: str
    new: list[Row]
    feed: list[Row]  # (id, name, v, change type, commit)


class History:
    """A new table `t` that is written to, alongside a dictionary that says what must have changed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.state: dict[int, Row] = {}
        self.commits: list[NotedCommit] = []
        table = store.create_table("t", SCHEMA, ["id"])
        self.states: list[tuple[int, dict[int, Row]]] = [(table.definition.created_commit, {})]

    def write(self, rows: dict[int, Row], overwrite: bool = False) -> int:
        table = self.store.table("t")
        number = (table.overwrite if overwrite else table.upsert)(batch_of(rows.values(), table.schema))
        return self._note(number, rows if overwrite else self.state | rows, rows)

    def delete(self, keys: list[int]) -> int:
        return self._note(self.store.table("t").delete(keys), self._without(keys), {})

    def merge(self, rows: dict[int, Row], keys: list[int]) -> int:
        """Upsert rows and delete keys in one commit, as a sink with a `deleteColumn` does."""
        table = self.store.table("t").definition
        marked = table.schema.append(pa.field("gone", pa.bool_()))
        both = [*((*row, False) for row in rows.values()), *((key, None, None, True) for key in keys)]
        changes = Deletions("gone", marked, table).changes([batch_of(both, marked)], table, replacing=False)
        number = publish(self.store.context, table, stage(self.store.context, table, changes))
        return self._note(number, self._without(keys) | rows, rows)

    def _without(self, keys: list[int]) -> dict[int, Row]:
        return {key: row for key, row in self.state.items() if key not in set(keys)}

    def _note(self, number: int, after: dict[int, Row], written: dict[int, Row]) -> int:
        before, self.state = self.state, after
        feed = [(*before[key], "delete", number) for key in before.keys() - after.keys()]
        for key, row in written.items():
            if key in before:
                feed.append((*before[key], "update_preimage", number))
            feed.append((*row, "update_postimage" if key in before else "insert", number))
        (newest,) = self.store.table("t").history(1)
        assert newest.number == number
        self.commits.append(NotedCommit(number, newest.kind, list(written.values()), feed))
        self.states.append((number, after))
        return number

    def at(self, snapshot: int) -> list[Row]:
        return list([state for number, state in self.states if number <= snapshot][-1].values())

    def after(self, commit: int, skip: bool = False, feed: bool = True) -> list[Row]:
        """The changes after a commit, or its new rows alone."""
        since = [t for t in self.commits if t.number > commit and not (skip and t.kind != "write")]
        return [row for noted in since for row in (noted.feed if feed else noted.new)]

    def expected(self, query: Query, snapshot: int | None, commit: int) -> Counter[Row]:
        """What a query must have read: a snapshot, if it began with one, and all that came later."""
        skip, feed = (query.options.get(name) == "true" for name in ("skipChangeCommits", "readChangeFeed"))
        first = self.at(snapshot) if snapshot is not None else []
        inserted = [(*row, "insert", snapshot) if feed else row for row in first]
        return Counter([*inserted, *self.after(commit, skip, feed)])


def without_times(query: Query, rows: list[Row]) -> Counter[Row]:
    """Rows without the time of their commit."""
    return (
        Counter(row[:-1] for row in rows) if query.options.get("readChangeFeed") == "true" else Counter(rows)
    )
