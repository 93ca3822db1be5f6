"""A handle of a table: the rows, keys and values in all their forms that it finds, takes and refuses."""

from __future__ import annotations

import copy
import math
import pickle
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest

import elasticscan
from elasticscan.base.errors import (
    InvalidOption,
    NotFound,
    SchemaMismatch,
    UsageError,
)
from elasticscan.store import Store, Table
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int32()), ("day", pa.string()), ("km", pa.float64())])


def rows(ids: range) -> pa.Table:
    days = ["mon", "tue", "wed"]
    return pa.table(
        [list(ids), [days[i % 3] for i in ids], [i / 2 if i % 10 else None for i in ids]], schema=SCHEMA
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with elasticscan.create(tmp_path / "a.store", ["s1", "s2"], tablets=4, slots=16) as made:
        yield made


@pytest.fixture
def trips(store: Store) -> Table:
    made = store.create_table("trips", SCHEMA, ["id"])
    made.upsert(rows(range(100)))
    return made


def ids(table: Table) -> list[int]:
    return sorted(table.scan(["id"]).to_table()["id"].to_pylist())


def test_a_handle_says_what_it_stands_for(store: Store, trips: Table) -> None:
    assert repr(trips) == f"<elasticscan.Table 'trips' of {store.uri}>"
    assert (trips.name, trips.primary_key, trips.shard_key) == ("trips", ("id",), ("id",))
    assert trips.schema.names == ["id", "day", "km"]
    assert [table.name for table in store.tables()] == ["trips"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"id": 1, "day": "x"}], "missing: km"),
        ([{"id": 1, "day": "x", "km": 1.0}, {"id": 2}], "row 1 of the list .*missing: day, km"),
        ([{"id": 1, "day": "x", "KM": 1.0}], "missing: km; unknown: KM"),
        ([{"id": "one", "day": "x", "km": 1.0}], "column 'id' is of type int32"),
        ([{1: 1}], "unknown: 1"),
        ([(1, "x", 1.0)], "must be dicts"),
        ([pa.record_batch({"id": [1]})], "pa.concat_tables"),
        (iter([{"id": 1}]), "a list of dicts"),
        (7, "cannot write an int"),
        ({"id": [1]}, "missing: day, km"),
        ({"id": 1, "day": "x", "km": 1.0}, "one row as a list of a dict"),
        ({"id": [1], "day": "x", "km": [1.0]}, "column 'day' is 'x', a str; give a list"),
        ({"id": [1], "day": ["x", "y"], "km": [1.0]}, "the columns do not go together"),
        ({1: [1]}, "do not go together|unknown: 1"),
        ({}, "missing: id, day, km"),
        ("id", "hand in a pyarrow Table"),
        (pa.chunked_array([[1]]), "is not a stream of rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(
    trips: Table, given: Any, message: str
) -> None:
    for write in (trips.upsert, trips.overwrite):
        with pytest.raises(SchemaMismatch, match=message):
            write(given)
    assert len(trips.history()) == 2, "made, and filled"


@pytest.mark.parametrize("columns", [["id", "km"], ["km"]])
def test_columns_are_looked_at_where_there_are_no_rows(trips: Table, columns: list[str]) -> None:
    nothing, before = trips.scan(columns, "km < 0").to_table(), trips.history()
    for use in (trips.delete, trips.upsert, trips.overwrite):
        for rows in (trips.scan(columns, "km < 0"), nothing, nothing.to_reader()):
            with pytest.raises(SchemaMismatch, match=r"km|missing"):
                use(rows)
    assert trips.history() == before
    trips.delete(trips.scan(["id"], "km < 0"))
    assert len(ids(trips)) == 100


def test_python_objects_of_polars_are_refused_by_type(store: Store, trips: Table) -> None:
    """Polars exports the addresses of objects as if they were values."""
    objects = pl.Series("u", [uuid.uuid4(), uuid.uuid4()], dtype=pl.Object)
    frame, keys = pl.DataFrame({"id": [1, 2]}).with_columns(objects), pl.DataFrame({"id": objects})
    history = trips.history()
    with pytest.raises(SchemaMismatch, match="uuid"):
        store.create_table("objects", frame.to_dict(), primary_key="id")
    for rows in (frame, frame.clear()):
        with pytest.raises(SchemaMismatch, match=r"Object|uuid"):
            store.create_table("objects", rows, primary_key="id")
        for write in (trips.upsert, trips.overwrite, trips.insert, partial(trips.merge, columns=["km"])):
            with pytest.raises(SchemaMismatch, match=r"Object|uuid"):
                write(rows)
    for use in (trips.delete, trips.get):
        with pytest.raises(SchemaMismatch, match=r"Object|uuid"):
            use(keys)
    assert [table.name for table in store.tables()] == ["trips"]
    assert trips.history() == history


def test_columns_may_be_named_as_what_tells_data_apart(store: Store) -> None:
    columns = {"id": [1, 2], "scanner": [3, 4], "to_reader": [5, 6]}
    table = store.create_table("t", pandas.DataFrame(columns), "id")
    table.upsert(pyarrow.dataset.dataset(pa.table(columns)))
    assert table.to_arrow().sort_by("id").to_pydict() == columns


def test_rows_may_be_a_dict_of_columns(trips: Table) -> None:
    columns = {"id": range(2), "day": ("sun", None), "km": np.array([7, 8.5])}
    trips.upsert(columns)
    assert trips.get([0, 1]).to_pydict() == {"id": [0, 1], "day": ["sun", None], "km": [7.0, 8.5]}
    trips.insert({"km": [1], "id": [200], "day": ["sun"]})
    trips.merge({"id": [200], "km": [2]}, columns=["km"])
    assert trips.get([200]).to_pylist() == [{"id": 200, "day": "sun", "km": 2.0}]
    trips.overwrite(columns)
    assert ids(trips) == [0, 1]


DETAILED = pa.schema(
    [
        ("id", pa.int64()),
        ("legs", pa.list_(pa.int32())),
        ("way", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int8()))])),
        ("by", pa.map_(pa.string(), pa.int32())),
        ("paid", pa.decimal128(5, 2)),
        ("share", pa.float32()),
        ("text", pa.string()),
    ]
)
DETAILS: dict[str, Any] = {
    "id": 1,
    "legs": [1, 2],
    "way": {"a": 1, "b": [2, None]},
    "by": {"x": 1},
    "paid": Decimal("1.50"),
    "share": 0.1,
    "text": "x",
}


@pytest.fixture
def detailed(store: Store) -> Table:
    return store.create_table("detailed", DETAILED, ["id"])


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"legs": (1, 2), "by": [("x", 1)], "way": {"b": [2, None], "a": 1}, "share": np.float32(0.1)},
        dict.fromkeys(("legs", "way", "by", "paid", "share", "text")),
        {"way": {"a": None, "b": []}, "legs": [], "by": {}, "paid": 1, "share": math.inf},
    ],
)
def test_typed_values_are_stored_as_they_are(detailed: Table, change: dict[str, Any]) -> None:
    typed = DETAILS | change
    detailed.upsert([typed])
    assert detailed.scan().to_table().to_pylist() == pa.Table.from_pylist([typed], DETAILED).to_pylist()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("legs", [1.9]),
        ("legs", "12"),
        ("way", {"a": 2.9, "b": []}),
        ("way", {"a": 2, "b": [1.5]}),
        ("way", {"a": 2, "b": [], "zz": 5}),
        ("way", {"a": 2}),
        ("by", {"x": 1.5}),
        ("paid", Decimal("12345.1")),
        ("paid", Decimal("1.555")),
        ("share", True),
        ("share", 1e300),
        ("text", b"x"),
        ("id", math.nan),
    ],
)
def test_typed_values_are_never_changed(detailed: Table, column: str, value: Any) -> None:
    with pytest.raises(SchemaMismatch, match=rf"column '{column}' is of type .*; convert the value"):
        detailed.upsert([DETAILS, DETAILS | {"id": 2, column: value}])
    assert detailed.scan().count() == 0


@pytest.mark.parametrize(
    "keys",
    [
        [3, 4],
        range(3, 5),
        {3, 4},
        [{"id": 3}, {"id": 4}],
        [(3,), (4,)],
        pa.array([3, 4]),
        pa.array([3, 4], pa.int8()),
        pa.chunked_array([[3], [4]]),
        (3, 4),
        np.array([3, 4]),
        pandas.Series([3, 4]),
        pl.Series([3, 4]),
        pa.table({"id": pa.array([3, 4], pa.int32())}),
    ],
    ids=str,
)
def test_keys_may_be_typed_as_people_type_them(trips: Table, keys: Any) -> None:
    trips.delete(keys)
    assert ids(trips) == [0, 1, 2, *range(5, 100)]


@pytest.mark.parametrize(
    "keys",
    [[(3, "mon"), (4, "tue")], [{"day": "mon", "id": 3}, {"id": 4, "day": "tue"}], [[3, "mon"], (4, "tue")]],
)
def test_keys_of_several_columns_are_tuples_or_dicts(store: Store, keys: Any) -> None:
    legs = store.create_table("legs", rows(range(10)), ["id", "day"])
    legs.delete(keys)
    assert ids(legs) == [0, 1, 2, *range(5, 10)]
    legs.delete([])
    legs.upsert([])
    legs.delete(legs.scan(["id", "day"], "km > 2.5"))
    assert ids(legs) == [0, 1, 2, 5]


@pytest.mark.long
@pytest.mark.parametrize("limit", [0, 1, 9, 10, 11, 99, 100, 101, 2**40])
@pytest.mark.parametrize("condition", [None, "id % 3 = 0"])
@pytest.mark.parametrize("order_by", [None, "km DESC"])
def test_a_limit_is_exact_and_resumes_from_every_page(
    store: Store, trips: Table, limit: int, condition: str | None, order_by: str | None
) -> None:
    trips.create_index("by_km", ["km"])
    everything = trips.scan(filter=condition, order_by=order_by).to_table().to_pylist()
    begun = trips.scan(filter=condition, order_by=order_by, limit=limit, page_rows=10)
    pages = list(begun)
    got = [row for page in pages for row in page.rows.to_pylist()]
    assert got == everything[:limit]
    assert begun.key is None
    for number, page in enumerate(pages):
        rest = sum(later.rows.num_rows for later in pages[number + 1 :])
        assert page.key is not None or rest == 0
        if page.key is not None:
            assert store.resume(page.key).count() == rest


@pytest.fixture
def ordered(trips: Table) -> Table:
    trips.create_index("by_day", ["day", "km"])
    trips.create_index("by_km", ["km"], include=["day"])
    trips.create_index("km_hash", ["km"], kind="hash")
    return trips


def test_a_scan_that_sorts_has_no_key_before_its_page_and_begins_anew_after_an_error(
    store: Store, ordered: Table
) -> None:
    scan, fails = ordered.scan(["km"], order_by="id DESC", limit=2), [ZeroDivisionError()]
    with pytest.raises(InvalidOption, match="has no key before its page"):
        _ = scan.key

    def fail_once(point: str) -> None:
        if point == "page read" and fails:
            raise fails.pop()

    store.context.sync_point = fail_once
    with pytest.raises(ZeroDivisionError):
        next(scan)
    assert next(scan).rows.num_rows == 2
    empty = ordered.scan(filter="id = -1", order_by=["km", "day"], limit=2).to_table()
    assert (empty.num_rows, empty.schema) == (0, ordered.schema)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"order_by": "id"}, NotFound, r"\.create_index\('by_id', \['id'\]\)"),
        ({"order_by": "id", "limit": 10_001}, NotFound, "a limit of up to 10,000 rows"),
        ({"order_by": ["km", "day"]}, NotFound, r"create_index\('by_km_day', \['km', 'day'\]\)"),
        ({"order_by": "kms"}, NotFound, "did you mean 'km'"),
        ({"order_by": "KM"}, NotFound, "did you mean 'km'"),
        ({"columns": ["KM"]}, NotFound, "did you mean 'km'"),
        ({"order_by": "-km"}, NotFound, "did you mean 'km'"),
        ({"order_by": "km NULLS LAST"}, NotFound, "a term is a column, or 'column DESC'"),
        ({"order_by": "day, km DESC"}, InvalidOption, "order_by='day, km DESC' needs one direction"),
        ({"order_by": "km", "index": "none"}, InvalidOption, "is not the order of index"),
        ({"order_by": "km", "index": "by_day"}, InvalidOption, "not the order of index='by_day'"),
        ({"order_by": "km", "index": "km_hash"}, InvalidOption, "not the order of index='km_hash'"),
        ({"order_by": "km", "index": "by_kn"}, NotFound, "did you mean 'by_km'"),
    ],
)
def test_an_order_that_cannot_be_had_is_refused_with_what_to_do(
    ordered: Table, asked: dict[str, Any], error: type[UsageError], message: str
) -> None:
    with pytest.raises(error, match=message):
        ordered.scan(**asked)


def test_duckdb_polars_and_pandas_take_a_scan_as_it_is(trips: Table) -> None:
    duckdb, polars = (pytest.importorskip(name) for name in ("duckdb", "polars"))
    scan = trips.scan()  # noqa: F841 - DuckDB looks for it
    assert duckdb.sql("SELECT count(*), sum(id) FROM scan").fetchall() == [(100, 4_950)]
    assert polars.DataFrame(trips.scan(["id"])).sum().item() == 4_950
    assert polars.from_arrow(trips.scan(["id"]).to_reader()).sum().item() == 4_950
    assert polars.from_arrow(trips.scan(["id"])).struct.field("id").sum() == 4_950
    assert pandas.DataFrame.from_arrow(trips.scan(["id"]))["id"].sum() == 4_950
    assert pa.table(trips.scan(["km"], limit=3)).schema == pa.schema([SCHEMA.field("km")])


def test_a_stream_leaves_out_pages_without_rows_and_pages_do_not(trips: Table) -> None:
    pages = list(trips.scan(filter="id % 1000 = 3", page_rows=10))
    assert sum(page.rows.num_rows == 0 for page in pages) > 5
    assert [batch.num_rows for batch in trips.scan(filter="id % 1000 = 3", page_rows=10).to_reader()] == [1]


def test_stores_tables_and_scans_tell_what_to_send_instead(store: Store, trips: Table) -> None:
    for own, sent in ((store, "store.uri"), (trips, "table.name"), (trips.scan(), "scan.key")):
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(InvalidOption, match=re.escape(sent)):
                copied(own)


def test_a_snapshot_is_chosen_by_time_too(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with Store.create(tmp_path / "timed.store", ["s1"], tablets=2, clock=clock) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
        for v in range(3):
            clock.advance(100)
            table.upsert([{"id": 1, "v": v}])
        then = datetime.fromtimestamp(1_000_250.0, UTC)
        texts = ("1970-01-12T13:50:50Z", "1970-01-12 13:50:50Z", "1970-01-12T18:50:50+05:00")
        for time in (then, then.astimezone(timezone(timedelta(hours=5))), *texts):
            assert table.scan(snapshot=time).to_table()["v"].to_pylist() == [1]
            assert table.get([1], snapshot=time)["v"].to_pylist() == [1]
        assert table.tag("then", then).snapshot == table.history()[-2].number
        for after in (then, texts[0], "then"):
            assert table.changes(after, datetime.fromtimestamp(clock.now(), UTC)).count() == 2
        table.restore("1970-01-12T13:50:50Z", user_metadata={"why": "a test"})
        assert table.history()[-1].user_metadata == {"restored_to": "3", "why": "a test"}
        assert table.scan().to_table()["v"].to_pylist() == [1]
        for wrong, message in (
            ("1970-13-12", "1970-13-12"),
            (datetime(1970, 1, 2, tzinfo=UTC), "was made after"),
            (datetime(2030, 1, 1, tzinfo=UTC), r"the time 2030-01-01T00:00:00Z is still to come"),
        ):
            with pytest.raises(NotFound, match=message):
                table.scan(snapshot=wrong)


@pytest.mark.parametrize("value", [datetime(2026, 3, 1, 12), "2026-03-01T12:00"])  # noqa: DTZ001
def test_a_time_without_a_zone_is_refused_with_both_ways_to_write_it(trips: Table, value: Any) -> None:
    for call, option in (
        (trips.scan, "snapshot"),
        (trips.to_arrow, "snapshot"),
        (partial(trips.get, [1]), "snapshot"),
        (partial(trips.aggregate, "count(*)"), "snapshot"),
        (partial(trips.tag, "then"), "snapshot"),
        (trips.changes, "after"),
        (partial(trips.changes, 0), "upto"),
        (trips.restore, "to"),
    ):
        with pytest.raises(InvalidOption, match=rf"^\[\w+\] {option}=.*'2026-03-01T12:00:00Z'.*:00\+02:00'"):
            call(**{option: value})


def test_a_retention_period_has_a_unit(trips: Table) -> None:
    for period, seconds in (("7d", 604_800), ("1.5m", 90), (timedelta(7), 604_800), ("0s", 0), (None, None)):
        trips.set_retention(period)
        assert trips.definition.retention_seconds == seconds


def test_a_page_travels_with_its_key(store: Store, trips: Table) -> None:
    first = next(trips.scan(page_rows=30))
    sent = pickle.loads(pickle.dumps(first))
    assert sent.rows.equals(first.rows)
    assert sent.rows.num_rows + store.resume(sent.key).count() == 100


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    four, slots, seconds, one = np.int64(4), np.uint16(16), np.float32(60), np.int32(1)
    create: Any = Store.create
    with create(tmp_path / "n", ["s1", "s2"], four, slots, retention_seconds=seconds) as store:
        table = store.create_table("t", {"id": [1, 2]}, "id")
        newest = table.upsert({"id": [3]}, txn=("app", one))
        assert table.upsert({"id": [3]}, txn=("app", 1)) == newest
        pages = list(table.scan(["id"], snapshot=np.int64(newest), page_rows=one, page_bytes=one))
        assert store.resume(pages[0].key).count() + pages[0].rows.num_rows == 3
        store.move(one, "s2")
        store.split(one, np.int64(2))
        assert store.collect_garbage(grace_seconds=np.float64(0)).removed >= 0
        assert table.scan().count() == 3
