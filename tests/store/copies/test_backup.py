"""Backups: whole, incremental, verified, and stores made of them.

Random programs (`tests/simulation/upkeep.py`) and transcripts make some while others write, merge and move.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    FragmentDamaged,
    InvalidOption,
    NotFound,
    ShardMismatch,
    StoreDamaged,
)
from elasticscan.store import Store, Table
from elasticscan.store.moves.owners import OwnedStep

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(ids: range, v: str) -> pa.Table:
    return pa.table([list(ids), [v] * len(ids)], schema=SCHEMA)


def contents(table: Table, snapshot: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan(snapshot=snapshot).to_table().sort_by("id").to_pylist()
    return found


def everything(store: Store) -> Any:
    """What is to be seen of a store from outside, at every snapshot of every table."""
    return {
        table.name: (
            table.schema,
            table.history(),
            table.tags(),
            [(index.name, index.ready) for index in table.indexes()],
            [contents(table, commit.number) for commit in table.history()],
        )
        for table in store.tables()
    }


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "a.store", ["s1", "s2"], tablets=4, slots=16) as made:
        table = made.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(range(500), "a"), user_metadata={"job": "first"})
        table.create_index("by_v", ["v"])
        table.tag("first")
        table.delete(list(range(100)))
        made.create_table("empty", SCHEMA, ["id"])
        yield made


def test_a_store_that_is_made_of_a_backup_is_the_one_that_was_backed_up(store: Store, tmp_path: Path) -> None:
    with store.context.catalog.writing() as tx:  # a merge is under way, which is no one's in the copy
        tx.put_lease("merge 1 1", OwnedStep("merge 1 1", "a keeper that is alive", 0.0, 0.0))
    with Store.open(store.uri, read_only=True) as reader:
        made = reader.backup(tmp_path / "b")
    before = everything(store)
    store.table("t").overwrite(rows(range(3), "z"))
    paths = list((tmp_path / "b").rglob("*.arrow"))
    assert (made.files, made.bytes) == (len(paths), sum(path.stat().st_size for path in paths))
    with Store.from_backup(tmp_path / "b", tmp_path / "new.store") as other:
        assert everything(other) == before
        assert other.status()["upkeep"]["running"] == []
        assert other.table("t").scan(filter="v = 'a'", index="by_v").count() == 400
        other.table("t").upsert(rows(range(2), "b"))
        assert other.collect_garbage(grace_seconds=0, orphan_seconds=0).refused is None
        assert other.verify() == []


@pytest.mark.parametrize("roots", [{}, {"s1": "disk"}])
def test_a_copy_of_a_store_that_was_just_restored_is_only_read(
    store: Store, tmp_path: Path, roots: dict[str, str]
) -> None:
    store.backup(tmp_path / "b")
    at = {name: str(tmp_path / place) for name, place in roots.items()}
    Store.from_backup(tmp_path / "b", tmp_path / "new.store", at).close()
    shutil.copytree(tmp_path / "new.store", tmp_path / "copy.store")
    with Store.open(tmp_path / "copy.store") as copy, pytest.raises(ShardMismatch, match="is a copy of"):
        copy.table("t").upsert(rows(range(2), "b"))
    with Store.open(tmp_path / "new.store") as original:
        assert original.table("t").upsert(rows(range(2), "b")).rows == 2


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("pattern", ["elasticscan-backup", "**/*.arrow"])
@pytest.mark.usefixtures("rows_in_files")
def test_damage_makes_no_store_of_a_backup_and_no_backup_of_a_store(
    store: Store, tmp_path: Path, pattern: str
) -> None:
    store.backup(tmp_path / "b")
    flip(sorted((tmp_path / "b").glob(pattern))[-1])
    with pytest.raises((FragmentDamaged, StoreDamaged)):
        Store.from_backup(tmp_path / "b", tmp_path / "new.store", {"s2": str(tmp_path / "other")})
    assert not (tmp_path / "new.store").exists()
    assert not list((tmp_path / "other").rglob("*.arrow"))
    flip(next(Path(store.uri).rglob("*.arrow")))
    with pytest.raises(FragmentDamaged, match="checksum"):
        store.backup(tmp_path / "c")
    with pytest.raises(NotFound, match="no whole backup"):
        Store.from_backup(tmp_path / "c", tmp_path / "new.store")
    with pytest.raises(InvalidOption, match="not empty"):
        store.backup(tmp_path / "b")


def test_shards_go_where_they_are_reported_and_never_where_the_original_lies(tmp_path: Path) -> None:
    roots = {name: str(tmp_path / name) for name in ("s1", "s2")}
    with Store.create(f"sqlite:///{tmp_path}/catalog.db", roots, tablets=4, slots=16) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(range(100), "a"))
        store.contract("s2")
        store.expand({"s2": str(tmp_path / "again")})
        store.backup(tmp_path / "b")
        with Store.from_backup(tmp_path / "b", tmp_path / "new.store", {"s1": str(tmp_path / "n1")}) as other:
            places = {shard["name"]: shard["root"] for shard in other.status()["shards"]}
            assert places == {"s1": str(tmp_path / "n1"), "s2": "shards/s2"}
            other.table("t").upsert(rows(range(5), "b"))
            other.expand(["s3"])
            assert other.verify() == []
        store.table("t").upsert(rows(range(5), "c"))
        assert store.verify() == []
        with pytest.raises(InvalidOption, match="no shard 's9'"):
            Store.from_backup(tmp_path / "b", tmp_path / "x.store", {"s9": str(tmp_path / "n9")})
        with pytest.raises(NotFound, match="holds no whole backup"):
            Store.from_backup(tmp_path / "nothing", tmp_path / "x.store")
        assert not (tmp_path / "x.store").exists()
