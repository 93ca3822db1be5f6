"""Restoring: whatever was done since, the newest snapshot is the old one, and little is written for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import NotFound, SnapshotExpired, TableChanged
from elasticscan.store import Scan, Store, Table
from elasticscan.store.reading.scan import begin_changes
from elasticscan.store.writing import restoring
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.int64())])


def rows(ids: range | list[int], v: int) -> pa.Table:
    return pa.table([list(ids), [f"p{i % 3}" for i in ids], [v] * len(ids)], schema=SCHEMA)


def contents(table: Table, snapshot: int | str | None = None) -> list[dict[str, Any]]:
    return table.scan(snapshot=snapshot).to_table().sort_by("id").to_pylist()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    # Merges would leave garbage of their own.
    with Store.create(tmp_path / "a.store", ["s1", "s2"], 4, 16, clock=clock, upkeep="off") as made:
        yield made


@pytest.fixture
def table(store: Store) -> Table:
    made = store.create_table("t", SCHEMA, ["id", "part"], ["id"])
    made.upsert(rows(range(1_000), 0))
    return made


def test_only_what_changed_since_is_written(table: Table) -> None:
    before = table.history()[-1].number
    then = contents(table)
    table.upsert(rows(range(990, 1_010), 1))
    table.upsert(rows(range(995, 1_005), 2))
    table.delete([(1, "p1"), (2, "p2"), (7_777, "p0")])
    table.upsert(rows([5_000], 3))
    table.delete([(5_000, "p2")])
    number = table.restore(before)
    assert contents(table) == then
    last = table.history()[-1]
    assert (last.number, last.kind, last.rows) == (number, "merge", 10 + 10 + 2)
    assert last.user_metadata == {"restored_to": str(before)}
    assert table.restore(number - 1, user_metadata={"why": "no"}) == number + 1
    assert contents(table) == contents(table, number - 1)
    assert table.history()[-1].user_metadata == {"restored_to": str(number - 1), "why": "no"}


def test_nothing_that_changed_writes_nothing(store: Store, table: Table) -> None:
    store.create_table("other", SCHEMA, ["id"]).upsert(rows([1], 1))
    newest = store.status()["snapshot"]
    then = contents(table)
    number = table.restore(newest)
    assert (table.history()[-1].number, table.history()[-1].rows) == (number, 0)
    assert contents(table) == then


def test_an_overwrite_since_then_means_that_all_is_written(table: Table) -> None:
    before = table.history()[-1].number
    then = contents(table)
    table.overwrite(rows(range(5), 9))
    table.upsert(rows(range(3, 8), 10))
    table.restore(before)
    assert contents(table) == then
    assert (table.history()[-1].kind, table.history()[-1].rows) == ("overwrite", 1_000)
    table.restore(table.history()[0].number)
    assert contents(table) == []


def test_a_time_a_tag_and_a_commit_choose_a_snapshot(table: Table, clock: ManualClock) -> None:
    first = table.tag("first").snapshot
    clock.advance(60)
    for number, to in enumerate(
        (
            first,
            "first",
            datetime.fromtimestamp(1_000_030, UTC),
            datetime.fromtimestamp(1_000_030, timezone(timedelta(hours=3))),
        )
    ):
        table.upsert(rows(range(10), number + 1))
        table.restore(to)
        assert table.history()[-1].user_metadata == {"restored_to": str(first)}
        assert contents(table) == contents(table, first)
    with pytest.raises(NotFound, match="was made after"):
        table.restore(datetime.fromtimestamp(900_000, UTC))
    with pytest.raises(NotFound, match="not 99"):
        table.restore(99)
    with pytest.raises(NotFound, match="did you mean 'first'"):
        table.restore("fist")


def test_a_snapshot_that_is_gone_cannot_come_back(table: Table) -> None:
    before = table.history()[-1].number
    table.upsert(rows(range(10), 1))
    table.set_retention("0s")
    table.compact()
    count = len(table.history())
    with pytest.raises(SnapshotExpired):
        table.restore(before)
    assert len(table.history()) == count


def test_a_snapshot_that_goes_while_it_is_looked_at_is_gone(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = table.history()[-1].number
    table.upsert(rows([1], 1))

    def merge_first(*arguments: Any) -> Scan:
        table.set_retention("0s")
        table.compact()
        return begin_changes(*arguments)

    monkeypatch.setattr(restoring, "begin_changes", merge_first)
    with pytest.raises(SnapshotExpired):
        table.restore(before)
    assert contents(table)[1]["v"] == 1


def test_columns_that_came_since_stay_and_are_null(table: Table) -> None:
    before = table.history()[-1].number
    then = contents(table)
    table.add_columns([pa.field("note", pa.string())])
    table.upsert(rows(range(10), 1).append_column("note", pa.array(["x"] * 10)))
    table.restore(before)
    assert contents(table) == [{**row, "note": None} for row in then]
    table.overwrite(rows(range(5), 1).append_column("note", pa.array(["x"] * 5)))
    table.restore(before)
    assert contents(table) == [{**row, "note": None} for row in then]


def test_indexes_and_change_feeds_follow(table: Table) -> None:
    table.create_index("by_v", ["v"])
    before = table.history()[-1].number
    table.upsert(rows(range(10), 1))
    table.delete([(20, "p2")])
    number = table.restore(before)
    assert table.scan(filter="v = 1", index="by_v").count() == 0
    assert table.scan(filter="v = 0", index="by_v").count() == 1_000
    feed = table.changes(number - 1, number).to_table()
    kinds = feed["_change_type"].to_pylist()
    assert sorted(set(kinds)) == ["insert", "update_postimage", "update_preimage"]
    assert len(kinds) == 21


def test_a_table_that_is_dropped_meanwhile_stays_dropped(store: Store, table: Table) -> None:
    before = table.history()[-1].number
    table.upsert(rows(range(10), 1))

    def meanwhile(step: str) -> None:
        if step == "rows staged":
            table.drop()

    with Store.open(store.uri, checkpoint=meanwhile) as other, pytest.raises(TableChanged):
        other.table("t").restore(before)
