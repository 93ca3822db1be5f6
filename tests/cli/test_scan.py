"""Rows for people and for scripts and back from them, SQL."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.store import Store
from tests.cli.conftest import Shell


def test_people_see_the_first_rows_and_that_there_are_more(shell: Shell, uri: str) -> None:
    assert "20 rows of snapshot 2; there are more: --limit" in shell.ok("scan", uri, "t")
    assert "20 rows of snapshot 2.\n" in shell.ok("scan", uri, "t", "--filter", "id < 20")


def test_control_characters_are_escaped_and_json_has_no_nan(shell: Shell, tmp_path: Path) -> None:
    place = str(tmp_path / "odd.store")
    with Store.create(place, ["s1"], tablets=1) as store:
        schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("v", pa.string()), ("b", pa.binary())])
        table = store.create_table("t", schema, ["id"])
        values = (float("nan"), float("inf"), float("-inf"))
        table.upsert(
            [{"id": at, "x": x, "v": "\x1b[31mred\n[b]ß", "b": b"\0\xff"} for at, x in enumerate(values)]
        )
    printed = shell.ok("scan", place, "t", "--json").splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in printed]
    assert sorted(row["x"] for row in rows) == ["-Infinity", "Infinity", "NaN"]
    assert {row["b"] for row in rows} == {"AP8="}
    shown = shell.ok("scan", place, "t")
    assert "\x1b[31mred" not in shown
    assert "\\x1b[31mred\\n[b]ß" in shown


def test_a_command_leaves_no_lease(shell: Shell, uri: str) -> None:
    for command, *more in (["scan"], ["scan", "--limit", 10], ["scan", "--json"], ["explain", "--analyze"]):
        shell.ok(command, uri, "t", *more)
    assert shell.json("status", uri)["leases"] == []


def test_a_query_reads_every_table_at_one_snapshot(shell: Shell, uri: str) -> None:
    pytest.importorskip("duckdb", reason="pip install 'elasticscan[sql]'")
    query = "SELECT x.name, count(*) AS n FROM t x JOIN t y USING (id) GROUP BY ALL ORDER BY ALL"
    (line, *_) = shell.ok("sql", uri, query, "--json").splitlines()
    assert line == '{"name": "n0", "n": 715}'
    with Store.open(uri) as store:
        store.create_table("later", {"id": [1]}, primary_key="id")
        store.table("t").delete(where="true")
    assert "0 rows of the result." in shell.ok("sql", uri, query)
    assert "20 rows of the result; there are more" in shell.ok("sql", uri, "SELECT * FROM range(100)")
    assert "30 rows of the result." in shell.ok("sql", uri, "SELECT * FROM range(100)", "--limit", 30)
    assert shell.ok("sql", uri, "SELECT * FROM later", "--json") == '{"id": 1}\n'
    for wrong in ("SELECT 1; SELECT 2", "", "DROP TABLE t", "COPY t TO 'x.csv'", "SELEC", "SELECT * FROM x"):
        assert shell.fails("sql", uri, wrong)[0] == 2


def test_a_query_without_its_extra_names_it(shell: Shell, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, message = shell.fails("sql", uri, "SELECT 1")
    assert (code, "pip install 'elasticscan[sql]'" in message) == (2, True)


def test_what_a_scan_printed_as_csv_loads_as_it_was(shell: Shell, tmp_path: Path) -> None:
    uri = str(tmp_path / "a.store")
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("v", pa.string())])
    rows = [
        {"id": 1, "x": float("inf"), "v": ""},
        {"id": 2, "x": None, "v": None},
        {"id": 3, "x": 0.5, "v": "NULL"},
        {"id": 4, "x": -0.5, "v": 'a,"b"\n'},
    ]
    with Store.create(uri, ["s1", "s2"], tablets=8) as store:
        store.create_table("t", schema, ["id"]).upsert([*rows, {"id": 5, "x": float("nan"), "v": "nan"}])
    (tmp_path / "r.csv").write_text(shell.ok("scan", uri, "t", "--format", "csv"))
    shell.ok("load", uri, "t", tmp_path / "r.csv")
    shell.ok("load", uri, "u", tmp_path / "r.csv", "--primary-key", "id")
    with Store.open(uri) as store:
        for name in ("t", "u"):
            *again, last = store.table(name).scan().to_table().sort_by("id").to_pylist()
            assert again == rows
            assert math.isnan(last["x"]) and last["v"] == "nan"
