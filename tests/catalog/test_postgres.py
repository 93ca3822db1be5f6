"""A log at a PostgreSQL server: many writers, lost connections, and a server that restarts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event
from time import sleep

import psycopg
import pyarrow as pa
import pytest

from elasticscan.catalog.appending import Append
from elasticscan.catalog.log import Log
from elasticscan.catalog.postgres import PostgresHome
from elasticscan.metadata import (
    RowsCommitted,
    StoreCreated,
    TableDefined,
    TableInfo,
    TagChanged,
)
from elasticscan.topology import Shard, SlotSet, Tablet
from tests.base.postgres import Server
from tests.base.severed_line import SeveredLine
from tests.catalog.logs import append, begin

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])
TABLE = TableInfo(1, "t", SCHEMA, ("k",), ("k",), None, 0, 0)
SHARDS = (Shard(1, "a", "/a"), Shard(2, "b", "/b"))
TABLETS = tuple(Tablet(n + 1, n * 4, n * 4 + 4, n % 2 + 1, 1) for n in range(4))


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    with postgres.database() as name:
        yield name


@pytest.fixture
def address(postgres: Server, database: str) -> str:
    return f"host={postgres.directory} user=elasticscan dbname={database}"


@pytest.fixture
def log(address: str) -> Iterator[Log]:
    created = StoreCreated("0" * 32, 16, "spark", 60.0, SHARDS, TABLETS)
    made = begin(PostgresHome.create(address), created)
    append(made, Append(TableDefined(TABLE, 0)))
    yield made
    made.home.close()


def write(log: Log, content: bytes, based_on: int = 0) -> int:
    record = RowsCommitted(1, "write", 1, 1, len(content), slots=SlotSet.span(3, 4), based_on=based_on)
    return append(log, Append(record, rows=content))


def contents(log: Log) -> dict[int, bytes]:
    """All rows of the table that are in the log, by number."""
    state = Log(log.home).follow()
    return log.rows_of(1, state.tables[1].memory)


def test_writers_side_by_side_get_one_number_each_and_the_chain_holds(log: Log, address: str) -> None:
    def write_some(writer: int) -> list[tuple[int, bytes]]:
        own, chance = Log(PostgresHome(address)), random.Random(writer)
        own.follow()
        done = []
        for number in range(25):
            if chance.random() < 0.2:
                append(own, Append(TagChanged(1, f"{writer}-{number}", own.state.number)))
            content = f"{writer} {number}".encode()
            done.append((write(own, content), content))
        own.home.close()
        return done

    with ThreadPoolExecutor(6) as writers:
        done = dict(pair for some in writers.map(write_some, range(6)) for pair in some)
    assert len(done) == 6 * 25
    assert contents(log) == done
    state = log.follow()
    assert [entry.number for entry in log.entries(0, state.number)] == list(range(state.number + 1))
    log.check_whole()


@pytest.mark.parametrize("answered", [False, True], ids=["the request is lost", "the answer is lost"])
@pytest.mark.parametrize("inline", [True, False], ids=["one statement", "a transaction"])
def test_an_append_whose_connection_breaks_is_made_once(
    log: Log, postgres: Server, database: str, answered: bool, inline: bool
) -> None:
    with SeveredLine(postgres.socket) as line:
        far = Log(PostgresHome(f"host=127.0.0.1 port={line.port} user=elasticscan dbname={database}"))
        far.follow()
        for trip in range(1, 9):
            line.cut_at(trip, answered=answered)
            based_on = 0 if inline else far.follow().number
            write(far, f"{trip}".encode(), based_on)
        line.cut_at()
        far.home.close()
    assert sorted(contents(log).values()) == [f"{trip}".encode() for trip in range(1, 9)]


def test_an_append_that_arrives_after_its_repetition_is_refused(log: Log, address: str) -> None:
    """The head is locked, so an append waits at the server; its writer loses the connection meanwhile."""
    with psycopg.connect(address) as other:
        other.execute("SELECT number FROM head FOR UPDATE")
        waiting = Event()

        def append() -> int:
            own = Log(PostgresHome(address))
            own.follow()
            waiting.set()
            with closing(own.home):
                return write(own, b"once")

        with ThreadPoolExecutor(1) as writer:
            done = writer.submit(append)
            waiting.wait()
            _end_waiting_backends(address)
            other.commit()
            number = done.result()
    assert contents(log) == {number: b"once"}


def _end_waiting_backends(address: str) -> None:
    """End the connections that wait for the lock, once there is one."""
    with psycopg.connect(address, autocommit=True) as control:
        for _ in range(400):
            ended = control.execute(
                """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE wait_event_type = 'Lock' AND datname = current_database()"""
            ).fetchall()
            if ended:
                return
            sleep(0.01)
    raise AssertionError("nothing waited")


def test_a_commit_is_on_the_disk_where_the_database_does_not_wait_for_it(
    log: Log, postgres: Server, database: str, address: str
) -> None:
    """Such a server keeps what it acknowledged in memory, for up to three times `wal_writer_delay`."""
    for setting in ("ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()"):
        postgres.execute(setting)
    postgres.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
    try:
        for what in (RowsCommitted(1, "write", 1, 1, 4, slots=SlotSet.span(3, 4)), TagChanged(1, "now", 1)):
            own = Log(PostgresHome(address))
            own.follow()
            number = append(own, Append(what, rows=b"rows" if isinstance(what, RowsCommitted) else None))
            own.home.close()
            postgres.restart()
            assert Log(log.home).follow().number == number
    finally:
        postgres.execute(f"ALTER DATABASE {database} RESET synchronous_commit")
        for setting in ("ALTER SYSTEM RESET wal_writer_delay", "SELECT pg_reload_conf()"):
            postgres.execute(setting)
