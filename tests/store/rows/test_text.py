"""CSV and JSON lines: types that change no value, and text that is not UTF-8."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticscan.base.errors import SchemaMismatch
from elasticscan.store import Store

MOMENT = pa.timestamp("us", "UTC")
AT = datetime(2024, 3, 1, 10, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "made.store", ["s1", "s2"], tablets=4) as store:
        yield store


def csv_of(place: Path, *values: str) -> Path:
    place.write_text("id,v\n" + "".join(f"{at},{value}\n" for at, value in enumerate(values)))
    return place


def json_of(place: Path, *values: str) -> Path:
    """Rows whose `v` is a piece of JSON."""
    place.write_text("".join(f'{{"id":{at},"v":{value}}}\n' for at, value in enumerate(values)))
    return place


def loaded(store: Store, path: Path, **how: Any) -> tuple[pa.DataType, list[Any]]:
    store.load("t", path, primary_key="id", **how)
    rows = store.table("t").to_arrow().sort_by("id")
    return rows["v"].type, rows["v"].to_pylist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["0xFFFFFFFFFFFFFFFF"], "string"),
        (["0x10", "3"], "string"),
        (["+4915112345678"], "string"),
        (["+49", "0.5"], "string"),
        (["9007199254740993", "0.5"], "string"),
        (["9223372036854775808"], "string"),
        (["1e400"], "string"),
        (["12e4", "7e1"], "string"),
        (["01234", ""], "string"),
        (["00.5"], "string"),
        (["-0"], "string"),
        (["TRUE", "0"], "string"),
        (["NA", "3"], "string"),
        (["20240301", "-7"], "int64"),
        (["9223372036854775807"], "int64"),
        (["0.5", "1e+30", "-inf", "nan"], "double"),
        (["True", "false"], "bool"),
        (["2024-03-05"], "date32[day]"),
        (["2024-03-05", "2024-03-05 10:00:00.25"], "timestamp[us]"),
        (["2024-03-05T10:00Z", "2024-03-05 10:00+02:00"], "timestamp[us, tz=UTC]"),
        (["2024-03-05T10:00Z", "2024-03-05T10:00"], "string"),
        (["2024-03-05T10:00:00.1234567Z"], "string"),
        (["2024-02-30"], "string"),
        (["", ""], "string"),
    ],
)
def test_a_csv_column_has_the_first_type_that_changes_no_value(
    store: Store, tmp_path: Path, values: list[str], kind: str
) -> None:
    found, rows = loaded(store, csv_of(tmp_path / "rows.csv", *values))
    assert str(found) == kind
    if kind == "string":
        assert rows == [value or None for value in values]


@pytest.mark.parametrize("value", ["0x10", "007", "+5", "9007199254740993", "1e400"])
@pytest.mark.parametrize("first", ["1", "1.5"])
def test_rows_after_the_sample_of_csv_keep_the_rule(
    store: Store, tmp_path: Path, value: str, first: str
) -> None:
    (tmp_path / "in").mkdir()
    csv_of(tmp_path / "in/a.csv", first)
    (tmp_path / "in/b.csv").write_text(f"id,v\n9,{value}\n")
    if (value, first) == ("9007199254740993", "1"):
        assert loaded(store, tmp_path / "in")[1] == [1, 9007199254740993]
        return
    with pytest.raises(SchemaMismatch, match=r"b\.csv .*column 'v'.*types={'v': 'string'}"):
        store.load("t", tmp_path / "in", primary_key="id")
    assert not store.tables()
    assert loaded(store, tmp_path / "in", types={"v": "string"})[1] == [first, value]


def test_a_table_that_is_there_and_named_types_count(store: Store, tmp_path: Path) -> None:
    path = csv_of(tmp_path / "rows.csv", "007", "+5".removeprefix("+"))
    assert loaded(store, path, types={"v": "int32"}) == (pa.int32(), [7, 5])
    store.load("t", path)
    with pytest.raises(SchemaMismatch, match="'0xFF', which int32 would change"):
        store.load("t", csv_of(tmp_path / "rows.csv", "0xFF"))


@pytest.mark.parametrize(
    ("values", "kind", "rows"),
    [
        (["1", "null"], pa.int64(), [1, None]),
        (["9223372036854775807"], pa.int64(), [9223372036854775807]),
        (["6.02e23", "1", "9007199254740992"], pa.float64(), [6.02e23, 1.0, 9007199254740992.0]),
        (['"007"', '"5"'], pa.string(), ["007", "5"]),
        (['"2024-03-05"'], pa.date32(), [date(2024, 3, 5)]),
        (['"2024-03-01T12:00:00.0+02:00"', '"2024-03-01 10:00Z"'], MOMENT, [AT, AT]),
        (['"2024-03-01T10:00:00"', '"2024-03-01 10:00"'], pa.timestamp("us"), [AT.replace(tzinfo=None)] * 2),
        (['"2024-03-01T10:00Z"', '"2024-03-01"'], pa.string(), ["2024-03-01T10:00Z", "2024-03-01"]),
        (
            ['{"at": [null, "2024-03-01T10:00Z"], "n": 1}'],
            pa.struct({"at": pa.list_(MOMENT), "n": pa.int64()}),
            [{"at": [None, AT], "n": 1}],
        ),
    ],
)
def test_json_keeps_its_kinds_and_its_texts_may_be_times(
    store: Store, tmp_path: Path, values: list[str], kind: pa.DataType, rows: list[Any]
) -> None:
    assert loaded(store, json_of(tmp_path / "rows.jsonl", *values)) == (kind, rows)


@pytest.mark.parametrize(
    "values",
    [
        ["18446744073709551615"],
        ["9007199254740993", "0.5"],
        ["[18446744073709551615]"],
        ['{"a": [{"b": 18446744073709551615}]}'],
        ["0.5", "6.02e23", "9007199254740993"],
        ["0.5", "9" * 400],
    ],
)
def test_a_whole_number_of_json_is_never_rounded(store: Store, tmp_path: Path, values: list[str]) -> None:
    path = json_of(tmp_path / "rows.jsonl", *values)
    with pytest.raises(
        SchemaMismatch, match=r"column 'v' has a whole number .*types={'v': pyarrow.decimal128\(38\)}"
    ):
        store.load("t", path, primary_key="id")
    assert not store.tables()


def test_a_large_whole_number_of_json_is_loaded_as_a_decimal(store: Store, tmp_path: Path) -> None:
    path = json_of(tmp_path / "rows.jsonl", "18446744073709551615")
    kind = pa.decimal128(20)
    assert loaded(store, path, types={"v": kind}) == (kind, [Decimal(18446744073709551615)])


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


def test_a_field_of_json_may_have_the_name_of_a_directory(store: Store, tmp_path: Path) -> None:
    (tmp_path / "in/k=2").mkdir(parents=True)
    json_of(tmp_path / "in/k=2/a.jsonl", "18446744073709551615")
    text = (tmp_path / "in/k=2/a.jsonl").read_text().replace('"v"', '"k"')
    (tmp_path / "in/k=2/a.jsonl").write_text(text)
    store.load("t", tmp_path / "in", primary_key="id", types={"k": "int64"})
    assert store.table("t").to_arrow().to_pylist() == [{"id": 0, "k": 2}]


def test_bytes_of_csv_are_kept_where_the_type_is_binary(store: Store, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes("id,v\n1,å\n".encode("latin-1"))
    assert loaded(store, tmp_path / "rows.csv", types={"v": "binary"}) == (pa.binary(), [b"\xe5"])


def test_csv_values_may_have_line_ends_and_blanks_around_them(store: Store, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('id,v,n\n1,"a\nb", 3\n')
    store.load("t", tmp_path / "rows.csv", primary_key="id")
    assert store.table("t").to_arrow().to_pylist() == [{"id": 1, "v": "a\nb", "n": 3}]
