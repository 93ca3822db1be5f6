"""Kinds of files by their names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.store import Store
from elasticscan.store.rows.kinds import kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.CSV", "csv"),
        ("in/b.json.gz", "json"),
        ("c.ndjson", "json"),
        ("d.pq", "parquet"),
        ("e.feather", "arrow"),
    ],
)
def test_a_name_tells_the_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.tsv", r"format='csv', delimiter='\\t'"),
        ("a.tsv.gz", r"--format csv --delimiter '\\t'"),
        ("a.xlsx", r"create_table\(name, frame, primary_key\)"),
        ("a.csv.zip", "unpack it first"),
        ("a.parquet.gz", "use .csv, .json"),
        ("a", "say which it is"),
    ],
)
def test_a_name_of_another_kind_is_reported_with_what_to_do(name: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        kind_of(name)


def test_a_stream_is_reported_to_be_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        for path in ("-", tmp_path / "pipe.csv"):
            with pytest.raises(InvalidOption, match="it is a stream and no file; save it"):
                store.load("t", path, primary_key="id")
        with pytest.raises(InvalidOption, match="No such file or directory"):
            store.load("t", tmp_path / "gone.csv", primary_key="id")


def test_the_file_among_others_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v\n1,2\n")
    (tmp_path / "b.csv").write_text("")
    with (
        Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store,
        pytest.raises(
            SchemaMismatch,
            match=r"/b\.csv cannot be read: CSV parse error: Empty CSV .* its first line has the names",
        ),
    ):
        store.load("t", tmp_path / "*.csv", primary_key="id")
