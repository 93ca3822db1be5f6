"""Small commits: rows in the log, and in files only where the log may not have them.

How they are read, checked, flushed and backed up is in `tests/transcripts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidKey, StoreDamaged
from elasticscan.catalog.entries import ROWS
from elasticscan.store import Store, Table
from elasticscan.store.writing import staging

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("t", pa.string())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=8, slots=64) as it:
        it.create_table("t", SCHEMA, ["id"]).create_index("by_k", ["k"])
        yield it


def rows(first: int, end: int, text: str = "a") -> pa.Table:
    ids = range(first, end)
    return pa.table({"id": ids, "k": [i % 7 for i in ids], "t": [text] * len(ids)}, schema=SCHEMA)


def files_of(store: Store) -> set[str]:
    return {path.name for path in Path(store.uri).rglob("*.arrow")}


def in_log(store: Store) -> int:
    """Of the table's commits, how many have rows in the log."""
    with store.context.catalog.reading() as tx:
        return len(tx.state.memory(store.table("t").definition.id))


def ids_of(table: Table, **asked: Any) -> list[int]:
    return sorted(table.scan(**asked).to_table()["id"].to_pylist())


def test_the_log_takes_so_much_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.table("t")
    table.upsert(rows(0, 3, "x" * 60_000))
    assert in_log(store) == 0
    assert files_of(store)
    table.upsert(rows(3, 4, "x" * 60_000))
    assert in_log(store) == 1
    monkeypatch.setattr(staging, "MEMORY_TABLE_BYTES", 70_000)
    table.upsert(rows(4, 5, "x" * 60_000))
    assert in_log(store) == 1
    table.upsert(rows(5, 6))
    assert in_log(store) == 2
    monkeypatch.setattr(staging, "MEMORY_STORE_BYTES", 0)
    table.upsert(rows(6, 7))
    assert in_log(store) == 2
    assert ids_of(table) == list(range(7))


def test_what_an_index_cannot_take_is_refused_when_it_is_written_and_when_the_index_is_made(
    store: Store,
) -> None:
    table, long = store.table("t"), rows(0, 1, "x" * 20_000)
    table.upsert(long)
    with pytest.raises(InvalidKey):
        table.create_index("by_t", ["t"])
    assert [index.name for index in table.indexes()] == ["by_k"]
    another = store.create_table("u", SCHEMA, ["id"])
    another.create_index("by_t", ["t"])
    with pytest.raises(InvalidKey):
        another.upsert(long)
    assert ids_of(another) == []


def test_damaged_rows_stop_reads_of_their_table_alone(store: Store) -> None:
    store.create_table("u", SCHEMA, ["id"]).upsert(rows(0, 5))
    store.table("t").upsert(rows(0, 5))
    number = store.table("t").definition.id
    with store.context.catalog.leasing() as tx:
        tx.execute(
            "UPDATE payload SET bytes = :bytes WHERE table_id = :table AND part = :part",
            {"bytes": b"\0" * 100, "table": number, "part": ROWS},
        )
    with Store.open(store.uri) as again:
        assert ids_of(again.table("u")) == list(range(5))
        with pytest.raises(StoreDamaged):
            ids_of(again.table("t"))
        assert again.verify()
