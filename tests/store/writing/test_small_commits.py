"""Small commits: rows in the log, read like any others, and files only where the log may not have them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import AlreadyExists, InvalidKey, RowsChanged, StoreDamaged
from elasticscan.catalog.entries import ROWS
from elasticscan.metadata import MEMORY, StagedFragment
from elasticscan.store import Store, Table, repair_store
from elasticscan.store.writing import staging
from elasticscan.store.writing.publishing import publish

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


def staged(store: Store, some: pa.Table) -> list[StagedFragment]:
    return staging.stage(store.context, store.table("t").definition, some.to_batches())


def test_what_tasks_staged_of_few_rows_is_one_commit_in_the_log(store: Store) -> None:
    """Each task is another process: what it staged is sent to the one that publishes it."""
    parts = [part for task in range(9) for part in staged(store, rows(4 * task, 4 * task + 4))]
    sent = pickle.dumps(parts)
    del parts
    received: list[StagedFragment] = pickle.loads(sent)
    number = publish(store.context, store.table("t").definition, received)
    assert number.rows == 36
    assert in_log(store) == 1
    assert files_of(store) == set()
    assert ids_of(store.table("t"), filter="k < 7", index="by_k") == list(range(36))


def test_what_tasks_staged_in_memory_goes_to_files_where_others_staged_many(store: Store) -> None:
    parts = [*staged(store, rows(0, 4)), *staged(store, rows(4, 30, "x" * 9_000))]
    assert {part.shard == MEMORY for part in parts} == {True, False}
    publish(store.context, store.table("t").definition, parts)
    assert in_log(store) == 0
    with store.context.catalog.reading() as tx:
        assert sorted(fragment.shard for fragment in tx.state.fragments()) == [1, 2]
    assert ids_of(store.table("t")) == list(range(30))


def test_rows_staged_before_the_columns_changed_become_files(store: Store) -> None:
    table = store.table("t")
    parts = staged(store, rows(0, 4))
    table.add_columns([pa.field("new", pa.int64())])
    publish(store.context, store.table("t").definition, parts)
    assert in_log(store) == 0
    table.upsert([{"id": 1, "k": 1, "t": "b", "new": 5}])
    assert in_log(store) == 1
    table.rename_column("new", "newer")
    assert [row["newer"] for row in table.scan(columns=["newer", "id"]).to_table().to_pylist()].count(5) == 1
    table.compact()
    assert ids_of(table, filter="newer = 5") == [1]


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


def test_an_index_that_is_made_meanwhile_refuses_rows_that_were_staged_before(store: Store) -> None:
    parts = staged(store, rows(0, 1, "x" * 20_000))
    store.table("t").create_index("by_t", ["t"])
    with pytest.raises(InvalidKey):
        publish(store.context, store.table("t").definition, parts)
    assert ids_of(store.table("t")) == []


def test_conditions_hold_for_rows_in_the_log(store: Store) -> None:
    table = store.table("t")
    first = table.upsert(rows(0, 10))
    with pytest.raises(AlreadyExists):
        table.insert(rows(9, 11))
    with Store.open(store.uri) as other:
        other.table("t").upsert(rows(3, 4, "b"))
    with pytest.raises(RowsChanged):
        table.upsert(rows(3, 4, "c"), if_unchanged_since=first)
    table.upsert(rows(4, 5, "c"), if_unchanged_since=first)
    assert table.update({"t": "'z'"}, where="t = 'c'").rows == 1
    assert table.upsert(rows(0, 1), txn=("me", 1)) == table.upsert(rows(0, 1), txn=("me", 1))
    table.overwrite(rows(2, 4))
    assert ids_of(table) == [2, 3]
    assert ids_of(table, snapshot=first) == list(range(10))
    assert in_log(store) == 6


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


def test_a_backup_has_rows_that_lie_in_the_log(store: Store, tmp_path: Path) -> None:
    store.table("t").upsert(rows(0, 5))
    store.backup(tmp_path / "backups")
    with Store.from_backup(tmp_path / "backups", tmp_path / "new") as copied:
        assert ids_of(copied.table("t"), filter="k >= 0", index="by_k") == list(range(5))
        assert copied.verify() == []


def test_a_repair_takes_rows_from_a_log_that_is_whole_and_says_which_are_lost_with_another(
    store: Store, tmp_path: Path
) -> None:
    table = store.table("t")
    table.upsert(rows(0, 50))
    table.compact()
    flushed = store.status()["snapshot"]
    table.upsert(rows(40, 60, "b"))
    table.delete([0])
    wanted = table.scan().to_table().sort_by("id")
    store.close()
    report = repair_store(store.uri, tmp_path / "new")
    assert (report.tables, report.lost, report.doubts) == ({"t": 59}, [], [])
    with Store.open(tmp_path / "new") as repaired:
        assert repaired.table("t").scan().to_table().sort_by("id").equals(wanted)
        assert repaired.table("t").scan(filter="k = 1", index="by_k").count() == 9
    (Path(store.uri) / "catalog.db").unlink()
    report = repair_store(store.uri, tmp_path / "older")
    assert report.tables == {"t": 50}
    assert any(f"files know rows up to commit {flushed}" in text for text in report.doubts)
