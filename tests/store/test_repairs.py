"""What an operator meets after something went wrong: changes of its shards that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    InvalidTopologyChange,
    ShardUnavailable,
)
from elasticscan.store import Store, publish, stage

ROWS = 2_000


@contextmanager
def filled(uri: Path, shards: tuple[str, ...] = ("a", "b")) -> Iterator[Store]:
    with Store.create(uri, list(shards), tablets=8, slots=64) as store:
        store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        store.table("t").upsert(pa.table({"id": range(ROWS)}))
        yield store


@pytest.mark.usefixtures("rows_in_files")
def test_a_write_that_was_routed_again_leaves_no_file_behind(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        table = store.table("t").definition
        staged = stage(store.context, table, [pa.record_batch({"id": pa.array(range(500))})])
        store.contract("a")
        publish(store.context, table, staged)
        gone = next(fragment for fragment in staged if fragment.shard == 1)
        assert not (tmp_path / "store" / "shards" / "a" / gone.path).exists()
        assert store.table("t").scan().to_table().num_rows == ROWS


def test_a_failed_expansion_can_be_called_again(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        root, away = tmp_path / "store" / "shards" / "a", tmp_path / "away"
        root.rename(away)
        with pytest.raises(ShardUnavailable):
            store.expand(["c"])
        away.rename(root)
        store.expand(["c"])
        counts = {shard["name"]: shard["tablets"] for shard in store.status()["shards"]}
        assert sorted(counts.values()) == [2, 3, 3]
        assert store.expand(["c"]).number == store.topology.number == store.topology_history()[-1].number
        with pytest.raises(AlreadyExists, match="with another root"):
            store.expand({"c": str(tmp_path / "elsewhere")})
        assert not (tmp_path / "elsewhere").exists()


def test_a_failed_contraction_can_be_called_off_or_resumed(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        root, away = tmp_path / "store" / "shards" / "a", tmp_path / "away"
        root.rename(away)
        with pytest.raises(ShardUnavailable):
            store.contract("a")
        away.rename(root)
        store.expand(["a"])
        assert not any(shard["draining"] for shard in store.status()["shards"])
        root.rename(away)
        # A store that has read the files holds them open, and could go on.
        with Store.open(tmp_path / "store") as other, pytest.raises(ShardUnavailable):
            other.contract("a")
        away.rename(root)
        assert store.resume_moves() == 4
        assert [shard["name"] for shard in store.status()["shards"]] == ["b"]
        assert store.table("t").scan().to_table().num_rows == ROWS


def test_a_contraction_that_an_expansion_takes_back_ends_at_once(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "back", ["s1", "s2"], tablets=4)
    how = store.elasticity()
    with store.context.catalog.reading() as tx:
        s2 = tx.state.shard_named("s2").id
    with pytest.raises(InvalidTopologyChange, match="taken back"):
        how._drain(s2)
    assert [shard["name"] for shard in store.status()["shards"]] == ["s1", "s2"]
