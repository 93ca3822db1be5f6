"""Rows for people and for scripts, keys of any type, SQL."""

from __future__ import annotations

import datetime
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from elasticscan.metadata import IndexDefined, IndexInfo
from elasticscan.store import Store
from tests.cli.conftest import Shell


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


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
    rows = [
        json.loads(line, parse_constant=pytest.fail)
        for line in shell.ok("scan", place, "t", "--json").splitlines()
    ]
    assert sorted(row["x"] for row in rows) == ["-Infinity", "Infinity", "NaN"]
    assert {row["b"] for row in rows} == {"AP8="}
    shown = shell.ok("scan", place, "t")
    assert "\x1b[31mred" not in shown
    assert "\\x1b[31mred\\n[b]ß" in shown


def test_a_scan_stops_after_some_pages_and_continues_by_its_key(shell: Shell, uri: str) -> None:
    whole = by_id(lines(shell.ok("scan", uri, "t", "--json")))
    _, first, err = shell.run("scan", uri, "t", "--page-rows", 1_000, "--pages", 2, "--json")
    key = json.loads(err)["continuation_key"]
    rest = shell.ok("scan", uri, "--key", key, "--json")
    assert lines(first) and lines(rest)
    assert by_id([*lines(first), *lines(rest)]) == whole
    assert "[ES_INVALID_OPTION]" in shell.fails("scan", uri, "t", "--key", key)[1]
    assert "leave columns out" in shell.fails("scan", uri, "--key", key, "--columns", "id")[1]


def test_a_command_leaves_no_lease(shell: Shell, uri: str) -> None:
    for words in (
        ["scan"],
        ["scan", "--limit", 10],
        ["scan", "--json"],
        ["explain"],
        ["explain", "--analyze"],
    ):
        shell.ok(words[0], uri, "t", *words[1:])
    assert shell.json("status", uri)["leases"] == []


# Indexes


def test_an_index_that_is_not_finished_is_shown_as_such(shell: Shell, uri: str) -> None:
    with Store.open(uri) as store, store.context.catalog.writing() as tx:
        index = IndexInfo(1, tx.state.table_named("t").id, "by_name", "sorted", ("name",), ())
        tx.append(IndexDefined(index))
    assert shell.ok("index", "list", uri).rstrip().endswith(" no")
    assert shell.json("index", "create", uri, "t", "by_name", "--columns", "name")["ready"]
    assert shell.ok("index", "list", uri).rstrip().endswith(" yes")


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
    assert "0 rows of the result." in shell.ok("sql", uri, query)
    assert "20 rows of the result; there are more" in shell.ok("sql", uri, "SELECT * FROM range(100)")
    assert "30 rows of the result." in shell.ok("sql", uri, "SELECT * FROM range(100)", "--limit", 30)
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


def test_a_query_without_its_extra_names_it(shell: Shell, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, message = shell.fails("sql", uri, "SELECT 1")
    assert (code, "pip install 'elasticscan[sql]'" in message) == (2, True)
