"""Costs that must not grow with counts, told by counting and not by clocks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import text

from elasticscan.catalog import Tx, sealed
from elasticscan.catalog.near import NearTransaction
from elasticscan.storage.fragment import FragmentReader
from elasticscan.store import Store

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int8()), ("b", pa.string())])


def rows(start: int, count: int) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": ids, "a": [1] * count, "b": ["x" * 100] * count}, schema=SCHEMA)


def steps(tx: Tx, work: Callable[[], object]) -> int:
    """The steps of the database in which a transaction does some work."""
    assert isinstance(tx._sql, NearTransaction)
    made = [0]

    def count() -> int:
        made[0] += 1
        return 0

    tx._sql._driver.set_progress_handler(count, 1)
    work()
    tx._sql._driver.set_progress_handler(None, 0)
    return made[0]


@pytest.mark.parametrize("has_index", [True, False])
def test_overwrites_are_found_without_a_look_at_all_other_commits(tmp_path: Path, has_index: bool) -> None:
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=8) as store:
        if not has_index:  # a catalog of before
            with store.context.catalog.writing() as writing:
                writing._sql.execute(text("DROP INDEX commits_floors"))
        table = store.create_table("t", SCHEMA, ["id"])
        first, took = table.overwrite(rows(0, 1)), list[int]()
        for _ in range(2):
            with store.context.catalog.writing() as writing:
                for _ in range(100):
                    writing.add_commit(table.definition.id, "write", [])
            with store.context.catalog.reading() as tx:
                took.append(steps(tx, lambda tx=tx: tx.overwrites(table.definition.id)))  # type: ignore[misc]
        second = table.overwrite(rows(0, 2))
        with store.context.catalog.reading() as tx:
            assert tx.overwrites(table.definition.id) == (first, second)
        assert (took[1] == took[0]) is has_index
        assert store.verify() == []


def test_a_transaction_may_change_more_groups_than_one_condition_may_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "_GROUPS_AT_ONCE", 3)
    with Store.create(tmp_path / "s", ["a", "b"], tablets=2, slots=8) as store:
        for number in range(8):
            store.create_table(f"t{number}", SCHEMA, ["id"])
            store.table(f"t{number}").upsert(rows(0, 20))
        store.move(1, "b")
        assert store.verify() == []
        assert all(store.table(f"t{number}").scan().to_table().num_rows == 20 for number in range(8))


def test_what_is_kept_of_a_narrow_scan_is_its_columns_and_no_reader(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=8) as store:
        store.create_table("t", SCHEMA, ["id"])
        for number in range(6):
            store.table("t").upsert(rows(1_000 * number, 1_000))
        fragments = store.context.table_state(store.table("t").definition.id, 7).fragments
        disk = store.context.disk_of(1)
        for fragment in fragments:
            reader = FragmentReader(disk, fragment.path, ["a"], fragment.seal)
            batch = reader.batch(0)
            buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
            whole = {id(b.parent): b.parent.size for b in buffers if b.parent}
            assert sum(whole.values()) <= 2 * sum(buffer.size for buffer in buffers) + 1_024
        before = set(store.context.readers._batches._batches)
        store.table("t").scan(["a"]).to_table()
        kept = store.context.readers._batches._batches
        assert set(kept) > before
        assert all(isinstance(entry.batch, pa.RecordBatch) for entry in kept.values())


def test_files_that_root_makes_are_their_roots_owners(tmp_path: Path) -> None:

    if os.geteuid() != 0:
        pytest.skip("only root can make files for others")
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=8) as store:
        store.create_table("t", SCHEMA, ["id"])
        for path in (tmp_path / "s").rglob("*"):
            os.chown(path, 65534, 65534)
        os.chown(tmp_path / "s", 65534, 65534)
        store.table("t").upsert(rows(0, 10))
        assert {path.stat().st_uid for path in (tmp_path / "s" / "shards").rglob("*")} == {65534}
