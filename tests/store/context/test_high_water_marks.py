"""Marks of many shards: few are looked at and written, and an older catalog is noticed all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from elasticscan.base.errors import ShardMismatch
from elasticscan.storage import LocalDisk
from elasticscan.store import Store
from elasticscan.store.context.high_water_marks import WITNESSES
from elasticscan.store.roots import Marker
from elasticscan.store.roots.markers import Root, alone_at
from tests.catalog.test_sqlite_files import copied

ROWS_IN_FILES = True


def made(place: Path, shards: int) -> Store:
    store = Store.create(place, [f"s{number}" for number in range(shards)], tablets=shards, slots=64)
    store.create_table("t", {"id": [0]}, "id")
    return store


def shard_of(store: Store, key: int) -> int:
    """The shard where a commit of one row leaves its file."""
    commit = store.table("t").upsert([{"id": key}])
    files = store.context.state().fragments()
    return next(file.shard for file in files if file.max_commit == commit)


def test_new_shards_are_reported_to_all(tmp_path: Path) -> None:
    with made(tmp_path / "s", 20) as store:
        before, roots = store.context.state().layout, store.context.roots
        store.expand(["late"])
        known = [roots.root(shard).marker() for shard in roots.local_shards()]
        assert [mark is not None and mark.layout > before for mark in known] == [True] * 21


@pytest.mark.parametrize("away", ["none", "a witness", "all witnesses", "the shard that was written"])
def test_an_older_catalog_is_noticed_by_who_looked_before_and_by_who_opens(tmp_path: Path, away: str) -> None:
    """The first has not seen the commit that is gone, which wrote to a shard that it does not look at."""
    place = tmp_path / "s"
    with made(place, 24) as store, Store.open(place) as other:
        local, names = sorted(store.context.roots.local_shards()), store.context.shard_names()
        witnesses, others = local[:WITNESSES], local[WITNESSES:]
        key, written = next((key, at) for key in range(500) if (at := shard_of(store, key)) in others)
        older = copied(place / "catalog.db", tmp_path / "older.db")
        other.table("t").upsert([{"id": key}])
        gone = {"none": [], "a witness": witnesses[:1], "all witnesses": witnesses}.get(away, [written])
        for shard in gone:
            root = place / "shards" / names[shard]
            root.rename(root.with_name(f"{root.name} away"))
        copied(older, place / "catalog.db")
        if away != "all witnesses":
            with pytest.raises(ShardMismatch):
                store.table("t").tag("now")
        with Store.open(place) as fresh, pytest.raises(ShardMismatch):
            fresh.table("t").tag("now")


@pytest.mark.parametrize("by", ["a raise", "an adoption"])
def test_what_is_written_to_a_marker_meanwhile_stays(tmp_path: Path, by: str) -> None:
    mine, others = Marker("store", "first", 1, "a"), list[Thread]()
    root = Root(str(tmp_path), LocalDisk(tmp_path))
    newest = replace(mine, commit=7) if by == "a raise" else replace(mine, incarnation="second")

    def change() -> None:
        if by == "a raise":
            root.raise_marker(newest)
        else:
            with alone_at(str(tmp_path)):
                root.write_marker(newest)

    class Interrupted(LocalDisk):
        def note(self, path: str, content: bytes) -> None:
            others.append(Thread(target=change))
            others[0].start()
            others[0].join(0.3)
            super().note(path, content)

    root.write_marker(mine)
    replace(root, disk=Interrupted(tmp_path)).raise_marker(replace(mine, commit=6))
    others[0].join()
    assert root.marker() == newest
