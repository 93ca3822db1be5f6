"""get."""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticscan.store import Store

Shell = Any


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_rows_come_in_the_order_of_the_keys(shell: Shell, uri: str) -> None:
    got = lines(shell.ok("get", uri, "t", "7", "99999", "3", "--columns", "name,id", "--json"))
    assert got == [{"name": "n0", "id": 7}, {"name": "n3", "id": 3}]


def test_people_see_a_table_and_how_many_keys_are_not_there(shell: Shell, uri: str) -> None:
    message = shell.ok("get", uri, "t", "--columns", "id", "--", "-1", "4998")
    assert "4998" in message
    assert "1 of 2 keys are there." in message
    assert "2 of 2 keys are there." in shell.ok("get", uri, "t", "1", "2")
    assert "1 of 1 key is there." in shell.ok("get", uri, "t", "1")


def test_an_older_snapshot_and_a_tag_can_be_read(shell: Shell, uri: str) -> None:
    shell.ok("tag", "create", uri, "t", "first")
    shell.ok("delete", uri, "t", "--where", "id = 5")
    assert shell.ok("get", uri, "t", "5", "--json") == ""
    for snapshot in ("2", "first"):
        assert lines(shell.ok("get", uri, "t", "5", "--snapshot", snapshot, "--json"))[0]["id"] == 5


def test_rows_go_to_a_file(shell: Shell, uri: str, tmp_path: Path, rows: pa.Table) -> None:
    message = shell.json("get", uri, "t", "11", "12", "1000000", "-o", tmp_path / "some.parquet")
    assert (message["rows"], message["keys"]) == (2, 3)
    assert pa.parquet.read_table(tmp_path / "some.parquet").to_pylist() == rows.slice(11, 2).to_pylist()
    assert shell.fails("get", uri, "t", "1", "-o", tmp_path / "some.txt")[0] == 2


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


def test_keys_of_several_columns_have_commas_between_them(shell: Shell, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int32()), ("day", pa.string())])
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=8) as store:
        store.create_table("t", schema, ["id", "day"])
        store.table("t").upsert(pa.table([[1, 1, 2], ["mon", "a,b", "mon"]], schema=schema))
    got = lines(shell.ok("get", tmp_path / "s", "t", '1,"a,b"', "2,mon", "--json"))
    assert got == [{"id": 1, "day": "a,b"}, {"id": 2, "day": "mon"}]
    for wrong in ("1", "1,mon,2"):
        code, message = shell.fails("get", tmp_path / "s", "t", wrong)
        assert code == 2
        assert "id, day" in message


@pytest.mark.parametrize("key", ["x", "1.5", "", "99999999999999999999"])
def test_keys_that_are_not_of_their_type_are_refused(shell: Shell, uri: str, key: str) -> None:
    code, message = shell.fails("get", uri, "t", key)
    assert code == 2
    assert "ES_INVALID_OPTION" in message
    assert "'id'" in message
