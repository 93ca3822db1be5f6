"""Rows in place of those that meet a condition: one commit, whatever others do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    FilterError,
    InvalidKey,
    InvalidOption,
    NotFound,
    SchemaMismatch,
)
from elasticscan.store import Store, Table
from tests.base.manual_clock import ManualClock
from tests.store.writing.test_by_condition import each_time

SCHEMA = pa.schema([pa.field("day", pa.string()), pa.field("id", pa.int64()), pa.field("n", pa.int32())])
MONDAY = "day = 'mon'"


def rows(day: str | None, keys: Any, n: int = 0) -> pa.Table:
    return pa.Table.from_pylist([{"day": day, "id": k, "n": n} for k in keys], SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    clock = ManualClock(1e6)
    with Store.create(tmp_path / "days.store", ["s1", "s2"], tablets=4, slots=16, clock=clock) as made:
        yield made


@pytest.fixture
def table(store: Store) -> Table:
    """Keys 0 to 9 of Monday and 10 to 19 of Tuesday, written by commit 2."""
    table = store.create_table("t", SCHEMA, ["id"])
    assert table.upsert(pa.concat_tables([rows("mon", range(10)), rows("tue", range(10, 20))])) == 2
    return table


def content(table: Table) -> dict[int, tuple[str, int]]:
    return {row["id"]: (row["day"], row["n"]) for row in table.scan().to_table().to_pylist()}


def test_rows_that_meet_the_condition_make_room_for_the_new_ones_in_one_commit(table: Table) -> None:
    assert table.overwrite(rows("mon", [3, 4, 50], 1), where=MONDAY) == 3
    now = content(table)
    assert {key for key, (day, _) in now.items() if day == "mon"} == {3, 4, 50}
    assert (now[3], now[50], now[12], len(now)) == (("mon", 1), ("mon", 1), ("tue", 0), 13)
    assert table.scan(snapshot=2).count() == 20
    assert [(c.kind, c.rows) for c in table.history()][-1] == ("merge", 3 + 8)
    feed = table.changes(after=2).to_table()["_change_type"].to_pylist()
    assert sorted(feed) == sorted(["delete"] * 8 + ["insert"] + ["update_preimage", "update_postimage"] * 2)

    # A key of another day comes over; an empty table only deletes.
    table.overwrite(rows("mon", [12], 2), where=MONDAY)
    assert content(table)[12] == ("mon", 2)
    assert len(content(table)) == 10
    table.overwrite(rows("mon", []), where=MONDAY)
    assert set(content(table)) == {10, 11, 13, 14, 15, 16, 17, 18, 19}


def test_a_row_that_does_not_meet_the_condition_is_refused_and_nothing_is_written(table: Table) -> None:
    calls: list[tuple[Any, Any, type[Exception], str]] = [
        (pa.concat_tables([rows("mon", [1]), rows("tue", [77])]), MONDAY, InvalidOption, "id = 77"),
        (rows(None, [5]), MONDAY, InvalidOption, "id = 5"),
        (rows("mon", [5]), "town = 'mon'", NotFound, "town"),
        (rows("mon", [5]), "day = ", FilterError, "cannot read the filter"),
        (rows("mon", [5, 5]), MONDAY, InvalidKey, "5"),
        (rows("mon", [5]).drop(["n"]), MONDAY, SchemaMismatch, "missing: n"),
        (rows("mon", [5]), 5, InvalidOption, "text"),
    ]
    for given, where, error, match in calls:
        with pytest.raises(error, match=match):
            table.overwrite(given, where=where)
    assert len(table.history()) == 2
    assert len(content(table)) == 20


def test_what_others_write_meanwhile_is_looked_at_again(store: Store, table: Table) -> None:
    def write(times: int) -> None:
        table.upsert(rows("mon", [5, 60], times))
        store.expand([f"s{times + 2}"])

    each_time(store, "keys compared", write, most=2)
    table.overwrite(rows("mon", [7], 9), where=MONDAY)
    assert {key: value for key, value in content(table).items() if value[0] == "mon"} == {7: ("mon", 9)}
    assert not store.verify()


def test_it_is_done_once_under_its_name(table: Table) -> None:
    first = table.overwrite(rows("mon", [7], 9), ("job", 1), where=MONDAY)
    table.upsert(rows("mon", [8]))
    assert table.overwrite(rows("mon", [7], 9), ("job", 1), where=MONDAY) == first
    assert 8 in content(table)
