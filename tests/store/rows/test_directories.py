"""Columns that names of directories give."""

from __future__ import annotations

import json
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
                SchemaMismatch, match=r"named year=soon, .* column 'year', which is int.*--type"
            ) as message:
                store.load(name, tmp_path / "in", primary_key="id", types=types)
            assert message.value.fields["column"] == "year"
        assert table.scan().count() == 0
        assert [each.name for each in store.tables()] == ["t"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("date32", "2024-03-05", date(2024, 3, 5)),
        (pa.timestamp("us", "UTC"), "2024-03-05 10%3A00%3A00", datetime(2024, 3, 5, 10, tzinfo=UTC)),
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


def test_rules_that_nothing_would_follow_are_refused(tmp_path: Path) -> None:
    for form in ("csv", "json", "parquet"):
        written(tmp_path / form, form, [{"id": 1, "km": 2}])
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        for _ in range(2):  # once for a new table, once for one that is there
            with pytest.raises(InvalidOption, match=r"types name a column 'Kms', .*did you mean 'km'"):
                store.load("t", tmp_path / "csv", primary_key="id", types={"Kms": "int64"})
            with pytest.raises(InvalidOption, match="'km' comes of parquet, which have types of their own"):
                store.load("t", tmp_path / "parquet", primary_key="id", types={"km": "int64"})
            for form in ("json", "parquet"):
                with pytest.raises(InvalidOption, match=f"nulls are for CSV, and the files are {form}"):
                    store.load("t", tmp_path / form, primary_key="id", nulls=["NA"])
            store.load("t", tmp_path / "csv", primary_key="id", types={"km": "int64"}, nulls=["NA"])
