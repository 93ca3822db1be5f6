"""The catalog's server is lost for good, and its standby takes over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import NotFound, ReadOnlyStore
from elasticscan.store import Store
from tests.base.postgres import start_server

pytestmark = pytest.mark.long

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("writer", pa.int64())])
WRITERS = 3


def test_no_commit_is_lost_or_repeated_when_a_standby_takes_over(tmp_path: Path) -> None:
    """The standby is synchronous: it has what was acknowledged. Both are named in the URL."""
    with start_server() as primary, start_server(primary) as standby:
        primary.execute("CREATE DATABASE catalog")
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        hosts = f"host={primary.directory}&host={standby.directory}"
        url = f"postgresql+psycopg://elasticscan@/catalog?{hosts}&target_session_attrs=read-write"
        roots = {name: str(tmp_path / name) for name in "ab"}
        with Store.create(url, roots, tablets=2, slots=8) as store:
            store.create_table("t", SCHEMA, ["k"])
            check_follower(f"postgresql+psycopg://elasticscan@/catalog?host={standby.directory}")
            acknowledged = use_while_the_primary_is_lost(store, primary.stop, standby.promote)
            table = store.table("t")
            assert [len(keys) > 10 for keys in acknowledged] == [True] * WRITERS
            assert sorted(table.scan().to_table()["k"].to_pylist()) == sorted(chain(*acknowledged))
            writes = [commit for commit in table.history() if commit.kind == "write"]
            assert len(writes) == sum(map(len, acknowledged)), "each commit was done once"
            assert list(store.verify()) == []


def check_follower(url: str) -> None:
    """Read at a standby, which has the table as soon as it has applied what it has received."""
    for _ in range(1_000):
        with Store.open(url) as reader, suppress(NotFound):
            assert reader.table("t").scan().count() == 0
            assert not reader.context.catalog.follows_progress
            with pytest.raises(ReadOnlyStore, match="a standby, which only reads"):
                reader.table("t").drop()
            return
        time.sleep(0.01)
    raise AssertionError("the standby lacks the table")


def use_while_the_primary_is_lost(
    store: Store, lose: Callable[[], None], promote: Callable[[], None]
) -> list[list[int]]:
    """Write from several threads, move and scan; returns the keys whose writes were acknowledged."""
    ended = threading.Event()
    acknowledged: list[list[int]] = [[] for _ in range(WRITERS)]

    def write(writer: int) -> None:
        table = store.table("t")
        while not ended.is_set():
            key = WRITERS * len(acknowledged[writer]) + writer
            table.upsert(pa.table({"k": [key], "writer": [writer]}, schema=SCHEMA))
            acknowledged[writer].append(key)

    def move() -> None:
        while not ended.is_set():
            placed = {tablet["id"]: tablet["shard"] for tablet in store.status()["tablets"]}
            store.move(1, "b" if placed[1] == "a" else "a")
            keys = store.table("t").scan(page_rows=50).to_table()["k"].to_pylist()
            assert len(keys) == len(set(keys))

    with ThreadPoolExecutor(WRITERS + 1) as pool:
        works = [*(pool.submit(write, writer) for writer in range(WRITERS)), pool.submit(move)]
        try:
            ended.wait(1.5)
            lose()
            ended.wait(1)
            promote()
            ended.wait(2)
        finally:
            ended.set()
        for work in works:
            work.result()
    return acknowledged
