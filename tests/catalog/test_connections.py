"""Connections to a server: lost, silent, few for many threads, refused, and across a fork."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path

import psycopg
import pytest

from elasticscan.base.clock import SystemClock
from elasticscan.base.errors import (
    CatalogUnavailable,
    InvalidOption,
    ReadOnlyStore,
    StoreNotFound,
)
from elasticscan.catalog import tables
from elasticscan.catalog.appending import Append
from elasticscan.catalog.database import Interrupted, LogHome
from elasticscan.catalog.log import Log
from elasticscan.catalog.opening import holds_store, make_home, open_home
from elasticscan.catalog.pool import MOST
from elasticscan.catalog.postgres import ImpatientConnection, PostgresHome, ServerClock
from elasticscan.metadata import StoreCreated, TimeObserved
from elasticscan.topology import Tablet
from tests.base.manual_clock import ManualClock
from tests.base.pooler import pooled
from tests.base.postgres import Server
from tests.base.severed_line import SeveredLine
from tests.catalog.logs import append as append_to
from tests.catalog.logs import begin as begin_log
from tests.processes.test_forks import ended_well, forked

CREATED = StoreCreated("s", 8, "murmur3", 60.0, (), (Tablet(1, 0, 8, 1, 1),))
CLOCK = SystemClock()

LAYOUT = "SELECT layout FROM head"


def opened(url: str, **how: bool) -> PostgresHome:
    home = open_home(url, CLOCK, "here", **how)
    assert isinstance(home, PostgresHome)
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


# --------------------------------------------------------------------------------------------- lost


def test_a_question_is_asked_again_when_its_connection_breaks(home: PostgresHome, line: SeveredLine) -> None:
    for answered in (False, True):
        line.cut_at(1, answered=answered)
        assert number_in(home) == 0
        assert line.cuts == 1


def test_a_transaction_begins_on_another_connection_when_its_own_was_lost_before(
    home: PostgresHome, postgres: Server
) -> None:
    for _ in range(2):
        number_in(home)
        _end_all(postgres)
        with home.reading() as transaction:
            assert transaction.execute(tables.HEAD)[0][0] == 0
        _end_all(postgres)
        with home.writing() as transaction:
            assert transaction.execute(tables.HEAD)[0][0] == 0


def _end_all(postgres: Server) -> None:
    postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )


def test_a_transaction_that_is_lost_has_done_nothing_and_can_begin_again(
    home: PostgresHome, line: SeveredLine
) -> None:
    def lose(begin: Callable[[], AbstractContextManager[LogHome]], statement: str) -> None:
        with begin() as transaction:
            transaction.execute(statement)
            line.cut_at(1)
            transaction.execute(LAYOUT)

    for begin, statement in ((home.writing, "DELETE FROM log"), (home.reading, LAYOUT)):
        with pytest.raises(Interrupted):
            lose(begin, statement)
        line.cut_at()
    assert append(home) == 1
    assert Log(home).follow().number == 1


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


def test_many_threads_share_few_connections(postgres: Server, database: str) -> None:
    with closing(opened(postgres.url(database))) as home, ThreadPoolExecutor(3 * MOST) as pool:
        together = threading.Barrier(3 * MOST)

        def work(_: int) -> int:
            together.wait(60)
            return number_in(home)

        assert set(pool.map(work, range(3 * MOST))) == {0}
        assert _connections(postgres, database) <= MOST


def _connections(postgres: Server, database: str) -> int:
    with psycopg.connect(host=str(postgres.directory), user="elasticscan", dbname="postgres") as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        ((count,),) = connection.execute(asked, (database,)).fetchall()
    return int(count)


def test_a_thread_in_a_transaction_asks_all_over_one_connection(postgres: Server, database: str) -> None:
    with closing(opened(postgres.url(database))) as home:
        with home.writing() as transaction:
            transaction.execute("UPDATE head SET layout = 77")
            assert home.execute(LAYOUT) == [(77,)]
            with home.reading() as nested:
                assert nested.execute(LAYOUT) == [(77,)]
            assert _connections(postgres, database) == 1
            transaction.execute("UPDATE head SET layout = 0")
        with home.reading(), home.reading():
            assert _connections(postgres, database) == 1


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


def test_a_user_whose_transactions_only_read_reads(postgres: Server, database: str) -> None:
    postgres.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with closing(opened(postgres.url(database))) as home:
        assert home.why_read_only == "transactions of this database user only read"
        assert Log(home).follow().number == 0
    postgres.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")


def test_a_log_that_is_opened_to_be_read_says_so(postgres: Server, database: str) -> None:
    with closing(opened(postgres.url(database), read_only=True)) as home:
        assert home.why_read_only == "it was opened with read_only=True"
        with pytest.raises(ReadOnlyStore), home.writing():
            pass


def test_who_may_not_come_in_is_told_why(
    postgres: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticscan.catalog.postgres.FIRST_CONNECT_SECONDS", 0.0)
    user = postgres.checked_user("right")
    with pytest.raises(CatalogUnavailable, match="password authentication failed"):
        open_home(postgres.url(database, f"{user}:wrong"), CLOCK, "here")
    with pytest.raises(CatalogUnavailable, match="nobody_s"):
        open_home(postgres.url("nobody_s"), CLOCK, "here")


def test_a_database_without_a_log_holds_no_store(postgres: Server) -> None:
    with postgres.database() as name:
        assert not holds_store(postgres.url(name))
        with pytest.raises(StoreNotFound, match="here holds no elasticscan store"):
            open_home(postgres.url(name), CLOCK, "here")


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


def test_the_time_is_the_servers_unless_a_clock_is_handed_in(postgres: Server, database: str) -> None:
    with closing(opened(postgres.url(database))) as home:
        assert isinstance(home.clock, ServerClock)
        assert abs(home.clock.now() - time.time()) < 1
    mine = ManualClock(5.0)
    home = open_home(postgres.url(database), mine, "here")
    assert home.clock is mine
    home.close()


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
