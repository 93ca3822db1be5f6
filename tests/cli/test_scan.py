"""Rows of more than one page: keys that continue, files, orders; keys of any type; SQL."""

from __future__ import annotations

import base64
import datetime
import json
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from elasticscan.metadata import IndexInfo
from elasticscan.store import Store
from tests.cli.conftest import Shell


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def key_of(shell: Shell, *words: object) -> str:
    return str(json.loads(shell.run("scan", *words, "--json")[2])["continuation_key"])


def test_people_see_the_first_rows_and_that_there_are_more(shell: Shell, uri: str) -> None:
    assert "20 rows of snapshot 2; there are more: --limit" in shell.ok("scan", uri, "t")
    key = key_of(shell, uri, "t", "--pages", 1, "--page-rows", 30)
    assert "20 rows of snapshot 2; there are more: --limit" in shell.ok("scan", uri, "--key", key)
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
    rows = [
        json.loads(line, parse_constant=pytest.fail)
        for line in shell.ok("scan", place, "t", "--json").splitlines()
    ]
    assert sorted(row["x"] for row in rows) == ["-Infinity", "Infinity", "NaN"]
    assert {row["b"] for row in rows} == {"AP8="}
    shown = shell.ok("scan", place, "t")
    assert "\x1b[31mred" not in shown
    assert "\\x1b[31mred\\n[b]ß" in shown


def test_a_scan_may_stop_after_some_pages_and_continue_elsewhere(
    shell: Shell, uri: str, rows: pa.Table
) -> None:
    _, out, err = shell.run("scan", uri, "t", "--page-rows", 1_000, "--pages", 2, "--json")
    shell.ok("expand", uri, "s3")
    rest = shell.ok("scan", uri, "t", "--key", json.loads(err)["continuation_key"], "--json")
    assert 0 < len(lines(out)) <= 2_000
    assert by_id(lines(out) + lines(rest)) == rows.to_pylist()


def test_changes_continue_by_their_key(shell: Shell, uri: str) -> None:
    _, out, err = shell.run("changes", uri, "t", "--pages", "1", "--page-rows", "100", "--json")
    rest = shell.ok("scan", uri, "--key", json.loads(err)["continuation_key"], "--json")
    assert len({row["id"] for row in lines(out) + lines(rest)}) == len(lines(out)) + len(lines(rest)) == 5_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--filter", "id = 1"], "--filter cannot change"),
        (["--limit", "5"], "--limit cannot change"),
        (["--order-by", "value"], "--order-by cannot change"),
        (["--index", "none"], "--index cannot change"),
    ],
)
def test_a_scan_cannot_change_half_way(shell: Shell, uri: str, words: list[str], message: str) -> None:
    code, err = shell.fails("scan", uri, "--key", key_of(shell, uri, "t", "--pages", 1), *words)
    assert (code, message in err) == (2, True)


def test_only_a_scan_that_can_continue_keeps_its_lease(shell: Shell, uri: str) -> None:
    for words in (
        ["scan"],
        ["scan", "--limit", 10],
        ["scan", "--json"],
        ["explain"],
        ["explain", "--analyze"],
    ):
        shell.ok(words[0], uri, "t", *words[1:])
    assert shell.json("status", uri)["leases"] == []
    shell.ok("scan", uri, "t", "--pages", 1, "--page-rows", 10)
    assert len(shell.json("status", uri)["leases"]) == 1
    assert "\nleases\n" in shell.ok("status", uri)


# Files


@pytest.mark.parametrize(
    ("name", "read"), [("o.parquet", pyarrow.parquet.read_table), ("o.csv", pyarrow.csv.read_csv)]
)
def test_rows_go_to_a_file(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table, name: str, read: Callable[[Path], pa.Table]
) -> None:
    made = shell.json("scan", uri, "t", "--output", tmp_path / name)
    assert (made["rows"], made["continuation_key"]) == (5_000, None)
    assert read(tmp_path / name).sort_by("id").to_pylist() == rows.to_pylist()
    shell.ok("get", uri, "t", "11", "12", "-o", tmp_path / name)
    assert read(tmp_path / name).to_pylist() == rows.slice(11, 2).to_pylist()


def test_rows_go_to_an_arrow_file_in_two_parts(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table
) -> None:
    first = shell.json("scan", uri, "t", "--pages", 1, "--page-rows", 1_234, "-o", tmp_path / "1.arrow")
    shell.json("scan", uri, "--key", first["continuation_key"], "-o", tmp_path / "2.arrow")
    parts = [pa.ipc.open_file(str(tmp_path / name)).read_all() for name in ("1.arrow", "2.arrow")]
    assert parts[0].num_rows == first["rows"] <= 1_234
    assert pa.concat_tables(parts).sort_by("id").to_pylist() == rows.to_pylist()


def test_a_failed_scan_leaves_no_file_and_keeps_an_older_one(shell: Shell, tmp_path: Path) -> None:
    uri, kept = str(tmp_path / "nested.store"), tmp_path / "o.csv"
    kept.write_text("older")
    with Store.create(uri, ["s1"]) as store:
        store.create_table("t", pa.table({"id": [1], "tags": [["a"]]}), "id")
    code, message = shell.fails("scan", uri, "t", "-o", kept)
    assert (code, "cannot be written" in message) == (2, True)
    assert kept.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nested.store", "o.csv"]


# Indexes


def test_an_index_that_is_not_finished_is_shown_as_such(shell: Shell, uri: str) -> None:
    with Store.open(uri) as store, store.context.catalog.writing() as tx:
        tx.create_index(IndexInfo(0, tx.table("t").id, "by_name", "sorted", ("name",), ()))
    assert "not built yet" in shell.ok("index", "list", uri)
    assert "not built yet" in shell.ok("status", uri)
    assert shell.json("index", "create", uri, "t", "by_name", "--columns", "name")["ready"]
    assert "not built yet" not in shell.ok("status", uri)


# Keys

KEYS: list[tuple[pa.DataType, Any, str]] = [
    (pa.string(), "a,b", "a,b"),
    (pa.date32(), datetime.date(2024, 2, 29), "2024-02-29"),
    (
        pa.timestamp("us"),
        datetime.datetime(2024, 2, 29, 1, 2, 3),  # noqa: DTZ001
        "2024-02-29 01:02:03",
    ),
    (pa.bool_(), True, "true"),
    (pa.int8(), -5, "-5"),
    (pa.decimal128(9, 2), Decimal("1.50"), "1.5"),
    (pa.binary(), b"\0\xff", base64.b64encode(b"\0\xff").decode()),
]


@pytest.mark.parametrize(("kind", "key", "text"), KEYS, ids=[str(kind) for kind, *_ in KEYS])
def test_keys_of_any_type_are_typed_as_scan_prints_them(
    shell: Shell, tmp_path: Path, kind: pa.DataType, key: Any, text: str
) -> None:
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=8) as store:
        schema = pa.schema([("k", kind), ("v", pa.int64())])
        store.create_table("t", schema, ["k"])
        store.table("t").upsert(pa.table([pa.array([key], kind), [1]], schema=schema))
    assert lines(shell.ok("get", tmp_path / "s", "t", "--columns", "v", "--json", "--", text)) == [{"v": 1}]


# SQL


def test_a_query_reads_every_table_at_one_snapshot(shell: Shell, uri: str) -> None:
    pytest.importorskip("duckdb", reason="pip install 'elasticscan[sql]'")
    query = "SELECT x.name, count(*) AS n FROM t x JOIN t y USING (id) GROUP BY ALL ORDER BY ALL"
    (line, *_) = shell.ok("sql", uri, query, "--json").splitlines()
    assert line == '{"name": "n0", "n": 715}'
    with Store.open(uri) as store:
        store.create_table("later", {"id": [1]}, primary_key="id")
        store.table("t").delete(where="true")
    assert "0 rows." in shell.ok("sql", uri, query)
    assert len(shell.ok("sql", uri, query, "--snapshot", "2", "--json").splitlines()) == 7
    assert "20 rows; there are more" in shell.ok("sql", uri, "SELECT * FROM range(100)")
    assert "30 rows." in shell.ok("sql", uri, "SELECT * FROM range(100)", "--limit", 30)
    assert shell.ok("sql", uri, "SELECT * FROM later", "--json") == '{"id": 1}\n'
    for wrong in (
        "SELECT 1; SELECT 2",
        "",
        "DROP TABLE t",
        "COPY t TO 'x.csv'",
        "SELEC",
        "SELECT * FROM nope",
    ):
        assert shell.fails("sql", uri, wrong)[0] == 2
    assert shell.fails("sql", uri, "SELECT * FROM later", "--snapshot", "2")[0] == 2
    assert shell.fails("sql", uri, query, "--snapshot", "99")[0] == 2


def test_a_query_without_its_extra_names_it(shell: Shell, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, message = shell.fails("sql", uri, "SELECT 1")
    assert (code, "pip install 'elasticscan[sql]'" in message) == (2, True)
