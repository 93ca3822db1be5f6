"""Small stores for the tests of the connector."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.store import Store
from tests.connector import stream_query
from tests.connector.stream_query import History

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("v", pa.float64())])


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
    store = Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=8, slots=64)
    store.create_table("t", SCHEMA, ["id"])
    made = History(store)
    made.write(stream_query.rows(0, 1_000))
    return made


def by_tasks(patch: pytest.MonkeyPatch) -> None:
    """Nothing is read alongside the driver, but limits and aggregates still reach the tasks."""
    for module in ("attached", "table_read"):
        patch.setattr(f"elasticscan.connector.sql.{module}.read_few", lambda *_: None)
