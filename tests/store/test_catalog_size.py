"""What the catalog keeps of the past: the history of all commits, and of nothing else more than is needed."""

from __future__ import annotations

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

ROWS_IN_FILES = True

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
RETENTION = 1_000.0


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["a", "b"], 4, 16, clock=clock) as made:
        made.create_table("t", SCHEMA, ["id"]).create_index("by_v", ["v"])
        made.table("t").set_retention(f"{RETENTION}s")
        yield made


def table_of(rows: dict[int, int]) -> pa.Table:
    return pa.table([list(rows), list(rows.values())], schema=SCHEMA)


def rows_at(table: Table, snapshot: int) -> dict[int, int]:
    read = table.scan(snapshot=snapshot).to_table()
    return dict(zip(read.column("id").to_pylist(), read.column("v").to_pylist(), strict=True))


def counts(store: Store) -> dict[str, int]:
    """The sizes of all that the state has, and that lies in the database next to the log."""
    with store.context.catalog.reading() as tx:
        state, (table,) = tx.state, tx.state.tables.values()
        found = {name: len(getattr(table, name)) for name in ("fragments", "runs", "removed", "overwrites")}
        found |= {name: len(getattr(state, name)) for name in ("condemned", "touched", "secrets", "dropped")}
        small_tables = ("checkpoint", "topology_history", "lease")
        return found | {name: tx.execute(f"SELECT count(*) FROM {name}")[0][0] for name in small_tables}


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
