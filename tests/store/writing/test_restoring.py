"""Restores. What they do is in `tests/transcripts/restore*.txt`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import NotFound
from elasticscan.store import Store, Table
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.int64())])


def rows(ids: range | list[int], v: int) -> pa.Table:
    return pa.table([list(ids), [f"p{i % 3}" for i in ids], [v] * len(ids)], schema=SCHEMA)


def contents(table: Table, snapshot: int | str | None = None) -> list[dict[str, Any]]:
    return table.scan(snapshot=snapshot).to_table().sort_by("id").to_pylist()


@pytest.fixture
def table(tmp_path: Path, clock: ManualClock) -> Iterator[Table]:
    # Merges would leave garbage of their own.
    with Store.create(tmp_path / "a.store", ["s1", "s2"], 4, 16, clock=clock, upkeep="off") as store:
        made = store.create_table("t", SCHEMA, ["id", "part"], ["id"])
        made.upsert(rows(range(1_000), 0))
        yield made


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


HERE, THERE = UTC, timezone(timedelta(hours=3))


@pytest.mark.parametrize(
    "past",
    [
        lambda first: first,
        lambda _: "first",
        lambda _: datetime.fromtimestamp(1_000_030, HERE),
        lambda _: datetime.fromtimestamp(1_000_030, THERE),
    ],
    ids=["a commit", "a tag", "a time", "a time elsewhere"],
)
def test_a_time_a_tag_and_a_commit_choose_a_snapshot(
    table: Table, clock: ManualClock, past: Callable[[int], Any]
) -> None:
    first = table.tag("first").snapshot
    clock.advance(60)
    table.upsert(rows(range(10), 1))
    table.restore(past(first))
    assert table.history()[-1].user_metadata == {"restored_to": str(first)}
    assert contents(table) == contents(table, first)
    with pytest.raises(NotFound, match="was made after"):
        table.restore(datetime.fromtimestamp(900_000, UTC))
