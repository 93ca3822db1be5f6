"""Deletes, updates and overwrites by condition: one commit each, done again where others came before."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    ElasticScanError,
    FilterError,
    InvalidKey,
    InvalidOption,
    NotFound,
    RowsChanged,
    SchemaMismatch,
    TableChanged,
    WriteConflict,
)
from elasticscan.store import Store, Table
from elasticscan.store.context import Context
from elasticscan.store.writing.transactions import (
    ATTEMPTS_SECONDS,
    FEWEST_ATTEMPTS,
    OutdatedLookError,
    until_unchanged,
)
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def rows(keys: Any, n: int = 0, city: str | None = "Oslo") -> pa.Table:
    return pa.Table.from_pylist([{"id": k, "n": n, "city": city, "tags": ["a"]} for k in keys], SCHEMA)


@pytest.fixture
def table(store: Store) -> Table:
    """A table with the keys 0 to 99, written by commit 2."""
    table = store.create_table("t", SCHEMA, ["id"])
    assert table.upsert(rows(range(100))) == 2
    return table


def test_columns_get_new_values_in_one_commit(table: Table) -> None:
    new = {"n": "n + CAST(id AS INT)", "city": "upper(city) || '!'", "tags": ["b", "c"]}
    assert table.update(new, "id BETWEEN 10 AND 12") == 3
    read = table.scan(filter="id BETWEEN 10 AND 12").to_table().sort_by("id").to_pylist()
    assert read == [{"id": k, "n": k, "city": "OSLO!", "tags": ["b", "c"]} for k in (10, 11, 12)]
    assert table.update({"city": None}).rows == table.scan(filter="city IS NULL").count() == 100
    assert table.upsert(rows([1, 2])).rows == table.delete([1, 2, 1_000]).rows - 1 == 2


@pytest.mark.parametrize(
    ("call", "error", "why"),
    [
        (lambda t: t.delete(), InvalidOption, "either keys or where"),
        (lambda t: t.delete(where="id"), FilterError, "must be true or false"),
        (lambda t: t.update({"city": "Oslo"}), NotFound, "quotes inside: \"'Oslo'\""),
        (lambda t: t.update({"city": '"id"'}), FilterError, "may be a text or a name"),
        (lambda t: t.delete(where="\"city\" <> 'Oslo'"), FilterError, "write 'city' for text, `city` for a"),
        (lambda t: t.delete(where="'city' <> 'Oslo'"), FilterError, "names no column; write TRUE"),
        (lambda t: t.delete(where=pc.scalar(False)), InvalidOption, "must be text"),
        (lambda t: t.update({"n": "1"}, "1 = 1"), FilterError, "names no column; write TRUE"),
        (lambda t: t.update({"n": "NULL"}), SchemaMismatch, "allows none"),
        (lambda t: t.update({"n": 1.5}), SchemaMismatch, "does not hold 1.5"),
        (lambda t: t.update({"n": datetime.date(2024, 1, 1)}), SchemaMismatch, "'n' is of type int32"),
        (lambda t: t.update({"n": "n + 2147483647 + 1"}), FilterError, "overflow"),
        (lambda t: t.update({"n": "1 DIV n"}), FilterError, "by zero"),
        (lambda t: t.overwrite(rows([1]), where="1 = 1"), FilterError, "names no column; write TRUE"),
        (lambda t: t.overwrite(rows([77], 1), where="n = 0"), InvalidOption, "id = 77"),
        (lambda t: t.overwrite(rows([5], 0, None), where="city = 'Oslo'"), InvalidOption, "id = 5"),
        (lambda t: t.overwrite(rows([5]), where="town = 'x'"), NotFound, "town"),
        (lambda t: t.overwrite(rows([5]), where="n = "), FilterError, "cannot read the filter"),
        (lambda t: t.overwrite(rows([5, 5]), where="n = 0"), InvalidKey, "5"),
        (lambda t: t.overwrite(rows([5]).drop(["n"]), where="n = 0"), SchemaMismatch, "missing: n"),
        (lambda t: t.overwrite(rows([5]), where=5), InvalidOption, "text"),
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
    turns = count(1)

    def checkpoint(point: str) -> None:
        if point == "rows staged":
            store.context.checkpoint = lambda _: None
            table.upsert(rows([7], next(turns)))
            store.context.clock.sleep(10)
            store.context.checkpoint = checkpoint

    store.context.checkpoint = checkpoint
    with pytest.raises(WriteConflict, match="each of the 10 times") as caught:
        table.update({"n": "n + 100"})
    assert caught.value.fields["keys"] == [{"id": 7}]
    read = table.scan(["id", "n"]).to_table().to_pylist()
    assert {row["id"]: row["n"] for row in read if row["n"]} == {7: FEWEST_ATTEMPTS}


# Attempts

CHANGED = [RowsChanged("a", table="t", newest=n) for n in range(10_000)]


def tried(errors: list[Exception], seconds: float = 0.0, is_final: bool = False) -> tuple[object, int]:
    """What comes of attempts that meet these errors, one each time, after so long; and how many were made."""
    clock, made = ManualClock(), iter(errors)
    context = SimpleNamespace(catalog=SimpleNamespace(check_writable=lambda: None), clock=clock)

    def attempt() -> str:
        clock.advance(seconds)
        for error in made:
            raise error
        return "done"

    try:
        came = until_unchanged(cast(Context, context), attempt, "rows", "try again", is_final=is_final)
    except ElasticScanError as error:
        return type(error), len(errors) - len([*made])
    return came, len(errors) - len([*made])


@pytest.mark.parametrize(
    ("errors", "options", "came", "fewest", "most"),
    [
        ([RowsChanged("a"), TableChanged("b", kind="index"), OutdatedLookError()], {}, "done", 3, 3),
        (CHANGED, {}, WriteConflict, 61, 999),
        ([OutdatedLookError()] * 10_000, {}, WriteConflict, 61, 999),
        (CHANGED, {"seconds": ATTEMPTS_SECONDS + 1}, WriteConflict, FEWEST_ATTEMPTS, FEWEST_ATTEMPTS),
        ([OutdatedLookError(), *CHANGED], {"is_final": True}, RowsChanged, 2, 2),
        ([AlreadyExists("a")], {}, AlreadyExists, 1, 1),
    ],
    ids=["ends", "no end", "columns without end", "slow attempts", "a named commit", "another error"],
)
def test_what_others_changed_meanwhile_is_done_again_for_a_while(
    errors: list[Exception], options: dict[str, float], came: object, fewest: int, most: int
) -> None:
    found, made = tried(errors, **options)  # type: ignore[arg-type]
    assert found == came
    assert fewest <= made <= most
