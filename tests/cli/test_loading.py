"""load: files into tables."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from elasticscan.store import Store
from tests.cli.conftest import Shell


@pytest.fixture
def empty(tmp_path: Path) -> str:
    path = str(tmp_path / "empty.store")
    Store.create(path, ["s1", "s2"], tablets=8).close()
    return path


def read(uri: str, table: str = "t") -> pa.Table:
    with Store.open(uri) as store:
        return store.table(table).scan().to_table().sort_by("id")


def _write_arrow(rows: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=1_000)


WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    "r.parquet": pyarrow.parquet.write_table,
    "r.csv": pyarrow.csv.write_csv,
    "r.csv.gz": lambda rows, path: pyarrow.csv.write_csv(rows, pa.output_stream(path, compression="gzip")),
    "r.arrow": _write_arrow,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_makes_a_table_with_the_types_of_its_values(
    shell: Shell, empty: str, tmp_path: Path, rows: pa.Table, name: str
) -> None:
    WRITERS[name](rows, tmp_path / name)
    reported = shell.json("load", empty, "t", tmp_path / name, "--primary-key", "id")
    assert (reported["rows"], reported["created"]) == (5_000, True)
    assert read(empty).to_pylist() == rows.to_pylist()
    assert "5,000 rows loaded into t" in shell.ok("load", empty, "t", tmp_path / name)


def test_several_files_of_several_kinds_are_one_commit(
    shell: Shell, empty: str, tmp_path: Path, rows: pa.Table
) -> None:
    pyarrow.parquet.write_table(rows.slice(0, 2_000), tmp_path / "a.parquet")
    # The columns in another order.
    pyarrow.csv.write_csv(rows.slice(2_000).select(["value", "id", "name"]), tmp_path / "b.csv")
    reported = shell.json(
        "load", empty, "t", tmp_path / "a.parquet", tmp_path / "b.csv", "--primary-key", "id"
    )
    with Store.open(empty) as store:
        assert store.status()["snapshot"] == reported["commit"]
        assert len([c for c in store.table("t").history() if c.number == reported["commit"]]) == 1
    assert read(empty).to_pylist() == rows.to_pylist()


def test_loading_again_upserts_and_overwrite_replaces(shell: Shell, empty: str, tmp_path: Path) -> None:
    first, second = tmp_path / "1.csv", tmp_path / "2.csv"
    first.write_text("id,v\n1,a\n2,b\n")
    second.write_text("id,v\n2,B\n3,C\n")
    shell.ok("load", empty, "t", first, "--primary-key", "id")
    shell.ok("load", empty, "t", second)
    assert read(empty)["v"].to_pylist() == ["a", "B", "C"]
    shell.ok("load", empty, "t", second, "--overwrite")
    assert read(empty)["v"].to_pylist() == ["B", "C"]


def test_a_missing_table_needs_a_primary_key(shell: Shell, empty: str, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id,v\n1,a\n")
    code, reported = shell.fails("load", empty, "t", tmp_path / "r.csv")
    assert code == 2
    assert "--primary-key" in reported
    assert "id, v" in reported


def test_a_failed_load_leaves_no_table_behind(shell: Shell, empty: str, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id,v\n1,a\n1,b\n")
    code, reported = shell.fails("load", empty, "t", tmp_path / "r.csv", "--primary-key", "id")
    assert code == 2
    assert reported.startswith("[ES_INVALID_KEY]")
    assert shell.json("tables", empty) == []


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        ("id,name,value\n1,x,1.5\n2,y,high\n", "r.csv"),
        ("id,name,colour\n1,x,red\n", "missing: value; unknown: colour"),
    ],
)
def test_a_failed_load_leaves_a_table_as_it_was(
    shell: Shell, uri: str, tmp_path: Path, content: str, reported: str
) -> None:
    (tmp_path / "r.csv").write_text(content)
    before = read(uri)
    code, message = shell.fails("load", uri, "t", tmp_path / "r.csv")
    assert code == 2
    assert message.startswith("[ES_SCHEMA_MISMATCH]")
    assert reported in message
    assert read(uri) == before


def test_what_a_scan_wrote_as_csv_loads_as_it_was(shell: Shell, empty: str, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("v", pa.string())])
    rows = [
        {"id": 1, "x": float("inf"), "v": ""},
        {"id": 2, "x": None, "v": None},
        {"id": 3, "x": 0.5, "v": "NULL"},
        {"id": 4, "x": -0.5, "v": 'a,"b"\n'},
    ]
    with Store.open(empty) as store:
        store.create_table("t", schema, ["id"]).upsert([*rows, {"id": 5, "x": float("nan"), "v": "nan"}])
    shell.ok("scan", empty, "t", "-o", tmp_path / "r.csv")
    shell.ok("load", empty, "t", tmp_path / "r.csv")
    shell.ok("load", empty, "u", tmp_path / "r.csv", "--primary-key", "id")
    for name in ("t", "u"):
        again = read(empty, name).to_pylist()
        assert again[:4] == rows
        assert math.isnan(again[4]["x"])
        assert again[4]["v"] == "nan"


def test_a_spelling_of_null_can_be_named(shell: Shell, empty: str, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id,v,w\n1,NA,-\n2,NA,3\n")
    shell.ok("load", empty, "t", tmp_path / "r.csv", "--primary-key", "id", "--null", "-", "--null", "NA")
    assert read(empty).to_pylist() == [{"id": 1, "v": None, "w": None}, {"id": 2, "v": None, "w": 3}]


@pytest.mark.parametrize(
    ("text", "words", "kind", "value"),
    [
        ("NA", [], pa.string(), "NA"),
        ("02134", ["--type", "v=string"], pa.string(), "02134"),
        ("2013-01-01T10:00:00Z", [], pa.timestamp("us", "UTC"), datetime(2013, 1, 1, 10, tzinfo=UTC)),
    ],
    ids=["text is no null unasked", "a type can be named", "times have the microseconds of Spark"],
)
def test_values_of_csv_have_the_types_that_are_meant(
    shell: Shell, empty: str, tmp_path: Path, text: str, words: list[str], kind: pa.DataType, value: object
) -> None:
    (tmp_path / "r.csv").write_text(f"id,v\n1,{text}\n")
    shell.ok("load", empty, "t", tmp_path / "r.csv", "--primary-key", "id", *words)
    column = read(empty)["v"]
    assert (column.type, column.to_pylist()) == (kind, [value])


def test_a_shard_key_and_a_compression_are_kept(shell: Shell, empty: str, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("a,b\n1,1\n1,2\n")
    key = ["--primary-key", "a,b", "--shard-key", "a", "--compression", "zstd"]
    shell.ok("load", empty, "t", tmp_path / "r.csv", *key)
    (found,) = shell.json("tables", empty)
    assert (found["primary_key"], found["shard_key"], found["compression"]) == (["a", "b"], ["a"], "zstd")


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("missing.csv", None, "No such file"),
        ("empty.csv", b"", "Empty CSV"),
        ("bad.parquet", b"not parquet", "bad.parquet"),
        ("bad.arrow", b"not arrow", "bad.arrow"),
        ("rows.xlsx", b"", "no name of a known format"),
        ("rows", b"", "no name of a known format"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    shell: Shell, empty: str, tmp_path: Path, name: str, content: bytes | None, reported: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, message = shell.fails("load", empty, "t", tmp_path / name, "--primary-key", "id")
    assert code == 2
    assert reported in message
    assert name in message


@pytest.mark.parametrize("given", ["v", "v=", "v=colour", "=int64x"])
def test_a_type_that_is_none_is_refused(shell: Shell, empty: str, tmp_path: Path, given: str) -> None:
    (tmp_path / "r.csv").write_text("id,v\n1,a\n")
    code, reported = shell.fails(
        "load", empty, "t", tmp_path / "r.csv", "--primary-key", "id", "--type", given
    )
    assert code == 2
    assert "type" in reported


def test_a_key_that_the_table_does_not_have_is_an_error(shell: Shell, uri: str, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id,name,value\n1,x,1.5\n")
    for option in ("--primary-key", "--shard-key"):
        code, reported = shell.fails("load", uri, "t", tmp_path / "r.csv", option, "nope")
        assert code == 2
        assert f"{option[2:].replace('-', '_')} 'nope', but table 't' has 'id'" in reported
    shell.ok("load", uri, "t", tmp_path / "r.csv", "--primary-key", "id", "--shard-key", "id")


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_a_ragged_file_is_an_error(shell: Shell, uri: str, tmp_path: Path, ending: str) -> None:
    whole = b"id,name,value\n" + b"".join(b"%d,name,0.5\n" % number for number in range(10_000))
    cut = whole[: len(whole) // 3] + b"\n1,2,3,4,5\n" + whole[len(whole) // 3 :]
    file = tmp_path / f"r{ending}"
    file.write_bytes(gzip.compress(cut, 1) if ending.endswith("gz") else cut)
    for table in ("t", "new"):
        code, reported = shell.fails(
            "load", uri, table, file, *(["--primary-key", "id"] if table == "new" else [])
        )
        assert (code, "ES_SCHEMA_MISMATCH" in reported) == (2, True)


def test_csv_with_other_delimiters_and_without_names_is_loaded(
    shell: Shell, empty: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("1;x\n2;y\n")
    words = ("--format", "csv", "--delimiter", ";", "--column-names", "id,name")
    assert shell.json("load", empty, "t", tmp_path / "a.txt", "--primary-key", "id", *words)["rows"] == 2
    (tmp_path / "b.csv").write_text("name\tid\nz\t3\n")
    shell.ok("load", empty, "t", tmp_path / "b.csv", "--delimiter", r"\t")
    assert '{"id": 3, "name": "z"}' in shell.ok("scan", empty, "t", "--json")
