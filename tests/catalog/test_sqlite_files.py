"""A log's files in SQLite: replaced or removed while they are open, and read without being written."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import sleep

import apsw
import pytest

from elasticscan.base.clock import SystemClock
from elasticscan.base.errors import CatalogOutdated, ElasticScanError, ReadOnlyStore
from elasticscan.catalog import tables
from elasticscan.catalog.appending import Append
from elasticscan.catalog.database import Interrupted
from elasticscan.catalog.log import Log
from elasticscan.catalog.opening import make_home, open_home
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.metadata import StoreCreated, TimeObserved
from elasticscan.topology import Tablet
from tests.catalog.logs import append as append_to
from tests.catalog.logs import begin
from tests.processes.test_forks import ended_well, forked

CREATED = StoreCreated("s", 8, "murmur3", 60.0, (), (Tablet(1, 0, 8, 1, 1),))
NOBODY_UID = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with make_home(tmp_path / "log.db", SystemClock(), "here") as home:
        begin(home, CREATED)
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    with closing(SqliteHome(path)) as home:
        yield Log(home)


def append(log: Log) -> int:
    return append_to(log, Append(TimeObserved()))


def number_in(log: Log) -> int:
    return int(log.home.execute(tables.HEAD)[0][0])


def copied(source: Path, target: Path) -> Path:
    """Copy a database with all of its write-ahead log."""
    with (
        closing(apsw.Connection(str(source))) as one,
        closing(apsw.Connection(str(target))) as two,
        two.backup("main", one, "main") as backup,
    ):
        backup.step()
    return target


def files_of(path: Path) -> list[Path]:
    return [Path(f"{path}-wal"), Path(f"{path}-shm")]


def with_its_log(copy: Path, path: Path) -> None:
    copy.replace(path)
    for file in files_of(path):
        file.unlink(missing_ok=True)


def beside_the_other_log(copy: Path, path: Path) -> None:
    copy.replace(path)


REPLACING = pytest.mark.parametrize("replace", [with_its_log, beside_the_other_log])


# ----------------------------------------------------------------------------------------- replaced


@REPLACING
def test_readers_and_writers_go_on_with_the_file_that_is_there(
    log: Log, path: Path, tmp_path: Path, replace: Callable[[Path, Path], None]
) -> None:
    with closing(SqliteHome(path)) as other:
        assert number_in(Log(other)) == number_in(log) == 0
        replace(copied(path, tmp_path / "copy.db"), path)
        assert append(log) == 1
        sleep(0.02)  # a reader's last look stands for a moment
        assert number_in(Log(other)) == 1
        assert Log(other).follow().number == append(log) - 1
    with closing(SqliteHome(path)) as new:
        assert Log(new).follow().number == 2


def test_a_commit_into_a_file_that_is_just_being_replaced_is_not_acknowledged(
    path: Path, tmp_path: Path
) -> None:
    copies = [tmp_path / "copy.db"]

    class Slow(SqliteHome):
        def _commit(self, connection: apsw.Connection) -> None:
            while copies:
                with_its_log(copied(path, copies.pop()), path)
            super()._commit(connection)

    with closing(Slow(path)) as home:
        log = Log(home)
        with pytest.raises(Interrupted), log.writing() as transaction:
            transaction.append(Append(TimeObserved()))
    with closing(SqliteHome(path)) as home:
        assert Log(home).follow().number == 0


def test_an_older_file_that_is_put_back_is_refused(log: Log, path: Path, tmp_path: Path) -> None:
    older = copied(path, tmp_path / "older.db")
    assert append(log) == 1
    with_its_log(older, path)
    with pytest.raises(CatalogOutdated):
        append(log)


def test_a_log_whose_connections_were_all_closed_goes_on(log: Log) -> None:
    """SQLite removes the write-ahead log with the last one, and makes another."""
    for number in range(1, 4):
        log.home.close()
        assert append(log) == number
        assert ended_well(forked(lambda: None))
        assert number_in(log) == number


# ------------------------------------------------------------------------------------- not written


@contextmanager
def reader_of(path: Path) -> Iterator[Log]:
    home = open_home(path, SystemClock(), "here", read_only=True)
    assert home.why_read_only == "it was opened with read_only=True"
    with closing(home):  # type: ignore[type-var]
        yield Log(home)


def test_a_reader_follows_to_another_file(log: Log, path: Path, tmp_path: Path) -> None:
    with reader_of(path) as reader:
        assert reader.follow().number == 0
        assert append(log) == 1
        newer = copied(path, tmp_path / "newer.db")
        log.home.close()
        with_its_log(newer, path)
        assert reader.follow().number == 1
        for file in files_of(path):
            file.unlink(missing_ok=True)
        assert append(log) == 2
        assert reader.follow().number == 2


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that other users can reach; those of pytest are not."""
    place = Path(tempfile.mkdtemp(prefix="elasticscan-test-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@needs_root
def test_another_user_reads_what_he_may_and_is_told_what_he_may_not(open_place: Path) -> None:
    path = open_place / "log.db"
    with make_home(path, SystemClock(), "here") as home:
        begin(home, CREATED)
    with closing(SqliteHome(path)) as home:
        append(Log(home))
        for file in (path, *files_of(path)):
            file.chmod(0o644)

        def read() -> None:
            os.setuid(NOBODY_UID)
            other = open_home(path, SystemClock(), "here")
            assert "this user may not write" in str(other.why_read_only)
            assert Log(other).follow().number == 1
            with pytest.raises(ReadOnlyStore):
                append(Log(other))

        def refused() -> None:
            os.setuid(NOBODY_UID)
            with pytest.raises(ElasticScanError, match=r"unable to open|Permission denied"):
                open_home(path, SystemClock(), "here")

        assert ended_well(forked(read))
        path.chmod(0o600)
        assert ended_well(forked(refused))


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o2770])
def test_all_files_are_as_private_as_the_directory_says(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "s"
    place.mkdir()
    place.chmod(mode)
    before = os.umask(0o277)
    try:
        with make_home(place / "log.db", SystemClock(), "here") as home:
            begin(home, CREATED)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()}
    finally:
        os.umask(before)
    expected = {0o700: 0o600, 0o750: 0o640, 0o2770: 0o660}[mode]
    assert modes == dict.fromkeys(("log.db", "log.db-wal", "log.db-shm", "log.db.lock"), expected)
