"""Any public call with an invalid argument raises an error of ours or of Python's, and writes nothing.

Each public method has a call that works, and each of its parameters, by its name, values that are invalid.
One argument at a time is replaced by such a value. The call must raise one of `ALLOWED`, and the
catalog and all files must be the same afterwards.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import elasticscan
from elasticscan.base.errors import ElasticScanError, NotFound, TableChanged
from elasticscan.store import Scan, Store, Table
from elasticscan.store.arguments import Reading

ALLOWED = (ElasticScanError, TypeError, ValueError, AttributeError, OSError)
INSIDE_ITSELF: list[Any] = []
INSIDE_ITSELF.append(INSIDE_ITSELF)
Values = st.SearchStrategy[Any]


def one_of(*values: Any) -> Values:
    return st.sampled_from(values)


# What is no value of any argument.
NOTHING: Values = st.builds(object) | one_of(b"\xff", 1j, math.nan, ..., INSIDE_ITSELF)
NO_TEXT = st.integers() | one_of("\ud800", ["t"], {"t": 1})
NO_NAME = NO_TEXT | one_of("", "A b", "a-b", "../x", "a" * 65, "ä", "x\0")
NO_NUMBER = st.text() | st.booleans() | st.floats() | one_of(-1, 10**30, -(10**5_000), [1])
NO_SECONDS = st.text() | st.booleans() | one_of(-1, -math.inf, math.inf, 10**400, [1])
NO_COLUMNS = st.integers() | one_of("nope", ["id", "nope"], [7], {"id": 1}, range(10**30), "\0")
NO_CONDITION = (
    st.integers()
    | one_of("", "((", "nope = 1", "id =", "id = '", "s = '\ud800'", "id = " + "9" * 5_000, "id + 1", "\0")
    | one_of([("id", ">", 1)], "(" * 5_000, "nothing(id)", "id = :missing", "id > (SELECT 1)", "id; DROP")
)
NO_SNAPSHOT = (
    st.booleans()
    | st.floats()
    | one_of(-1, 10**6, 2**70, "nope", "", "2026-01-01", datetime(2026, 1, 1), [1], "\ud800")  # noqa: DTZ001
)
NO_PATH = st.integers() | one_of("", "a\0b", None, ["a", 7], {"a": 1})
ROWS = {"id": [1, 2], "s": ["a", "b"], "v": [1, 2]}

# Of each parameter, by its name, what is invalid in each public method; more for some methods below.
INVALID: dict[str, Values] = {
    **dict.fromkeys(["name", "table", "index", "shard"], NO_NAME),
    **dict.fromkeys(["old", "key", "hash", "mode", "kind", "upkeep", "format", "delimiter", "job"], NO_TEXT),
    **dict.fromkeys(["when_matched", "when_not_matched"], NO_TEXT),
    **dict.fromkeys(["columns", "include", "names", "primary_key", "shard_key", "group_by"], NO_COLUMNS),
    **dict.fromkeys(["filter", "where"], NO_CONDITION),
    **dict.fromkeys(["snapshot", "to", "after", "upto"], NO_SNAPSHOT),
    **dict.fromkeys(["limit", "at", "if_unchanged_since"], NO_NUMBER),
    **dict.fromkeys(["page_rows", "page_bytes", "file_bytes"], NO_NUMBER | one_of(0)),
    **dict.fromkeys(["tablets", "slots"], NO_NUMBER | one_of(0, 65_537)),
    **dict.fromkeys(["tablet", "left", "right"], NO_NUMBER | one_of(99)),
    **dict.fromkeys(["grace_seconds", "orphan_seconds", "share", "retention_seconds"], NO_SECONDS),
    **dict.fromkeys(["on_progress"], st.integers() | st.text() | one_of([print])),
    **dict.fromkeys(["uri", "source", "target", "path"], NO_PATH),
    "parameters": st.integers() | st.text() | one_of({}, {"a": object()}, {"b": 1}, {1: 2}, [1]),
    "txn": st.integers() | st.text() | one_of(("a",), ("a", -1), ("a", 2**63), ("", 1), ("a\0", 1), {}),
    "user_metadata": st.integers() | st.text() | one_of({1: "x"}, {"a": 1}, {"a": "x" * 10**5}, ["a"]),
    "compression": st.integers() | one_of("rar", "", ["lz4"]),
    "period": st.integers(1) | st.booleans() | one_of("7", "7 days", "", timedelta(-1), "9" * 400 + "d"),
    "shards": st.integers()
    | one_of("S 9", [], {}, [7], ["s9", "s9"], {"s9": 7}, {"s9": ""}, ["A b"], {"s9": "foo://bar"}),
    "rows": st.integers()
    | st.text()
    | one_of([7], [{"nope": 1}], [{"id": 1}], ROWS | {"id": ["x", "y"]}, ROWS | {"id": 1}, pa.array([1]))
    | one_of(pa.table({"nope": [1]}), pa.table(ROWS | {"id": [None, 1]}), pa.table(ROWS | {"s": [1, 2]}))
    | one_of(ROWS | {"id": [1, 1]}, ROWS | {"id": [1, 2**70]}, ROWS | {"v": [1, 2**15]}, ROWS | {"s": ["a"]})
    | one_of(pa.table(ROWS | {"x": [1, 2]}), ROWS | {"s": ["a", "\ud800"]}, pa.schema([("id", pa.int64())])),
    "keys": st.integers()
    | st.text(min_size=1)
    | one_of([None], ["x"], [1.5], [(1, 2)], [{"s": 1}], pa.table({"s": ["x"]}), [2**70], [INSIDE_ITSELF])
    | one_of([True], [3, (4, 5)], [{"id": 3}, 4], pa.table({"id": [1.5]}), pa.table({"id": [1], "s": ["x"]})),
    "fields": st.integers()
    | one_of([], {}, "x", [7], {"_shard": "string"}, {"x": "nope"}, {"id": "int8"}, {"ID": "int64"})
    | one_of([pa.field("x", pa.int8(), nullable=False)], [pa.field("x", pa.int8())] * 2),
    "type": st.integers() | one_of("nope", pa.int8(), pa.uint64(), pa.float64(), pa.string(), [pa.int64()]),
    "order_by": NO_COLUMNS | one_of("id", ["s", "id DESC"], "s NULLS LAST", []),
    "schema": st.integers() | one_of("id bigint", [("id", "int64")], pa.schema([]), {}, [7]),
    "nulls": st.integers() | one_of([7], {"NA": 1}),
    "column_names": st.integers() | one_of([7], ["id", "id"], {"id": 1}),
    "types": st.integers() | st.text(min_size=1) | one_of({"id": "nope"}, {"x": "int8"}, {7: 7}),
    "values": st.integers() | one_of("", [], "count(", "sum(s)", "median(id)", {"id": "sum"}, "id"),
    "set": st.integers()
    | st.text()
    | one_of({}, {"nope": 1}, {"id": 1}, {"s": "(("}, {"s": object()}, {"s": "nope"}, {7: "1"}, {"s": 1 / 3}),
    "new": NO_TEXT | one_of("", " ", "ID", "s", "_slot"),
}
MORE: dict[str, Values] = {
    "Store.create_table.name": one_of("t"),
    "Store.create_table.primary_key": one_of([], ["id", "id"]),
    "Store.create_table.shard_key": one_of([], "s"),
    "Store.load.source": one_of([], "no-such-file.csv", ["no-such-file.csv"]),
    "Store.load.delimiter": one_of("", ";;", "\n", '"'),
    "Store.load.job": one_of("", "a\0b", "é" * 513),
    "Store.resume.key": one_of("", "x", "x" * 10_000, "é"),
    "Store.join.left": one_of(3),
    "Store.join.right": one_of(3),
    "Store.slot_map.limit": one_of(0),
    "Store.collect_garbage.share": one_of(2),
    "Table.insert.rows": one_of(ROWS),
    "Table.overwrite.rows": one_of(ROWS | {"id": [98, 99]}),
    "Table.restore.to": st.none(),
    "Table.create_index.index": one_of("auto", "key"),
    "Table.create_index.columns": one_of([], ["s", "s"]),
    "Table.drop_columns.names": one_of([], "id", "s"),
    "Table.rename_column.old": one_of("id", "s", "nope"),
    "Table.tag.name": one_of("17", "latest"),
    "Table.export.path": one_of("rows.csv"),
    "open.uri": one_of("nowhere.store", "s3://b/x", "sqlite://", "a.store/t"),
}
for method in ("scan", "to_arrow", "export", "get", "changes"):
    MORE[f"Table.{method}.columns"] = one_of([], ["id", "id"])

# Of each public method the arguments of a call that works.
FILTERED = {"filter": "id = :a", "parameters": {"a": 1}}
CALLS: dict[str, dict[str, Any]] = {
    "Store.create_table": {"name": "new", "schema": ROWS, "primary_key": "id"},
    "Store.table": {"name": "t"},
    "Store.load": {"table": "t", "source": "rows.csv"},
    "Store.resume": {"key": "…"},
    "Store.expand": {"shards": ["s3"]},
    "Store.contract": {"shard": "s1"},
    "Store.move": {"tablet": 2, "shard": "s2"},
    "Store.split": {"tablet": 2},
    "Store.join": {"left": 5, "right": 6},
    "Store.topology_history": {},
    "Store.slot_map": {},
    "Store.collect_garbage": {},
    "Store.backup": {"target": "backups"},
    "Table.upsert": {"rows": ROWS},
    "Table.insert": {"rows": ROWS | {"id": [77, 78]}},
    "Table.overwrite": {"rows": ROWS, "where": "id < :a", "parameters": {"a": 9}},
    "Table.delete": {"keys": [1]},
    "Table.update": {"set": {"s": "'x'"}, "where": "id < :a", "parameters": {"a": 9}},
    "Table.merge": {"rows": ROWS},
    "Table.restore": {"to": 2},
    **{f"Table.{name}": FILTERED for name in ("scan", "to_reader", "to_arrow", "to_pandas", "to_polars")},
    "Table.changes": FILTERED,
    "Table.export": {"path": "out.parquet", **FILTERED},
    "Table.aggregate": {"values": "count(*)", **FILTERED},
    "Table.get": {"keys": [1]},
    "Table.create_index": {"index": "i", "columns": "s"},
    "Table.drop_index": {"index": "by_s"},
    "Table.add_columns": {"fields": {"x": "int8"}},
    "Table.drop_columns": {"names": "v"},
    "Table.rename_column": {"old": "v", "new": "w"},
    "Table.widen_column": {"name": "v", "type": "int64"},
    "Table.history": {},
    "Table.tag": {"name": "new"},
    "Table.drop_tag": {"name": "then"},
    "Table.set_retention": {"period": "7d"},
    "Table.set_compression": {"compression": "lz4"},
    "create": {"uri": "new.store", "shards": ["s1"]},
    "open": {"uri": "a.store"},
}
# Methods of a truth value alone, for the layers above, or of Arrow's protocol.
LEFT_OUT = {"Store.rotate_secret", "Scan.part", "Scan.parts"}
# Parameters that are truth values, or for tests alone, and what other arguments leave unused.
NOT_CHECKED = {"feed", "keep_missing", "dry_run", "read_only", "clock", "disks", "how"}
UNUSED = {"Store.load": {"primary_key", "shard_key", "compression"}, "Table.delete": {"parameters"}}


def options(name: str) -> list[str]:
    """Return the parameters of a public method of which something is invalid."""
    owner, _, method = name.rpartition(".")
    parameters = {*inspect.signature(getattr(Table if owner == "Table" else Store, method)).parameters}
    if "how" in parameters and owner == "Table":
        parameters |= Reading.__annotations__.keys()
    return sorted(parameters - NOT_CHECKED - UNUSED.get(name, set()) - {"self"})


def invalid(name: str, option: str) -> Values:
    return NOTHING | INVALID[option] | MORE.get(f"{name}.{option}", st.nothing())


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
    result = called(store, name)(**CALLS[name] | others)
    if isinstance(result, Scan):
        result.to_table()


def refused(store: Store, *, name: str, option: str, value: Any) -> None:
    """Check one call with an invalid argument."""
    place = Path(store.uri).parent
    before = state(store, place)
    with pytest.raises(ALLOWED) as caught:
        call(store, name, **{option: value})
    if isinstance(caught.value, ElasticScanError):
        str(caught.value).encode()
    assert state(store, place) == before


@pytest.mark.parametrize("name", [name for name in CALLS if options(name)])
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_an_invalid_argument_is_refused_and_nothing_is_written(
    store: Store, name: str, data: st.DataObject
) -> None:
    option = data.draw(st.sampled_from(options(name)), "option")
    refused(store, name=name, option=option, value=data.draw(invalid(name, option), "value"))


@pytest.mark.parametrize("name", CALLS)
def test_the_calls_work_without_an_invalid_argument(place: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(place, tmp_path / "place")
    with contextlib.chdir(tmp_path / "place"), Store.open("a.store", upkeep="off") as store:
        store.adopt()
        others = {"key": next(store.table("t").scan(page_rows=1)).key} if name == "Store.resume" else {}
        call(store, name, **others)


def test_a_handle_of_a_dropped_table_finds_nothing_and_touches_no_other_of_its_name(
    place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place, tmp_path / "place")
    calls = CALLS | {f"Table.{name}": {} for name in ("indexes", "tags", "compact", "drop")}
    methods = {name[6:]: given for name, given in calls.items() if name.startswith("Table.")}
    with contextlib.chdir(tmp_path / "place"), Store.open("a.store", upkeep="off") as store:
        store.adopt()
        dropped = store.table("t")

        def check(error: type[ElasticScanError], message: str) -> None:
            with pytest.raises(error, match=message):
                _ = dropped.schema
            for name, given in methods.items():
                with pytest.raises(error, match=message):
                    getattr(dropped, name)(**given)

        with Store.open("a.store") as other:
            other.table("t").drop()
        check(NotFound, "'t'")
        made = store.create_table("t", ROWS, "id")
        check(TableChanged, r"take a new handle with Store\.table")
        assert made.to_arrow().num_rows == 2 and made.schema.names == list(ROWS)


def test_every_public_method_with_arguments_is_called() -> None:
    there = {
        f"{kind.__name__}.{name}"
        for kind in (Store, Table, Scan)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and len(inspect.signature(member).parameters) > 1
    }
    assert there - LEFT_OUT == set(CALLS) - {"create", "open"}
