"""Random programs over a table's past, in a store that keeps only what is held: tags, restores, merges.

An oracle remembers every snapshot. After each step the newest and every tagged one must be exact, and faults
that are planted must be noticed by the program that is written down for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.base.errors import ElasticScanError, InvalidTopologyChange, SnapshotExpired
from elasticscan.store import Store
from elasticscan.store.upkeep import compaction, horizons
from elasticscan.store.writing import publishing, restoring
from tests.faults.unchecked import horizons_may_pass_tags

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.int64())])
_WRITES = ["upsert"] * 4 + ["delete"] * 2 + ["where", "overwrite"]
_OTHERS = ["compact"] * 3 + ["tag"] * 3 + ["drop_tag"] + ["restore"] * 2 + ["move", "split", "gc"]
STEPS_EACH = 25
STEPS = _WRITES + _OTHERS

Rows: TypeAlias = dict[tuple[int, str], int]
Patch = pytest.MonkeyPatch


class Program:
    """A table, what is known of its snapshots, and somebody who writes at every third checkpoint."""

    def __init__(self, path: Path, seed: int) -> None:
        self.dice, self.kept = random.Random(seed), dict[int, Rows]()
        self.store = elasticscan.create(path, ["s1", "s2"], tablets=3, slots=16, retention_seconds=0)
        self.table = self.store.create_table("t", SCHEMA, ["id", "part"], ["id"])
        self.now: Rows = {}
        self.interfering, self.tagged = False, 0
        # Merges after a restore's commit would let somebody write between that commit and its oracle.
        self.actor = Store.open(path, checkpoint=self.meanwhile, upkeep="off")
        self.remember()

    def run(self, steps: int) -> None:
        with self.store, self.actor:
            for _ in range(steps):
                getattr(self, self.dice.choice(STEPS))()
                self.remember()
                self.check()
            assert self.store.verify() == []

    def remember(self) -> None:
        self.kept[self.store.context.catalog.versions()[1]] = dict(self.now)

    def check(self) -> None:
        assert self.read(None) == self.now
        for tag in self.table.tags():
            assert self.read(tag.name) == self.kept[tag.snapshot], tag

    def read(self, snapshot: int | str | None) -> Rows:
        rows = self.table.scan(snapshot=snapshot).to_table().to_pylist()
        read = {(row["id"], row["part"]): row["v"] for row in rows}
        assert len(read) == len(rows)
        return read

    def meanwhile(self, step: str) -> None:
        if step in ("fragments merged", "keys compared", "rows staged") and not self.interfering:
            self.interfering = True
            if self.dice.random() < 0.4:
                self.dice.choice([self.upsert, self.tag])()
                self.remember()
            self.interfering = False

    # Steps

    def rows(self) -> Rows:
        ids = self.dice.sample(range(30), self.dice.randint(0, 12))
        return {(i, self.dice.choice("ab")): self.dice.randint(0, 9) for i in ids}

    def write(self, rows: Rows, replace: bool = False) -> None:
        data = [{"id": i, "part": part, "v": v} for (i, part), v in rows.items()]
        (self.table.overwrite if replace else self.table.upsert)(pa.Table.from_pylist(data, SCHEMA))
        self.now = {**({} if replace else self.now), **rows}

    def upsert(self) -> None:
        self.write(self.rows())

    def overwrite(self) -> None:
        self.write(self.rows(), replace=True)

    def delete(self) -> None:
        keys = list(self.rows())
        self.table.delete(keys)
        self.now = {key: v for key, v in self.now.items() if key not in keys}

    def where(self) -> None:
        v = self.dice.randint(0, 9)
        self.table.delete(where=f"v = {v}")
        self.now = {key: has for key, has in self.now.items() if has != v}

    def compact(self) -> None:
        self.actor.table("t").compact()

    def tag(self) -> None:
        self.tagged += 1
        name = f"t{self.tagged}"
        with suppress(SnapshotExpired):
            self.table.tag(name, self.dice.choice([None, self.dice.choice(list(self.kept))]))

    def drop_tag(self) -> None:
        if tags := self.table.tags():
            self.table.drop_tag(self.dice.choice(tags).name)

    def restore(self) -> None:
        tags = self.table.tags()
        to: Any = self.dice.choice([*(tag.snapshot for tag in tags), *list(self.kept)[-4:]])
        with suppress(SnapshotExpired):
            self.actor.table("t").restore(to)
            self.now = dict(self.kept[to])

    def move(self) -> None:
        tablet = self.dice.choice(self.store.context.placement().tablets)
        self.store.move(tablet.id, "s2" if tablet.shard == 1 else "s1")

    def split(self) -> None:
        with suppress(InvalidTopologyChange):
            self.store.split(self.dice.choice(self.store.context.placement().tablets).id)

    def gc(self) -> None:
        self.store.collect_garbage(grace_seconds=0, trash_seconds=0)


@pytest.mark.parametrize("seed", [0, *(pytest.param(at, marks=pytest.mark.long) for at in range(1, 6))])
def test_the_past_is_exact_after_every_step(tmp_path: Path, seed: int) -> None:
    Program(tmp_path / "p.store", seed).run(STEPS_EACH)


def _tags_are_not_heeded(patch: Patch) -> None:
    horizons_may_pass_tags(patch)
    patch.setattr(horizons, "_tagged", lambda *_: [])


def _tags_are_not_looked_at_again(patch: Patch) -> None:
    horizons_may_pass_tags(patch)
    patch.setattr(compaction, "oldest_held", lambda tx, table: None)


def _tags_do_not_outlive_an_older_one(patch: Patch) -> None:
    horizons_may_pass_tags(patch)
    honest = horizons._tagged
    patch.setattr(horizons, "_tagged", lambda *of: sorted(honest(*of))[-1:])


def _the_newest_change_is_undone_alone(patch: Patch) -> None:
    ends = restoring._ends
    patch.setattr(restoring, "_ends", lambda events, keys: ends(events, keys)[::-1])


def _rows_that_came_stay(patch: Patch) -> None:
    undone = restoring.undone

    def forgetting(events: pa.RecordBatch, table: Any) -> pa.RecordBatch:
        rows = undone(events, table)
        return rows.filter(pa.compute.invert(rows.column("_deleted")))

    patch.setattr(restoring, "undone", forgetting)


def _overwrites_are_taken_for_changes(patch: Patch) -> None:
    rows = restoring._rows
    patch.setattr(restoring, "_rows", lambda asked, table, commits, _: rows(asked, table, commits, False))


def _writers_are_not_noticed(patch: Patch) -> None:
    patch.setattr(publishing, "check_newest", lambda tx, table, newest: None)


FAULTS: dict[str, tuple[Callable[[Patch], None], int]] = {
    "tags are not heeded": (_tags_are_not_heeded, 0),
    "tags are not looked at again": (_tags_are_not_looked_at_again, 4),
    "only the newest tag is heeded": (_tags_do_not_outlive_an_older_one, 0),
    "only the newest change is undone": (_the_newest_change_is_undone_alone, 1),
    "rows that came stay": (_rows_that_came_stay, 0),
    "overwrites are taken for changes": (_overwrites_are_taken_for_changes, 4),
    "writers are not noticed": (_writers_are_not_noticed, 0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(tmp_path: Path, monkeypatch: Patch, name: str) -> None:
    plant, seed = FAULTS[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, ElasticScanError)):
        Program(tmp_path / "p.store", seed).run(STEPS_EACH)
