"""What the catalog keeps of the past: the history of all commits, and of nothing else more than is needed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.limits import GC_GRACE_SECONDS
from elasticscan.store import Store
from elasticscan.store.upkeep import after_commit
from tests.base.manual_clock import ManualClock

ROWS_IN_FILES = True

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def row(key: int, value: int) -> pa.Table:
    return pa.table([[key], [value]], schema=SCHEMA)


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
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each writer ends after a commit."""
    store = Store.create(tmp_path / "s", ["a", "b"], 4, 16, clock=clock)
    store.create_table("t", SCHEMA, ["id"]).create_index("by_v", ["v"])
    store.table("t").set_retention("1000s")
    monkeypatch.setattr(after_commit, "GARBAGE_EVERY", 32)
    largest: list[dict[str, int]] = [{}, {}]
    for number in range(280):
        with Store.open(tmp_path / "s", clock=clock) as writer:
            table = (store if number % 20 else writer).table("t")
            (table.upsert if number % 10 else table.overwrite)(row(number % 7, number))
        clock.advance(GC_GRACE_SECONDS / 10)
        most = largest[number >= 120]
        most |= {name: max(rows, most.get(name, 0)) for name, rows in counts(store).items()}
    early, late = largest
    assert {name: (early[name], rows) for name, rows in late.items() if rows > 1.3 * early[name] + 8} == {}
    assert len(store.table("t").history()) == 281
    assert len(list(tmp_path.rglob("*.arrow"))) < 120
