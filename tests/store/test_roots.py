"""Roots of shards: whose they are, and what is left alone there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import AlreadyExists, InvalidKey, InvalidOption
from elasticscan.store import Store

SCHEMA = pa.schema([("id", pa.int64())])


def filled(uri: Path, shards: dict[str, str] | list[str]) -> Store:
    store = Store.create(uri, shards, tablets=4, slots=16)
    store.create_table("t", SCHEMA, ["id"])
    store.table("t").upsert(pa.table({"id": range(100)}))
    return store


def test_two_stores_cannot_share_a_root(tmp_path: Path) -> None:
    root = str(tmp_path / "disk")
    with filled(tmp_path / "one", {"a": root}) as one:
        with pytest.raises(InvalidOption, match="another store"):
            Store.create(tmp_path / "two", {"a": root})
        with filled(tmp_path / "three", ["b"]) as three:
            with pytest.raises(InvalidOption, match="another store"):
                three.expand({"c": root})
            assert three.collect_garbage(grace_seconds=0).removed == 0
        assert one.table("t").scan().to_table().num_rows == 100


def test_garbage_collection_leaves_other_files_alone(tmp_path: Path) -> None:
    with filled(tmp_path / "store", {"a": str(tmp_path / "root")}) as store:
        foreign = tmp_path / "root" / "notes.txt"
        foreign.write_text("mine")
        orphan = tmp_path / "root" / "t1" / ("0" * 32 + ".arrow")
        orphan.write_text("left by a writer that died")
        assert store.collect_garbage(grace_seconds=0).removed == 1
        assert foreign.read_text() == "mine"
        assert not orphan.exists()
        assert store.table("t").scan().to_table().num_rows == 100


def test_a_shard_that_comes_back_finds_its_root_again(tmp_path: Path) -> None:
    with filled(tmp_path / "store", ["a", "b"]) as store:
        store.contract("b")
        store.expand(["b"])
        store.collect_garbage(grace_seconds=0)
        assert store.table("t").scan().to_table().num_rows == 100


def test_a_store_is_not_made_twice(tmp_path: Path) -> None:
    filled(tmp_path / "store", ["a"]).close()
    with pytest.raises(AlreadyExists):
        Store.create(tmp_path / "store", ["a"])
    with Store.open(tmp_path / "store") as store:
        assert store.table("t").scan().to_table().num_rows == 100


@pytest.mark.parametrize("name", ["a?b", "a%41", "a b#c"])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    filled(tmp_path / name, ["a"]).close()
    assert (tmp_path / name / "catalog.db").is_file()
    with Store.open(tmp_path / name) as store:
        assert store.table("t").scan().to_table().num_rows == 100


def test_a_null_key_is_told_as_such(tmp_path: Path) -> None:
    with filled(tmp_path / "store", ["a"]) as store:
        nothing = pa.table({"id": pa.array([1, None], pa.int64())})
        with pytest.raises(InvalidKey, match="null in 1 rows"):
            store.table("t").upsert(nothing)
        with pytest.raises(InvalidKey, match="null in 1 rows"):
            store.table("t").delete(nothing)
        assert store.table("t").scan().to_table().num_rows == 100
