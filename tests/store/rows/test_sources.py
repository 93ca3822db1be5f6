"""Files to load rows from: names of directories as columns, times of INT96, and parts of Parquet."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.store import Store


def written(folder: Path, form: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    if form == "json":
        (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif form == "csv":
        pyarrow.csv.write_csv(pa.Table.from_pylist(rows), folder / "a.csv")
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
@pytest.mark.parametrize(("own", "years"), [("x", ["2023", "2024"]), (7, [2023, 2024])])
def test_the_name_counts_where_files_have_such_a_column_in_their_type(
    tmp_path: Path, form: str, own: Any, years: list[Any]
) -> None:
    written(tmp_path / "in/year=2023", form, [{"id": 1, "year": own}])
    written(tmp_path / "in/year=2024", form, [{"id": 2, "year": own}])
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        store.load("t", tmp_path / "in", primary_key="id")
        rows = store.table("t").to_arrow().sort_by("id").to_pylist()
        assert rows == [{"id": 1, "year": years[0]}, {"id": 2, "year": years[1]}]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_a_name_that_is_no_value_of_its_column_is_reported_so(tmp_path: Path, form: str) -> None:
    written(tmp_path / "in/year=2023", form, [{"id": 1}])
    written(tmp_path / "in/year=soon", form, [{"id": 2}])
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("year", pa.int16())]), ["id"])
        for name, types in (("t", None), ("u", {"year": "int64"})):
            with pytest.raises(
                SchemaMismatch, match=r"year=soon.*: column 'year'.* of type int.*types={'year': 'string'}"
            ):
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


def test_a_type_of_a_column_that_there_is_not_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "csv", "csv", [{"id": 1, "km": 2}])
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        for _ in range(2):  # once for a new table, once for one that is there
            with pytest.raises(InvalidOption, match=r"types name 'Kms', which is no column; .*km"):
                store.load("t", tmp_path / "csv", primary_key="id", types={"Kms": "int64"})
            store.load("t", tmp_path / "csv", primary_key="id", types={"km": "int64"})


def test_digits_of_a_directory_stay_as_they_are(tmp_path: Path) -> None:
    written(tmp_path / "in/zip=01234", "parquet", [{"id": 1}])
    written(tmp_path / "in/zip=54321", "parquet", [{"id": 2}])
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        store.load("t", tmp_path / "in", primary_key="id")
        assert sorted(store.table("t").to_arrow()["zip"].to_pylist()) == ["01234", "54321"]


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
