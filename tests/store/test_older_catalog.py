"""The catalog's file is replaced, or set back, under the hands of stores that have it open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import sleep

import apsw
import pytest

from elasticscan.base.errors import CatalogUnavailable, ShardMismatch, StoreDamaged
from elasticscan.storage import LocalDisk
from elasticscan.store import Store
from elasticscan.store.roots.markers import Root
from tests.catalog.test_sqlite_files import copied, files_of
from tests.store.test_root_scenarios import ROWS, made, put_back, rows

NEWEST = 7


def values(store: Store) -> set[int]:
    return set(store.table("t").scan().to_table()["v"].to_pylist())


def get(store: Store) -> set[int]:
    return set(store.table("t").get(list(range(ROWS)))["v"].to_pylist())


# How a file takes the place of another one, next to the newer log or without it.
WAYS: dict[str, Callable[[Path, Path], object]] = {
    "through SQLite": copied,
    "as another file": partial(put_back, over=False),
    "as another file, alone": partial(put_back, over=False, keeps_log=True),
    "over the bytes": put_back,
    "over the bytes, alone": partial(put_back, keeps_log=True),
}


@contextmanager
def opened_twice(place: Path, checkpoint: bool = False) -> Iterator[tuple[Store, Store]]:
    """A store whose catalog was saved before its newest commit, with handles that have seen that one."""
    with made(place / "store") as first:
        copied(place / "store" / "catalog.db", place / "older.db")
        with Store.open(place / "store") as second:
            for store in (first, second):
                store.table("t").upsert(rows(value=NEWEST))
            if checkpoint:  # all of the log is in the file, where it is about to be overwritten
                with closing(apsw.Connection(str(place / "store" / "catalog.db"))) as connection:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            assert values(first) == values(second) == {NEWEST}
            yield first, second


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_store_that_has_seen_a_newer_catalog_never_reads_an_older_one_and_loses_no_commit(
    tmp_path: Path, way: str, checkpoint: bool
) -> None:
    with opened_twice(tmp_path, checkpoint) as (first, second):
        WAYS[way](tmp_path / "older.db", tmp_path / "store" / "catalog.db")
        for store in (first, second, first):
            for read in (values, get):
                with suppress(ShardMismatch, StoreDamaged):
                    assert read(store) == {NEWEST}
        for number, store in enumerate((first, second)):
            try:
                store.table("t").upsert(rows(value=100 + number))
            except (ShardMismatch, StoreDamaged):
                continue
            with Store.open(tmp_path / "store") as other:
                assert values(other) == {100 + number}


def test_a_catalog_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    database = tmp_path / "store" / "catalog.db"
    with opened_twice(tmp_path) as (store, _):
        sleep(0.02)
        database.rename(tmp_path / "away.db")
        for file in files_of(database):
            file.unlink()
        for use in (values, get, lambda store: store.table("t").upsert(rows())):
            with pytest.raises(CatalogUnavailable, match=r"no .*catalog\.db"):
                use(store)
        assert not database.exists()


def test_a_closed_store_has_told_its_shards_of_its_last_small_commits(tmp_path: Path) -> None:
    """It asks its catalog nothing for that: the server may be away, and is not waited for."""
    place, away = tmp_path / "store", tmp_path / "away.db"
    store = made(place)
    copied(place / "catalog.db", tmp_path / "older.db")
    for value in (2, 3):
        newest = store.table("t").upsert(rows(value=value))
    (place / "catalog.db").rename(away)
    store.close()
    away.rename(place / "catalog.db")
    for shard in ("a", "b"):
        mark = Root("", LocalDisk(place / "shards" / shard)).marker()
        assert mark is not None and mark.commit == newest
    put_back(tmp_path / "older.db", place / "catalog.db")
    with Store.open(place) as store:
        for use in (lambda: store.table("t").upsert(rows()), lambda: store.table("t").scan()):
            with pytest.raises(ShardMismatch):
                use()
