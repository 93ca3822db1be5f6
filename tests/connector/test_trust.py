"""Spark and stores that cannot be written, names that hide passwords, secrets that were replaced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition

from elasticscan.base.errors import (
    ElasticScanError,
    InvalidOption,
    ReadOnlyStore,
    ShardMismatch,
)
from elasticscan.connector import store_cache as access
from elasticscan.connector.options import parse_options
from elasticscan.connector.streams.reader import ElasticScanStreamReader
from elasticscan.store import Store
from tests.connector.conftest import serve
from tests.connector.test_reading import ids as ids_read
from tests.connector.test_reading import planned, source
from tests.store.test_root_scenarios import older_catalog

SECRET = "hunter2"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["a", "b"], tablets=4, slots=16) as made:
        made.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        made.table("t").upsert(pa.table({"id": range(100)}))
        made.table("t").upsert(pa.table({"id": range(100, 120)}))
        yield made


def ids(reader: DataSourceReader, partitions: Sequence[InputPartition]) -> list[int]:
    return sorted(ids_read(reader, partitions))


def next_batch(uri: str, start: Any = None, **options: str) -> tuple[dict[str, Any], list[int]]:
    """What a stream reads that goes on from an offset, or begins."""
    made = source(uri, **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, ElasticScanStreamReader)
    start = reader.initialOffset() if start is None else start
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return end, ids(reader, reader.partitions(start, end))  # type: ignore[arg-type]


FEED = {"readChangeFeed": "true", "startingVersion": "2"}


FROZEN = """
import gc, sys
from importlib.machinery import ModuleSpec
from elasticscan.connector.store_cache import open_store

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
before = gc.get_freeze_count()
open_store(sys.argv[2])
print((gc.get_freeze_count() - before) / len(gc.get_objects() or [1]) > 10)
"""


@pytest.mark.long
@pytest.mark.parametrize(("main", "frozen"), [("pyspark.daemon", "True"), ("users.program", "False")])
def test_what_a_worker_imported_is_no_garbage_and_a_users_process_is_left_alone(
    store: Store, main: str, frozen: str
) -> None:
    called = [sys.executable, "-c", FROZEN, main, store.uri]
    assert subprocess.run(called, check=True, capture_output=True, text=True).stdout.strip() == frozen


def test_a_task_reads_without_the_variable_that_named_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"postgresql+psycopg://ann:{SECRET}@db/x/t"
    assert SECRET not in repr(parse_options({"path": url}))
    monkeypatch.setenv("TRIPS", store.uri)
    for given in ({"store": "env:TRIPS", "table": "t"}, {"path": "env:TRIPS/t"}):
        options = parse_options(given)
        assert (options.store, options.table) == ("env:TRIPS", "t")
    reads = [planned("env:TRIPS"), planned("env:TRIPS", **FEED)]
    monkeypatch.delenv("TRIPS")
    assert [ids(*read) for read in reads] == [list(range(120)), list(range(120))]
    with pytest.raises(InvalidOption, match="TRIPS"):
        planned("env:TRIPS")


def test_plans_and_tasks_notice_that_the_catalog_was_put_back_to_an_older_copy(store: Store) -> None:
    """Reads of the newest commit are refused; a named snapshot is read."""
    uri, tasks = store.uri, []

    def work() -> None:
        store.table("t").upsert(pa.table({"id": range(120, 140)}))
        tasks.extend([planned(uri), planned(uri, **FEED)])
        assert [ids(*task) for task in tasks] == [list(range(140)), list(range(140))]
        access.open_store(uri).close()
        access.opened.cache_clear()  # as in another process, later

    with older_catalog(store, work):
        for options in ({}, FEED, {"timestampAsOf": "2100-01-01T00:00:00Z"}):
            with pytest.raises(ShardMismatch, match="elasticscan adopt"):
                planned(uri, **options)
        assert ids(*planned(uri, versionAsOf="3")) == list(range(120))
        for task in tasks:
            with pytest.raises(ElasticScanError):
                ids(*task)
        stream = source(uri).streamReader(source(uri).schema())
        assert isinstance(stream, ElasticScanStreamReader)
        for look in (stream.initialOffset, stream.prepareForTriggerAvailableNow):
            with pytest.raises(ShardMismatch):
                look()


def test_reads_and_streams_of_a_store_that_cannot_be_written(store: Store) -> None:
    store.table("t").set_retention("0s")  # leases would be needed
    with Store.open(store.uri, read_only=True) as opened:
        serve(opened)
        assert ids(*planned(store.uri)) == list(range(120))
        assert ids(*planned(store.uri, **FEED)) == list(range(120))
        reader, explained = planned(store.uri, explain="true")
        assert sum(batch.num_rows for batch in reader.read(explained[0])) == 1  # type: ignore[union-attr]
        assert next_batch(store.uri)[1] == list(range(120))
        with pytest.raises(ReadOnlyStore):  # what it asks for cannot be kept
            next_batch(store.uri, streamName="mine")
