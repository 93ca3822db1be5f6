"""A catalog at a database server: who may use it, what lies alongside it, and how often it is asked."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from elasticscan.base.errors import AlreadyExists
from elasticscan.store import Scan, Store
from tests.base.postgres import Server
from tests.base.severed_line import SeveredLine

pytestmark = pytest.mark.long

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    with postgres.database() as name:
        yield name


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"k": list(range(first, last)), "v": list(range(last - first))}, schema=SCHEMA)


def make(url: str, place: Path) -> Store:
    store = Store.create(url, {"a": str(place / "a")}, tablets=4, slots=16, upkeep="off")
    store.create_table("t", SCHEMA, ["k"])
    store.table("t").upsert(rows(0, 100))
    return store


def connect(server: Server, database: str) -> psycopg.Connection:
    return psycopg.connect(host=str(server.directory), user="elasticscan", dbname=database)


def test_a_schema_holds_one_store_and_a_database_many(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    url = postgres.url(database)
    postgres.execute("CREATE SCHEMA other", database)
    other_schema = f"{url}&options=-csearch_path%3Dother"
    with make(url, tmp_path / "one") as one:
        with pytest.raises(AlreadyExists):
            Store.create(url, {"a": str(tmp_path / "again")})
        with make(other_schema, tmp_path / "two") as two:
            two.table("t").upsert(rows(50, 150))
            assert one.table("t").scan().to_table().num_rows == 100
            assert two.table("t").scan().to_table().num_rows == 150
            assert one.context.info.store_id != two.context.info.store_id
    postgres.execute("DROP SCHEMA other CASCADE", database)


def test_a_scan_waits_for_few_answers_of_the_server(postgres: Server, database: str, tmp_path: Path) -> None:
    with SeveredLine(postgres.socket) as line, make(line.url(database), tmp_path) as store:

        def trips(work: Callable[[], object]) -> int:
            line.cut_at()
            work()
            return line.trips

        table = store.table("t")
        table.scan()
        assert trips(table.scan) <= 2
        begun, again = (iter(table.scan(page_rows=10)) for _ in range(2))
        next(begun)
        assert [trips(lambda: next(begun)) for _ in range(3)] == [1] * 3
        assert [trips(lambda: next(again)) for _ in range(3)] == [1] * 3, "the first one too"
        assert trips(store.context.versions) == 1


def test_a_commit_waits_for_few_answers_of_the_server(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    with SeveredLine(postgres.socket) as line, make(line.url(database), tmp_path) as store:

        def trips(work: Callable[[], object]) -> int:
            line.cut_at()
            work()
            return line.trips

        table = store.table("t")
        assert trips(lambda: table.upsert(rows(50, 150))) <= 4
        assert trips(lambda: table.delete([1, 2])) <= 4
        table.create_index("by_v", ["v"])
        table.upsert(rows(0, 10))
        assert trips(lambda: table.upsert(rows(50, 150))) <= 6
        with Store.open(line.url(database)) as kept:  # with upkeep, of which none is due
            kept.table("t").upsert(rows(0, 10))
            assert trips(lambda: kept.table("t").upsert(rows(0, 10))) <= 6
            kept.table("t").compact()
        assert trips(lambda: table.upsert(rows(50, 150))) <= 6, "another one's merge changes files alone"
        store.context.catalog.check_whole()


def test_a_store_that_nobody_closes_leaves_no_connection_behind(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    make(postgres.url(database), tmp_path).close()
    store = Store.open(postgres.url(database))
    scans = [store.table("t").scan() for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:  # several connections, idle ones and those that look
        assert {*pool.map(Scan.count, scans)} == {100}
    del store, scans, pool
    with warnings.catch_warnings(record=True) as message:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(warning.message) for warning in message] == []
    ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    with connect(postgres, database) as connection:
        for _ in range(1_000):  # a server needs a moment
            ((left,),) = connection.execute(ours, (database,)).fetchall()
            if not left:
                break
            time.sleep(0.01)
        assert left == 0
