"""Files to load rows from: nested types, names of directories, INT96. More is in `tests/cli/transcripts`."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from elasticscan.base.errors import SchemaMismatch
from elasticscan.store import Store

MOMENT = pa.timestamp("us", "UTC")
AT = datetime(2024, 3, 1, 10, tzinfo=UTC)
IN_DAYS = pa.struct({"days": pa.list_(pa.date32())})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "made.store", ["s1", "s2"], tablets=4) as store:
        yield store


def test_json_is_read_in_the_types_of_the_table_unless_they_would_change_a_value(
    store: Store, tmp_path: Path
) -> None:
    kinds = {"id": pa.int64(), "d": pa.decimal128(10, 2), "at": MOMENT, "in": IN_DAYS}
    table = store.create_table("t", pa.schema(list(kinds.items())), "id")
    row = {"id": 1, "d": 1.5, "at": "2024-03-01T12:00:00+02:00", "in": {"days": ["2024-03-05", None]}}
    (file := tmp_path / "rows.jsonl").write_text(json.dumps(row))
    store.load("t", file)
    days = {"days": [date(2024, 3, 5), None]}
    assert table.to_arrow().to_pylist() == [{"id": 1, "d": Decimal("1.50"), "at": AT, "in": days}]
    for change in ({"at": "2024-03-01T10:00"}, {"d": 1.234}):
        file.write_text(json.dumps(row | change | {"id": 2}))
        with pytest.raises(SchemaMismatch, match=r"rows\.jsonl cannot be read"):
            store.load("t", file)
    assert table.scan().count() == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"id,stra\xdfe\n1,x\n"),
        ("a.csv", b"id,v\n1,stra\xdfe\n"),
        ("a.jsonl", b'{"id": 1, "v": {"stra\xdfe": ["stra\xdfe"]}}\n'),
    ],
)
def test_a_file_of_another_encoding_is_named_and_nothing_is_made_of_it(
    store: Store, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    there = store.create_table("there", pa.schema([("id", pa.int64()), ("v", pa.string())]), "id")
    for table in ("new", "there"):
        with pytest.raises(SchemaMismatch, match=f"{name} cannot be read: "):
            store.load(table, tmp_path / name, primary_key="id")
    assert [table.name for table in store.tables()] == ["there"]
    assert there.scan().count() == 0
    if name == "a.csv":  # it can be read as bytes
        (tmp_path / name).write_bytes('id,v\n1,"å\nb"\n'.encode("latin-1"))
        store.load("u", tmp_path / name, primary_key="id", types={"v": "binary"})
        assert store.table("u").to_arrow()["v"].to_pylist() == [b"\xe5\nb"]


def test_a_field_of_json_that_comes_after_the_first_block_is_not_dropped(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl.gz"
    rows = "".join(f'{{"id":{at},"v":"{"x" * 1000}"}}\n' for at in range(35_000))
    path.write_bytes(gzip.compress(f'{rows}{{"id":-1,"w":1}}\n'.encode(), 1))
    with pytest.raises(SchemaMismatch, match="unexpected field"):
        store.load("t", path, primary_key="id")
    assert not store.tables()


# Names of directories


def in_directory(folder: Path, form: str, rows: list[dict[str, Any]]) -> None:
    pyarrow.dataset.write_dataset(pa.Table.from_pylist(rows), folder, format=form)


def test_the_name_counts_where_files_have_such_a_column(store: Store, tmp_path: Path) -> None:
    in_directory(tmp_path / "in/year=2023", "csv", [{"id": 1, "year": "x"}])
    in_directory(tmp_path / "in/year=2024", "parquet", [{"id": 2, "year": "x"}])
    store.load("t", tmp_path / "in", primary_key="id")
    rows = store.table("t").to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "year": 2023}, {"id": 2, "year": 2024}]


def test_a_name_that_is_no_value_of_its_column_is_reported_so(store: Store, tmp_path: Path) -> None:
    in_directory(tmp_path / "in/year=2023", "csv", [{"id": 1}])
    in_directory(tmp_path / "in/year=soon", "parquet", [{"id": 2}])
    table = store.create_table("t", pa.schema([("id", pa.int64()), ("year", pa.int16())]), ["id"])
    for name, types in (("t", None), ("u", {"year": "int64"})):
        with pytest.raises(SchemaMismatch, match=r"year=soon.* 'soon'"):
            store.load(name, tmp_path / "in", primary_key="id", types=types)
    assert table.scan().count() == 0
    assert [each.name for each in store.tables()] == ["t"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (MOMENT, "2024-03-01T12:00+02:00", AT),
        ("string", "a%20b", "a b"),
        ("int64", "__HIVE_DEFAULT_PARTITION__", None),
    ],
)
def test_a_named_type_is_that_of_the_column(
    store: Store, tmp_path: Path, kind: Any, text: str, value: Any
) -> None:
    in_directory(tmp_path / f"in/k={text}", "parquet", [{"id": 1}])
    store.load("t", tmp_path / "in", primary_key="id", types={"k": kind})
    assert store.table("t").to_arrow().to_pylist() == [{"id": 1, "k": value}]


@pytest.mark.parametrize("name", [b"k=\xe4", b"k=%E4"])
def test_a_directory_whose_name_is_not_utf_8_is_an_error(store: Store, tmp_path: Path, name: bytes) -> None:
    in_directory(tmp_path / "in/k=1", "parquet", [{"id": 1}])
    os.rename(tmp_path / "in/k=1", os.fsencode(tmp_path / "in") + b"/" + name)  # noqa: PTH104 - bytes
    for source in (tmp_path / "in", f"{tmp_path}/in/*/*.parquet"):
        with pytest.raises(SchemaMismatch, match="not UTF-8; convert them"):
            store.load("t", source, primary_key="id")
    assert not store.tables()


# Times of INT96, as Spark writes them by default

LAST = datetime(9999, 12, 31, tzinfo=UTC)
FIRST = datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
KINDS = {
    "id": pa.int64(),
    "at": MOMENT,
    "in": pa.struct({"n": pa.int32(), "at": pa.list_(MOMENT)}),
    "by": pa.map_(pa.string(), MOMENT),
}
ROWS = [
    {"id": 1, "at": LAST, "in": {"n": 1, "at": [FIRST, None, LAST]}, "by": [("x", LAST)]},
    {"id": 2, "at": FIRST, "in": None, "by": [("y", FIRST)]},
    {"id": 3, "at": None, "in": {"n": None, "at": []}, "by": None},
]


def test_times_of_int96_are_moments_in_every_year(store: Store, tmp_path: Path) -> None:
    file, table = tmp_path / "spark.parquet", pa.Table.from_pylist(ROWS, pa.schema(list(KINDS.items())))
    pyarrow.parquet.write_table(table, file, use_deprecated_int96_timestamps=True, store_schema=False)
    store.load("t", file, primary_key="id")
    store.create_table("there", table.schema, "id")  # with the types of Spark's TIMESTAMP
    store.load("there", file, job="j")
    for name in ("t", "there"):
        read = store.table(name).to_arrow().sort_by("id")
        assert read.schema.remove_metadata().types == table.schema.types
        assert read.to_pylist() == ROWS
    store.create_table("without", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))]), "id")
    pyarrow.parquet.write_table(table.select(["id", "at"]), file, use_deprecated_int96_timestamps=True)
    store.load("without", file)
    times = store.table("without").to_arrow().sort_by("id")["at"].to_pylist()
    assert times == [LAST.replace(tzinfo=None), FIRST.replace(tzinfo=None), None]
