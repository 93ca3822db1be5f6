"""Files to load rows from: types of CSV and JSON, names of directories as columns, times of INT96."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.store import Store

MOMENT = pa.timestamp("us", "UTC")
AT = datetime(2024, 3, 1, 10, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "made.store", ["s1", "s2"], tablets=4) as store:
        yield store


def loaded(store: Store, path: Path, **how: Any) -> tuple[pa.DataType, list[Any]]:
    store.load("t", path, primary_key="id", **how)
    rows = store.table("t").to_arrow().sort_by("id")
    return rows["v"].type, rows["v"].to_pylist()


# CSV and JSON


def csv_of(place: Path, *values: str) -> Path:
    place.write_text("id,v\n" + "".join(f"{at},{value}\n" for at, value in enumerate(values)))
    return place


def json_of(place: Path, *values: str) -> Path:
    """Write rows whose `v` is a piece of JSON."""
    place.write_text("".join(f'{{"id":{at},"v":{value}}}\n' for at, value in enumerate(values)))
    return place


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["20240301", "-7"], "int64"),
        (["0.5", "1e+30"], "double"),
        (["true", "false"], "bool"),
        (["2024-03-05"], "date32[day]"),
        (["2024-03-05 10:00:00.25", "2024-03-05 10:00:00"], "timestamp[us]"),
        (["2024-03-05T10:00Z", "2024-03-05 10:00+02:00"], "timestamp[us, tz=UTC]"),
        (["10:00", "x"], "string"),
        (["NULL", '""'], "string"),
        (["", ""], "string"),
    ],
)
def test_a_new_column_of_csv_has_the_type_that_arrow_infers(
    store: Store, tmp_path: Path, values: list[str], kind: str
) -> None:
    found, rows = loaded(store, csv_of(tmp_path / "rows.csv", *values))
    assert str(found) == kind
    if kind == "string":
        assert rows == ["" if value == '""' else value or None for value in values]


def test_types_of_csv_are_named_or_those_of_the_table(store: Store, tmp_path: Path) -> None:
    path = csv_of(tmp_path / "rows.csv", "007", "5")
    assert loaded(store, path, types={"v": "string"}) == (pa.string(), ["007", "5"])
    assert loaded(store, path) == (pa.string(), ["007", "5"])
    with pytest.raises(InvalidOption, match="types name 'Kms'; the columns are id, v"):
        store.load("t", path, types={"Kms": "int64"})


def test_csv_values_may_have_line_ends_and_bytes(store: Store, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes('id,v\n1,"å\nb"\n'.encode("latin-1"))
    assert loaded(store, tmp_path / "rows.csv", types={"v": "binary"}) == (pa.binary(), [b"\xe5\nb"])


@pytest.mark.parametrize(
    ("values", "kind", "rows"),
    [
        (["1", "null"], pa.int64(), [1, None]),
        (["6.02e23", "1"], pa.float64(), [6.02e23, 1.0]),
        (['"007"', '"2024-03-01T10:00Z"'], pa.string(), ["007", "2024-03-01T10:00Z"]),
        (['{"at": [null, "2024-03-01T10:00Z"]}'], None, [{"at": [None, "2024-03-01T10:00Z"]}]),
    ],
)
def test_json_keeps_its_kinds(
    store: Store, tmp_path: Path, values: list[str], kind: pa.DataType, rows: list[Any]
) -> None:
    found = loaded(store, json_of(tmp_path / "rows.jsonl", *values))
    assert found == (kind or pa.struct({"at": pa.list_(pa.string())}), rows)


def test_a_file_whose_only_value_is_null_is_an_error(store: Store, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("null\n")
    with pytest.raises(SchemaMismatch, match="has to be one object"):
        store.load("t", tmp_path / "rows.jsonl", primary_key="id")


@pytest.mark.parametrize("value", ["1e400", "[1", '"x"}\n{"id":1,"v":1'])
def test_json_that_arrow_refuses_is_an_error_that_names_the_file(
    store: Store, tmp_path: Path, value: str
) -> None:
    with pytest.raises(SchemaMismatch, match=r"rows\.jsonl cannot be read: JSON parse error"):
        store.load("t", json_of(tmp_path / "rows.jsonl", value), primary_key="id")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int32(), "7", 7),
        (pa.float64(), "1", 1.0),
        (pa.decimal128(10, 2), "1.5", Decimal("1.50")),
        (pa.date32(), '"2024-03-05"', date(2024, 3, 5)),
        (pa.string(), '"2024-03-05"', "2024-03-05"),
        (MOMENT, '"2024-03-01T12:00:00+02:00"', AT),
        (pa.list_(pa.int16()), "[1, null]", [1, None]),
        (
            pa.struct({"days": pa.list_(pa.date32())}),
            '{"days": ["2024-03-05"]}',
            {"days": [date(2024, 3, 5)]},
        ),
    ],
)
def test_json_is_read_in_the_types_of_the_table(
    store: Store, tmp_path: Path, kind: pa.DataType, text: str, value: Any
) -> None:
    store.create_table("t", pa.schema([("id", pa.int64()), ("v", kind)]), "id")
    assert loaded(store, json_of(tmp_path / "rows.jsonl", text, "null"))[1] == [value, None]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.timestamp("us"), '"2024-03-01T12:00:00+02:00"'),
        (MOMENT, '"2024-03-01T10:00"'),
        (pa.int8(), "300"),
        (pa.int64(), "1.5"),
        (pa.decimal128(5, 2), "1.234"),
    ],
)
def test_a_value_of_json_that_the_type_of_the_table_would_change_is_an_error(
    store: Store, tmp_path: Path, kind: pa.DataType, text: str
) -> None:
    table = store.create_table("t", pa.schema([("id", pa.int64()), ("v", kind)]), "id")
    with pytest.raises(SchemaMismatch, match=r"rows\.jsonl cannot be read"):
        store.load("t", json_of(tmp_path / "rows.jsonl", text))
    assert table.scan().count() == 0


def test_a_field_of_json_that_comes_after_the_first_block_is_not_dropped(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl.gz"
    rows = "".join(f'{{"id":{at},"v":"{"x" * 1000}"}}\n' for at in range(35_000))
    path.write_bytes(gzip.compress(f'{rows}{{"id":-1,"w":1}}\n'.encode(), 1))
    with pytest.raises(SchemaMismatch, match="unexpected field"):
        store.load("t", path, primary_key="id")
    assert not store.tables()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.csv", "id,stra\xdfe\n1,x\n"),
        ("rows.csv", "id,v\n1,stra\xdfe\n"),
        ("rows.jsonl", '{"id": 1, "stra\xdfe": "x"}\n'),
        ("rows.jsonl", '{"id": 1, "v": {"stra\xdfe": [1]}}\n'),
        ("rows.jsonl", '{"id": 1, "v": ["stra\xdfe"]}\n'),
    ],
)
def test_text_that_is_not_utf_8_is_an_error(store: Store, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    there = store.create_table("there", pa.schema([("id", pa.int64()), ("v", pa.string())]), "id")
    for table in ("new", "there"):
        with pytest.raises(SchemaMismatch, match=rf"{name} cannot be read: "):
            store.load(table, tmp_path / name, primary_key="id")
    assert [table.name for table in store.tables()] == ["there"]
    assert there.scan().count() == 0


# Names of directories


def written(folder: Path, form: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    if form == "json":
        (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif form == "csv":
        pyarrow.csv.write_csv(pa.Table.from_pylist(rows), folder / "a.csv")
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_name_counts_where_files_have_such_a_column(store: Store, tmp_path: Path, form: str) -> None:
    written(tmp_path / "in/year=2023", form, [{"id": 1, "year": "x"}])
    written(tmp_path / "in/year=2024", form, [{"id": 2, "year": "x"}])
    store.load("t", tmp_path / "in", primary_key="id")
    rows = store.table("t").to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "year": 2023}, {"id": 2, "year": 2024}]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_a_name_that_is_no_value_of_its_column_is_reported_so(
    store: Store, tmp_path: Path, form: str
) -> None:
    written(tmp_path / "in/year=2023", form, [{"id": 1}])
    written(tmp_path / "in/year=soon", form, [{"id": 2}])
    table = store.create_table("t", pa.schema([("id", pa.int64()), ("year", pa.int16())]), ["id"])
    for name, types in (("t", None), ("u", {"year": "int64"})):
        with pytest.raises(SchemaMismatch, match=r"year=soon.* 'soon'"):
            store.load(name, tmp_path / "in", primary_key="id", types=types)
    assert table.scan().count() == 0
    assert [each.name for each in store.tables()] == ["t"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("date32", "2024-03-05", date(2024, 3, 5)),
        (pa.timestamp("us", "UTC"), "2024-03-05T12:00+02:00", datetime(2024, 3, 5, 10, tzinfo=UTC)),
        (pa.decimal128(6, 2), "2024", Decimal("2024.00")),
        ("string", "a%20b", "a b"),
        ("int64", "__HIVE_DEFAULT_PARTITION__", None),
    ],
)
def test_a_named_type_is_that_of_the_column(tmp_path: Path, kind: Any, text: str, value: Any) -> None:
    written(tmp_path / f"in/k={text}", "parquet", [{"id": 1}])
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        store.load("t", tmp_path / "in", primary_key="id", types={"k": kind})
        assert store.table("t").to_arrow().to_pylist() == [{"id": 1, "k": value}]


@pytest.mark.parametrize("name", [b"k=\xe4", b"k=%E4"])
def test_a_directory_whose_name_is_not_utf_8_is_an_error(tmp_path: Path, name: bytes) -> None:
    written(tmp_path / "in/k=1", "parquet", [{"id": 1}])
    os.rename(tmp_path / "in/k=1", os.fsencode(tmp_path / "in") + b"/" + name)  # noqa: PTH104 - bytes
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        for source in (tmp_path / "in", f"{tmp_path}/in/*/*.parquet"):
            with pytest.raises(SchemaMismatch, match="not UTF-8; convert them"):
                store.load("t", source, primary_key="id")
        assert not store.tables()


LAST = datetime(9999, 12, 31, tzinfo=UTC)
FIRST = datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


def _int96(path: Path) -> list[dict[str, Any]]:
    """Write times as Spark does by default, and return the rows."""
    naive = pa.timestamp("us")
    kinds = {
        "id": pa.int64(),
        "at": naive,
        "in": pa.struct({"n": pa.int32(), "at": pa.list_(naive)}),
        "by": pa.map_(pa.string(), naive),
        "name": pa.string(),
    }
    rows = [
        {"id": 1, "at": LAST, "in": {"n": 1, "at": [FIRST, None, LAST]}, "by": [("x", LAST)], "name": "a"},
        {"id": 2, "at": FIRST, "in": None, "by": [("y", FIRST)], "name": None},
        {"id": 3, "at": None, "in": {"n": None, "at": []}, "by": None, "name": "c"},
    ]
    moments = [pa.array([row[name] for row in rows], _zoned(kind)).cast(kind) for name, kind in kinds.items()]
    table = pa.table(dict(zip(kinds, moments, strict=True)))
    pyarrow.parquet.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
    return rows


def _zoned(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _zoned(part.type)) for part in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _zoned(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_zoned(kind.value_type))
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) else kind


def test_times_of_int96_are_moments_in_every_year(tmp_path: Path) -> None:
    rows = _int96(tmp_path / "spark.parquet")
    moment = pa.timestamp("us", "UTC")
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        store.load("t", tmp_path / "spark.parquet", primary_key="id")
        kinds = store.table("t").schema
        assert kinds.field("at").type == moment
        assert kinds.field("in").type == pa.struct({"n": pa.int32(), "at": pa.list_(moment)})
        assert kinds.field("by").type == pa.map_(pa.string(), moment)
        assert store.table("t").to_arrow().sort_by("id").to_pylist() == rows
        store.create_table("there", kinds, "id")  # with the types of Spark's TIMESTAMP
        store.load("there", tmp_path / "spark.parquet", job="j")
        assert store.table("there").to_arrow().sort_by("id").to_pylist() == rows


def test_times_of_int96_go_into_a_column_without_zone(tmp_path: Path) -> None:
    _int96(tmp_path / "spark.parquet")
    columns = ["id", "at"]
    kept = pyarrow.parquet.read_table(
        tmp_path / "spark.parquet", columns=columns, coerce_int96_timestamp_unit="us"
    )
    pyarrow.parquet.write_table(kept, tmp_path / "two.parquet", use_deprecated_int96_timestamps=True)
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        store.create_table("t", schema, "id")
        store.load("t", tmp_path / "two.parquet")
        assert store.table("t").to_arrow().sort_by("id")["at"].to_pylist()[0] == LAST.replace(tzinfo=None)


def test_rows_are_written_while_another_thread_imports_what_reads_files(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.dataset", ModuleType("pyarrow.dataset"))  # as far as it got
    table = store.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), ["id"])
    table.upsert({"id": [1, 2]})
    assert table.get([2]).num_rows == 1
