"""What the catalog keeps of the past: the history of all commits, and of nothing else more than is needed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import SnapshotExpired
from elasticscan.base.limits import GC_GRACE_SECONDS
from elasticscan.store import Store, Table
from elasticscan.store.upkeep import after_commit
from elasticscan.store.upkeep.horizons import horizon_of
from tests.base.manual_clock import ManualClock
from tests.seeds import seeds

ROWS_IN_FILES = True

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
RETENTION = 1_000.0
PROGRAMS, STEPS = 8, 50

Rows = dict[int, int]


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["a", "b"], 4, 16, clock=clock) as made:
        made.create_table("t", SCHEMA, ["id"]).create_index("by_v", ["v"])
        made.table("t").set_retention(f"{RETENTION}s")
        yield made


def table_of(rows: Rows) -> pa.Table:
    return pa.table([list(rows), list(rows.values())], schema=SCHEMA)


def rows_at(table: Table, snapshot: int) -> Rows:
    read = table.scan(snapshot=snapshot).to_table()
    return dict(zip(read.column("id").to_pylist(), read.column("v").to_pylist(), strict=True))


def counts(store: Store) -> dict[str, int]:
    """The sizes of all that the state has, and that lies in the database next to the log."""
    with store.context.catalog.reading() as tx:
        state, (table,) = tx.state, tx.state.tables.values()
        found = {name: len(getattr(table, name)) for name in ("fragments", "runs", "removed", "overwrites")}
        found |= {name: len(getattr(state, name)) for name in ("condemned", "touched", "secrets", "dropped")}
        beside = ("checkpoint", "topology_history", "lease")
        return found | {name: tx.execute(f"SELECT count(*) FROM {name}")[0][0] for name in beside}


class Program:
    """Random writes, tags and upkeep, and what each snapshot has to show."""

    def __init__(self, store: Store, clock: ManualClock, chance: random.Random) -> None:
        self.store, self.table, self.clock, self.chance = store, store.table("t"), clock, chance
        self.now: Rows = {}
        self.shows: dict[int, Rows] = {table_commit(self.table): {}}
        self.made = {table_commit(self.table): clock.now()}
        self.kinds = ["create"]
        self.tagged: dict[str, int] = {}

    def step(self) -> None:
        writes = [self.upsert, self.upsert, self.delete, self.overwrite, self.overwrite]
        others = [self.tag, self.untag, self.restore, self.compact, self.keep, self.collect, self.pass_time]
        self.chance.choice([*writes, *writes, *others])()

    def rows(self) -> Rows:
        return {
            self.chance.randrange(30): self.chance.randrange(5) for _ in range(self.chance.randrange(1, 6))
        }

    def committed(self, number: int, kind: str) -> None:
        self.shows[number], self.made[number] = dict(self.now), self.clock.now()
        self.kinds.append(kind)
        self.clock.advance(self.chance.randrange(1, 60))

    def upsert(self) -> None:
        rows = self.rows()
        self.now |= rows
        self.committed(self.table.upsert(table_of(rows)), "write")

    def delete(self) -> None:
        gone = self.chance.randrange(30)
        self.now.pop(gone, None)
        self.committed(self.table.delete([gone]), "delete")

    def overwrite(self) -> None:
        self.now = self.rows()
        self.committed(self.table.overwrite(table_of(self.now)), "overwrite")

    def tag(self) -> None:
        name = f"n{len(self.kinds)}"
        if name not in self.tagged:
            self.tagged[name] = self.table.tag(name).snapshot

    def untag(self) -> None:
        if self.tagged:
            name = self.chance.choice(sorted(self.tagged))
            self.table.drop_tag(name)
            del self.tagged[name]

    def restore(self) -> None:
        snapshot = self.chance.choice(sorted(self.shows))
        try:
            number = self.table.restore(snapshot)
        except SnapshotExpired:
            return
        self.now = dict(self.shows[snapshot])
        self.committed(number, self.table.history(1)[0].kind)

    def compact(self) -> None:
        self.table.compact()

    def keep(self) -> None:
        assert self.store.keep().problems == []

    def collect(self) -> None:
        self.store.collect_garbage(grace_seconds=0)

    def pass_time(self) -> None:
        self.clock.advance(self.chance.choice((RETENTION / 3, RETENTION, 2 * GC_GRACE_SECONDS)))

    def check(self) -> None:
        """Each snapshot shows its rows or is reported to be gone, and never while it has to be kept."""
        assert [commit.kind for commit in self.table.history()] == self.kinds
        assert [commit.number for commit in self.table.history()] == list(self.shows)
        numbers, since = list(self.shows), self.clock.now() - RETENTION
        oldest = max((n for n in numbers if self.made[n] < since), default=numbers[0])
        for number, rows in self.shows.items():
            try:
                assert rows_at(self.table, number) == rows
            except SnapshotExpired:
                assert number < oldest
                assert number not in self.tagged.values()
        self.check_changes(numbers)
        self.check_catalog()

    def check_changes(self, numbers: list[int]) -> None:
        """The changes of all commits beyond one make the newest rows of its rows, or are expired."""
        for after in numbers:
            try:
                events = self.table.changes(after).to_table().to_pylist()
            except SnapshotExpired:
                continue
            rows = dict(self.shows[after])
            for event in events:
                if event["_change_type"] in ("insert", "update_postimage"):
                    rows[event["id"]] = event["v"]
                elif event["_change_type"] == "delete":
                    del rows[event["id"]]
            assert rows == self.now

    def check_catalog(self) -> None:
        self.store.context.catalog.check_whole()
        with self.store.context.catalog.reading() as tx:
            info = tx.state.table_named("t")
            overwrites = [n for n, k in zip(self.shows, self.kinds, strict=True) if k == "overwrite"]
            past = [number for number in overwrites if number <= info.oldest_snapshot]
            assert tx.state.overwrites(info.id) == (*past[-1:], *overwrites[len(past) :])


def table_commit(table: Table) -> int:
    return table.history()[0].number


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(PROGRAMS, short=1))
def test_what_is_forgotten_of_the_past_is_never_missed(store: Store, clock: ManualClock, seed: int) -> None:
    program = Program(store, clock, random.Random(seed))
    for number in range(STEPS):
        program.step()
        if number % 10 == 9:
            program.check()
    assert store.verify() == []


@pytest.mark.long
def test_the_catalog_grows_by_the_history_alone(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_commit, "GARBAGE_EVERY", 32)
    table = store.table("t")

    def write(times: int) -> dict[str, int]:
        most: dict[str, int] = {}
        for number in range(times):
            write_kind = table.overwrite if number % 10 == 0 else table.upsert
            write_kind(table_of({number % 7: number}))
            clock.advance(GC_GRACE_SECONDS / 10)
            most = {name: max(rows, most.get(name, 0)) for name, rows in counts(store).items()}
        return most

    early = write(120)
    late = write(160)
    assert {name: (early[name], rows) for name, rows in late.items() if rows > 1.3 * early[name] + 8} == {}
    assert len(table.history()) == 281


@pytest.mark.long
def test_writers_that_end_after_a_commit_leave_no_garbage_to_pile_up(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    for number in range(60):
        with Store.open(tmp_path / "s", clock=clock) as writer:
            writer.table("t").upsert(table_of({number: number}))
        clock.advance(GC_GRACE_SECONDS / 4)
    with store.context.catalog.reading() as tx:
        assert len(tx.state.fragments()) + len(tx.state.removed_files()) < 60
    assert len(list(tmp_path.rglob("*.arrow"))) < 120


def test_what_is_gone_stays_gone_when_retention_is_prolonged(store: Store, clock: ManualClock) -> None:
    table = store.table("t")
    for number in range(6):
        table.overwrite(table_of({number: number}))
        clock.advance(2 * RETENTION)
        store.keep()
    table.compact()
    table.set_retention(f"{100 * RETENTION}s")
    with store.context.catalog.reading() as tx:
        oldest = tx.state.table_named("t").oldest_snapshot
        assert horizon_of(tx, table.definition.id, 100 * RETENTION) == oldest
    for number in range(6, 12):
        table.overwrite(table_of({number: number}))
    table.compact()
    for commit in table.history():
        if commit.number < oldest:
            with pytest.raises(SnapshotExpired):
                rows_at(table, commit.number)
        else:
            assert len(rows_at(table, commit.number)) == 1
