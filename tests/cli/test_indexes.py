"""index create, drop and list; scans through an index; indexes in the picture of a store."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticscan.cli.output import progress
from elasticscan.metadata import IndexInfo
from elasticscan.store import Store

Shell = Any


@pytest.fixture
def indexed(shell: Shell, uri: str) -> str:
    shell.ok("index", "create", uri, "t", "by_value", "--columns", "value", "--include", "name")
    return uri


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_index_is_made_as_asked_for(shell: Shell, uri: str) -> None:
    made = shell.json("index", "create", uri, "t", "by_name", "--columns", "name, value", "--kind", "hash")
    assert made.pop("bytes") > 0
    assert made == {
        "table": "t",
        "name": "by_name",
        "kind": "hash",
        "columns": ["name", "value"],
        "include": [],
        "ready": True,
    }
    assert shell.json("index", "list", uri)[0] | {"bytes": None} == made | {"bytes": None}


def test_people_are_reported_of_an_index_that_was_made(shell: Shell, uri: str) -> None:
    reported = shell.ok("index", "create", uri, "t", "by_name", "--columns", "name")
    assert reported.startswith("Index by_name of t (name): ")


def test_the_bar_hears_of_every_fragment(shell: Shell, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def watched() -> Any:
        bar = progress()
        monkeypatch.setattr(bar, "update", lambda _task, **what: seen.append(what))
        return bar

    monkeypatch.setattr("elasticscan.cli.indexes.progress", watched)
    shell.ok("index", "create", uri, "t", "by_name", "--columns", "name")
    assert [each["total"] for each in seen] == [5_000] * 3
    assert seen[-1] == {"completed": 5_000, "total": 5_000, "note": "5,000 of 5,000 rows"}


def test_indexes_of_one_table_or_of_all_are_listed(shell: Shell, indexed: str, rows: pa.Table) -> None:
    with Store.open(indexed) as store:
        store.create_table("u", rows.schema, ["id"])
        store.table("u").create_index("by_name", ["name"])
    assert [(i["table"], i["name"]) for i in shell.json("index", "list", indexed)] == [
        ("t", "by_value"),
        ("u", "by_name"),
    ]
    assert [i["name"] for i in shell.json("index", "list", indexed, "u")] == ["by_name"]
    reported = shell.ok("index", "list", indexed, "t")
    assert "by_value" in reported
    assert "by_name" not in reported


def test_a_store_without_indexes_says_how_to_make_one(shell: Shell, uri: str) -> None:
    assert "elasticscan index create" in shell.ok("index", "list", uri)
    assert shell.json("index", "list", uri) == []


def test_a_dropped_index_is_gone(shell: Shell, indexed: str) -> None:
    assert shell.json("index", "drop", indexed, "t", "by_value") == {"table": "t", "dropped": "by_value"}
    assert shell.json("index", "list", indexed) == []
    shell.ok("index", "create", indexed, "t", "by_value", "--columns", "name")
    assert "by_value of t dropped" in shell.ok("index", "drop", indexed, "t", "by_value")


def test_an_index_that_was_not_finished_is_shown_as_such(shell: Shell, uri: str) -> None:
    with Store.open(uri) as store, store.context.catalog.writing() as tx:
        table = tx.table("t").id
        tx.create_index(IndexInfo(0, table, "by_name", "sorted", ("name",), ()))
    assert "not built yet" in shell.ok("index", "list", uri)
    assert "not built yet" in shell.ok("status", uri)
    assert shell.json("index", "create", uri, "t", "by_name", "--columns", "name")["ready"]
    assert "not built yet" not in shell.ok("status", uri)


def test_the_picture_shows_indexes_below_the_tables(shell: Shell, indexed: str) -> None:
    reported = shell.ok("status", indexed)
    assert reported.index("\ntables\n") < reported.index("\nindexes\n") < reported.index("by_value")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["create", "nope", "i", "--columns", "name"], "ES_TABLE_NOT_FOUND"),
        (["create", "t", "i", "--columns", "nope"], "ES_COLUMN_NOT_FOUND"),
        (["create", "t", "i", "--columns", "name", "--include", "nope"], "ES_COLUMN_NOT_FOUND"),
        (["create", "t", "i", "--columns", "name", "--kind", "btree"], "ES_INVALID_OPTION"),
        (["create", "t", "i", "--columns", ","], "ES_INVALID_OPTION"),
        (["create", "t", "No", "--columns", "name"], "ES_INVALID_NAME"),
        (["create", "t", "auto", "--columns", "name"], "ES_INVALID_OPTION"),
        (["create", "t", "by_value", "--columns", "name"], "ES_ALREADY_EXISTS"),
        (["drop", "t", "nope"], "ES_INDEX_NOT_FOUND"),
        (["list", "nope"], "ES_TABLE_NOT_FOUND"),
    ],
)
def test_what_cannot_be_done_with_an_index_says_why(
    shell: Shell, indexed: str, words: list[str], code: str
) -> None:
    exit_code, reported = shell.fails("index", words[0], indexed, *words[1:], "--json")
    assert exit_code == 2
    assert json.loads(reported)["error"]["code"] == code


# Scans


def test_a_scan_through_an_index_gives_the_rows_of_a_direct_one(shell: Shell, indexed: str) -> None:
    condition = ["--filter", "value < 30 OR value IS NULL", "--json"]
    found = [
        sorted(lines(shell.ok("scan", indexed, "t", "--index", index, *condition)), key=lambda row: row["id"])
        for index in ("none", "by_value", "auto")
    ]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 1_000 + 96


@pytest.mark.parametrize("descending", [False, True])
def test_rows_come_in_the_order_of_an_index_also_from_key_to_key(
    shell: Shell, indexed: str, rows: pa.Table, descending: bool
) -> None:
    found: list[dict[str, Any]] = []
    words: list[object] = ["t", "--order-by", "value DESC" if descending else "value", "--page-rows", 300]
    for pages in (1, 2, 10**6):
        code, out, err = shell.run("scan", indexed, *words, "--pages", pages, "--json")
        assert code == 0
        found += lines(out)
        if err:
            words = ["--key", json.loads(err)["continuation_key"]]
    wanted = sorted(
        rows.to_pylist(),
        key=lambda row: (row["value"] is not None, row["value"] or 0, row["id"]),
        reverse=descending,
    )
    assert found == wanted


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--index", "by_valeu"], "[ES_INDEX_NOT_FOUND]"),
        (["--order-by", "name", "--limit", 20_000], "create_index('by_name', ['name'])"),
        (["--order-by", "id", "--index", "by_value"], "is in the order of value, id"),
        (["--order-by", "value", "--index", "none"], "index='none' allows none"),
    ],
)
def test_an_index_or_order_that_cannot_be_had_says_why(
    shell: Shell, indexed: str, words: list[object], reported: str
) -> None:
    code, message = shell.fails("scan", indexed, "t", *words)
    assert code == 2
    assert reported in message


@pytest.mark.parametrize("words", [["--index", "none"], ["--order-by", "value"], ["--limit", 5]])
def test_how_a_scan_reads_cannot_change_half_way(shell: Shell, indexed: str, words: list[str]) -> None:
    key = json.loads(shell.run("scan", indexed, "t", "--pages", 1, "--page-rows", 1, "--json")[2])[
        "continuation_key"
    ]
    code, reported = shell.fails("scan", indexed, "t", "--key", key, *words)
    assert code == 2
    assert f"{words[0]} cannot change a scan that has begun" in reported


def test_a_scan_whose_index_was_dropped_has_to_start_again(shell: Shell, indexed: str) -> None:
    words = ["t", "--index", "by_value", "--filter", "value > 5", "--pages", 1, "--page-rows", 1, "--json"]
    key = json.loads(shell.run("scan", indexed, *words)[2])["continuation_key"]
    shell.ok("index", "drop", indexed, "t", "by_value")
    code, reported = shell.fails("scan", indexed, "--key", key)
    assert code == 4
    assert reported.startswith("[ES_INDEX_CHANGED]")
