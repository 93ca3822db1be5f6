"""Connections to a server: lost, silent, shared by many threads, refused, and across a fork.

`tests/store/test_server.py` breaks them under stores, and `test_passwords.py` looks for secrets in errors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import psycopg
import pyarrow as pa
import pytest

from elasticscan.base.clock import SystemClock
from elasticscan.base.errors import CatalogUnavailable, InvalidOption, ReadOnlyStore
from elasticscan.catalog import Catalog, Tx, tables
from elasticscan.catalog.database import LogHome
from elasticscan.catalog.entries import Append
from elasticscan.catalog.failures import Interrupted
from elasticscan.catalog.opening import holds_store, make_home, open_home
from elasticscan.catalog.postgres import ImpatientConnection, PostgresHome, ServerClock
from elasticscan.metadata import RowsCommitted, TableDefined, TableInfo, TagChanged
from elasticscan.topology import SlotSet
from tests.base.pooler import pooled
from tests.base.postgres import Server
from tests.base.severed_line import SeveredLine
from tests.catalog.logs import TIME, begin
from tests.catalog.logs import append as append_to

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
INFO = TableInfo(1, "t", SCHEMA, ("k",), ("k",), None, 0, 0)
CLOCK = SystemClock()


def opened(url: str) -> PostgresHome:
    home = open_home(url, CLOCK, "here")
    assert isinstance(home, PostgresHome)
    assert isinstance(home.clock, ServerClock), "the time is the server's"
    return home


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    with postgres.database() as name:
        with make_home(postgres.url(name), CLOCK) as home:
            begin(home)
        yield name


def one_more(postgres: Server, database: str) -> Iterator[PostgresHome]:
    with closing(opened(postgres.url(database))) as home:
        yield home


home, other = pytest.fixture(one_more, name="home"), pytest.fixture(one_more, name="other")


def append(home: LogHome) -> int:
    return append_to(Catalog(home))


def number_in(home: LogHome) -> int:
    return int(home.execute(tables.HEAD)[0][0])


@pytest.fixture
def log(home: PostgresHome) -> Catalog:
    """A log with a table."""
    append_to(Catalog(home), Append(TableDefined(INFO, 0)))
    return Catalog(home)


def write(home: LogHome, content: bytes) -> int:
    """Write rows by one statement."""
    log = Catalog(home)
    log.follow()
    record = RowsCommitted(1, "write", 1, 1, len(content), slots=SlotSet.span(3, 4))
    return append_to(log, Append(record, rows=content))


def contents(home: LogHome) -> dict[int, bytes]:
    """All rows of the table that are in the log, by number."""
    log = Catalog(home)
    return Tx(log.home, None).rows_of(1, log.follow().tables[1].memory)


# --------------------------------------------------------------------------------------------- lost


@pytest.mark.parametrize("answered", [False, True], ids=["request lost", "answer lost"])
def test_a_log_is_made_once_or_not_at_all_wherever_its_connection_breaks(
    postgres: Server, line: SeveredLine, answered: bool
) -> None:
    for trip in range(1, 40):
        with postgres.database() as name:
            line.cut_at(trip, answered=answered)
            is_made = False
            try:
                with make_home(line.url(name), CLOCK) as home:
                    begin(home)
                is_made = True
            except Interrupted:
                pass
            was_cut = line.cuts
            line.cut_at()
            assert holds_store(line.url(name)) == is_made
            if not was_cut:
                break
    assert trip > 5


def test_an_append_that_arrives_after_its_repetition_is_refused(log: Catalog, other: PostgresHome) -> None:
    """The head is locked, so an append waits at the server; then its writer loses the connection."""
    ended = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()"""
    with psycopg.connect(other._address) as locks, ThreadPoolExecutor(1) as writer:
        locks.execute("SELECT number FROM head FOR UPDATE")
        waiting = writer.submit(write, other, b"once")
        while not log.home.execute(ended):
            time.sleep(0.01)
        locks.commit()
        number = waiting.result()
    assert contents(log.home) == {number: b"once"}


def test_a_commit_is_on_the_disk_where_the_database_does_not_wait_for_it(
    log: Catalog, postgres: Server, database: str
) -> None:
    """Such a server holds acknowledged commits in memory for up to three times `wal_writer_delay`."""
    settings = ("SYSTEM", "wal_writer_delay = '10s'"), (f"DATABASE {database}", "synchronous_commit = off")
    with ExitStack() as undone:
        for what, setting in settings:
            undone.callback(postgres.execute, "SELECT pg_reload_conf()")
            undone.callback(postgres.execute, f"ALTER {what} RESET {setting.split()[0]}")
            postgres.execute(f"ALTER {what} SET {setting}")
        postgres.execute("SELECT pg_reload_conf()")
        for commit in (lambda home: write(home, b"rows"), append):
            with closing(opened(postgres.url(database))) as own:
                number = commit(own)
            postgres.restart()
            assert Catalog(log.home).follow().number == number


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


def test_an_answer_that_comes_in_pieces_is_no_silence(home: PostgresHome) -> None:
    slow = "DO $$ BEGIN FOR n IN 1..6 LOOP PERFORM pg_sleep(0.2); RAISE NOTICE '%', n; END LOOP; END $$"
    with ImpatientConnection.connect(home._address, autocommit=True) as connection:
        connection.answer_seconds = 0.5
        connection.execute(slow)
        with pytest.raises(psycopg.OperationalError, match=r"no answer for 0\.5 seconds"):
            connection.execute("SELECT pg_sleep(3)")
        assert connection.closed


def test_a_writer_that_stands_still_holds_the_lock_no_longer_than_a_limit(
    home: PostgresHome, other: PostgresHome
) -> None:
    home.answer_seconds = 0.2
    numbers = []

    def stand_still() -> None:
        with Catalog(home).appending() as tx:
            tx.append(TIME)
            numbers.append(append(other))  # it waits until the server ends the silent connection

    with pytest.raises(Interrupted):
        stand_still()
    assert [*numbers, append(home)] == [1, 2]


def test_a_writer_waits_for_its_turn_but_not_for_ever(home: PostgresHome, other: PostgresHome) -> None:
    with ThreadPoolExecutor(1) as pool:
        with home.writing():
            waiting = pool.submit(append, other)
            time.sleep(0.1)
            assert not waiting.done()
        assert waiting.result() == 1
    other.answer_seconds, other.retry_seconds = 0.2, 0.0
    with home.writing(), pytest.raises(CatalogUnavailable, match="locked by another writer"):
        append(other)


# --------------------------------------------------------------------------------------------- shared


@pytest.mark.parametrize("is_pooled", [False, True])
def test_more_writers_than_a_pooler_has_connections_get_one_number_each(
    log: Catalog, postgres: Server, database: str, is_pooled: bool
) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(pooled(postgres, database, 2)) if is_pooled else postgres.url(database)
        home, pool = stack.enter_context(closing(opened(url))), stack.enter_context(ThreadPoolExecutor(8))
        rows = [str(number).encode() for number in range(80)]
        tags = pool.map(lambda n: append_to(Catalog(home), Append(TagChanged(1, f"{n}", 1))), range(20))
        numbers = [*pool.map(lambda content: write(home, content), rows)]
        assert sorted([*numbers, *tags]) == list(range(2, 102))
    assert contents(log.home) == dict(zip(numbers, rows, strict=True))
    log.check_whole()


# ------------------------------------------------------------------------------------ who may do what


def test_a_user_who_may_only_read_reads(postgres: Server, database: str) -> None:
    user = postgres.checked_user("right")
    postgres.execute(f"GRANT USAGE ON SCHEMA public TO {user}", database)
    postgres.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}", database)
    with closing(opened(postgres.url(database, f"{user}:right"))) as home:
        assert home.why_read_only == "this database user may not change the catalog's tables"
        assert not home.is_follower
        assert Catalog(home).follow().number == 0
        with pytest.raises(ReadOnlyStore):
            append(home)
        home.why_read_only = None
        with pytest.raises(ReadOnlyStore, match="permission denied"):
            append(home)
    postgres.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with closing(opened(postgres.url(database))) as home:
        assert home.why_read_only == "this database user may not change the catalog's tables"
        assert Catalog(home).follow().number == 0
    postgres.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")


# ------------------------------------------------------------------------------------------ clocks, URLs


def test_the_time_is_the_server_s_and_nobody_sets_it(
    home: PostgresHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, monotonic = time.time(), time.monotonic
    monkeypatch.setattr(time, "time", lambda: 7.0)
    assert ServerClock().now() == 7.0, "before the first answer"
    assert abs(home.clock.now() - right) < 60
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 3_600)
    assert abs(home.clock.now() - right - 3_600) < 60


OTHERS = "postgresql+asyncpg://h/d mysql://h/d sqlite://host/x sqlite:///x?mode=ro sqlite:///:memory:"


@pytest.mark.parametrize("url", OTHERS.split())
def test_a_url_that_is_not_understood_is_a_wrong_option(url: str) -> None:
    for call in (lambda: open_home(url, CLOCK, "here"), lambda: holds_store(url)):
        with pytest.raises(InvalidOption, match="neither a directory nor the URL"):
            call()
