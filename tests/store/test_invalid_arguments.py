"""Any public call with an invalid argument raises an error of ours or of Python's, and writes nothing.

Each public method has a call that works and, for each of its arguments, a kind of invalid values. One
argument at a time is replaced by such a value. The call must raise one of `ALLOWED`, in time, and the catalog
and all files must be the same afterwards.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import elasticscan
from elasticscan.base.errors import ElasticScanError
from elasticscan.store import Scan, Store, Table

ALLOWED = (ElasticScanError, TypeError, ValueError, AttributeError, OSError)
SECONDS = 60  # a call that takes longer hangs
INSIDE_ITSELF: list[Any] = []
INSIDE_ITSELF.append(INSIDE_ITSELF)
Values = st.SearchStrategy[Any]


def one_of(*values: Any) -> Values:
    return st.sampled_from(values)


# What is no value of any argument, and what is no text, number, list, …
NOTHING: Values = st.builds(object) | one_of(b"\xff", 1j, type, len, math.nan, ..., INSIDE_ITSELF)
NO_TEXT = NOTHING | st.integers() | one_of("\ud800", ["t"], {"t": 1})
NO_NUMBER = NOTHING | st.text() | st.booleans() | st.floats() | one_of(-1, 10**30, -(10**5_000), [1])
NO_POSITIVE = NO_NUMBER | one_of(0)
NO_NAME = NO_TEXT | one_of("", "A b", "a-b", "../x", "a" * 65, "ä", "x\0")
NO_COLUMNS = NOTHING | st.integers() | one_of("nope", ["id", "nope"], [7], {"id": 1}, range(10**30), "\0")
NO_COLUMN = NO_TEXT | one_of("nope", "", "id, s", "*")
ROWS = {"id": [1, 2], "s": ["a", "b"], "v": [1, 2]}
NO_ROWS = (
    NOTHING
    | st.integers()
    | st.text()
    | one_of([7], [{"nope": 1}], [{"id": 1}], ROWS | {"id": ["x", "y"]}, ROWS | {"id": 1}, pa.array([1]))
    | one_of(pa.table({"nope": [1]}), pa.table(ROWS | {"id": [None, 1]}), pa.table(ROWS | {"s": [1, 2]}))
    | one_of(ROWS | {"id": [1, 1]}, ROWS | {"id": [1, 2**70]}, ROWS | {"v": [1, 2**15]}, ROWS | {"s": ["a"]})
    | one_of(pa.table(ROWS | {"x": [1, 2]}), ROWS | {"s": ["a", "\ud800"]}, pa.schema([("id", pa.int64())]))
)
NO_KEYS = (
    NOTHING
    | st.integers()
    | st.text(min_size=1)
    | one_of([None], ["x"], [1.5], [(1, 2)], [{"s": 1}], pa.table({"s": ["x"]}), [2**70], [INSIDE_ITSELF])
    | one_of([True], [3, (4,)], [{"id": 3}, 4], pa.table({"id": [1.5]}), pa.table({"id": [1], "s": ["x"]}))
)
NO_CONDITION = (
    NOTHING
    | st.integers()
    | one_of("", "((", "nope = 1", "id =", "id = '", "s = '\ud800'", "id = " + "9" * 5_000, "id + 1", "\0")
    | one_of([("id", ">", 1)], "(" * 5_000, "nothing(id)", "id = :missing", "id > (SELECT 1)", "id; DROP")
)
NO_PARAMETERS = NOTHING | st.integers() | st.text() | one_of({}, {"a": object()}, {"b": 1}, {1: 2}, [1])
NO_SNAPSHOT = (
    NOTHING
    | st.booleans()
    | st.floats()
    | one_of(-1, 10**6, 2**70, "nope", "", "2026-01-01", datetime(2026, 1, 1), [1], "\ud800")  # noqa: DTZ001
)
NO_TXN = (
    NOTHING | st.integers() | st.text() | one_of(("a",), ("a", -1), ("a", 2**63), ("", 1), ("a\0", 1), {})
)
NO_METADATA = NOTHING | st.integers() | st.text() | one_of({1: "x"}, {"a": 1}, {"a": "x" * 10**5}, ["a"])
NO_CALLBACK = st.builds(object) | st.integers() | st.text() | one_of(b"x", [print])
NO_SECONDS = NOTHING | st.text() | st.booleans() | one_of(-1, -math.inf, math.inf, 10**400, [1])
NO_PERIOD = (
    NOTHING
    | st.integers(min_value=1)
    | st.booleans()
    | one_of("7", "7 days", "", timedelta(-1), "9" * 400 + "d")
)
NO_FORM = NOTHING | st.integers() | one_of("gzip", "", ["lz4"])
NO_PATH = NOTHING | st.integers() | one_of("", "a\0b", None, ["a", 7], {"a": 1})
NO_SHARDS = NOTHING | st.integers() | one_of("S 9", [], {}, [7], ["s9", "s9"], {"s9": 7}, {"s9": ""}, ["A b"])
NO_FIELDS = (
    NOTHING
    | st.integers()
    | one_of([], {}, "x", [7], {"_shard": "string"}, {"x": "nope"}, {"id": "int8"}, {"ID": "int64"})
    | one_of([pa.field("x", pa.int8(), nullable=False)], [pa.field("x", pa.int8()), pa.field("X", pa.int8())])
)
NO_TYPE = (
    NOTHING | st.integers() | one_of("nope", pa.int8(), pa.uint64(), pa.float64(), pa.string(), [pa.int64()])
)
NO_TABLET = NO_NUMBER | one_of(99)
NO_KEY = NO_TEXT | st.text() | one_of("x" * 10_000, "é")

WRITE = {"txn": NO_TXN, "user_metadata": NO_METADATA}
SINCE = {"if_unchanged_since": NO_NUMBER | one_of(10**6)}
WHERE = {"where": NO_CONDITION, "parameters": NO_PARAMETERS}
PAGES = {"page_rows": NO_POSITIVE, "page_bytes": NO_POSITIVE}
CHOSEN = {"columns": NO_COLUMNS | one_of([], ["id", "id"]), "filter": NO_CONDITION}
READ = {
    **CHOSEN,
    **PAGES,
    "parameters": NO_PARAMETERS,
    "index": NO_NAME | one_of("nope"),
    "order_by": NO_COLUMNS | one_of("id", ["s", "id DESC"], "s NULLS LAST", []),
    "limit": NO_NUMBER,
    "snapshot": NO_SNAPSHOT,
}
FILTERED = {"filter": "id = :a", "parameters": {"a": 1}}
PLACES = {"uri": NO_PATH, "shards": NO_SHARDS}

# Of each public method the arguments of a call that works, and what is invalid for each argument.
CALLS: dict[str, tuple[dict[str, Any], Mapping[str, Values]]] = {
    "Store.create_table": (
        {"name": "new", "schema": ROWS, "primary_key": "id"},
        {
            "name": NO_NAME | one_of("t"),
            "schema": NOTHING
            | st.integers()
            | one_of("id bigint", [("id", "int64")], pa.schema([]), {}, [7]),
            "primary_key": NO_COLUMNS | one_of([], ["id", "id"]),
            "shard_key": NO_COLUMNS | one_of([], "s"),
            "compression": NO_FORM,
        },
    ),
    "Store.table": ({"name": "t"}, {"name": NO_COLUMN}),
    "Store.load": (
        {"table": "t", "source": "rows.csv"},
        {
            "table": NO_NAME,
            "source": NO_PATH | one_of([], "no-such-file.csv", ["no-such-file.csv"]),
            "mode": NO_TEXT | one_of("append", ""),
            "format": NO_TEXT | one_of("xlsx"),
            "nulls": NOTHING | st.integers() | one_of([7], {"NA": 1}),
            "types": NOTHING
            | st.integers()
            | st.text(min_size=1)
            | one_of({"id": "nope"}, {"x": "int8"}, {7: 7}),
            "delimiter": NO_TEXT | one_of("", ";;", "\n", '"'),
            "column_names": NOTHING | st.integers() | one_of([7], ["id", "id"], {"id": 1}),
            "job": NO_TEXT | one_of("", "a\0b", "é" * 513),
            "user_metadata": NO_METADATA,
            "on_progress": NO_CALLBACK,
            **SINCE,
        },
    ),
    "Store.resume": ({"key": "…"}, {"key": NO_KEY}),
    "Store.elasticity": (
        {},
        {"bytes_per_second": NO_SECONDS | one_of(0), "on_progress": NO_CALLBACK, "parallel": NO_POSITIVE},
    ),
    "Store.expand": ({"shards": ["s3"]}, {"shards": NO_SHARDS | one_of({"s9": "foo://bar"})}),
    "Store.contract": ({"shard": "s1"}, {"shard": NO_NAME | one_of("s9")}),
    "Store.move": ({"tablet": 2, "shard": "s2"}, {"tablet": NO_TABLET, "shard": NO_NAME | one_of("s9")}),
    "Store.split": ({"tablet": 2}, {"tablet": NO_TABLET, "at": NO_NUMBER | one_of(15)}),
    "Store.join": ({"left": 5, "right": 6}, {"left": NO_TABLET | one_of(3), "right": NO_TABLET | one_of(3)}),
    "Store.topology_history": ({}, {"limit": NO_NUMBER}),
    "Store.slot_map": ({}, {"limit": NO_POSITIVE}),
    "Store.keep": ({}, {"bytes_per_second": NO_SECONDS | one_of(0), "on_step": NO_CALLBACK}),
    "Store.collect_garbage": (
        {},
        {"grace_seconds": NO_SECONDS, "trash_seconds": NO_SECONDS, "share": NO_SECONDS | one_of(2)},
    ),
    "Store.backup": ({"target": "backups"}, {"target": NO_PATH}),
    "Table.upsert": ({"rows": ROWS}, {"rows": NO_ROWS, **WRITE, **SINCE}),
    "Table.insert": ({"rows": ROWS | {"id": [77, 78]}}, {"rows": NO_ROWS | one_of(ROWS), **WRITE}),
    "Table.overwrite": (
        {"rows": ROWS, "where": "id < :a", "parameters": {"a": 9}},
        {"rows": NO_ROWS | one_of(ROWS | {"id": [98, 99]}), **WRITE, **WHERE},
    ),
    "Table.delete": ({"keys": [1]}, {"keys": NO_KEYS, "where": one_of("id = 1"), **WRITE, **SINCE}),
    "Table.update": (
        {"set": {"s": "'x'"}, "where": "id < :a", "parameters": {"a": 9}},
        {
            "set": NOTHING
            | st.integers()
            | st.text()
            | one_of(
                {},
                {"nope": 1},
                {"id": 1},
                {"s": "(("},
                {"s": object()},
                {"s": "nope"},
                {7: "1"},
                {"s": 1 / 3},
            ),
            **WRITE,
            **WHERE,
            **SINCE,
        },
    ),
    "Table.merge": (
        {"rows": ROWS},
        {
            "rows": NO_ROWS,
            "columns": NO_COLUMNS,
            "when_matched": NO_TEXT | one_of("", "replace"),
            "when_not_matched": NO_TEXT | one_of("", "update"),
            **WRITE,
            **SINCE,
        },
    ),
    "Table.restore": ({"to": 2}, {"to": NO_SNAPSHOT | st.none(), "user_metadata": NO_METADATA}),
    "Table.scan": (FILTERED, READ),
    "Table.to_reader": (FILTERED, READ),
    "Table.to_arrow": (FILTERED, READ),
    "Table.to_pandas": (FILTERED, READ),
    "Table.to_polars": (FILTERED, READ),
    "Table.export": (
        {"path": "out.parquet", **FILTERED},
        {
            "path": NO_PATH | one_of("rows.csv"),
            "file_bytes": NO_POSITIVE,
            "compression": NO_TEXT | one_of("rar"),
            "on_progress": NO_CALLBACK,
            **READ,
        },
    ),
    "Table.aggregate": (
        {"values": "count(*)", **FILTERED},
        {
            "values": NOTHING
            | st.integers()
            | one_of("", [], "count(", "sum(s)", "median(id)", {"id": "sum"}, "id"),
            "group_by": NO_COLUMNS,
            "filter": NO_CONDITION,
            "parameters": NO_PARAMETERS,
            "snapshot": NO_SNAPSHOT,
        },
    ),
    "Table.get": ({"keys": [1]}, {"keys": NO_KEYS, "columns": CHOSEN["columns"], "snapshot": NO_SNAPSHOT}),
    "Table.changes": (
        FILTERED,
        {"after": NO_SNAPSHOT, "upto": NO_SNAPSHOT, "parameters": NO_PARAMETERS, **CHOSEN, **PAGES},
    ),
    "Table.create_index": (
        {"index": "i", "columns": "s"},
        {
            "index": NO_NAME | one_of("auto", "key"),
            "columns": NO_COLUMNS | one_of([], ["s", "s"]),
            "kind": NO_TEXT | one_of("btree", ""),
            "include": NO_COLUMNS,
            "on_progress": NO_CALLBACK,
        },
    ),
    "Table.drop_index": ({"index": "by_s"}, {"index": NO_NAME | one_of("nope")}),
    "Table.add_columns": ({"fields": {"x": "int8"}}, {"fields": NO_FIELDS}),
    "Table.drop_columns": ({"names": "v"}, {"names": NO_COLUMNS | one_of([], "id", "s")}),
    "Table.rename_column": (
        {"old": "v", "new": "w"},
        {"old": NO_COLUMN | one_of("id", "s"), "new": NO_TEXT | one_of("", " ", "ID", "s", "_slot")},
    ),
    "Table.widen_column": ({"name": "v", "type": "int64"}, {"name": NO_COLUMN, "type": NO_TYPE}),
    "Table.history": ({}, {"limit": NO_NUMBER}),
    "Table.tag": (
        {"name": "new"},
        {"name": NO_NAME | one_of("17", "latest"), "snapshot": NO_SNAPSHOT},
    ),
    "Table.drop_tag": ({"name": "then"}, {"name": NO_NAME | one_of("nope")}),
    "Table.set_retention": ({"period": "7d"}, {"period": NO_PERIOD}),
    "Table.set_compression": ({"compression": "lz4"}, {"compression": NO_FORM}),
    "create": (
        {"uri": "new.store", "shards": ["s1"]},
        {
            **PLACES,
            "tablets": NO_POSITIVE,
            "slots": NO_POSITIVE | one_of(65_537),
            "hash": NO_TEXT | one_of("md5", ""),
            "retention_seconds": NO_SECONDS,
            "upkeep": NO_TEXT | one_of("on", ""),
        },
    ),
    "open": (
        {"uri": "a.store"},
        {
            "uri": NO_PATH | one_of("nowhere.store", "s3://b/x", "sqlite://", "a.store/t"),
            "upkeep": NO_TEXT | one_of("on", ""),
        },
    ),
}
# Methods of a truth value alone, for the layers above, or of Arrow's protocol.
LEFT_OUT = {"Store.rotate_secret", "Store.resume_part", "Scan.part", "Scan.parts"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store and a file in a directory."""
    place = tmp_path_factory.mktemp("invalid")
    (place / "rows.csv").write_text("id,s,v\n50,x,1\n")
    with Store.create(place / "a.store", ["s1", "s2"], tablets=4, slots=16, upkeep="off") as store:
        schema = pa.schema([("id", pa.int64()), ("s", pa.string()), ("v", pa.int16())])
        table = store.create_table("t", schema, "id")
        table.upsert(pa.table({"id": range(9), "s": ["x"] * 9, "v": range(9)}, schema=schema))
        table.create_index("by_s", "s")
        table.tag("then")
        store.split(1)
    return place


@pytest.fixture
def store(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(place)
    with Store.open(place / "a.store", upkeep="off") as opened:
        yield opened


class Hung(BaseException):
    """A call that does not end."""


@contextmanager
def in_time() -> Iterator[None]:
    def end(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def state(store: Store, place: Path) -> Any:
    """Return what a write would change: the catalog's content, and every file but the catalog's own."""
    paths = [path for path in place.rglob("*") if not path.name.startswith("catalog")]
    files = {str(path): path.stat().st_size for path in paths if path.is_file()}
    tables = [(table.definition, table.history(), table.indexes(), table.tags()) for table in store.tables()]
    return files, store.topology, tables


def called(store: Store, name: str) -> Callable[..., Any]:
    owner, _, method = name.rpartition(".")
    whole = {"": elasticscan, "Store": store, "Table": store.table("t")}[owner]
    return getattr(whole, method)  # type: ignore[no-any-return]


def call(store: Store, name: str, **others: Any) -> None:
    """Carry out a call, and read the scan that it returns."""
    result = called(store, name)(**CALLS[name][0] | others)
    if isinstance(result, Scan):
        result.to_table()


def refused(store: Store, *, name: str, option: str, value: Any) -> None:
    """Check one call with an invalid argument."""
    place = Path(store.uri).parent
    before = state(store, place)
    with in_time(), pytest.raises(ALLOWED) as caught:
        call(store, name, **{option: value})
    if isinstance(caught.value, ElasticScanError):
        str(caught.value).encode()
    assert state(store, place) == before


@pytest.mark.parametrize("name", CALLS)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_an_invalid_argument_is_refused_and_nothing_is_written(
    store: Store, name: str, data: st.DataObject
) -> None:
    option = data.draw(st.sampled_from(sorted(CALLS[name][1])), "option")
    refused(store, name=name, option=option, value=data.draw(CALLS[name][1][option], "value"))


@pytest.mark.parametrize("name", CALLS)
def test_the_calls_work_without_an_invalid_argument(place: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(place, tmp_path / "place")
    with contextlib.chdir(tmp_path / "place"), Store.open("a.store", upkeep="off") as store:
        store.adopt()
        others = {"key": next(store.table("t").scan(page_rows=1)).key} if name == "Store.resume" else {}
        call(store, name, **others)


def test_every_public_method_with_arguments_is_called() -> None:
    there = {
        f"{kind.__name__}.{name}"
        for kind in (Store, Table, Scan)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and len(inspect.signature(member).parameters) > 1
    }
    assert there - LEFT_OUT == set(CALLS) - {"create", "open"}
