"""A catalog behind a proxy that pools transactions: many threads and tasks share a few connections."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest

from elasticscan.store import Store
from tests.base.pooler import pooled
from tests.base.postgres import Server

pytestmark = pytest.mark.long

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("w", pa.int64())])
WRITERS, COMMITS, CONNECTIONS = 12, 6, 4


def test_writers_and_a_mover_share_few_connections(postgres: Server, tmp_path: Path) -> None:
    shards = {name: str(tmp_path / name) for name in "ab"}
    with (
        postgres.database() as name,
        pooled(postgres, name, CONNECTIONS) as url,
        Store.create(url, shards, tablets=2, slots=8) as store,
    ):
        store.create_table("t", SCHEMA, ["k"])
        written = Event()

        def write(writer: int) -> None:
            for number in range(COMMITS):
                row = {"k": [WRITERS * number + writer], "w": [writer]}
                store.table("t").upsert(pa.table(row, schema=SCHEMA))

        def move() -> int:
            moves = 0
            while not written.is_set() or not moves:
                at = {tablet["id"]: tablet["shard"] for tablet in store.status()["tablets"]}
                store.move(1, "b" if at[1] == "a" else "a")
                keys = store.table("t").scan(page_rows=50).to_table()["k"].to_pylist()
                assert len(keys) == len(set(keys))
                moves += 1
            return moves

        with ThreadPoolExecutor(WRITERS + 1) as pool:
            mover = pool.submit(move)
            try:
                for writing in [pool.submit(write, writer) for writer in range(WRITERS)]:
                    writing.result()
            finally:
                written.set()
            assert mover.result() > 0
        keys = store.table("t").scan().to_table()["k"].to_pylist()
        assert sorted(keys) == list(range(WRITERS * COMMITS))
        commits = [commit for commit in store.table("t").history() if commit.kind == "write"]
        assert len(commits) == WRITERS * COMMITS
        assert store.verify() == []


def test_stores_of_their_own_share_few_connections(postgres: Server, tmp_path: Path) -> None:
    """As tasks do: each opens the store, reads a part and goes."""
    with postgres.database() as name, pooled(postgres, name, CONNECTIONS) as url:
        with Store.create(url, {"a": str(tmp_path / "a")}, tablets=2, slots=8) as store:
            store.create_table("t", SCHEMA, ["k"])
            store.table("t").upsert(pa.table({"k": range(100), "w": range(100)}, schema=SCHEMA))

        def read(_: int) -> int:
            with Store.open(url) as opened:
                return opened.table("t").scan(page_rows=20).to_table().num_rows

        with ThreadPoolExecutor(40) as pool:
            assert set(pool.map(read, range(80))) == {100}
