"""Connections to a server: lost, silent, few for many threads, refused, and across a fork."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event

import psycopg
import pyarrow as pa
import pytest

from elasticscan.base.clock import SystemClock
from elasticscan.base.errors import (
    CatalogUnavailable,
    InvalidOption,
    ReadOnlyStore,
)
from elasticscan.catalog import tables
from elasticscan.catalog.appending import Append
from elasticscan.catalog.database import Interrupted, LogHome
from elasticscan.catalog.log import Log
from elasticscan.catalog.opening import holds_store, make_home, open_home
from elasticscan.catalog.postgres import ImpatientConnection, PostgresHome, ServerClock
from elasticscan.metadata import (
    RowsCommitted,
    StoreCreated,
    TableDefined,
    TableInfo,
    TagChanged,
    TimeObserved,
)
from elasticscan.topology import Shard, SlotSet, Tablet
from tests.base.pooler import pooled
from tests.base.postgres import Server
from tests.base.severed_line import SeveredLine
from tests.catalog.logs import append as append_to
from tests.catalog.logs import begin as begin_log
from tests.processes.test_forks import ended_well, forked

CREATED = StoreCreated("s", 8, "murmur3", 60.0, (Shard(1, "a", "/a"),), (Tablet(1, 0, 8, 1, 1),))
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
CLOCK = SystemClock()

LAYOUT = "SELECT layout FROM head"


def opened(url: str, **how: bool) -> PostgresHome:
    home = open_home(url, CLOCK, "here", **how)
    assert isinstance(home, PostgresHome)
    assert isinstance(home.clock, ServerClock), "the time is the server's"
    return home


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    with postgres.database() as name:
        with make_home(postgres.url(name), CLOCK, "here") as home:
            begin_log(home, CREATED)
        yield name


@pytest.fixture
def home(line: SeveredLine, database: str) -> Iterator[PostgresHome]:
    with closing(opened(line.url(database))) as home:
        yield home
    line.cut_at()


def append(home: LogHome) -> int:
    return append_to(Log(home), Append(TimeObserved()))


def number_in(home: LogHome) -> int:
    return int(home.execute(tables.HEAD)[0][0])


@pytest.fixture
def address(postgres: Server, database: str) -> str:
    return f"host={postgres.directory} user=elasticscan dbname={database}"


@pytest.fixture
def log(address: str) -> Iterator[Log]:
    """A log with a table."""
    with closing(PostgresHome(address)) as home:
        made = Log(home)
        append_to(made, Append(TableDefined(TableInfo(1, "t", SCHEMA, ("k",), ("k",), None, 0, 0), 0)))
        yield made


def write(log: Log, content: bytes, based_on: int = 0) -> int:
    record = RowsCommitted(1, "write", 1, 1, len(content), slots=SlotSet.span(3, 4), based_on=based_on)
    return append_to(log, Append(record, rows=content))


def contents(log: Log) -> dict[int, bytes]:
    """All rows of the table that are in the log, by number."""
    state = Log(log.home).follow()
    return log.rows_of(1, state.tables[1].memory)


# --------------------------------------------------------------------------------------------- lost


def test_a_transaction_takes_few_round_trips(home: PostgresHome, line: SeveredLine) -> None:
    log = Log(home)
    log.follow()
    line.cut_at()
    log.follow()
    assert line.trips == 1
    line.cut_at()
    with log.writing() as transaction:
        for _ in range(5):
            transaction.append(Append(TimeObserved()))
    assert line.trips == 3, "it follows, locks, and commits"


@pytest.mark.parametrize("answered", [False, True], ids=["request lost", "answer lost"])
def test_a_log_is_made_once_or_not_at_all_wherever_its_connection_breaks(
    postgres: Server, line: SeveredLine, answered: bool
) -> None:
    for trip in range(1, 40):
        with postgres.database() as name:
            line.cut_at(trip, answered=answered)
            is_made = False
            try:
                with make_home(line.url(name), CLOCK, "here") as home:
                    begin_log(home, CREATED)
                is_made = True
            except Interrupted:
                pass
            was_cut = line.cuts
            line.cut_at()
            assert holds_store(line.url(name)) == is_made
            if not was_cut:
                break
    assert trip > 5


def test_a_server_that_is_not_there_is_reported_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticscan.catalog.postgres.FIRST_CONNECT_SECONDS", 0.0)
    url = "postgresql+psycopg://ann:hunter2@127.0.0.1:1/db?sslpassword=hunter3"
    with pytest.raises(CatalogUnavailable, match="try again") as refused:
        open_home(url, CLOCK, "here")
    behind: BaseException | None = refused.value
    while behind is not None:
        assert "hunter" not in f"{behind} {behind!r} {vars(behind)}"
        behind = behind.__cause__ or behind.__context__


# --------------------------------------------------------------------------------------------- silent


def test_a_server_that_stands_still_is_waited_for_no_longer_than_a_limit(
    postgres: Server, database: str
) -> None:
    with closing(opened(f"{postgres.url(database)}&connect_timeout=2")) as home:
        home.close()
        home.answer_seconds, home.retry_seconds = 0.3, 0.3
        assert number_in(home) == 0
        for ask in (number_in, append):
            with postgres.paused(), pytest.raises(CatalogUnavailable, match=r"no answer|timeout expired"):
                ask(home)
        assert append(home) == number_in(home)


def test_an_answer_that_comes_in_pieces_is_no_silence(postgres: Server) -> None:
    slow = "DO $$ BEGIN FOR n IN 1..6 LOOP PERFORM pg_sleep(0.2); RAISE NOTICE '%', n; END LOOP; END $$"
    address = f"host={postgres.directory} user=elasticscan dbname=postgres"
    with ImpatientConnection.connect(address, autocommit=True) as connection:
        connection.answer_seconds = 0.5
        connection.execute(slow)
        with pytest.raises(psycopg.OperationalError, match=r"no answer for 0\.5 seconds"):
            connection.execute("SELECT pg_sleep(3)")
        assert connection.closed


def test_a_writer_that_stands_still_holds_the_lock_no_longer_than_a_limit(
    postgres: Server, database: str
) -> None:
    with closing(opened(postgres.url(database))) as one, closing(opened(postgres.url(database))) as other:
        one.answer_seconds = 0.2
        numbers = []

        def stand_still() -> None:
            with Log(one).writing() as transaction:
                transaction.append(Append(TimeObserved()))
                numbers.append(append(other))  # it waits until the server ends the one that is silent

        with pytest.raises(Interrupted):
            stand_still()
        assert [*numbers, append(one)] == [1, 2]


def test_a_writer_waits_for_its_turn_and_one_that_has_no_time_does_not(
    postgres: Server, database: str
) -> None:
    with closing(opened(postgres.url(database))) as one, closing(opened(postgres.url(database))) as other:
        with ThreadPoolExecutor(1) as pool:
            with one.writing():
                at_once = other.writing(at_once=True)
                with pytest.raises(CatalogUnavailable, match="locked by another writer"):
                    at_once.__enter__()
                waiting = pool.submit(append, other)
                time.sleep(0.1)
                assert not waiting.done()
            assert waiting.result() == 1
        other.answer_seconds, other.retry_seconds = 0.2, 0.0
        with one.writing(), pytest.raises(CatalogUnavailable, match="locked by another writer"):
            append(other)


# --------------------------------------------------------------------------------------------- shared


def test_a_pooler_of_transactions_serves_more_writers_than_it_has_connections(
    postgres: Server, database: str
) -> None:
    with pooled(postgres, database, 2) as url, closing(opened(url)) as home, ThreadPoolExecutor(8) as pool:
        numbers = sorted(pool.map(lambda _: append(home), range(24)))
        assert numbers == list(range(1, 25))
        Log(home).check_whole()


def test_a_child_looks_for_itself_and_leaves_its_parents_connections_alone(
    home: PostgresHome, postgres: Server
) -> None:
    assert append(home) == 1

    def work() -> None:
        assert append(home) == 2
        home.close()

    assert ended_well(forked(work))
    with home.reading() as transaction:
        assert ended_well(forked(lambda: None))
        assert transaction.execute(tables.HEAD)[0][0] == 2
    assert append(home) == 3


# ------------------------------------------------------------------------------------ who may do what


def role(server: Server, database: str, name: str, *rights: str, attributes: str = "") -> Callable[[], None]:
    server.execute(f"CREATE ROLE {name} LOGIN {attributes}")
    for right in rights:
        server.execute(right, database)

    def drop() -> None:
        server.execute(f"DROP OWNED BY {name}", database)
        server.execute(f"DROP ROLE {name}")

    return drop


def test_a_user_who_may_only_read_reads(postgres: Server, database: str) -> None:
    rights = (
        "GRANT USAGE ON SCHEMA public TO only_reads",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO only_reads",
    )
    drop = role(postgres, database, "only_reads", *rights)
    with closing(opened(postgres.url(database, "only_reads"))) as home:
        assert home.why_read_only == "this database user may not change the catalog's tables"
        assert not home.is_follower
        assert Log(home).follow().number == 0
        with pytest.raises(ReadOnlyStore):
            append(home)
        home.why_read_only = None
        with pytest.raises(ReadOnlyStore, match="permission denied"):
            append(home)
    drop()
    postgres.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with closing(opened(postgres.url(database))) as home:
        assert home.why_read_only == "transactions of this database user only read"
        assert Log(home).follow().number == 0
    postgres.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")


def test_who_may_not_come_in_is_told_why(
    postgres: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticscan.catalog.postgres.FIRST_CONNECT_SECONDS", 0.0)
    user = postgres.checked_user("right")
    with pytest.raises(CatalogUnavailable, match="password authentication failed"):
        open_home(postgres.url(database, f"{user}:wrong"), CLOCK, "here")
    with pytest.raises(CatalogUnavailable, match="nobody_s"):
        open_home(postgres.url("nobody_s"), CLOCK, "here")


def test_a_log_that_was_not_begun_can_be_begun_later(postgres: Server) -> None:
    def fail(url: str) -> None:
        with make_home(url, CLOCK, "here") as home, home.writing() as transaction:
            assert transaction.execute(tables.HEAD)
            raise KeyboardInterrupt

    with postgres.database() as name:
        with pytest.raises(KeyboardInterrupt):
            fail(postgres.url(name))
        assert not holds_store(postgres.url(name))
        with make_home(postgres.url(name), CLOCK, "here") as home:
            begin_log(home, CREATED)
        assert holds_store(postgres.url(name))


# ------------------------------------------------------------------------------------------ clocks, URLs


def test_the_time_told_is_followed_by_a_clock_that_nobody_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, monotonic = ServerClock(), [50.0]
    monkeypatch.setattr(time, "time", lambda: 7.0)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic[0])
    assert clock.now() == 7.0
    clock.note(1_000.0, 48.0, 50.0)
    assert clock.now() == 1_001.0
    monotonic[0] = 60.0
    assert clock.now() == 1_011.0
    clock.note(900.0, 60.0, 60.0)
    assert clock.now() == 900.0


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+psycopg://h:port/d", "where its host begins"),
        ("postgresql+psycopg://ann:ab@b/c@127.0.0.1:1/x", "where its host begins"),
        ("postgresql+psycopg://127.0.0.1:1/x?password=@b", "where its host begins"),
        ("postgresql+psycopg:///x?sslmod=require", "not certain where its host begins"),
        ("postgresql+asyncpg://h/d", "neither a directory nor the URL"),
        ("mysql://h/d", "neither a directory nor the URL"),
        ("sqlite://host/x", "neither a directory nor the URL"),
        ("sqlite:///x.db?mode=ro", "neither a directory nor the URL"),
        ("sqlite:///:memory:", "neither a directory nor the URL"),
    ],
)
def test_a_url_that_is_not_understood_is_a_wrong_option(tmp_path: Path, url: str, said: str) -> None:
    for call in (lambda: open_home(url, CLOCK, "here"), lambda: holds_store(url)):
        with pytest.raises(InvalidOption, match=said):
            call()


# ------------------------------------------------------------------------------------------ appends


def test_writers_side_by_side_get_one_number_each_and_the_chain_holds(log: Log, address: str) -> None:
    def write_some(writer: int) -> list[tuple[int, bytes]]:
        own, chance = Log(PostgresHome(address)), random.Random(writer)
        own.follow()
        done = []
        for number in range(25):
            if chance.random() < 0.2:
                append_to(own, Append(TagChanged(1, f"{writer}-{number}", own.state.number)))
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


def test_an_append_that_arrives_after_its_repetition_is_refused(log: Log, address: str) -> None:
    """The head is locked, so an append waits at the server; its writer loses the connection meanwhile."""
    with psycopg.connect(address) as other:
        other.execute("SELECT number FROM head FOR UPDATE")
        waiting = Event()

        def wait_and_write() -> int:
            own = Log(PostgresHome(address))
            own.follow()
            waiting.set()
            with closing(own.home):
                return write(own, b"once")

        with ThreadPoolExecutor(1) as writer:
            done = writer.submit(wait_and_write)
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
            time.sleep(0.01)
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
            number = append_to(own, Append(what, rows=b"rows" if isinstance(what, RowsCommitted) else None))
            own.home.close()
            postgres.restart()
            assert Log(log.home).follow().number == number
    finally:
        postgres.execute(f"ALTER DATABASE {database} RESET synchronous_commit")
        for setting in ("ALTER SYSTEM RESET wal_writer_delay", "SELECT pg_reload_conf()"):
            postgres.execute(setting)
