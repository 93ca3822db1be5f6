"""Small stores for the tests of the connector."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from elasticscan.connector import store_cache
from elasticscan.connector.sql import driver_reads
from elasticscan.store import Store
from tests.connector import stream_query
from tests.connector.sql_queries import fill
from tests.connector.stream_query import History

SCHEMA = stream_query.SCHEMA


def rows(start: int, end: int, v: float = 0.5) -> pa.Table:
    """Rows with the ids from `start` to `end`, end excluded."""
    return pa.Table.from_batches([batch(start, end, v)])


def batch(start: int, end: int, v: float = 2.0) -> pa.RecordBatch:
    ids = range(start, end)
    columns = {"id": ids, "name": [f"n{i % 7}" for i in ids], "v": [v] * len(ids)}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def contents(made: Store, table: str = "t") -> dict[int, float]:
    """The values of `v` by `id`, each id once."""
    scanned = made.table(table).scan().to_table()
    ids = scanned["id"].to_pylist()
    assert len(set(ids)) == len(ids)
    return dict(zip(ids, scanned["v"].to_pylist(), strict=True))


def files(made: Store) -> int:
    return len(list(Path(made.uri).glob("shards/**/*.arrow")))


def kinds(made: Store, table: str = "t") -> list[str]:
    """What the commits of a table did."""
    return [commit.kind for commit in made.table(table).history()]


def made_again(made: Store, what: str) -> Store:
    """Drop the table `t`, or put its store away, and make another one there."""
    if what == "table":
        made.table("t").drop()
    else:
        made.close()
        Path(made.uri).rename(f"{made.uri}.old")
        made = Store.create(made.uri, ["s1"], tablets=2, slots=16)
    made.create_table("t", SCHEMA, ["id"])
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two shards, eight tablets, a table `t` of 1,000 rows."""
    made = Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=8, slots=64)
    made.create_table("t", SCHEMA, ["id"])
    made.table("t").upsert(rows(0, 1_000))
    return made


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Two shards, eight tablets, 64 slots, a table `t` of 1,000 rows."""
    made = History(Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=8, slots=64))
    made.write(stream_query.rows(0, 1_000))
    return made


def serve(opened: Store) -> None:
    """Let the connector use an open store, with its clock or without the right to write, for its address."""
    store_cache.opened.cache_clear()
    store_cache.open_store(opened.uri)._opened = opened._opened


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of the tables of `sql_queries.py`."""
    made = Store.create(tmp_path_factory.mktemp("sql") / "shop.store", ["s1", "s2"], tablets=4, slots=64)
    fill(made)
    return made


def small(spark: SparkSession) -> SparkSession:
    """Return a session of its own for some tens of rows, which want no plans that adapt while they run."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def by_tasks(patch: pytest.MonkeyPatch) -> None:
    """Nothing is read in the driver, but limits and aggregates still reach the tasks."""
    for most in ("FEW_ROWS", "FEW_BYTES", "MOST_FOLDED"):
        patch.setattr(driver_reads, most, -1)
