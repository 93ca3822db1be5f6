"""Small programs that a catalog must stand: damaged rows, wrong clocks, moves while it is away."""

from __future__ import annotations

import random
import sqlite3
from itertools import count
from pathlib import Path

import pyarrow as pa

from elasticscan.base.errors import StoreDamaged, TryAgain
from elasticscan.store import Store
from tests.base.manual_clock import ManualClock
from tests.store.catalog_line import Line

DAY = 86_400.0
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
DAMAGE = (
    "DELETE FROM fragments WHERE id = (SELECT max(id) FROM fragments)",
    "UPDATE fragments SET slots = '0-1' WHERE id = 1",
    "UPDATE fragments SET dropped_at = 1.0 WHERE id = 2",
    "UPDATE commits SET kind = 'overwrite' WHERE number = 3",
    "UPDATE tables SET oldest_snapshot = 0",
)


class _Ahead(ManualClock):
    """Thirty days ahead of another clock."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        super().__init__(clock.now() + seconds)


class CatalogPrograms:
    """Runs them in folders of their own below one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, count()

    def run(self, seed: int, style: str | None) -> None:
        folder = self._folder / str(next(self._numbers))
        {"damage": self._damage, "time": self._time, "moves": self._moves}[style or "damage"](folder, seed)

    def _make(self, folder: Path, clock: ManualClock) -> Store:
        store = Store.create(folder, ["a", "b"], tablets=2, slots=8, clock=clock)
        store.create_table("t", SCHEMA, ["k"])
        for first in (0, 20):
            store.table("t").upsert(
                pa.table({"k": list(range(first, first + 20)), "v": [0] * 20}, schema=SCHEMA)
            )
        return store

    def _damage(self, folder: Path, seed: int) -> None:
        self._make(folder, ManualClock(1e9)).close()
        connection = sqlite3.connect(folder / "catalog.db")
        connection.execute(DAMAGE[seed % len(DAMAGE)])
        connection.commit()
        connection.close()
        try:
            with Store.open(folder) as store:
                found = store.table("t").scan().to_table().num_rows
        except StoreDamaged:
            return
        assert found == 40, f"{found} of 40 rows"

    def _time(self, folder: Path, seed: int) -> None:
        """A writer behind and a compactor ahead: the snapshot of before both can still be read."""
        clock = ManualClock(1e9)
        with self._make(folder, clock) as store:
            clock.advance(DAY)
            at = store.status()["snapshot"]
            days = random.Random(seed).uniform(10, 40)
            with Store.open(folder, clock=_Ahead(clock, -days * DAY)) as behind:
                behind.table("t").delete(pa.table({"k": [1]}))
            with Store.open(folder, clock=_Ahead(clock, days * DAY)) as ahead:
                ahead.compact()
            store.table("t").upsert(pa.table({"k": [1], "v": [1]}, schema=SCHEMA))
            store.compact()
            assert store.table("t").scan(snapshot=at).to_table().num_rows == 40

    def _moves(self, folder: Path, seed: int) -> None:
        """The catalog is away for a moment, or for as long as the move is undone."""
        chosen = random.Random(seed)
        with self._make(folder, ManualClock(1e9)) as store:
            placed = {tablet["id"]: tablet["shard"] for tablet in store.status()["tablets"]}
            target = "b" if placed[1] == "a" else "a"
            attempts = chosen.choice([3, 40])
            try:
                with Line(store, chosen.randrange(20, 60), attempts).watched():
                    store.move(1, target)
            except TryAgain:
                assert attempts > 3 or store.status()["moves"] == []
                store.resume_moves()
            assert store.status()["moves"] == []
            assert store.table("t").scan().to_table().num_rows == 40
