"""Writes that read: by condition, by keys, and merges; done again where others came before.

What they are for is in `tests/transcripts/write_*.txt`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import (
    AlreadyExists,
    Busy,
    DiskFull,
    ElasticScanError,
    FilterError,
    InvalidOption,
    NotFound,
    RowsChanged,
    SchemaMismatch,
    TableChanged,
)
from elasticscan.catalog.tables import DELETE_LEASE
from elasticscan.store import Store, Table
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import KnownTable
from elasticscan.store.writing import merging
from elasticscan.store.writing.merging import WHEN_MATCHED, WHEN_NOT_MATCHED, Clauses, merge_rows
from elasticscan.store.writing.transactions import (
    ATTEMPTS_SECONDS,
    FEWEST_ATTEMPTS,
    OutdatedReadError,
    until_unchanged,
)
from tests.base.connections import call_at_statements
from tests.base.manual_clock import ManualClock
from tests.conftest import AT_SERVER

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32()),
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
        (lambda t: t.update({"n": 1.5}), SchemaMismatch, "cannot store 1.5 exactly"),
        (lambda t: t.update({"n": datetime.date(2024, 1, 1)}), SchemaMismatch, "'n' is of type int32"),
        (lambda t: t.update({"n": "n + 2147483647 + 1"}), FilterError, "overflow"),
        (lambda t: t.update({"n": "1 DIV n"}), FilterError, "by zero"),
        (lambda t: t.overwrite(rows([1]), where="1 = 1"), FilterError, "names no column; write TRUE"),
        (lambda t: t.overwrite(rows([77], 1), where="n = 0"), InvalidOption, "id = 77"),
        (lambda t: t.overwrite(rows([5], 0, None), where="city = 'Oslo'"), InvalidOption, "id = 5"),
        (lambda t: t.overwrite(rows([5]), where="town = 'x'"), NotFound, "town"),
        (lambda t: t.overwrite(rows([5]), where="n = "), FilterError, "cannot read the filter"),
        (lambda t: t.overwrite(rows([5, 5]), where="n = 0"), SchemaMismatch, "5"),
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


# Keys that are to be unchanged


def at(store: Store, point: str, happens: Callable[[], object]) -> list[str]:
    """Let something happen once, where another process could come in; returns the points that were passed."""
    passed: list[str] = []

    def sync_point(name: str) -> None:
        passed.append(name)
        if passed.count(point) == 1 and name == point:
            happens()

    store.context.sync_point = sync_point
    return passed


def test_a_refused_write_names_keys_of_several_columns_and_leaves_no_file(store: Store) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32()), ("v", pa.int64())])
    table = store.create_table("pairs", schema, ["a", "b"])
    commit = table.upsert([{"a": "x", "b": 1, "v": 0}])
    large = [{"a": "x" * 200, "b": n, "v": 0} for n in range(1_000)] + [{"a": "x", "b": 1, "v": 1}]
    for refused, error in (
        (lambda: table.upsert(large, if_unchanged_since=commit - 1), RowsChanged),
        (lambda: table.insert(large), AlreadyExists),
    ):
        with pytest.raises(error, match=r"a, b = \{'a': 'x', 'b': 1\}") as caught:
            refused()
        assert caught.value.fields["keys"] == [{"a": "x", "b": 1}]
    assert [*Path(store.uri).rglob("*.arrow")] == []
    assert table.scan().count() == 1


def test_keys_that_python_has_no_value_for_are_named_as_texts(store: Store) -> None:
    rows = pa.table({"at": pa.array([300_000_000_000]).cast(pa.timestamp("s")), "v": [1]})
    table = store.create_table("far", rows.schema, ["at"])
    commit = table.upsert(rows)
    assert table.upsert(rows) > commit
    for refused, error in (
        (lambda: table.insert(rows), AlreadyExists),
        (lambda: table.upsert(rows, if_unchanged_since=commit), RowsChanged),
        (lambda: table.upsert(pa.concat_tables([rows, rows])), SchemaMismatch),
        (lambda: table.overwrite(rows, where="v = 2"), InvalidOption),
    ):
        with pytest.raises(error, match="11476-08-15 05:20:00"):
            refused()


@pytest.mark.skipif(AT_SERVER, reason="statements of a catalog in a file")
def test_a_commit_is_reported_also_where_its_lease_cannot_be_ended(store: Store, table: Table) -> None:
    table.set_retention("0s")

    def fail(statement: str) -> None:
        if statement == DELETE_LEASE:
            raise DiskFull("no room in the catalog")

    end = call_at_statements(store.context.catalog, fail)
    numbers = [table.update({"n": "n + 1"}, where="id = 1")]
    numbers.append(table.merge(rows([2], 5), when_not_matched="ignore"))
    numbers.append(table.overwrite(rows([3], 6), where="id = 3"))
    numbers.append(table.restore(2))
    end()
    assert len(store.status()["leases"]) > 0
    assert numbers == [commit.number for commit in table.history(4)]
    assert table.scan().count() == 100


@pytest.mark.usefixtures("rows_in_files")
def test_a_merge_begins_again_where_the_changes_since_it_read_are_gone(store: Store, table: Table) -> None:
    table.set_retention("0s")
    looks: list[KnownTable] = []

    def look() -> KnownTable:
        looks.append(store.context.known_table(table._find))
        if len(looks) == 1:  # and nothing is held yet
            table.upsert(rows([4], 1))
            table.compact()
        return looks[-1]

    merge_rows(table._transaction(None, None), look, rows([4, 400], 7), Clauses(not_matched="ignore"))
    assert len(looks) > 1
    assert table.get([4, 400], ["id", "n"]).to_pylist() == [{"id": 4, "n": 7}]


# Merges


def test_columns_that_come_or_go_while_rows_are_read_begin_it_again(store: Store, table: Table) -> None:
    schema = pa.schema([SCHEMA.field("id"), SCHEMA.field("n")])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"id": 1, "n": 5}], schema)
        table.add_columns([pa.field("x", pa.int8())])
        table.upsert(rows([2]).append_column("x", pa.array([7], pa.int8())))
        yield pa.RecordBatch.from_pylist([{"id": 2, "n": 5}], schema)
        table.drop_columns(["tags"])
        yield pa.RecordBatch.from_pylist([{"id": 50, "n": 5}], schema)

    table.overwrite(rows(range(10)))
    table.merge(pa.RecordBatchReader.from_batches(schema, batches()), columns=["n"])
    read = table.scan(filter="n = 5", columns=["id", "city", "x"]).to_table().sort_by("id").to_pylist()
    assert read == [
        {"id": 1, "city": "Oslo", "x": None},
        {"id": 2, "city": "Oslo", "x": 7},
        {"id": 50, "city": None, "x": None},
    ]


def test_rows_are_not_inserted_without_a_value_that_the_table_requires(store: Store) -> None:
    n = pa.field("n", pa.int64(), nullable=False)
    strict = store.create_table("strict", pa.schema([("id", pa.int64()), n, ("c", pa.string())]), ["id"])
    strict.insert([{"id": 1, "n": 1, "c": "a"}])
    with pytest.raises(SchemaMismatch, match="column 'n' has nulls where the table allows none"):
        strict.merge([{"id": 1, "c": "b"}, {"id": 2, "c": "b"}], columns=["c"])
    strict.merge([{"id": 1, "c": "b"}, {"id": 2, "c": "b"}], columns=["c"], when_not_matched="ignore")
    assert strict.scan().to_table().to_pylist() == [{"id": 1, "n": 1, "c": "b"}]


@settings(max_examples=8, deadline=None)
@given(
    before=st.sets(st.integers(0, 40)),
    new=st.lists(st.integers(0, 40), unique=True),
    matched=st.sampled_from(WHEN_MATCHED),
    not_matched=st.sampled_from(WHEN_NOT_MATCHED),
    some=st.booleans(),
    piece=st.integers(1, 5),
)
def test_it_does_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, before: set[int], new: list[int],
    matched: str, not_matched: str, some: bool, piece: int,
) -> None:  # fmt: skip
    if (matched, not_matched) == ("ignore", "ignore"):
        return
    expected: dict[int, tuple[Any, ...]] = {key: (0, "Oslo", ["a"]) for key in before}
    for key in new:
        if key in before and matched == "delete":
            del expected[key]
        elif key in before and matched == "update":
            expected[key] = (1, "Oslo" if some else "Lima", ["a"])
        elif key not in before and not_matched == "insert":
            expected[key] = (1, None, None) if some else (1, "Lima", ["a"])
    with Store.create(tmp_path_factory.mktemp("m") / "m.store", ["s1", "s2"], tablets=2, slots=8) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(before))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merging, "MOST_KEYS", piece)
            data = rows(new, 1, "Lima").to_reader(max_chunksize=3)
            table.merge(
                data, columns=["n"] if some else None, when_matched=matched, when_not_matched=not_matched
            )
        found = {row["id"]: (row["n"], row["city"], row["tags"]) for row in table.to_arrow().to_pylist()}
        assert found == expected


# Attempts

CHANGED = [RowsChanged("a", table="t", newest=n) for n in range(10_000)]


def tried(errors: list[Exception], seconds: float = 0.0, is_final: bool = False) -> tuple[object, int, Any]:
    """What comes of attempts that meet these errors, one each time, after so long; how many; and fields."""
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
        return type(error), len(errors) - len([*made]), error.fields
    return came, len(errors) - len([*made]), {}


@pytest.mark.parametrize(
    ("errors", "options", "came", "fewest", "most"),
    [
        ([RowsChanged("a"), TableChanged("b", kind="index"), OutdatedReadError()], {}, "done", 3, 3),
        (CHANGED, {}, Busy, 61, 999),
        ([OutdatedReadError()] * 10_000, {}, Busy, 61, 999),
        (CHANGED, {"seconds": ATTEMPTS_SECONDS + 1}, Busy, FEWEST_ATTEMPTS, FEWEST_ATTEMPTS),
        ([OutdatedReadError(), *CHANGED], {"is_final": True}, RowsChanged, 2, 2),
        ([AlreadyExists("a")], {}, AlreadyExists, 1, 1),
    ],
    ids=["ends", "no end", "columns without end", "slow attempts", "a named commit", "another error"],
)
def test_what_others_changed_meanwhile_is_done_again_for_a_while(
    errors: list[Exception], options: dict[str, float], came: object, fewest: int, most: int
) -> None:
    found, made, fields = tried(errors, **options)  # type: ignore[arg-type]
    assert found == came
    assert fewest <= made <= most
    assert fields == ({} if came == "done" else getattr(errors[made - 1], "fields", {}))
