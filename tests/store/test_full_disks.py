"""Disks of catalogs that are really full, and those of database servers.

What is reported is `DiskFull`, nothing is lost, reads go on, and once there is room again the same handle
does. Disks of shards are full in `tests/simulation`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import DiskFull
from elasticscan.store import Store, Table
from tests.base.postgres import Server
from tests.base.small_disks import fill, free, small_disk

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
MOST_COMMITS = 3_000
NOTE = {"note": "x" * 3_000}


def rows(number: int) -> pa.Table:
    return pa.table({"k": [number], "v": [str(number)]}, schema=SCHEMA)


def keys(store: Store) -> list[int]:
    return sorted(store.table("t").scan().to_table()["k"].to_pylist())


@contextmanager
def filled(uri: str | Path, place: Path, disk: Path, **options: Any) -> Iterator[tuple[Store, list[int]]]:
    """A store that commits until its catalog's disk is full, with the keys that it acknowledged.

    At the end there is room again: nothing but those is there, for anybody, and the same handle writes again.
    """
    done: list[int] = []

    def commit() -> None:
        for number in range(MOST_COMMITS):
            store.table("t").upsert(rows(number), user_metadata=NOTE)
            done.append(number)

    roots = {"a": str(place / "a")}
    with Store.create(uri, roots, tablets=2, slots=8, upkeep="off", **options) as store:
        store.create_table("t", SCHEMA, ["k"])
        fill(disk, leave=300_000)
        with pytest.raises(DiskFull, match="free some space"):
            commit()
        assert len(done) > 2
        yield store, done
        free(disk)
        assert keys(store) == done
        store.table("t").upsert(rows(MOST_COMMITS))
        store.compact()
        with Store.open(uri) as other:
            assert keys(other) == [*done, MOST_COMMITS]
            assert other.verify() == []


WRITES: dict[str, Callable[[Table], object]] = {
    "upsert": lambda table: table.upsert(rows(7_000), user_metadata=NOTE),
    "delete": lambda table: table.delete([0], user_metadata=NOTE),
    "update": lambda table: table.update({"v": "'1'"}, "k = 0", user_metadata=NOTE),
    "merge": lambda table: table.merge(rows(7_000), user_metadata=NOTE),
    "overwrite": lambda table: table.overwrite(rows(7_000), where="k >= 0", user_metadata=NOTE),
    "restore": lambda table: table.restore(table.history()[1].number, user_metadata=NOTE),
}


@pytest.mark.usefixtures("rows_in_files")
def test_a_catalog_on_a_full_disk_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """A scan that needs a lease is refused, too; a store that is opened for reading takes none."""
    with (
        small_disk(tmp_path / "small", 4) as disk,
        filled(disk / "store", tmp_path, disk, retention_seconds=0) as (store, done),
    ):
        files = sorted((tmp_path / "a").rglob("*.arrow"))
        for write in WRITES.values():
            with pytest.raises(DiskFull):
                write(store.table("t"))
        assert sorted((tmp_path / "a").rglob("*.arrow")) == files, "who tries again does not fill the shards"
        with pytest.raises(DiskFull, match="free some space"):
            [store.table("t").scan() for _ in range(MOST_COMMITS)]
        with Store.open(store.uri, read_only=True) as reader:
            assert keys(reader) == done


@pytest.mark.long
def test_a_database_server_on_a_full_disk_keeps_what_it_acknowledged(
    postgres: Server, tmp_path: Path
) -> None:
    with small_disk(postgres.directory / "small", 32) as disk:
        place, owner = disk / "space", postgres.directory.stat()
        place.mkdir()
        os.chown(place, owner.st_uid, owner.st_gid)
        place.chmod(0o700)
        postgres.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        postgres.execute("CREATE DATABASE small TABLESPACE small")
        try:
            with filled(postgres.url("small"), tmp_path, disk) as (store, done):
                assert keys(store) == done
        finally:
            postgres.execute("DROP DATABASE small WITH (FORCE)")
            postgres.execute("DROP TABLESPACE small")
