"""Deletes and updates by condition: one atomic commit each, at one snapshot, exact while others write."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from elasticscan.base.errors import (
    FilterError,
    InvalidOption,
    NotFound,
    RowsChanged,
    SchemaMismatch,
    WriteConflict,
)
from elasticscan.store import Store, Table
from elasticscan.store.writing.transactions import FEWEST_ATTEMPTS
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def rows(keys: Any, n: int = 0) -> pa.Table:
    keys = list(keys)
    return pa.Table.from_pylist([{"id": k, "n": n, "city": "Oslo", "tags": ["a"]} for k in keys], SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(
        tmp_path / "shop.store", ["s1", "s2"], tablets=4, slots=16, clock=ManualClock(1e6)
    ) as made:
        yield made


@pytest.fixture
def table(store: Store) -> Table:
    """A table with the keys 0 to 99, written by commit 2."""
    table = store.create_table("t", SCHEMA, ["id"])
    assert table.upsert(rows(range(100))) == 2
    return table


def counts(table: Table) -> dict[int, int]:
    read = table.scan(["id", "n"]).to_table()
    return dict(zip(read["id"].to_pylist(), read["n"].to_pylist(), strict=True))


def each_time(store: Store, point: str, happens: Callable[[int], object], most: int | None = None) -> None:
    """Let others do something whenever the point is reached, but not while they do it; slowly if for ever."""
    times, inside = 0, False

    def checkpoint(name: str) -> None:
        nonlocal times, inside
        if name == point and not inside and (most is None or times < most):
            times, inside = times + 1, True
            happens(times)
            inside = False
            store.context.clock.sleep(10 if most is None else 0)

    store.context.checkpoint = checkpoint


def test_columns_get_new_values_in_one_commit(table: Table) -> None:
    new = {"n": "n + CAST(id AS INT)", "city": "upper(city) || '!'", "tags": ["b", "c"]}
    assert table.update(new, "id BETWEEN 10 AND 12") == 3
    read = table.scan(filter="id BETWEEN 10 AND 12").to_table().sort_by("id").to_pylist()
    assert read == [{"id": k, "n": k, "city": "OSLO!", "tags": ["b", "c"]} for k in (10, 11, 12)]
    assert table.scan(filter="n = 0").count() == 97
    assert table.update({"city": None}).rows == 100
    assert table.upsert(rows([1, 2])).rows == table.delete([1, 2, 1_000]).rows - 1 == 2
    table.upsert(rows([1, 2]))
    table.update({"city": None})
    assert table.scan(filter="city IS NULL").count() == 100


def test_each_value_follows_from_the_row_as_it_was(store: Store) -> None:
    table = store.create_table(
        "pairs", pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())]), ["k"]
    )
    table.upsert([{"k": 1, "a": 2, "b": 3}])
    table.update({"a": "b", "b": "a"})
    assert table.scan().to_table().to_pylist() == [{"k": 1, "a": 3, "b": 2}]


@pytest.mark.parametrize(
    ("call", "error", "why"),
    [
        (lambda t: t.delete(), InvalidOption, "either keys or where"),
        (lambda t: t.delete(where="id"), FilterError, "must be true or false"),
        (lambda t: t.update({"city": "Oslo"}), NotFound, "quotes inside: \"'Oslo'\""),
        (lambda t: t.update({"city": '"id"'}), FilterError, "may be a text or a name"),
        (lambda t: t.delete(where="\"city\" <> 'Oslo'"), FilterError, "write 'city' for text, `city` for a"),
        (lambda t: t.scan(filter="\"city\" = 'Oslo'").count(), FilterError, "may be a text or a name"),
        (lambda t: t.aggregate('min("city")'), FilterError, "may be a text or a name"),
        (lambda t: t.delete(where="'city' <> 'Oslo'"), FilterError, "names no column; write TRUE"),
        (lambda t: t.delete(where=pc.scalar(False)), InvalidOption, "must be text"),
        (lambda t: t.update({"n": "1"}, "1 = 1"), FilterError, "names no column; write TRUE"),
        (lambda t: t.overwrite(rows([1]), where="1 = 1"), FilterError, "names no column; write TRUE"),
        (lambda t: t.update({"n": "NULL"}), SchemaMismatch, "allows none"),
        (lambda t: t.update({"n": 1.5}), SchemaMismatch, "does not hold 1.5"),
        (lambda t: t.update({"n": datetime.date(2024, 1, 1)}), SchemaMismatch, "does not hold"),
        (lambda t: t.update({"n": "n + 2147483647 + 1"}), FilterError, "overflow"),
        (lambda t: t.update({"n": "1 DIV n"}), FilterError, "by zero"),
    ],
)
@pytest.mark.usefixtures("rows_in_files")
def test_wrong_calls_change_nothing(
    store: Store, table: Table, call: Callable[[Table], int], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        call(table)
    assert store.status()["snapshot"] == 2
    assert len([*Path(store.uri).rglob("*.arrow")]) == len(table._context.table_state(1, 2).fragments)


def test_rows_that_others_change_each_time_are_left_alone(store: Store, table: Table) -> None:
    each_time(store, "rows staged", lambda n: table.upsert(rows([7], n)))
    with pytest.raises(WriteConflict, match="each of the 10 times") as caught:
        table.update({"n": "n + 100"})
    assert caught.value.fields["keys"] == [{"id": 7}]
    assert counts(table) == {**dict.fromkeys(range(100), 0), 7: FEWEST_ATTEMPTS}


@pytest.mark.parametrize("checks", [False, True])
def test_an_index_that_is_dropped_while_rows_are_looked_up_by_it_does_no_harm(
    store: Store, table: Table, checks: bool
) -> None:
    many = range(100_000)
    table.upsert(pa.table([many, many, ["Oslo"] * len(many), [[]] * len(many)], SCHEMA))
    table.create_index("by_n", ["n"])
    commit = store.status()["snapshot"]
    assert table.scan(filter="n = 5").explain()["access"] == "by_n"
    each_time(store, "page asked for", lambda _: table.drop_index("by_n"), most=1)
    table.update({"n": "n + 1"}, "n = 5", if_unchanged_since=commit if checks else None)
    assert table.indexes() == ()
    assert sorted(table.scan(["id"], "n = 6").to_table()["id"].to_pylist()) == [5, 6]


def test_rows_that_come_meanwhile_are_later(store: Store, table: Table) -> None:
    each_time(store, "rows staged", lambda _: table.upsert(rows([500], 1)), most=1)
    table.delete(where="true")
    assert counts(table) == {500: 1}


def test_changes_since_a_commit_refuse_the_write(store: Store, table: Table) -> None:
    table.upsert(rows([7], 1))
    for call in (
        lambda: table.update({"n": "n + 1"}, "id < 10", if_unchanged_since=2),
        lambda: table.delete(where="id < 10", if_unchanged_since=2),
    ):
        with pytest.raises(RowsChanged, match="after commit 2"):
            call()
    table.update({"n": "n + 1"}, "id < 7", if_unchanged_since=2)
    table.delete(where="id > 7", if_unchanged_since=2)
    assert counts(table) == {**dict.fromkeys(range(7), 1), 7: 1}


def test_rows_that_were_changed_away_from_the_condition_refuse_the_write(store: Store, table: Table) -> None:
    table.upsert(rows([7], 1))  # it met "n = 0" at commit 2, and does no more
    for call in (
        lambda: table.update({"n": "n + 1"}, "n = 0", if_unchanged_since=2),
        lambda: table.delete(where="n = 0", if_unchanged_since=2),
    ):
        with pytest.raises(RowsChanged, match="after commit 2"):
            call()
    assert counts(table) == {**dict.fromkeys(range(100), 0), 7: 1}


def test_a_write_with_a_name_is_done_once(store: Store, table: Table) -> None:
    first = table.update({"n": "n + 1"}, txn=("app", 1))
    assert table.update({"n": "n + 1"}, txn=("app", 1)) == first
    gone = table.delete(where="id < 50", txn=("app", 2))
    table.upsert(rows([1]))
    assert table.delete(where="id < 50", txn=("app", 2)) == gone
    assert (again := table.delete([1], txn=("app", 2))) == gone
    assert (first.rows, gone.rows, again.rows) == (100, 50, 0)
    assert counts(table) == {1: 0, **dict.fromkeys(range(50, 100), 1)}


@pytest.mark.parametrize("point", ["rows staged", "keys compared"])
@pytest.mark.usefixtures("rows_in_files")
def test_a_column_that_comes_meanwhile_loses_no_value(store: Store, table: Table, point: str) -> None:
    def widen(_: int) -> None:
        table.add_columns([pa.field("more", pa.int64())])
        table.update({"more": "id"}, "id < 5")

    each_time(store, point, widen, most=1)
    table.update({"n": "n + 1"})
    store.context.checkpoint = lambda _: None
    assert set(counts(table).values()) == {1}
    assert sorted(table.scan(["more"], "more IS NOT NULL").to_table()["more"].to_pylist()) == [*range(5)]
