"""Rows for other libraries: frames, parameters and times of a scan, exports; and tables made of data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticscan.base.errors import FilterError, InvalidOption, NotFound, SchemaMismatch
from elasticscan.store import Store, Table

BIG = 2**60 + 1
ROWS = {"id": [1, 2, 3], "n": [BIG, None, 3], "city": ["Oslo", "L'Aquila", None], "ok": [True, None, False]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "made.store", ["s1", "s2"], tablets=4) as store:
        store.create_table("t", ROWS, ["id"])
        yield store


def test_frames_and_streams_have_the_values_exactly(store: Store, table: Table) -> None:
    expected = pa.table(ROWS).to_pylist()
    assert table.to_arrow().sort_by("id").to_pylist() == expected
    frame = table.to_pandas(["id", "n", "ok"]).sort_values("id")
    assert frame["n"].tolist()[0] == BIG
    assert frame["n"].isna().tolist() == [False, True, False]
    assert str(frame["ok"].dtype) == "boolean"
    some = {"filter": "id > :least", "parameters": {"least": 1}}
    assert table.to_polars(**some).sort("id").to_dicts() == expected[1:]
    assert sorted(table.to_reader(["id"], **some, page_rows=1).read_all()["id"].to_pylist()) == [2, 3]
    assert store.create_table("made", table.to_reader(), "id").to_arrow() == table.to_arrow()
    with pytest.raises(NotFound):
        table.to_reader(snapshot=99)
    scan = table.scan(page_rows=1)
    first = next(scan).rows
    assert sorted([*first.to_pylist(), *scan.to_polars().to_dicts()], key=lambda row: row["id"]) == expected


def test_pandas_is_not_imported_before_rows_are(table: Table) -> None:
    uri = table._context.location.uri
    code = (
        "import sys, elasticscan, elasticscan.connector; store = elasticscan.open(sys.argv[1])\n"
        "store.table('t').definition; print('pandas' in sys.modules)"
    )
    message = subprocess.run([sys.executable, "-c", code, uri], capture_output=True, text=True, check=True)
    assert message.stdout == "False\n"


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        pa.table(ROWS).to_pylist(),
        pa.table(ROWS),
        pa.table(ROWS).to_reader(),
        pl.DataFrame(ROWS),
        pl.DataFrame(ROWS, schema_overrides={"city": pl.Categorical}),
        pa.table(ROWS).to_pandas(types_mapper=pd.ArrowDtype),
        pa.table(ROWS).to_pandas(types_mapper=pd.ArrowDtype).iloc[::-1],
    ],
    ids=["columns", "dicts", "Arrow", "a stream", "Polars", "categories", "pandas", "pandas with an index"],
)
def test_a_table_is_made_of_data(store: Store, data: Any) -> None:
    made = store.create_table("made", data, primary_key="id")
    assert made.schema == store.table("t").schema
    if not isinstance(data, pa.RecordBatchReader):  # which is read once
        made.overwrite(data)
    assert made.to_arrow().sort_by("id").to_pylist() == pa.table(ROWS).to_pylist()


FRAME = pd.DataFrame({"id": [1, 2, 3], "n": [5, 6, 7]})


@pytest.mark.parametrize(
    ("frame", "columns"),
    [
        (FRAME.set_index("id"), ["id", "n"]),  # a range with a name, which pandas does not export
        (FRAME.set_index(["id", "n"]), ["id", "n"]),
        (FRAME[FRAME.id > 0].set_index("id", drop=False), ["id", "n"]),
        (FRAME.set_index([FRAME.id, FRAME.n.rename(None)]).drop(columns="id"), ["id", "n"]),
    ],
    ids=["of a range", "of several", "that is a column, too", "without a name alongside one"],
)
def test_the_index_of_a_pandas_frame_is_columns_where_it_has_names(
    store: Store, frame: pd.DataFrame, columns: list[str]
) -> None:
    made = store.create_table("made", frame, "id")
    assert made.schema.names == columns
    assert sorted(made.to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_rows_that_pandas_filtered_are_written_looked_up_and_deleted(store: Store) -> None:
    made = store.create_table("made", FRAME, "id")
    some = FRAME[FRAME.id > 1]  # its index is neither a range nor named
    made.upsert(some.assign(n=0))
    made.merge(some.assign(n=1)[["id", "n"]], columns=["n"])
    assert made.get(some[["id"]])["n"].to_pylist() == [1, 1]
    made.delete(some[["id"]])
    assert made.scan().count() == 1
    twice = pd.DataFrame([[1, 2]], columns=["id", "id"])
    with pytest.raises(SchemaMismatch, match="not a stream of rows: Duplicate column names"):
        made.upsert(twice)


def test_a_table_is_a_stream_of_its_newest_rows(store: Store, table: Table) -> None:
    duckdb = pytest.importorskip("duckdb")
    assert pl.DataFrame(table).height == pa.table(table).num_rows == 3
    for count in (3, 2):  # each query reads again
        assert duckdb.sql('SELECT count(*) FROM "table"').fetchall() == [(count,)]
        table.delete([count])
    other = store.create_table("other", table, "id")
    assert other.scan().count() == 1
    other.delete(table.scan(["id"]))
    other.upsert(table)
    assert other.to_arrow().to_pylist() == table.to_arrow().to_pylist()


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"id": [1, "x"]}, SchemaMismatch, "'id' do not go together"),
        ([{"id": 1}, {"id": 2, "n": 3}], SchemaMismatch, "row 1 of the list .*unknown: n"),
        ({"id": int}, SchemaMismatch, "give a list of values"),
        ([], InvalidOption, "a dict of columns, or a list of dicts"),
        ("id BIGINT", InvalidOption, "must be a pyarrow.Schema, or rows"),
        (pa.table({"id": [1, 1]}), Exception, "ES_SCHEMA_MISMATCH"),
    ],
)
def test_data_of_which_no_table_can_be_made_leaves_none(
    store: Store, data: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        store.create_table("made", data, ["id"])
    assert [table.name for table in store.tables()] == ["t"]


def test_parameters_are_values_and_nothing_else(table: Table) -> None:
    hostile = "x' OR 'a' = 'a"
    assert table.scan(filter="city = :city", parameters={"city": hostile}).count() == 0
    assert table.scan(filter="city = :city", parameters={"city": "L'Aquila"}).count() == 1
    assert table.aggregate("count(*)", filter="id IN :ids", parameters={"ids": {1, 3}}).to_pylist() == [
        {"count(*)": 2}
    ]
    updated = table.update({"ok": "FALSE"}, "n = :n", parameters={"n": BIG})
    assert table.get([1], ["ok"]).to_pylist() == [{"ok": False}]
    table.delete(where="id = :id", parameters={"id": 3})
    assert table.scan().count() == 2
    changed = table.changes(updated - 1, filter="id = :id", parameters={"id": 1}).to_table()
    assert changed["_change_type"].to_pylist() == ["update_preimage", "update_postimage"]
    for text, given in (("id = :id", {}), ("id = 1", {"id": 1}), ("id = :id", {"id": object()})):
        with pytest.raises(FilterError):
            table.scan(filter=text, parameters=given)
    with pytest.raises(FilterError):
        table.scan(filter="id = ?", parameters=[1])  # type: ignore[arg-type]


def test_arrays_of_any_library_are_lists_of_an_in(table: Table) -> None:
    arrays = [np.array([1, 3]), pd.Series([1, 3]), pl.Series([1, 3]), pa.chunked_array([[1], [3]])]
    for ids in (*arrays, range(1, 4, 2)):
        assert table.scan(filter="id IN :ids", parameters={"ids": ids}).count() == 2
        assert table.scan(filter="NOT id IN ( :ids)", parameters={"ids": ids}).count() == 1


def test_times_of_other_libraries_are_those_times_or_refused(store: Store) -> None:
    days = store.create_table(
        "days", {"id": [1, 2, 3], "t": [datetime.fromisoformat("2024-01-01"), None, None]}, "id"
    )

    def count(value: Any, comparison: str = "<=>") -> int:
        return days.scan(filter=f"t {comparison} :t", parameters={"t": value}).count()

    day = np.datetime64("2024-01-01", "ns")  # whose item() is a number
    assert count(day) == count(pd.Timestamp(day)) == count(np.array([day]), "IN") == 1
    assert count(pd.NaT) == count(np.datetime64("NaT")) == 2
    for finer in (day + np.timedelta64(1, "ns"), pd.Timestamp(day) + pd.Timedelta(1, "ns")):
        with pytest.raises(FilterError, match="to the microsecond"):
            count(finer)


def test_an_export_is_what_the_scan_gives_in_several_files(store: Store, tmp_path: Path) -> None:
    many = store.create_table("many", {"id": list(range(5_000))}, "id")
    newest = many.delete([0])
    done = many.export(tmp_path / "out", filter="id < 4000", file_bytes=1, page_rows=500)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["_SUCCESS", *(f"part-{number:05}.parquet" for number in range(done.files))]
    assert done.files > 2
    about = pyarrow.parquet.read_schema(tmp_path / "out/part-00000.parquet").metadata
    assert about[b"elasticscan.snapshot"] == b"%d" % newest
    assert json.loads(about[b"elasticscan.primary_key"]) == ["id"]
    assert store.load("again", tmp_path / "out", primary_key="id").rows == done.rows == 3_999
    again = store.table("again").to_arrow().sort_by("id")
    assert again["id"].to_pylist() == list(range(1, 4_000))


@pytest.mark.parametrize("name", ["new/o.csv", "new/o.parquet", "new/o.arrow", "o/", "day-2026.10"])
def test_an_export_is_complete_or_leaves_nothing(
    store: Store, table: Table, tmp_path: Path, name: str
) -> None:
    place, folder = f"{tmp_path}/out/{name}", (tmp_path / "out" / name).parent

    last = table.to_arrow()["id"][-1]
    with pytest.raises(FilterError, match="by zero"):
        table.export(place, filter=f"1 DIV (id - {last}) < 9", page_rows=1)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    done = table.export(place, page_rows=1)
    assert (done.path, done.files, done.rows) == (place, 1, 3)
    store.load("again", place, primary_key="id")
    again = store.table("again").to_arrow().sort_by("id")
    assert again.select(["id", "n", "city"]).to_pydict() == {key: ROWS[key] for key in ("id", "n", "city")}
    with pytest.raises(InvalidOption, match=r"already exists|choose an empty directory"):
        table.export(place)


@pytest.mark.parametrize("name", ["o.xlsx", "o.json", "a.b/o.orc", "o.parquet.gz", ".tsv.bz2"])
def test_an_export_to_a_file_of_an_unknown_kind_is_refused(table: Table, tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidOption, match=r"use \.csv, \.parquet, .*, or end a directory with /"):
        table.export(tmp_path / "out" / name)
    assert not (tmp_path / "out").exists()
    assert table.export(f"{tmp_path}/out/{name}/").rows == 3
    with pytest.raises(InvalidOption, match="cannot be written"):
        table.export("/proc/out")
