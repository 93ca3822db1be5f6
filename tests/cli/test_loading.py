"""load: files into tables."""

from __future__ import annotations

import math
from collections.abc import Callable
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


def test_a_missing_table_needs_a_primary_key(shell: Shell, empty: str, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id,v\n1,a\n")
    code, reported = shell.fails("load", empty, "t", tmp_path / "r.csv")
    assert code == 2
    assert "--primary-key" in reported
    assert "id, v" in reported


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


def test_csv_with_other_delimiters_and_without_names_is_loaded(
    shell: Shell, empty: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("1;x\n2;y\n")
    words = ("--format", "csv", "--delimiter", ";", "--column-names", "id,name")
    assert shell.json("load", empty, "t", tmp_path / "a.txt", "--primary-key", "id", *words)["rows"] == 2
    (tmp_path / "b.csv").write_text("name\tid\nz\t3\n")
    shell.ok("load", empty, "t", tmp_path / "b.csv", "--delimiter", r"\t")
    assert '{"id": 3, "name": "z"}' in shell.ok("scan", empty, "t", "--json")
