"""Costs that must not grow with counts: questions to the catalog and files, counted, and no clocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.limits import GC_GRACE_SECONDS
from elasticscan.storage.fragment import FragmentReader
from elasticscan.store import Store
from elasticscan.store.upkeep import after_commit
from elasticscan.store.upkeep.planning import Policy
from tests.base.connections import call_at_statements
from tests.base.manual_clock import ManualClock

ROWS_IN_FILES = True

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int8()), ("b", pa.string())])


def rows(start: int, count: int) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": ids, "a": [1] * count, "b": ["x" * 100] * count}, schema=SCHEMA)


def with_tables(store: Store, tables: int) -> None:
    for number in range(tables):
        store.create_table(f"t{number}", SCHEMA, ["id"]).overwrite(rows(0, 20))


def with_fragments(store: Store, commits: int) -> None:
    table = store.create_table("t", SCHEMA, ["id"])
    for number in range(commits):
        table.upsert(rows(number, 2))


def join(store: Store) -> None:
    tablets, topologies = len(store.topology.placement.tablets), len(store.topology_history())
    kept = store.keep()
    assert kept.joins == min(tablets // 2, tablets - Policy().balance.fewest_tablets)
    assert len(store.topology.placement.tablets) == tablets - kept.joins
    assert len(store.topology_history()) == topologies + 1


def index(store: Store) -> None:
    table = store.table("t")
    table.create_index("by_a", ["a"])
    assert table.scan(filter="a = 1", index="by_a").count() == table.scan().count()


# Of each: what is counted, the work, what is there before, of a few and of many, and of how many tablets.
Make = Callable[[Store], object]
COSTS: dict[str, tuple[str, Make, tuple[Make, Make], tuple[int, int]]] = {
    "a keeper joins tablets": ("BEGIN", join, (lambda s: with_tables(s, 1),) * 2, (68, 200)),
    "a tablet moves with tables": (
        "BEGIN",
        lambda store: store.move(1, "a" if store.topology.placement.tablets[0].shard == 2 else "b"),
        (lambda s: with_tables(s, 1), lambda s: with_tables(s, 5)),
        (2, 2),
    ),
    "an index of fragments": (
        "BEGIN IMMEDIATE",
        index,
        (lambda s: with_fragments(s, 32), lambda s: with_fragments(s, 64)),
        (1, 1),
    ),
}


@pytest.mark.parametrize("what", COSTS)
def test_as_much_is_asked_of_the_catalog_for_many_as_for_a_few(tmp_path: Path, what: str) -> None:
    begins, work, made, tablets = COSTS[what]
    took = list[int]()
    for make, count in zip(made, tablets, strict=True):
        place = tmp_path / f"{len(took)}"
        with Store.create(place, ["a", "b"], tablets=count, slots=512, upkeep="off") as store:
            make(store)
            statements = list[str]()
            call_at_statements(store.context.catalog, statements.append)
            work(store)
            took.append(sum(statement.startswith(begins) for statement in statements))
            assert store.verify() == []
    assert took[0] == took[1] > 0


def test_what_is_kept_of_a_narrow_scan_is_its_columns(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=8) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(0, 1_000))
        (fragment,) = store.context.table_state(table.definition.id, 2).fragments
        batch = FragmentReader(
            store.context.disk_of(1), fragment.path, ["a"], fragment.seal, table.definition
        ).batch(0)
        buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
        whole = {id(b.parent): b.parent.size for b in buffers if b.parent}
        assert sum(whole.values()) <= 2 * sum(buffer.size for buffer in buffers) + 1_024


def counts(store: Store) -> dict[str, int]:
    """The sizes of all that the state has, and that lies in the database next to the log."""
    tx = store.context.catalog.newest()
    state, (table,) = tx.state, tx.state.tables.values()
    found = {name: len(getattr(table, name)) for name in ("removed", "overwrites")}
    found |= {"fragments": len(table.fragments.by_id), "runs": len(table.runs.by_id)}
    found |= {name: len(getattr(state, name)) for name in ("condemned", "secrets", "dropped")}
    small_tables = ("checkpoint", "topology_history", "lease")
    return found | {name: tx.execute(f"SELECT count(*) FROM {name}")[0][0] for name in small_tables}


@pytest.mark.long
def test_the_catalog_grows_by_the_history_alone(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each writer ends after a commit."""
    store = Store.create(tmp_path / "s", ["a", "b"], 4, 16, clock=clock)
    store.create_table("t", SCHEMA, ["id"]).create_index("by_a", ["a"])
    store.table("t").set_retention("1000s")
    monkeypatch.setattr(after_commit, "GARBAGE_EVERY", 32)
    largest: list[dict[str, int]] = [{}, {}]
    for number in range(280):
        with Store.open(tmp_path / "s", clock=clock) as writer:
            table = (store if number % 20 else writer).table("t")
            (table.upsert if number % 10 else table.overwrite)(rows(number % 7, 1))
        clock.advance(GC_GRACE_SECONDS / 10)
        most = largest[number >= 120]
        most |= {name: max(rows, most.get(name, 0)) for name, rows in counts(store).items()}
    early, late = largest
    assert {name: (early[name], rows) for name, rows in late.items() if rows > 1.3 * early[name] + 8} == {}
    assert len(store.table("t").history()) == 281
    assert len(list(tmp_path.rglob("*.arrow"))) < 120
