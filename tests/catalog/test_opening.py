"""Catalogs that are missing, damaged, locked, out of reach, or of another format."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    CatalogUnavailable,
    ElasticScanError,
    InvalidOption,
    NotFound,
    StoreDamaged,
    StoreTooNew,
)
from elasticscan.catalog import (
    Catalog,
    Tx,
    create_catalog,
    database,
    newest_topology,
    open_catalog,
    seal_keys,
    sqlite,
)
from elasticscan.catalog.opening import holds_store
from elasticscan.metadata import FORMATS, StoreCreated, TimeObserved
from elasticscan.store.context.leases import leases_in
from elasticscan.topology import Shard, initial_placement
from tests.base.manual_clock import ManualClock

CLOCK = ManualClock(1_000.0)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)


def create(where: Path | str, hashed: str = "spark", prepare: Callable[[Tx], None] = lambda _: None) -> None:
    shards = (Shard(1, "a", "shards/a"),)
    new = StoreCreated("s", hashed, 100.0, shards, initial_placement(16, 4, [1]).tablets)
    create_catalog(where, CLOCK, new, prepare)


@contextmanager
def opened(where: Path | str) -> Iterator[Catalog]:
    with closing(open_catalog(where, CLOCK, str(where))) as catalog:
        yield catalog


def use(where: Path | str) -> None:
    """Open a catalog, read all of it, and write to it."""
    with opened(where) as catalog:
        tx = catalog.newest()
        seal_keys(tx.state, tx.now)
        leases_in(tx)
        newest_topology(tx)
        with catalog.writing() as tx:
            tx.append(TimeObserved())


@pytest.fixture
def where(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.db"
    create(path)
    use(path)
    return path


def change(path: Path, sql: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(sql)


# ------------------------------------------------------------------------- no store, or a damaged one


def garbage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4_096:] = b"\xa5" * (len(content) - 4_096)
    path.write_bytes(content)


def of_something_else(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE birds (name TEXT)")


def of_another_hash(path: Path) -> None:
    path.unlink()
    create(path, "java")


NOT_A_DATABASE = b"not a database" * 500
WRONG: dict[str, tuple[type[ElasticScanError], str, Callable[[Path], object]]] = {
    "an empty file": (NotFound, "", lambda path: path.write_bytes(b"")),
    "of something else": (NotFound, "", of_something_else),
    "no folder": (NotFound, "create one", lambda path: shutil.rmtree(path.parent)),
    "another hash": (StoreDamaged, "the hash 'java'", of_another_hash),
    "no database": (StoreDamaged, "not a database", lambda path: path.write_bytes(NOT_A_DATABASE)),
    "pages of garbage": (StoreDamaged, "", garbage),
    "a part of it": (StoreDamaged, "", lambda path: os.truncate(path, path.stat().st_size // 3)),
    "no column": (StoreDamaged, "", lambda path: change(path, "ALTER TABLE log DROP COLUMN metadata")),
    "no table": (StoreDamaged, "", lambda path: change(path, "DROP TABLE payload")),
    "no entries": (StoreDamaged, "", lambda path: change(path, "DELETE FROM log")),
    "no topologies": (StoreDamaged, "", lambda path: change(path, "DELETE FROM topology_history")),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_sound_store_is_reported_as_that(tmp_path: Path, name: str) -> None:
    error, said, alter = WRONG[name]
    path = tmp_path / "folder" / "catalog.db"
    path.parent.mkdir()
    create(path)
    use(path)
    alter(path)
    with pytest.raises(error, match=said or None):
        use(path)
    if name == "no folder":
        error, said = CatalogUnavailable, "unable to open"
    if name in ("no folder", "no database"):
        with pytest.raises(error, match=said):
            create(path)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("content", [NOT_A_DATABASE, b"SQLite format 3\0" + bytes(range(256)) * 40])
def test_no_file_handle_of_a_damaged_file_stays_open(tmp_path: Path, content: bytes, read_only: bool) -> None:
    """Not even while the error exists, whose frames refer to the connection."""
    file = tmp_path / "catalog.db"
    file.write_bytes(content)
    with pytest.raises(StoreDamaged):
        open_catalog(file, CLOCK, str(file), read_only)
    handles = [os.path.realpath(handle) for handle in Path("/proc/self/fd").iterdir()]
    assert not [handle for handle in handles if handle.startswith(str(file))]


def test_a_driver_that_is_not_installed_is_reported_by_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidOption, match="pip install"):
        use("postgresql+psycopg://localhost/store")


@pytest.mark.parametrize("name", ["a?b", "a?mode=ro", "a#b", "a%41", "a b", "ä", "a:b@c", "a'b", "a;b"])
def test_a_path_may_hold_what_a_url_would_take_for_something_else(tmp_path: Path, name: str) -> None:
    file = tmp_path / name / "catalog.db"
    file.parent.mkdir()
    create(file)
    use(file)
    assert file.is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]


# ------------------------------------------------------------------------------------------- creating


def test_a_store_is_made_once_and_found_without_making_a_file(tmp_path: Path) -> None:
    path, url = tmp_path / "catalog.db", f"sqlite:///{tmp_path}/catalog.db"
    assert not holds_store(path) and not list(tmp_path.iterdir())
    create(url)
    before = path.read_bytes()
    with pytest.raises(AlreadyExists):
        create(path)
    assert path.read_bytes() == before
    assert holds_store(path) and holds_store(url)
    use(path)
    use(url)


def test_a_creation_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(_: Tx) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "catalog.db"
    for is_there in (False, True):
        if is_there:
            path.touch()
        with pytest.raises(KeyboardInterrupt):
            create(path, prepare=fail)
        assert path.exists() == is_there and (is_there or not list(tmp_path.iterdir()))
        assert not holds_store(path)
    create(path)
    use(path)


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


# ----------------------------------------------------------------------- out of reach, or of a newer format


def test_a_locked_catalog_can_be_read_but_not_written(where: Path) -> None:
    with closing(apsw.Connection(str(where))) as other, opened(where) as catalog:
        other.execute("BEGIN IMMEDIATE")
        assert catalog.newest().state.versions
        with pytest.raises(CatalogUnavailable, match="locked"), catalog.writing() as tx:
            tx.append(TimeObserved())
        other.execute("ROLLBACK")
        with catalog.writing() as tx:
            tx.append(TimeObserved())


def test_a_log_without_a_free_connection_is_a_reason_to_try_again(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(database, "MOST", 1)
    with ThreadPoolExecutor(1) as another, opened(where) as catalog:
        with catalog.home.reading():
            assert catalog.follow().number, "a thread has one connection"
            with pytest.raises(CatalogUnavailable, match="too many"):
                another.submit(catalog.follow).result()
        assert another.submit(catalog.follow).result() == catalog.follow()


def test_a_record_of_a_newer_format_is_refused_and_left_alone(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(where) as early:
        with monkeypatch.context() as patch, opened(where) as newer, newer.writing() as tx:
            patch.setitem(FORMATS, "TimeObserved", (TimeObserved, 2))  # type: ignore[arg-type]
            tx.append(TimeObserved())
        with pytest.raises(StoreTooNew, match="upgrade"), early.writing() as tx:
            tx.append(TimeObserved())
    before = where.read_bytes()
    with pytest.raises(StoreTooNew, match=r"TimeObserved of format 2.*upgrade"):
        use(where)
    assert where.read_bytes() == before
