"""add-column, drop-column, rename-column and widen-column, for people and for scripts."""

from __future__ import annotations

from typing import Any

import pytest

from elasticscan.store import Store

Shell = Any


@pytest.mark.parametrize(
    ("kind", "reported"),
    [
        ("int64", "int64"),
        ("string", "string"),
        ("double", "double"),
        ("date32", "date32[day]"),
        ("timestamp[us]", "timestamp[us]"),
    ],
)
def test_a_column_is_added_and_old_rows_are_null_in_it(
    shell: Shell, uri: str, kind: str, reported: str
) -> None:
    made = shell.json("add-column", uri, "t", "note", kind)
    assert made == {"table": "t", "column": "note", "type": reported, "added": True}
    assert shell.json("add-column", uri, "t", "note", kind)["added"] is False
    with Store.open(uri) as store:
        found = store.table("t").scan(columns=["note"]).to_table()
    assert str(found.schema.field("note").type) == reported
    assert found["note"].null_count == found.num_rows > 0


def test_people_are_reported_what_was_added(shell: Shell, uri: str) -> None:
    assert shell.ok("add-column", uri, "t", "note", "string") == "Column note of t, string, added.\n"
    assert shell.ok("add-column", uri, "t", "note", "string").endswith("was there already.\n")


@pytest.mark.parametrize(
    ("words", "code", "reported"),
    [
        (("t", "note", "text"), 2, "must be one of Arrow's types"),
        (("t", "note", "decimal128(5,2)"), 2, "Table.add_columns"),
        (("t", "value", "string"), 2, "or widen the column"),
        (("t", "VALUE", "double"), 2, "in case alone"),
        (("u", "note", "string"), 2, "no table 'u'"),
    ],
)
def test_what_cannot_be_added_is_an_error_that_says_why(
    shell: Shell, uri: str, words: tuple[str, ...], code: int, reported: str
) -> None:
    found, message = shell.fails("add-column", uri, *words)
    assert found == code
    assert reported in message


def test_help_shows_types_with_brackets(shell: Shell) -> None:
    assert "timestamp[us]" in shell.ok("add-column", "--help")


def test_columns_are_renamed_widened_and_dropped(shell: Shell, uri: str) -> None:
    shell.json("add-column", uri, "t", "note", "int8")
    assert shell.json("rename-column", uri, "t", "note", "remark")["column"] == "remark"
    assert shell.json("widen-column", uri, "t", "remark", "int64")["type"] == "int64"
    with Store.open(uri) as store:
        assert str(store.table("t").schema.field("remark").type) == "int64"
    assert shell.ok("drop-column", uri, "t", "remark") == "Column remark of t is dropped.\n"
    with Store.open(uri) as store:
        assert "remark" not in store.table("t").schema.names


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("drop-column", "t", "valeu"), "did you mean 'value'"),
        (("rename-column", "t", "value", "id"), "already has a column 'id'"),
        (("drop-column", "t", "id"), "primary key"),
        (("widen-column", "t", "value", "int64"), "allowed are int8 to int16"),
        (("widen-column", "t", "value", "decimal128(5,2)"), "Table.widen_column"),
    ],
)
def test_changes_that_cannot_be_made_say_why(
    shell: Shell, uri: str, words: tuple[str, ...], reported: str
) -> None:
    code, message = shell.fails(words[0], uri, *words[1:])
    assert code == 2
    assert reported in message
