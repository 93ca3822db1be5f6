"""Groups of rows that are remembered from one transaction to the next."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticscan.base.errors import StoreDamaged
from elasticscan.catalog import Catalog, Tx
from elasticscan.catalog.sealed import RowQuery, SealedRows
from elasticscan.metadata import IndexEvent, IndexInfo, StagedFragment, StagedRun, TableInfo
from elasticscan.topology import SlotSet
from tests.base.manual_clock import ManualClock
from tests.catalog.test_transactions import SLOTS, add_commit, add_table, make, staged

PROGRAMS, STEPS = 10, 40


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def reader(catalog: Catalog, catalog_url: Path | str, clock: ManualClock) -> Iterator[Catalog]:
    """Another process's catalog of the same store."""
    with closing(Catalog(catalog_url, clock, "here")) as opened:
        yield opened


@pytest.fixture
def catalog(catalog_url: Path | str, clock: ManualClock) -> Iterator[Catalog]:
    with closing(make(catalog_url, clock)) as made:
        yield made


def seen(catalog: Catalog, table: int) -> tuple[Any, ...]:
    """What a reader asks for after each commit."""
    with catalog.reading() as tx:
        return (
            tx.fragments(table),
            tx.fragments(table, 1),
            tx.runs(table),
            tx.indexes(table),
            tx.overwrites(table),
        )


class Histories:
    """Random changes of a table's files; whether each succeeds is of no interest here."""

    def __init__(self, catalog: Catalog, table: TableInfo, chance: random.Random) -> None:
        self.catalog, self.table, self.chance = catalog, table, chance
        self.files = 0

    def step(self) -> None:
        commit, others = [self.commit] * 4, [self.merge, self.strike, self.split, self.index, self.forget]
        change = self.chance.choice([*commit, *others, self.overwrite, self.commit_elsewhere])
        with suppress(IndexError), self.catalog.writing() as tx:
            change(tx)

    def staged(self, tx: Tx, slots: SlotSet | None = None) -> StagedFragment:
        self.files += 1
        fragment = staged(f"t/{self.files}", self.chance.choice((1, 2)), slots, self.chance.randrange(1, 9))
        indexes = tx.indexes(self.table.id)
        runs = (StagedRun(index.id, f"t/{self.files}.{index.id}", 5, 100, 60, 1, b"") for index in indexes)
        return replace(fragment, runs=tuple(runs))

    def commit(self, tx: Tx) -> None:
        tx.add_commit(self.table.id, "write", [self.staged(tx) for _ in range(self.chance.choice((1, 2)))])

    def overwrite(self, tx: Tx) -> None:
        tx.add_commit(self.table.id, "overwrite", [self.staged(tx)])

    def commit_elsewhere(self, tx: Tx) -> None:
        other = tx.create_table(f"{self.table.name}_{self.files}", replace(self.table, id=0))
        tx.add_commit(other.id, "write", [self.staged(tx)])
        self.files += 1

    def merge(self, tx: Tx) -> None:
        """Some fragments are replaced, wherever they stand, as by a merge or by a move."""
        live = tx.fragments(self.table.id)
        going = self.chance.sample(live, min(2, len(live)))
        tx.set_fragment_slots({fragment.id: SlotSet() for fragment in going})
        tx.add_fragments(self.table.id, [self.staged(tx)], 1, 3)
        tx.bump_layout()

    def strike(self, tx: Tx) -> None:
        start = self.chance.randrange(SLOTS - 1)
        tx.strike_slots(
            self.chance.choice((1, 2)), SlotSet.span(start, self.chance.randrange(start + 1, SLOTS))
        )
        tx.bump_layout()

    def split(self, tx: Tx) -> None:
        """A fragment serves fewer slots, while a commit brings another."""
        fragment = self.chance.choice(tx.fragments(self.table.id))
        tx.set_fragment_slots({fragment.id: fragment.slots - SlotSet.span(0, self.chance.randrange(1, 8))})
        self.commit(tx)

    def index(self, tx: Tx) -> None:
        if live := tx.indexes(self.table.id):
            tx.transition_index(live[0], self.chance.choice((IndexEvent.DROPPED, IndexEvent.COMPLETED)))
        else:
            tx.create_index(IndexInfo(0, self.table.id, f"i{self.files}", "sorted", ("k",), ()))

    def forget(self, tx: Tx) -> None:
        tx.forget_dropped(tx.dropped_files())


@pytest.mark.long
def test_what_a_reader_remembers_is_what_a_full_read_finds_after_any_history(
    catalog: Catalog, reader: Catalog
) -> None:
    for seed in range(PROGRAMS):
        chance = random.Random(seed)
        histories = Histories(catalog, add_table(catalog, f"program{seed}"), chance)
        for step in range(STEPS):
            histories.step()
            if chance.random() < 0.7:  # else the reader has several changes to catch up with
                remembering = seen(reader, histories.table.id)
                catalog.look_afresh()
                assert remembering == seen(catalog, histories.table.id), (seed, step)


def rows_read(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many rows of each table are read from now on."""
    reads, ask = dict[str, int](), SealedRows.ask

    def counting(self: SealedRows, query: RowQuery, **values: Any) -> list[Any]:
        rows = ask(self, query, **values)
        reads[query.form.name] = reads.get(query.form.name, 0) + len(rows)
        return rows

    monkeypatch.setattr(SealedRows, "ask", counting)
    return reads


def test_after_a_commit_its_rows_alone_are_read(
    catalog: Catalog, reader: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = add_table(catalog)
    for number in range(9):
        add_commit(catalog, table, staged(f"t/{number}"))
    assert len(seen(reader, table.id)[0]) == 9
    add_commit(catalog, table, staged("t/9"), staged("t/10"))
    reads = rows_read(monkeypatch)
    with reader.reading() as tx:
        assert len(tx.fragments(table.id)) == 11
    assert reads["fragments"] == 2


DAMAGES: dict[str, Callable[[Any], str]] = {
    "a row that is hidden": lambda _: "DELETE FROM fragments WHERE path = 't/2'",
    "one of two rows that are hidden": lambda _: "DELETE FROM fragments WHERE path = 't/3'",
    "a row that is altered": lambda _: "UPDATE fragments SET rows = 7 WHERE path = 't/3'",
    "sums of before": lambda before: f"UPDATE group_digests SET {before} WHERE kind = 'fragments'",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_remembered_rows_hide_no_damage_of_newer_ones(
    damage: str, tmp_path: Path, clock: ManualClock
) -> None:
    file = tmp_path / "catalog.db"
    with closing(make(file, clock)) as catalog, closing(Catalog(file, clock, "here")) as reader:
        table = add_table(catalog)
        add_commit(catalog, table, staged("t/1"))
        seen(reader, table.id)
        with closing(sqlite3.connect(file)) as connection:
            sums = connection.execute(
                "SELECT rows, total FROM group_digests WHERE kind = 'fragments'"
            ).fetchone()
        add_commit(catalog, table, staged("t/2"), staged("t/3"))
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(DAMAGES[damage]("rows = {}, total = {}".format(*sums)))
            connection.commit()
        with pytest.raises(StoreDamaged):
            seen(reader, table.id)


def test_sums_of_before_are_damage_where_a_fragment_serves_no_longer(
    tmp_path: Path, clock: ManualClock
) -> None:
    file = tmp_path / "catalog.db"
    with closing(make(file, clock)) as catalog, closing(Catalog(file, clock, "here")) as reader:
        table = add_table(catalog)
        add_commit(catalog, table, staged("t/1"), staged("t/2"))
        fragments = seen(reader, table.id)[0]
        with closing(sqlite3.connect(file)) as connection:
            rows, total = connection.execute(
                "SELECT rows, total FROM group_digests WHERE kind = 'fragments'"
            ).fetchone()
        with catalog.writing() as tx:
            tx.set_fragment_slots({fragments[1].id: SlotSet()})
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(
                "UPDATE group_digests SET rows = ?, total = ? WHERE kind = 'fragments'", (rows, total)
            )
            connection.commit()
        with pytest.raises(StoreDamaged):
            seen(reader, table.id)
