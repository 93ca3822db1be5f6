"""Files of many kinds into tables: found, read as they are, and loaded again where a load was stopped.

More is in `tests/cli/transcripts`.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.orc
import pyarrow.parquet
import pytest

from elasticscan.base.errors import AlreadyExists, InvalidOption, SchemaMismatch
from elasticscan.store import Store
from tests.base.s3 import S3Server

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "name": [None, *(f"n{n % 7}" for n in range(99))]})


def read(store: Store, table: str = "t") -> list[dict[str, Any]]:
    return store.table(table).scan().to_table().sort_by("id").to_pylist()


WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    "a.parquet": pyarrow.parquet.write_table,
    "b.csv": pyarrow.csv.write_csv,
    "c.jsonl": lambda rows, path: path.write_text("\n".join(map(json.dumps, rows.to_pylist()))),
    "d.orc": pyarrow.orc.write_table,
}


def test_a_directory_of_files_of_every_kind_is_one_commit(store: Store, tmp_path: Path) -> None:
    below = tmp_path / "in" / "deep"
    below.mkdir(parents=True)
    for number, (name, write) in enumerate(WRITERS.items()):
        write(ROWS.slice(number * 25, 25), below / name)
    (below / "_SUCCESS").touch()
    loaded = store.load("t", tmp_path / "in", primary_key="id")
    assert (loaded.rows, loaded.created) == (100, True)
    assert read(store) == ROWS.to_pylist()
    assert [commit.number for commit in store.table("t").history()][1:] == [loaded.commit]


def test_a_pattern_stands_for_the_files_that_it_matches(store: Store, tmp_path: Path) -> None:
    for number, name in enumerate(("a1.csv", "a2.csv", "b1.csv", "deep/a3.csv")):
        (tmp_path / "deep").mkdir(exist_ok=True)
        pyarrow.csv.write_csv(ROWS.slice(number * 10, 10), tmp_path / name)
    assert store.load("t", f"{tmp_path}/a[!2].csv", primary_key="id").rows == 10
    assert store.load("t", [f"{tmp_path}/a?.csv"]).rows == 20
    assert store.load("t", f"{tmp_path}/**/a*.csv").rows == 30
    with pytest.raises(InvalidOption, match="matches no files"):
        store.load("t", f"{tmp_path}/c*.csv")


def test_names_of_directories_are_columns_of_the_types_of_the_table(store: Store, tmp_path: Path) -> None:
    for year, city in ((2023, "01"), (2024, "New%20York")):
        (tmp_path / f"in/year={year}/city={city}").mkdir(parents=True)
        rows = pa.table({"id": pa.array([year], pa.int64())})
        pyarrow.parquet.write_table(rows, tmp_path / f"in/year={year}/city={city}/0.parquet")
    expected = [{"id": 2023, "year": 2023, "city": "01"}, {"id": 2024, "year": 2024, "city": "New York"}]
    store.load("t", tmp_path / "in", primary_key=["year", "id"])
    assert read(store) == expected
    types = {"id": pa.int64(), "year": pa.int16(), "city": pa.string()}
    store.create_table("u", pa.schema(list(types.items())), ["id"])
    store.load("u", f"{tmp_path}/in/**/*.parquet")
    assert read(store, "u") == expected
    # The directories above what was named are no columns.
    store.load("v", tmp_path / "in/year=2023/city=01", primary_key="id")
    assert read(store, "v") == [{"id": 2023}]
    with pytest.raises(SchemaMismatch, match=r"0\.parquet: .*unknown: year, city"):
        store.load("v", tmp_path / "in")


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("killed_at", [0, 1, 2, 3])
def test_a_job_that_was_killed_goes_on_and_repeats_nothing(
    store: Store, tmp_path: Path, killed_at: int
) -> None:
    """Each file is loaded once, also where rows were changed by others meanwhile."""
    for number in range(4):
        pyarrow.csv.write_csv(ROWS.slice(number * 25, 25), tmp_path / f"{number}.csv")

    def kill(point: str) -> None:
        turns[point] += 1
        if turns["rows staged"] > killed_at:
            raise _Killed

    turns, store.context.sync_point = Counter[str](), kill
    load = {"primary_key": "id", "job": "june", "nulls": [""], "mode": "insert"}
    with pytest.raises(_Killed):
        store.load("t", f"{tmp_path}/*.csv", **load)
    store.context.sync_point = lambda _: None
    assert len(store.tables()) == bool(killed_at), "a load that was killed leaves no table without rows"
    if killed_at:
        store.table("t").update({"name": "'changed'"}, where="id = 3")
    again = store.load("t", f"{tmp_path}/*.csv", **load)
    assert (again.skipped, again.rows) == (killed_at, 100 - killed_at * 25)
    names = {row["id"]: row["name"] for row in read(store)}
    assert len(names) == 100
    assert names[3] == ("changed" if killed_at else "n2")
    last = store.load("t", f"{tmp_path}/*.csv", **load)
    assert (last.rows, last.commit, last.skipped) == (0, None, 4)
    with pytest.raises(AlreadyExists):
        store.load("t", f"{tmp_path}/*.csv", **load | {"job": "july"})


def test_a_file_that_has_a_column_in_another_type_is_named(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v,at,n\n1,2,2024-01-01 10:00:00,\n")
    (tmp_path / "b.csv").write_text("id,v,at,n\n2,3,2024-01-01 10:00:00.25,7\n")
    store.load("t", f"{tmp_path}/*.csv", primary_key="id")  # times with fractions, and without
    assert [row["at"].microsecond for row in read(store)] == [0, 250_000]
    (tmp_path / "b.csv").write_text("id,v,at,n\n2,x,2024-01-01,7\n")
    with pytest.raises(SchemaMismatch, match=r"b\.csv .*int64: invalid value 'x'"):
        store.load("u", f"{tmp_path}/*.csv", primary_key="id")
    for text, why in (("id,id\n1,2\n", "multiple columns named id"), ("id;v\n1;a\n", "'id' is not in the")):
        (tmp_path / "c.csv").write_text(text)
        with pytest.raises(SchemaMismatch, match=why):
            store.load("u", tmp_path / "c.csv", primary_key="id")
    for name, kind in (("a", pa.int64()), ("b", pa.string())):
        pyarrow.parquet.write_table(pa.table({"id": pa.array([1]).cast(kind)}), tmp_path / f"{name}.parquet")
    with pytest.raises(SchemaMismatch, match=r"b\.parquet: column 'id' is string .* int64"):
        store.load("u", f"{tmp_path}/*.parquet", primary_key="id")
    assert [table.name for table in store.tables()] == ["t"]


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        *((address, {}, "write ") for address in ("ftp://server/in", "file://server/in", "s3:/bucket/in")),
        ("in", {"mode": "overwrite", "job": "j"}, "do not go together"),
        ("in", {"job": "j", "if_unchanged_since": 1}, "do not go together"),
    ],
)
def test_what_cannot_be_loaded_is_refused_before_anything_is_made(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    source: str, settings: dict[str, Any], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    pyarrow.csv.write_csv(ROWS, tmp_path / "in/a.csv")
    there, table = sorted(tmp_path.iterdir()), store.create_table("t", ROWS.schema, ["id"])
    with pytest.raises(InvalidOption, match=message):
        store.load("t", source, **settings)
    if not settings:
        with pytest.raises(InvalidOption, match=message):
            table.export(source)
    assert sorted(tmp_path.iterdir()) == there


def test_files_in_object_storage_are_loaded_by_their_address(
    store: Store, tmp_path: Path, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    for number in range(2):
        pyarrow.parquet.write_table(ROWS.slice(number * 50, 50), tmp_path / "a.parquet")
        body = (tmp_path / "a.parquet").read_bytes()
        s3_server.client.put_object(Bucket=bucket, Key=f"in/year=202{number}/a.parquet", Body=body)
    assert store.load("t", f"s3://{bucket}/in", primary_key="id").rows == 100
    assert [row["year"] for row in read(store)] == [2020] * 50 + [2021] * 50
    assert store.load("t", f"s3://{bucket}/in", job="j").rows == 100


# What is in files

MOMENT = pa.timestamp("us", "UTC")
AT = datetime(2024, 3, 1, 10, tzinfo=UTC)
IN_DAYS = pa.struct({"days": pa.list_(pa.date32())})


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
    assert read(store) == [{"id": 1, "year": 2023}, {"id": 2, "year": 2024}]


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
TIMES = [
    {"id": 1, "at": LAST, "in": {"n": 1, "at": [FIRST, None, LAST]}, "by": [("x", LAST)]},
    {"id": 2, "at": FIRST, "in": None, "by": [("y", FIRST)]},
    {"id": 3, "at": None, "in": {"n": None, "at": []}, "by": None},
]


def test_times_of_int96_are_moments_in_every_year(store: Store, tmp_path: Path) -> None:
    file, table = tmp_path / "spark.parquet", pa.Table.from_pylist(TIMES, pa.schema(list(KINDS.items())))
    pyarrow.parquet.write_table(table, file, use_deprecated_int96_timestamps=True, store_schema=False)
    store.load("t", file, primary_key="id")
    store.create_table("there", table.schema, "id")  # with the types of Spark's TIMESTAMP
    store.load("there", file, job="j")
    for name in ("t", "there"):
        found = store.table(name).to_arrow().sort_by("id")
        assert found.schema.remove_metadata().types == table.schema.types
        assert found.to_pylist() == TIMES
    store.create_table("without", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))]), "id")
    pyarrow.parquet.write_table(table.select(["id", "at"]), file, use_deprecated_int96_timestamps=True)
    store.load("without", file)
    times = store.table("without").to_arrow().sort_by("id")["at"].to_pylist()
    assert times == [LAST.replace(tzinfo=None), FIRST.replace(tzinfo=None), None]
