"""Catalogs that are missing, damaged, locked, out of reach, or of another format."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import apsw
import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    CatalogUnavailable,
    DiskFull,
    ElasticScanError,
    InvalidOption,
    OutOfResources,
    StoreDamaged,
    StoreNotFound,
    StoreTooNew,
)
from elasticscan.catalog import (
    Catalog,
    NewStore,
    Tx,
    newest_topology,
    pool,
    seal_keys,
    sqlite,
    topology_entries,
)
from elasticscan.catalog.failures import meaning
from elasticscan.catalog.opening import holds_store, make_home
from elasticscan.metadata import FORMATS, TableInfo, TimeObserved
from elasticscan.store.context.leases import leases_in
from elasticscan.store.moves.under_way import enter_moves, moves_in
from elasticscan.store.writing.definitions import enter
from elasticscan.topology import Move, initial_placement
from tests.base.manual_clock import ManualClock

CLOCK = ManualClock(1_000.0)
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)


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
            change_something(tx)


def change_something(tx: Tx) -> None:
    tx.append(TimeObserved())


def look(tx: Tx) -> None:
    tx.info()
    tx.identity()
    seal_keys(tx.state, tx.now)
    moves_in(tx)
    leases_in(tx)
    newest_topology(tx)
    topology_entries(tx)


@pytest.fixture
def where(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.db"
    create(path)
    with opened(path) as catalog, catalog.writing() as tx:
        for name in ("t", "u"):
            enter(tx, TableInfo(0, name, SCHEMA, ("k",), ("k",), None, 0, 0))
            enter_moves(tx, [Move(len(moves_in(tx)) + 1, 1, 1)], "me")
    return path


def change(path: Path, sql: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(sql)


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


def test_a_creation_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(_: Tx) -> None:
        raise KeyboardInterrupt

    new = NewStore((("a", "shards/a"),), initial_placement(16, 4, [1]), "spark", 100.0)
    with pytest.raises(KeyboardInterrupt):
        Catalog.create(tmp_path / "catalog.db", CLOCK, "here", new, fail)
    assert list(tmp_path.iterdir()) == []
    create(tmp_path / "catalog.db")
    use(tmp_path / "catalog.db")


def test_a_creation_that_fails_leaves_a_file_alone_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").touch()

    def fail() -> None:
        with make_home(tmp_path / "catalog.db", CLOCK, "here"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "catalog.db").exists()


def test_whether_there_is_a_store_is_asked_without_making_a_file(tmp_path: Path, where: Path) -> None:
    before = {path.name: path.stat() for path in where.parent.iterdir()}
    assert holds_store(where) and holds_store(f"sqlite:///{where}")
    assert not holds_store(tmp_path / "other.db")
    (tmp_path / "empty.db").touch()
    assert not holds_store(tmp_path / "empty.db")
    (tmp_path / "empty.db").unlink()
    assert {path.name: path.stat() for path in where.parent.iterdir()}.keys() == before.keys()


def test_of_creators_at_once_one_succeeds(catalog_url: Path | str) -> None:
    def make(_: int) -> str:
        try:
            create(catalog_url)
        except AlreadyExists:
            return "refused"
        return "made"

    with ThreadPoolExecutor(6) as creators:
        assert sorted(creators.map(make, range(6))) == ["made", *["refused"] * 5]
    use(catalog_url)


# --------------------------------------------------------------------------------------------- damage


def test_a_store_of_another_hash_is_damaged(tmp_path: Path) -> None:
    new = NewStore((("a", "shards/a"),), initial_placement(16, 4, [1]), "java", 100.0)
    Catalog.create(tmp_path / "catalog.db", CLOCK, "here", new)
    with pytest.raises(StoreDamaged, match="'java' no hash"):
        use(tmp_path / "catalog.db")


def test_a_file_that_is_no_database_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"these are not the bytes of a database" * 500)
    for attempt in (create, use):
        with pytest.raises(StoreDamaged, match="not a database"):
            attempt(tmp_path / "catalog.db")


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("content", [b"not a database" * 500, b"SQLite format 3\0" + bytes(range(256)) * 40])
def test_no_file_handle_of_a_damaged_file_stays_open(tmp_path: Path, content: bytes, read_only: bool) -> None:
    """Not even while the error is kept, whose frames hold its connection."""
    file = tmp_path / "catalog.db"
    file.write_bytes(content)
    with pytest.raises(StoreDamaged):
        Catalog(file, CLOCK, str(file), read_only)
    handles = [os.path.realpath(handle) for handle in Path("/proc/self/fd").iterdir()]
    assert not [handle for handle in handles if handle.startswith(str(file))]


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
        "UPDATE head SET number = 'many'",
        "UPDATE head SET layout = layout + 1",
        "DELETE FROM head",
        "UPDATE log SET kind = CAST(x'ff' AS TEXT) WHERE number = 1",
        "DELETE FROM log",
        "DROP TABLE log",
        "ALTER TABLE log DROP COLUMN metadata",
        "DROP TABLE payload",
        "DROP TABLE checkpoint",
        "DELETE FROM topology_history",
        "DROP TABLE lease",
    ],
)
def test_rows_that_make_no_sense_are_damage(where: Path, sql: str) -> None:
    change(where, sql)
    with pytest.raises(StoreDamaged):
        use(where)


# ----------------------------------------------------------------------------------------- out of reach


def test_a_locked_catalog_can_be_read_but_not_written(where: Path) -> None:
    other = apsw.Connection(str(where))
    with opened(where) as catalog:
        other.execute("BEGIN IMMEDIATE")
        with catalog.reading() as tx:
            look(tx)
        catalog.versions()
        with pytest.raises(CatalogUnavailable, match="locked"), catalog.writing() as tx:
            change_something(tx)
        other.execute("ROLLBACK")
        with catalog.writing() as tx:
            change_something(tx)
    other.close()


def test_a_pool_without_a_free_connection_is_a_reason_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "BUSY_SECONDS", 0.05)
    one = pool.ConnectionPool(object, lambda _: True, lambda _: None, of_file=False)
    taken = [one._take()[0] for _ in range(pool.MOST)]
    with pytest.raises(CatalogUnavailable, match="too many"), one.connection():
        pass
    one._give_back(taken[0], 0)
    with one.connection() as connection, one.connection() as again:
        assert connection is again, "a thread has one"


# --------------------------------------------------------------------------------------------- formats


def write_newer_record(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Append a record as a newer release does."""
    with monkeypatch.context() as patch, opened(where) as catalog, catalog.writing() as tx:
        patch.setitem(FORMATS, "TimeObserved", (TimeObserved, 2))  # type: ignore[arg-type]
        change_something(tx)


def test_a_record_of_a_newer_format_is_refused_and_left_alone(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_newer_record(where, monkeypatch)
    before = where.read_bytes()
    with pytest.raises(StoreTooNew, match=r"TimeObserved of format 2.*upgrade"):
        use(where)
    assert where.read_bytes() == before


def test_a_process_that_had_the_store_open_does_not_write_to_a_newer_format(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(where) as catalog:
        write_newer_record(where, monkeypatch)
        with pytest.raises(StoreTooNew, match="upgrade"), catalog.writing() as tx:
            change_something(tx)


# ----------------------------------------------------------------------------- what SQLite and its disk say


def said(kind: type[apsw.Error], words: str, code: int = 0) -> apsw.Error:
    error = kind(words)
    error.extendedresult = code
    return error


def test_a_value_that_a_database_cannot_hold_is_no_damage(tmp_path: Path) -> None:
    error = meaning(said(apsw.TooBigError, "string or blob too big"), tmp_path / "c.db")
    assert isinstance(error, InvalidOption)
    assert "cannot hold a value" in str(error) and "restore" not in str(error)


def test_a_log_whose_index_cannot_be_mapped_is_a_lack_of_memory(tmp_path: Path) -> None:
    error = meaning(said(apsw.IOError, "disk I/O error", apsw.SQLITE_IOERR_SHMMAP), tmp_path / "c.db")
    assert isinstance(error, OutOfResources) and "memory" in str(error)


@pytest.mark.parametrize(("free", "kind"), [(0, DiskFull), (1 << 30, CatalogUnavailable)])
def test_a_log_that_cannot_grow_on_a_full_disk_is_reported_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, kind: type[ElasticScanError]
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    error = said(apsw.IOError, "disk I/O error", apsw.SQLITE_IOERR_SHMSIZE)
    assert isinstance(meaning(error, tmp_path / "c.db"), kind)
