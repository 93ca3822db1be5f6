"""Costs that must not grow with counts, reported by counting and not by clocks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.catalog import Catalog
from elasticscan.storage.fragment import FragmentReader
from elasticscan.store import Store
from elasticscan.store.moves.mover import Mover
from elasticscan.store.upkeep.keeper import Keeper
from elasticscan.store.upkeep.planning import Policy
from tests.base.connections import prepare_connections

ROWS_IN_FILES = True

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int8()), ("b", pa.string())])


def rows(start: int, count: int) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": ids, "a": [1] * count, "b": ["x" * 100] * count}, schema=SCHEMA)


class Count:
    """Counts the questions that a store's catalog is asked, and the rows of their answers."""

    def __init__(self, store: Store) -> None:
        self.statements = self.rows = 0
        prepare_connections(store.context.catalog, self._follow)

    def _follow(self, connection: Any) -> Any:
        connection.exec_trace, connection.row_trace = self._count_statement, self._count_row
        return connection

    def _count_statement(self, _cursor: Any, statement: str, _values: Any) -> bool:
        self.statements += statement.startswith("SELECT")
        return True

    def _count_row(self, _cursor: Any, row: Any) -> Any:
        self.rows += 1
        return row

    def of(self, work: Callable[[], object]) -> tuple[int, int]:
        """Return (questions, rows) of some work, which was done once before."""
        work()
        statements, read = self.statements, self.rows
        work()
        return self.statements - statements, self.rows - read


def test_a_keeper_joins_all_small_tablets_in_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, writing = [0], Catalog.writing

    def counted(catalog: Catalog, **how: Any) -> Any:
        begun[0] += 1
        return writing(catalog, **how)

    monkeypatch.setattr(Catalog, "writing", counted)
    took = list[int]()
    for tablets in (68, 200):
        with Store.create(tmp_path / f"{tablets}", ["a", "b"], tablets=tablets, slots=512) as store:
            store.create_table("t", SCHEMA, ["id"]).upsert(rows(0, 60))
            before, begun[0] = len(store.topology_history()), 0
            kept = Keeper(store.context).keep()
            took.append(begun[0])
            assert kept.joins == min(tablets // 2, tablets - Policy().balance.fewest_tablets)
            assert len(store.topology.placement.tablets) == tablets - kept.joins
            assert len(store.topology_history()) == before + 1
            assert store.table("t").scan().count() == 60
            assert store.verify() == []
    assert took[0] == took[1]


def test_an_expansion_enters_and_gives_up_all_moves_by_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mover, "carry_out", lambda *_: None)  # so all of them are left
    asked = list[int]()
    for tablets in (8, 64):
        with Store.create(tmp_path / f"{tablets}", ["a"], tablets=tablets, slots=64) as store:
            planned, count = list[int](), Count(store)
            how = store.elasticity(on_progress=lambda _, of, planned=planned: planned.append(of))  # type: ignore[misc]
            store.expand(["b"], how)
            asked.append(count.statements)
            assert set(planned) == {tablets // 2}
            assert store.status()["moves"] == []
    assert asked[0] == asked[1]


def test_a_move_begins_no_transaction_for_each_table_that_it_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.create(tmp_path / "s", ["a", "b"], tablets=2, slots=8) as store:
        begun, reading, took, places = [0], Catalog.reading, list[int](), itertools.cycle("ba")

        def counted(catalog: Catalog) -> Any:
            begun[0] += 1
            return reading(catalog)

        monkeypatch.setattr(Catalog, "reading", counted)
        for tables in (1, 5):
            for number in range(len(store.tables()), tables):
                store.create_table(f"t{number}", SCHEMA, ["id"]).overwrite(rows(0, 20))
            before = begun[0]
            store.move(1, next(places))
            took.append(begun[0] - before)
        assert took[0] == took[1]
        assert [table.scan().count() for table in store.tables()] == [20] * 5


def test_an_index_of_many_fragments_is_entered_in_few_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=8, upkeep="off") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for number in range(32):
            table.upsert(rows(number, 2))
        begun, writing = [0], Catalog.writing

        def counted(catalog: Catalog, **how: Any) -> Any:
            begun[0] += 1
            return writing(catalog, **how)

        monkeypatch.setattr(Catalog, "writing", counted)
        table.create_index("by_a", ["a"])
        assert (
            begun[0] <= 3 + 8
        )  # to begin, to look twice whether all have their runs, and those of four each
        assert table.scan(filter="a = 1", index="by_a").count() == 33


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
