"""What callers hand in by mistake is refused by name, before anything is done."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from elasticscan.base.errors import (
    FilterError,
    InvalidKey,
    InvalidName,
    InvalidOption,
    StoreNotFound,
    TagNotFound,
    UnsupportedType,
)
from elasticscan.store import Store

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64())])
ROWS = pa.table({"id": [1, 2], "v": [0.5, 0.25]})

# What a whole number, a text, and a span of seconds are not.
NO_NUMBER = [None, True, 1.0, "1", math.nan, [1], 2**70]
NO_TEXT = [None, 1, b"t", ["t"], "\ud800"]
NO_SECONDS = [None, True, "1", -1, math.nan, math.inf, 10**400, [1]]
NO_NAMES = ["s9", None, 7, b"s9", [1], [None], ["s9", 1]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=4, slots=16) as made:
        made.create_table("t", SCHEMA, ["id"])
        made.table("t").upsert(ROWS)
        yield made


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://b/x", "can hold no catalog: name a directory, .* shards={'s1': 's3://bucket/prefix'}"),
        ("gs://b/x", "can hold no catalog"),
        (":memory:", "a store is a directory, also a temporary one"),
        ("postgres://u:secret@h/d", r"is written: postgresql\+psycopg://u:\*\*\*@h/d"),
    ],
)
def test_a_place_that_holds_no_catalog_is_reported_with_what_does(uri: str, message: str) -> None:
    for call in (Store.open, partial(Store.create, shards=["s1"])):
        with pytest.raises(InvalidOption, match=message):
            call(uri)


def test_a_store_and_a_table_in_one_path_are_reported_apart(store: Store) -> None:
    with pytest.raises(StoreNotFound, match=r"store is one, .*open\('.*/store'\).table\('t'\)"):
        Store.open(f"{store.uri}/t")


def refused(call: Callable[..., object], option: str, values: Iterable[Any]) -> None:
    """Each value of an argument is refused by the argument's name."""
    for value in values:
        with pytest.raises(InvalidOption) as caught:
            call(**{option: value})
        assert option in caught.value.message, value


def test_a_store_is_not_made_of_wrong_arguments(tmp_path: Path) -> None:
    wrong: dict[str, list[Any]] = {
        "uri": [None, 1, "", b"x", "a\0b", "x" * (16 << 20)],
        "shards": [*NO_NAMES, [], {}, {1: "x"}, {"s1": None}, {"s1": 1}, {"s1": ""}, {"s1": "a\0b"}],
        "tablets": [*NO_NUMBER, 0, -1],
        "slots": [*NO_NUMBER, 0, -1, 65_537],
        "hash": [*NO_TEXT, "md5"],
        "retention_seconds": NO_SECONDS,
    }
    for option, values in wrong.items():
        given: dict[str, Any] = {"uri": tmp_path / "store", "shards": ["s1"]}
        given.pop(option, None)
        refused(partial(Store.create, **given), option, values)
    refused(Store.open, "uri", [None, 1, b"x", "", "x" * (16 << 20)])
    for root in ("foo://bar", "://x"):
        with pytest.raises(InvalidOption, match="cannot be a shard's storage"):
            Store.create(tmp_path / "store", {"s1": root})
    assert not list(tmp_path.iterdir())


def test_a_table_is_not_made_of_wrong_arguments(store: Store) -> None:
    refused(
        partial(store.create_table, "u", primary_key=["id"]), "schema", [None, "id bigint", [("id", "int64")]]
    )
    refused(partial(store.create_table, "u", SCHEMA), "primary_key", [None, 1, b"id", [1], {"id": 1}])
    refused(partial(store.create_table, "u", SCHEMA, ["id"]), "shard_key", [1, b"id", [1], {"id": 1}])
    for name in (None, 1, b"t", ["t"]):
        with pytest.raises(InvalidName):
            store.create_table(name, SCHEMA, ["id"])  # type: ignore[arg-type]
    refused(store.table, "name", NO_TEXT)


def test_a_transaction_is_a_name_and_a_number(store: Store) -> None:
    names = ["ab", "app", ("a",), ("a", 1, 2), ("", 1), (1, 1), (None, 1), ("\ud800", 1)]
    numbers = [("a", version) for version in (None, True, 1.0, "1", -1, 2**63)]
    table = store.table("t")
    for write in (table.upsert, table.overwrite):
        refused(partial(write, ROWS), "txn", [*names, *numbers])
    assert len(table.history()) == 2


def test_a_scan_names_the_one_argument_that_is_wrong(store: Store) -> None:
    wrong: dict[str, list[Any]] = {
        "columns": [b"id", 1, [1], [None], [["id"]], {"id": 1}, []],
        "filter": [1, b"id = 1", ["id = 1"]],
        "index": [None, 1],
        "order_by": [1, b"id", [1], {"id": 1}, [], ["id", "id"], ["id", "v DESC"]],
        "limit": [True, 1.0, "7", -1],
        "snapshot": [True, 1.0, [1], 2**70],  # text is a tag
        "page_rows": [*NO_NUMBER, 0, (1 << 24) + 1],
        "page_bytes": [*NO_NUMBER, 0, (1 << 40) + 1],
    }
    for option, values in wrong.items():
        refused(store.table("t").scan, option, values)


def test_what_is_asked_for_its_truth_has_none_or_no_end(store: Store, tmp_path: Path) -> None:
    """Arrow's expressions and NumPy's arrays are neither true nor false; a range may have no end."""
    neither = [pc.field("v") > 1, np.array([1, 2]), ["s1"], 1]
    store.backup(tmp_path / "backups")
    refused(partial(Store.from_backup, tmp_path / "backups", tmp_path / "new"), "roots", neither)
    assert not (tmp_path / "new").exists()
    Store.from_backup(tmp_path / "backups", tmp_path / "new", {}).close()
    table, endless = store.table("t"), range(10**30)
    refused(partial(table.create_index, "by_v", ["v"]), "include", [pc.field("v") > 1, endless])
    refused(table.add_columns, "fields", [endless])
    for values in (endless, list(range(20_001)), [[1, [2]]], [endless]):
        with pytest.raises(FilterError, match="parameter 'p'"):
            table.scan(filter="id IN :p", parameters={"p": values})
    assert table.scan(filter="id IN :p", parameters={"p": range(2, 5_000)}).count() == 1


def test_tablets_shards_and_times_are_what_they_are_called(store: Store) -> None:
    for call in (
        store.split,
        lambda tablet: store.move(tablet, "s1"),
        lambda tablet: store.join(tablet, 2),
        lambda tablet: store.join(1, tablet),
        lambda at: store.split(1, at or True),
    ):
        for value in NO_NUMBER:
            with pytest.raises(InvalidOption, match="whole number"):
                call(value)
    refused(store.contract, "shard", NO_TEXT)
    refused(partial(store.move, 1), "shard", NO_TEXT)
    refused(store.expand, "shards", [*NO_NAMES, [], {}, ["s3", "s3"]])
    refused(store.collect_garbage, "grace_seconds", NO_SECONDS)
    refused(store.elasticity, "bytes_per_second", [0, -1, True, "1M", math.inf, math.nan])
    refused(store.elasticity, "parallel", [*NO_NUMBER, 0])
    with pytest.raises(InvalidOption, match="cannot be a shard's storage"):
        store.expand({"s3": "foo://bar"})
    assert [shard["name"] for shard in store.status()["shards"]] == ["s1", "s2"]


def test_seconds_are_no_snapshot_but_can_be_made_a_time(store: Store) -> None:
    table = store.create_table("times", SCHEMA, ["id"])
    number = table.upsert(ROWS)
    made = table.history()[-1].created_at
    with pytest.raises(InvalidOption, match=r"snapshot=.*\(float\).*datetime.fromtimestamp\(seconds, UTC\)"):
        table.scan(snapshot=made)  # type: ignore[arg-type]
    assert table.scan(snapshot=datetime.fromtimestamp(made, UTC)).snapshot == number


@pytest.mark.parametrize("value", [datetime(2026, 3, 1, 12), "2026-03-01T12:00"])  # noqa: DTZ001
def test_a_time_without_a_zone_is_refused_with_both_ways_to_write_it(store: Store, value: Any) -> None:
    table = store.table("t")
    for call, option in (
        (table.scan, "snapshot"),
        (table.scan, "timestamp"),
        (table.to_arrow, "timestamp"),
        (partial(table.get, [1]), "snapshot"),
        (partial(table.aggregate, "count(*)"), "snapshot"),
        (partial(table.tag, "then"), "snapshot"),
        (table.changes, "after"),
        (partial(table.changes, 0), "upto"),
        (table.restore, "to"),
    ):
        with pytest.raises(InvalidOption, match=rf"^\[\w+\] {option}=.*'2026-03-01T12:00:00Z'.*:00\+02:00'"):
            call(**{option: value})


def test_a_value_of_several_lines_is_shown_in_one(store: Store) -> None:
    class Frame:
        def __repr__(self) -> str:
            return "   id  km\n0   1   2\n" * 1_000

    with pytest.raises(
        InvalidOption, match=r"^\[\w+\] filter=id km 0 1 2 id km .{,70} \(Frame\) must be SQL"
    ):
        store.table("t").scan(filter=Frame())  # type: ignore[arg-type]


def test_a_retention_period_has_a_unit(store: Store) -> None:
    table = store.table("t")
    refused(table.set_retention, "period", [*NO_SECONDS[1:], 7, 7.5, "7", "7 days", "", timedelta(-1)])
    with pytest.raises(InvalidOption, match="7d, or a timedelta"):
        table.set_retention(7)  # type: ignore[arg-type]
    for period, seconds in (
        ("7d", 604_800.0),
        ("1.5m", 90.0),
        (timedelta(days=7), 604_800.0),
        (timedelta(0), 0.0),
        ("0s", 0.0),
        (None, None),
    ):
        table.set_retention(period)
        assert table.definition.retention_seconds == seconds


@pytest.mark.parametrize("value", [date(2026, 3, 1), True, None])
def test_what_is_no_snapshot_is_reported_all_that_is_one(store: Store, value: Any) -> None:
    with pytest.raises(InvalidOption, match="a commit number, a tag or a time: 17, "):
        store.table("t").restore(to=value)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    with Store.create(
        tmp_path / "store",
        {"s1": str(tmp_path / "a"), "s2": str(tmp_path / "b")},
        tablets=np.int64(4),  # type: ignore[arg-type]
        slots=np.uint16(16),  # type: ignore[arg-type]
        retention_seconds=np.float32(60),  # type: ignore[arg-type]
    ) as store:
        store.create_table("t", SCHEMA, "id")
        number: Any = np.int32(7)
        assert store.table("t").upsert(ROWS, txn=("app", number)) == store.table("t").upsert(
            ROWS, txn=("app", 7)
        )
        one: Any = np.int64(1)
        newest: Any = np.int64(2)
        rows: Any = np.int16(1)
        pages = list(store.table("t").scan(columns=["id"], snapshot=newest, page_rows=rows, page_bytes=rows))
        assert store.resume(pages[0].key).to_table().num_rows + pages[0].rows.num_rows == 2
        store.move(one, "s2")
        store.split(one, np.int64(2))  # type: ignore[arg-type]
        assert store.collect_garbage(grace_seconds=np.float64(0)).removed >= 0
        assert store.table("t").scan().to_table().num_rows == 2


KEYS_JAVA_LACKS = [
    pa.array([0], pa.date32()),
    pa.array([decimal.Decimal(1)], pa.decimal128(9, 2)),
    pa.array([0], pa.timestamp("us")),
    pa.array([b"x"], pa.binary()),
]


@pytest.mark.parametrize("key", KEYS_JAVA_LACKS, ids=lambda key: str(key.type))
def test_a_key_that_javas_hash_does_not_take_makes_no_table(tmp_path: Path, key: pa.Array) -> None:
    schema = pa.schema([("k", key.type), ("id", pa.int64())])
    with Store.create(tmp_path / "java", ["s1"], hash="java") as store:
        with pytest.raises(UnsupportedType, match="java"):
            store.create_table("t", schema, ["k"])
        assert store.tables() == ()
        # Only the shard key is hashed; the rest of the primary key may be what it likes.
        store.create_table("t", schema, ["id", "k"], shard_key=["id"])
        store.table("t").upsert(pa.table({"k": key, "id": [1]}))
    with Store.create(tmp_path / "spark", ["s1"]) as store:
        store.create_table("t", schema, ["k"])
        store.table("t").upsert(pa.table({"k": key, "id": [1]}))


def test_javas_hash_takes_one_column(tmp_path: Path) -> None:
    with Store.create(tmp_path / "java", ["s1"], hash="java") as store:
        schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
        with pytest.raises(UnsupportedType, match="single shard key column"):
            store.create_table("t", schema, ["a", "b"])
        store.create_table("t", schema, ["a", "b"], shard_key="a")
        with pytest.raises(InvalidKey):
            store.table("t").upsert(pa.table({"a": [1, 1], "b": ["x", "x"]}))


def test_a_mode_in_place_of_a_clock_is_reported_how_to_read(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"clock='r' .* read_only=True opens"):
        Store.open(store.uri, "r")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="clock='w'"):
        Store.create(tmp_path / "new", ["s1"], clock="w")  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("count(*), sum(v)", r"several are a list: \['count"),
        ("count(*) AS n, sum(v)", r"several are a list: \['count"),
        (["id", "count(*)"], "columns by which rows are grouped stand in group_by"),
        ("median(v)", "compute the rest from their results, or in Spark$"),
    ],
)
def test_aggregates_of_another_form_are_reported_with_the_form_there_is(
    store: Store, values: Any, message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        store.table("t").aggregate(values)


def test_the_oldest_changes_have_no_name(store: Store) -> None:
    with pytest.raises(TagNotFound, match="no tag 'earliest'; the oldest changes that are kept are read"):
        store.table("t").changes("earliest")
    assert store.table("t").changes().count() == 2


def test_a_text_in_place_of_names_and_a_condition_in_place_of_a_transaction_tell_what_to_write(
    tmp_path: Path,
) -> None:
    for given, message in (
        ("s1, s2", r": \['s1', 's2'\]$"),
        ("s1", r": \['s1'\]$"),
        (2, r"such as \['s1', 's2'\]$"),
    ):
        with pytest.raises(InvalidOption, match=message):
            Store.create(tmp_path / "a.store", given)
    store = Store.create(tmp_path / "a.store", ["s1"])
    table = store.create_table("t", {"id": [1]}, primary_key="id")
    with pytest.raises(InvalidOption, match=r"\('nightly', 7\); a condition is given as where="):
        table.overwrite([{"id": 5}], "id < 10")
    with pytest.raises(InvalidOption, match=r"\('nightly', 7\)$"):
        table.upsert([{"id": 5}], "nightly")
    store.close()
