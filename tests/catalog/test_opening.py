"""Catalogs that are missing, damaged, locked, out of reach, or of another format."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DataError, OperationalError

from elasticscan.base.errors import (
    AlreadyExists,
    CatalogUnavailable,
    CommitUnknown,
    DiskFull,
    ElasticScanError,
    InvalidOption,
    OutOfResources,
    ReadOnlyStore,
    StoreDamaged,
    StoreNotFound,
    StoreTooNew,
)
from elasticscan.catalog import Catalog, NewStore, Tx, failures
from elasticscan.catalog import engine as engine_module
from elasticscan.catalog.failures import translate_errors
from elasticscan.metadata import TableInfo
from elasticscan.topology import Move, initial_placement
from tests.base.manual_clock import ManualClock

CLOCK = ManualClock(1_000.0)
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BUSY_SECONDS", 0.2)


def create(where: Path | str) -> None:
    new = NewStore((("a", "shards/a"),), initial_placement(16, 4, [1]), "spark", 100.0)
    Catalog.create(where, CLOCK, str(where), new)


@contextmanager
def opened(where: Path | str) -> Iterator[Catalog]:
    catalog = Catalog(where, CLOCK, str(where))
    try:
        yield catalog
    finally:
        catalog.close()


def use(where: Path | str) -> None:
    """Open a catalog, look at all of it, and write to it."""
    with opened(where) as catalog:
        catalog.versions()
        with catalog.reading() as tx:
            look(tx)
        with catalog.writing() as tx:
            tx.bump_layout()


def look(tx: Tx) -> None:
    for part in (tx.info, tx.seal_keys, tx.versions, tx.shards, tx.placement, tx.tables, tx.moves, tx.leases):
        part()
    tx.newest_topology()
    tx.topology_history()
    tx.fragments()


@pytest.fixture
def where(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.db"
    create(path)
    with opened(path) as catalog, catalog.writing() as tx:
        for name in ("t", "u"):
            tx.create_table(name, TableInfo(0, name, SCHEMA, ("k",), ("k",), None, 0, 0))
            tx.plan_move(Move(len(tx.moves()) + 1, 1, 1), "me")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


def change(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(sql)
    connection.commit()
    connection.close()


# ---------------------------------------------------------------------------------- nothing, or no store


def test_a_sound_catalog_is_used_without_complaint(where: Path) -> None:
    use(where)


def test_an_empty_file_holds_no_store(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").touch()
    with pytest.raises(StoreNotFound):
        use(tmp_path / "catalog.db")


def test_a_database_of_something_else_holds_no_store(tmp_path: Path) -> None:
    change(tmp_path / "catalog.db", "CREATE TABLE birds (name TEXT)")
    with pytest.raises(StoreNotFound):
        use(tmp_path / "catalog.db")


def test_a_folder_that_is_not_there_is_out_of_reach(tmp_path: Path) -> None:
    for attempt in (create, use):
        with pytest.raises(CatalogUnavailable, match="unable to open"):
            attempt(tmp_path / "missing" / "catalog.db")


@pytest.mark.parametrize(
    "url", ["s3://bucket/store", "nonsense", "://", "sqlite://", "sqlite:///:memory:", "http://[x"]
)
def test_a_url_that_can_hold_no_catalog_is_a_wrong_option(url: str) -> None:
    for attempt in (create, use):
        with pytest.raises(InvalidOption):
            attempt(url)


def test_a_driver_that_is_not_installed_is_reported_by_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidOption, match="pip install"):
        use("postgresql+psycopg://localhost/store")


@pytest.mark.parametrize("name", ["a?b", "a?mode=ro", "a#b", "a%41", "a b", "ä", "a:b@c", "a'b", "a;b"])
def test_a_path_may_hold_what_a_url_would_take_for_something_else(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    create(folder / "catalog.db")
    use(folder / "catalog.db")
    assert (folder / "catalog.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_url_names_a_file_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    create(url)
    use(tmp_path / "catalog.db")
    use(url)


# ------------------------------------------------------------------------------------------- creating


def test_a_store_is_not_created_twice_and_the_first_one_stays(where: Path) -> None:
    before = where.read_bytes()
    with pytest.raises(AlreadyExists):
        create(where)
    use(where)
    assert len(before) == where.stat().st_size


def test_a_creation_that_fails_leaves_no_half_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Tx, "append_topology", fail)
        with pytest.raises(KeyboardInterrupt):
            create(tmp_path / "catalog.db")
    with pytest.raises(StoreNotFound):
        use(tmp_path / "catalog.db")
    create(tmp_path / "catalog.db")
    use(tmp_path / "catalog.db")


CREATOR = """
    import sys
    from pathlib import Path
    from elasticscan.base.clock import SystemClock
    from elasticscan.base.errors import AlreadyExists
    from elasticscan.catalog import Catalog, NewStore
    from elasticscan.topology import initial_placement
    new = NewStore((("a", "shards/a"),), initial_placement(16, 4, [1]), "spark", 100.0)
    sys.stdin.readline()
    try:
        Catalog.create(Path(sys.argv[1]), SystemClock(), "here", new)
        print("created")
    except AlreadyExists:
        print("exists")
"""


@pytest.mark.long
def test_of_processes_that_create_one_store_at_once_one_succeeds(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(CREATOR), str(tmp_path / "catalog.db")]
    creators = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for creator in creators:
        assert creator.stdin is not None
        creator.stdin.write("\n")
        creator.stdin.flush()
    said = sorted(creator.communicate(timeout=60)[0].strip() for creator in creators)
    assert said == ["created", "exists", "exists", "exists"]
    use(tmp_path / "catalog.db")


# --------------------------------------------------------------------------------------------- damage


def test_a_store_of_another_hash_is_damaged(tmp_path: Path) -> None:
    new = NewStore((("a", "shards/a"),), initial_placement(16, 4, [1]), "java", 100.0)
    Catalog.create(tmp_path / "catalog.db", CLOCK, "here", new)
    with pytest.raises(StoreDamaged, match="no hash 'java'"):
        use(tmp_path / "catalog.db")


def test_a_file_that_is_no_database_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"these are not the bytes of a database" * 500)
    for attempt in (create, use):
        with pytest.raises(StoreDamaged, match="not a database"):
            attempt(tmp_path / "catalog.db")


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("content", [b"not a database" * 500, b"SQLite format 3\0" + bytes(range(256)) * 40])
def test_no_connection_to_a_damaged_file_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, read_only: bool
) -> None:
    """Not even while the error is kept, whose frames hold it."""
    made: list[sqlite3.Connection] = []

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made.append(honest(*arguments, **options))
        return made[-1]

    honest = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", connect)
    file = tmp_path / "catalog.db"
    file.write_bytes(content)
    with pytest.raises(StoreDamaged):
        Catalog(file, CLOCK, str(file), read_only)
    assert made
    for connection in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.6, 0.9])
def test_a_database_that_was_cut_is_damaged(where: Path, share: float) -> None:
    content = where.read_bytes()
    where.write_bytes(content[: int(share * len(content))])
    with pytest.raises(StoreDamaged):
        use(where)


def test_a_database_with_pages_of_garbage_is_damaged(where: Path) -> None:
    content = bytearray(where.read_bytes())
    content[4_096:] = b"\xa5" * (len(content) - 4_096)
    where.write_bytes(content)
    with pytest.raises(StoreDamaged):
        use(where)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE tables SET schema = x'00'",
        "UPDATE moves SET phase = 'odd'",
        "UPDATE topology_history SET body = x'00'",
        "DELETE FROM topology_history",
        "DELETE FROM tablets WHERE id = 2",
        "DELETE FROM tablets",
        "UPDATE tablets SET slot_end = slot_end + 1 WHERE id = 2",
        "DELETE FROM seal_keys",
        "UPDATE seal_keys SET secret = x'00'",
        "UPDATE seal_keys SET id = 65536 WHERE id = 2",
        "UPDATE store_state SET slots = 'many'",
        "UPDATE store_state SET slots = 0",
        "UPDATE store_state SET hash = 'md5'",
        "UPDATE tablets SET slot_end = 'x' WHERE id = 2",
        "DELETE FROM store_state",
        "DROP TABLE tablets",
        "ALTER TABLE shards DROP COLUMN root",
        "UPDATE store_state SET format_version = 'x'",
        "UPDATE store_state SET format_version = 0",
        "INSERT INTO fragments VALUES (1, 1, 1, 'x', '4-', 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, NULL, NULL, 0)",
        "UPDATE store_state SET layout = layout + 1",
        "UPDATE store_state SET last_commit = 1.5",
        "UPDATE store_state SET versions_digest = 0",
        "UPDATE shards SET root = CAST(x'ff' AS TEXT)",
        "UPDATE shards SET draining = 1",
        "UPDATE tables SET name = 7",
        "DELETE FROM tables WHERE id = 2",
        "DELETE FROM moves WHERE tablet_id = 1",
        "DELETE FROM group_digests",
        "UPDATE group_digests SET rows = rows + 1 WHERE kind = 'tables'",
        "UPDATE group_digests SET kind = 'x' WHERE kind = 'moves'",
        "UPDATE group_digests SET total = 1e300 WHERE kind = 'shards'",
        "UPDATE group_digests SET part = 1e300 WHERE kind = 'shards'",
        "UPDATE group_digests SET kind = CAST(kind AS BLOB) WHERE kind = 'shards'",
    ],
)
def test_rows_that_make_no_sense_are_damage(where: Path, sql: str) -> None:
    change(where, sql)
    with pytest.raises(StoreDamaged):
        use(where)


# ----------------------------------------------------------------------------------------- out of reach


def test_a_locked_catalog_can_be_read_but_not_written(where: Path) -> None:
    other = sqlite3.connect(where, isolation_level=None)
    with opened(where) as catalog:
        other.execute("BEGIN IMMEDIATE")
        with catalog.reading() as tx:
            look(tx)
        catalog.versions()
        with pytest.raises(CatalogUnavailable, match="locked"), catalog.writing() as tx:
            tx.bump_layout()
        with pytest.raises(CatalogUnavailable, match="locked"):
            create(where)
        other.execute("ROLLBACK")
        with catalog.writing() as tx:
            tx.bump_layout()
    other.close()


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that other users may reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="elasticscan-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def without_privileges() -> Iterator[None]:
    """As nobody, when we are root, whom no permission stops."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    modes = {path: path.stat().st_mode for path in (folder, *folder.iterdir())}
    for path in modes:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def test_a_folder_that_may_not_be_written_is_reported_as_such(open_to_all: Path) -> None:
    where = open_to_all / "catalog.db"
    with read_only(open_to_all), without_privileges(), pytest.raises(CatalogUnavailable, match="writable"):
        create(where)
    create(where)
    with read_only(open_to_all), without_privileges(), pytest.raises(ReadOnlyStore, match="may not write"):
        use(where)
    use(where)


def test_a_catalog_whose_disk_is_full_says_so_and_stays_as_it_was(where: Path) -> None:
    with opened(where) as catalog:
        with catalog.reading() as tx:
            before = tx.versions()
        leave_little_room(catalog)
        with pytest.raises(DiskFull, match="nothing was committed"):
            write_much(catalog)
        with catalog.reading() as tx:
            assert tx.versions() == before
            assert tx.leases() == []
        with catalog.writing() as tx:
            tx.bump_layout()


def write_much(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        for number in range(2_000):
            tx.take_lease(f"lease {number}", tx.table("t"), 2, "x" * 4_000, 60.0)


def leave_little_room(catalog: Catalog) -> None:
    """SQLite's own bound on a file's size raises just what a full disk does."""
    with catalog.reading() as tx:
        pages: int = tx._sql.execute(text("PRAGMA page_count")).scalar_one()
        tx._sql.execute(text(f"PRAGMA max_page_count = {pages + 20}"))


def test_a_pool_without_a_free_connection_is_a_reason_to_try_again(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(where) as catalog:
        monkeypatch.setattr(catalog._engine.pool, "_timeout", 0.05)
        with ExitStack() as others:
            for _ in range(40):
                others.enter_context(catalog.reading())
            with pytest.raises(CatalogUnavailable, match="too many"), catalog.reading():
                pass
        with catalog.reading() as tx:
            look(tx)


# --------------------------------------------------------------------------------------------- formats


def format_of(where: Path) -> int:
    connection = sqlite3.connect(where)
    found: int = connection.execute("SELECT format_version FROM store_state").fetchone()[0]
    connection.close()
    return found


def test_a_newer_format_is_refused_and_left_alone(where: Path) -> None:
    change(where, "UPDATE store_state SET format_version = 2")
    with pytest.raises(StoreTooNew, match=r"format 2.*reads format 1 alone"):
        use(where)
    assert format_of(where) == 2


def test_a_process_that_had_the_store_open_does_not_write_to_a_newer_format(where: Path) -> None:
    with opened(where) as catalog:
        change(where, "UPDATE store_state SET format_version = 2")
        with pytest.raises(StoreTooNew, match="since it was opened"), catalog.writing() as tx:
            tx.bump_layout()


def test_a_value_that_a_database_cannot_hold_is_no_damage(tmp_path: Path) -> None:
    engine = engine_module.make_engine(tmp_path / "c.db")
    with pytest.raises(InvalidOption, match="cannot hold a value") as refused, translate_errors(engine):
        raise DataError("INSERT", {}, ValueError("a text holds no NUL"))
    assert "restore" not in str(refused.value)


def test_a_server_that_cannot_greet_for_want_of_room_has_a_full_disk(tmp_path: Path) -> None:
    engine = engine_module.make_engine(tmp_path / "c.db")
    said = OperationalError("connect", {}, RuntimeError("FATAL:  could not write init file"))
    with pytest.raises(DiskFull, match="free some space"), translate_errors(engine):
        raise said


def test_a_log_whose_index_cannot_be_mapped_is_a_lack_of_memory(tmp_path: Path) -> None:
    engine = engine_module.make_engine(tmp_path / "c.db")
    said = sqlite3.OperationalError("disk I/O error")
    said.sqlite_errorname = "SQLITE_IOERR_SHMMAP"
    with pytest.raises(OutOfResources, match="memory"), translate_errors(engine):
        raise OperationalError("BEGIN", {}, said)


@pytest.mark.parametrize(("free", "message"), [(0, DiskFull), (1 << 30, CatalogUnavailable)])
def test_a_log_that_cannot_grow_on_a_full_disk_is_reported_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, message: type[ElasticScanError]
) -> None:
    """What failed during a commit may be done all the same, so there nobody says that nothing was."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    engine = engine_module.make_engine(tmp_path / "c.db")
    said = sqlite3.OperationalError("disk I/O error")
    said.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
    error = OperationalError("BEGIN", {}, said)
    with pytest.raises(message), translate_errors(engine):
        raise error
    assert isinstance(failures.translate_commit_error(error, engine), CommitUnknown)


@pytest.mark.parametrize("name", ["catalog.db", "catalog.db-shm"])
def test_a_file_that_cannot_be_looked_at_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    create(tmp_path / "catalog.db")
    look_there = os.stat

    def look(path: Any, **how: Any) -> os.stat_result:
        if str(path) == str(tmp_path / name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return look_there(path, **how)

    monkeypatch.setattr(os, "stat", look)
    with pytest.raises(CatalogUnavailable, match="could not be looked at"):
        Catalog(tmp_path / "catalog.db", CLOCK, "here")
    if name == "catalog.db":
        with pytest.raises(CatalogUnavailable, match="could not be looked at"):
            engine_module.holds_store(tmp_path / name)
