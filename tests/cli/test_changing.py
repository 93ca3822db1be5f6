"""update and delete, and loads that check: one commit each, reported in both voices."""

from __future__ import annotations

import datetime
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import elasticscan
from elasticscan.base import errors
from elasticscan.cli.output import report_error
from elasticscan.store import Store

Shell = Any


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    path.write_text("id,name,value\n4,new,1\n7000,new,2\n")
    return str(path)


def count(uri: str, condition: str) -> int:
    with Store.open(uri) as store:
        return store.table("t").scan(filter=condition).count()


def test_update_gives_columns_new_values(shell: Shell, uri: str) -> None:
    done = shell.json(
        "update", uri, "t", "--set", "value=value * 2", "--set", "name='it''s'", "--where", "id < 10"
    )
    assert done == {"table": "t", "rows": 10, "commit": 3}
    assert count(uri, "name = 'it''s' AND (value = id / 2 OR value IS NULL)") == 10
    text = shell.ok(
        "update", uri, "t", "--set", "name=NULL", "--where", "true", "--user-metadata", "why=test"
    )
    assert "5,000 rows of t updated as commit 4." in text
    with Store.open(uri) as store:
        assert store.table("t").history()[-1].user_metadata == {"why": "test"}


def test_delete_takes_a_condition_or_files_of_keys(shell: Shell, uri: str, file: str, tmp_path: Path) -> None:
    assert shell.json("delete", uri, "t", "--where", "id >= 10") == {"table": "t", "rows": 4990, "commit": 3}
    assert "2 keys of t deleted as commit 4, whether" in shell.ok("delete", uri, "t", file)
    keys = tmp_path / "keys.parquet"
    pyarrow.parquet.write_table(pa.table({"id": pa.array([5, 6], pa.int64())}), keys)
    assert shell.json("delete", uri, "t", keys, file)["keys"] == 4
    assert count(uri, "true") == 7


def test_wrong_calls_say_what_to_mend(shell: Shell, uri: str, file: str, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.csv"
    nothing.write_text("name\nx\n")
    for words, why in (
        (("delete", uri, "t"), "one of files of keys, --key and --where"),
        (("delete", uri, "t", file, "--where", "true"), "one of files of keys, --key and --where"),
        (("delete", uri, "t", nothing), "lack 'id'"),
        (("update", uri, "t", "--set", "name", "--where", "true"), "COLUMN=SQL"),
        (("update", uri, "t", "--set", "id=1", "--where", "true"), "primary key"),
        (("update", uri, "t", "--set", "name='x'"), "all of them with --where true"),
        (("delete", uri, "t", "--where", "\"name\" <> 'x'"), "may be a text or a name"),
        (("delete", uri, "t", "--where", "1 = 1"), "names no column; write TRUE"),
        (("count", uri, "t", "--filter", "\"name\" = 'x'"), "may be a text or a name"),
        (("update", uri, "t", "--set", "name=Oslo", "--where", "true"), "quotes inside: \"'Oslo'\""),
        (("load", uri, "t", file, "--insert", "--overwrite"), "--overwrite and --insert"),
        (("load", uri, "t", file, "--insert", "--if-unchanged-since", "2"), "do not go together"),
        (("update", uri, "t", "--set", "name='x'", "--where", "true", "--user-metadata", "x"), "KEY=TEXT"),
    ):
        code, message = shell.fails(*words)
        assert code == 2
        assert why in message


def test_what_changed_since_refuses_with_exit_code_4(shell: Shell, uri: str, file: str) -> None:
    shell.ok("update", uri, "t", "--set", "name='x'", "--where", "id = 4")
    for words in (
        ("load", uri, "t", file),
        ("delete", uri, "t", file),
        ("delete", uri, "t", "--where", "id < 10"),
        ("update", uri, "t", "--set", "name='y'", "--where", "id < 10"),
    ):
        code, message = shell.fails(*words, "--if-unchanged-since", "2")
        assert code == 4
        assert "[ES_ROWS_CHANGED]" in message
    shell.ok("delete", uri, "t", "--where", "id = 5", "--if-unchanged-since", "2")
    shell.ok("load", uri, "t", file, "--if-unchanged-since", "4")


def test_insert_refuses_keys_that_are_there(shell: Shell, uri: str, file: str) -> None:
    code, message = shell.fails("load", uri, "t", file, "--insert")
    assert code == 2
    assert "[ES_KEYS_EXIST]" in message
    shell.ok("delete", uri, "t", file)
    shell.ok("load", uri, "t", file, "--insert")
    assert count(uri, "name = 'new'") == 2


def test_keys_of_an_error_are_values_in_python_and_json_in_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = pa.schema([pa.field("day", pa.date32(), False), pa.field("raw", pa.binary(), False)])
    key = {"day": datetime.date(2026, 1, 31), "raw": b"\xff"}
    with elasticscan.create(tmp_path / "keys.store", shards=["s1"]) as store:
        table = store.create_table("t", schema, ["day", "raw"])
        table.insert([key])
        with pytest.raises(errors.KeysExist) as caught:
            table.insert([key])
    assert pickle.loads(pickle.dumps(caught.value)).fields["keys"] == [key]
    assert report_error(caught.value, as_json=True) == 2
    reported = json.loads(capsys.readouterr().err)["error"]["fields"]["keys"]
    assert reported == [{"day": "2026-01-31", "raw": "/w=="}]


def test_a_key_in_place_of_a_file_of_keys_is_reported_with_the_option(shell: Shell, uri: str) -> None:
    for word in ("7", "-7", "id=7", "9" * 5_000):
        code, reported = shell.fails("delete", uri, "t", "--", word)
        assert code == 2
        assert f"(id), write --key {word if len(word) < 9 else '…'}" in reported
    assert "--key" not in shell.fails("delete", uri, "t", "none.csv")[1]


def test_rows_are_deleted_by_keys_as_get_takes_them(shell: Shell, uri: str) -> None:
    done = shell.json("delete", uri, "t", "--key", "7", "--key", "-5", "--user-metadata", "why=test")
    assert done == {"table": "t", "keys": 2, "commit": 3}
    assert count(uri, "true") == 4_999
    assert shell.ok("get", uri, "t", "7", "--json") == ""
    code, reported = shell.fails("delete", uri, "t", "--key", "7", "--if-unchanged-since", "2")
    assert (code, "[ES_ROWS_CHANGED]" in reported) == (4, True)
    code, reported = shell.fails("delete", uri, "t", "--key", "id=7")
    assert (code, "of type int64 for 'id'" in reported) == (2, True)


def test_a_key_of_several_columns_deletes_its_row_and_no_other(shell: Shell, tmp_path: Path) -> None:
    schema = pa.schema([("city", pa.string()), ("day", pa.string())])
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=8) as store:
        store.create_table("t", schema, ["city", "day"])
        cities = ["Oslo", "Oslo", "a=b", "a=b", "it's"]
        store.table("t").upsert(pa.table([cities, ["mon", "d.e", "mon", "x,y", "/z"]], schema=schema))
    for word, written in (
        ("Oslo,mon", "Oslo,mon"),
        ("Oslo,d.e", "Oslo,d.e"),
        ('a=b,"x,y"', "'a=b,\"x,y\"'"),
        ("it's,/z", """'it'"'"'s,/z'"""),
    ):
        code, reported = shell.fails("delete", tmp_path / "s", "t", word)
        assert code == 2
        assert f"(city, day), write --key {written}" in reported
        assert shell.json("delete", tmp_path / "s", "t", "--key", word)["keys"] == 1
        assert shell.ok("get", tmp_path / "s", "t", word, "--json") == ""
    assert shell.json("count", tmp_path / "s", "t")["rows"] == 1
    code, reported = shell.fails("delete", tmp_path / "s", "t", "--key", "Oslo")
    assert (code, "city, day" in reported) == (2, True)
