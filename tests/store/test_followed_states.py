"""A reader that follows a store keeps what it looked up: that must be what one sees who opens it now."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import ElasticScanError
from elasticscan.store import Store
from elasticscan.store.context.lookups import KnownTable
from tests.seeds import seeds

pytestmark = pytest.mark.usefixtures("rows_in_files")

STEPS, KEYS = 25, 60
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("k", pa.int64())])


class Histories:
    """Random operations on a store; one that the store refuses changes nothing."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store, self.chance, self.made = store, chance, 0
        store.create_table("t", SCHEMA, ["id"])
        store.table("t").upsert(self.rows(range(KEYS)))

    def rows(self, keys: Any) -> pa.Table:
        keys = list(keys)
        values = [self.chance.randrange(9) for _ in keys]
        return pa.table({"id": pa.array(keys, pa.int64()), "k": pa.array(values, pa.int64())}, SCHEMA)

    def some(self) -> list[int]:
        return self.chance.sample(range(KEYS + 9), self.chance.randint(1, 6))

    def step(self) -> None:
        often = [self.upsert] * 6
        others = [self.delete, self.overwrite, self.restore, self.index, self.again, self.elsewhere]
        moves: list[Callable[[], object]] = [self.move, self.split, self.store.compact, self.collect]
        with suppress(ElasticScanError):
            self.chance.choice([*often, *others, *moves])()

    def upsert(self) -> None:
        self.store.table("t").upsert(self.rows(self.some()))

    def delete(self) -> None:
        self.store.table("t").delete(pa.table({"id": self.some()}))

    def overwrite(self) -> None:
        self.store.table("t").overwrite(self.rows(range(KEYS)))

    def restore(self) -> None:
        commits = [commit.number for commit in self.store.table("t").history()]
        self.store.table("t").restore(to=self.chance.choice(commits))

    def index(self) -> None:
        table = self.store.table("t")
        if table.indexes():
            table.drop_index("by_k")
        else:
            table.create_index("by_k", ["k"])

    def again(self) -> None:
        """The table is dropped, and another one has its name."""
        self.store.table("t").drop()
        self.store.create_table("t", SCHEMA, ["id"]).upsert(self.rows(range(KEYS)))

    def elsewhere(self) -> None:
        self.made += 1
        self.store.create_table(f"t{self.made}", SCHEMA, ["id"]).upsert(self.rows(self.some()))

    def move(self) -> None:
        tablet = self.chance.choice(self.store.topology.placement.tablets)
        self.store.move(tablet.id, self.chance.choice(("s1", "s2")))

    def split(self) -> None:
        self.store.split(self.chance.choice(self.store.topology.placement.tablets).id)

    def collect(self) -> None:
        self.store.collect_garbage(grace_seconds=0)


def seen(store: Store) -> tuple[object, ...]:
    """A table as a handle of the store knows it: its definition, place, files and rows."""
    context = store.context
    table = context.table_now("t")
    rows = sorted(
        row for page in store.table("t").scan() for row in zip(*page.rows.to_pydict().values(), strict=True)
    )
    state: KnownTable = context.table_state(table.id)
    floors = [state.floor(commit) for commit in range(state.last_commit + 1)]
    runs = sorted(state.all_runs(), key=lambda run: run.id)
    indexes, placement = context.state().indexes(table.id), context.placement()
    return table, indexes, placement, context.incarnation(), state.fragments, floors, runs, rows


@pytest.mark.parametrize("seed", seeds(6, short=2))
def test_what_a_reader_keeps_is_what_a_new_one_looks_up(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    Store.create(tmp_path, ["s1", "s2"]).close()
    with Store.open(tmp_path) as store, Store.open(tmp_path) as reader:
        histories = Histories(store, chance)
        for step in range(STEPS):
            histories.step()
            if chance.random() < 0.7:
                with Store.open(tmp_path) as again:
                    assert seen(reader) == seen(again), step
