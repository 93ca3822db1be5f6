"""Disks that are really full: the catalog's, a database server's, those of shards in moves and merges.

What is reported is `DiskFull`, nothing is lost, reads go on, and once there is room again the same handle
does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import DiskFull
from elasticscan.store import Store
from tests.base.postgres import Server
from tests.base.small_disks import fill, free, small_disk

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
MOST_COMMITS = 3_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 4) as where:
        yield where


def rows(number: int) -> pa.Table:
    return pa.table({"k": [number], "v": [str(number)]}, schema=SCHEMA)


def keys(store: Store) -> list[int]:
    return sorted(store.table("t").scan().to_table()["k"].to_pylist())


def commit_until_full(store: Store) -> list[int]:
    """The keys that were acknowledged before the error."""
    done: list[int] = []

    def commit() -> None:
        for number in range(MOST_COMMITS):
            store.table("t").upsert(rows(number), user_metadata={"note": "x" * 3_000})
            done.append(number)

    with pytest.raises(DiskFull, match="free some space"):
        commit()
    return done


def check_goes_on(store: Store, uri: str | Path, done: list[int]) -> None:
    """Nothing but what was acknowledged is there, for anybody, and the handle writes again."""
    assert keys(store) == done
    store.table("t").upsert(rows(MOST_COMMITS))
    store.compact()
    with Store.open(uri) as other:
        assert keys(other) == [*done, MOST_COMMITS]
        assert other.verify() == []


def test_a_scan_that_needs_a_lease_says_how_a_full_disk_is_read(tmp_path: Path, disk: Path) -> None:
    uri = disk / "store"
    roots = {"a": str(tmp_path / "a")}
    with Store.create(uri, roots, tablets=2, slots=8, upkeep="off", retention_seconds=0) as store:
        store.create_table("t", SCHEMA, ["k"])
        store.table("t").upsert(rows(0))
        fill(disk, leave=200_000)
        done = commit_until_full(store)

        def scan_until_full() -> None:
            for _ in range(MOST_COMMITS):
                store.table("t").scan()

        with pytest.raises(DiskFull, match="free some space"):
            scan_until_full()
        with Store.open(uri, read_only=True) as reader:
            assert keys(reader) == done
        free(disk)
        check_goes_on(store, uri, done)


@pytest.mark.usefixtures("rows_in_files")
def test_a_catalog_on_a_full_disk_keeps_what_it_acknowledged(tmp_path: Path, disk: Path) -> None:
    uri = disk / "store"
    with Store.create(uri, {"a": str(tmp_path / "a")}, tablets=2, slots=8, upkeep="off") as store:
        store.create_table("t", SCHEMA, ["k"])
        store.table("t").upsert(rows(0))
        fill(disk, leave=200_000)
        done = commit_until_full(store)
        files = sorted((tmp_path / "a").rglob("*.arrow"))
        table, said = store.table("t"), {"note": "x" * 3_000}
        writes: list[Callable[[], object]] = [
            lambda: table.upsert(rows(7_000), user_metadata=said),
            lambda: table.delete([0], user_metadata=said),
            lambda: table.update({"v": "'1'"}, "k = 0", user_metadata=said),
            lambda: table.merge(rows(7_000), user_metadata=said),
            lambda: table.overwrite(rows(7_000), where="k >= 0", user_metadata=said),
            lambda: table.restore(min(commit.number for commit in table.history()) + 1, user_metadata=said),
        ]
        for write in writes:
            with pytest.raises(DiskFull):
                write()
            assert keys(store) == done
        assert sorted((tmp_path / "a").rglob("*.arrow")) == files, "who tries again does not fill the shards"
        assert len(files) == len(done) + 1
        with Store.open(uri) as other:
            assert keys(other) == done
        free(disk)
        check_goes_on(store, uri, done)


@pytest.mark.long
def test_a_database_server_on_a_full_disk_keeps_what_it_acknowledged(
    postgres: Server, tmp_path: Path
) -> None:
    with small_disk(postgres.directory / "small", 32) as disk:
        place = disk / "space"
        place.mkdir()
        owner = postgres.directory.stat()
        os.chown(place, owner.st_uid, owner.st_gid)
        place.chmod(0o700)
        postgres.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        postgres.execute("CREATE DATABASE small TABLESPACE small")
        try:
            url = postgres.url("small")
            with Store.create(url, {"a": str(tmp_path / "a")}, tablets=2, slots=8, upkeep="off") as store:
                store.create_table("t", SCHEMA, ["k"])
                fill(disk, leave=300_000)
                done = commit_until_full(store)
                assert keys(store) == done
                free(disk)
                check_goes_on(store, url, done)
        finally:
            postgres.execute("DROP DATABASE small WITH (FORCE)")
            postgres.execute("DROP TABLESPACE small")


def loaded(store: Store) -> list[int]:
    table = store.create_table("t", SCHEMA, ["k"])
    for start in (0, 100, 200):
        block = range(start, start + 400)
        table.upsert(pa.table({"k": list(block), "v": [os.urandom(500).hex() for _ in block]}, schema=SCHEMA))
    return list(range(600))


FILLS: dict[str, Callable[[Store], object]] = {"a move": lambda it: it.move(1, "b"), "a merge": Store.compact}


@pytest.mark.parametrize("step", FILLS)
def test_a_step_on_a_full_disk_changes_nothing_and_is_done_again(
    tmp_path: Path, disk: Path, step: str
) -> None:
    shards = {"a": str((tmp_path if step == "a move" else disk) / "a"), "b": str(disk / "b")}
    with Store.create(
        tmp_path / "store", shards, tablets=2, slots=8, upkeep="off", retention_seconds=0
    ) as store:
        done = loaded(store)
        fill(disk, leave=50_000)
        for _ in range(2):
            with pytest.raises(DiskFull, match="free some space"):
                FILLS[step](store)
            assert keys(store) == done
        free(disk)
        FILLS[step](store)
        assert keys(store) == done
        assert store.verify() == []
