"""A store that is deleted and made again at the same place while a process has it open."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import TableChanged
from elasticscan.store import Store

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def make(place: Path, value: int) -> None:
    shutil.rmtree(place, ignore_errors=True)
    with Store.create(place, ["a", "b"], tablets=4) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table({"id": range(10), "v": [value] * 10}))


def fork() -> None:
    """A child that ends at once; connections to SQLite are opened again afterwards."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def test_an_open_store_does_not_go_on_with_another_one(tmp_path: Path) -> None:
    place = tmp_path / "s"
    make(place, 1)
    with Store.open(place) as store:
        key = next(iter(store.table("t").scan(page_rows=1))).key
        assert key is not None
        make(place, 2)
        fork()
        for use in (
            lambda: store.table("t").scan(),
            lambda: store.resume(key),
            lambda: store.expand(["c"]),
            store.status,
            lambda: store.create_table("u", SCHEMA, ["id"]),
        ):
            with pytest.raises(TableChanged, match="open it again"):
                use()
    with Store.open(place) as store:
        assert store.verify() == []
        assert store.table("t").scan().to_table()["v"].to_pylist() == [2] * 10
        store.expand(["c"])
