"""create, status, tables, and how errors are reported."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base import errors
from elasticscan.cli.options import bytes_of, names_of, seconds_of, shards_of
from elasticscan.cli.output import report_error
from elasticscan.store import Store

# As `Shell` of conftest.py, which tests get as a fixture and cannot import.
Shell = Any


def test_a_created_store_has_what_was_asked_for(shell: Shell, tmp_path: Path) -> None:
    uri = tmp_path / "new.store"
    made = shell.json(
        "create", uri, "--shard", "a", "--shard", "b", "--tablets", 6, "--slots", 600, "--hash", "java"
    )
    assert [shard["name"] for shard in made["shards"]] == ["a", "b"]
    assert (len(made["tablets"]), made["slots"], made["hash"]) == (6, 600, "java")


def test_shards_may_have_roots_of_their_own(shell: Shell, tmp_path: Path) -> None:
    root = tmp_path / "disk"
    made = shell.json("create", tmp_path / "new.store", "--shard", f"a={root}")
    assert made["shards"][0]["root"] == str(root)
    assert root.is_dir()


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["create", "{0}/x", "--shard", "a={0}/disk", "--shard", "b"], "shard 'b' has no root"),
        (["create", "{0}/made.store", "--shard", "s1"], "[ES_ALREADY_EXISTS]"),
        (["status", "{0}/nowhere"], "[ES_STORE_NOT_FOUND]"),
        (["status", "{0}/made.store", "--colour"], "--colour"),
    ],
)
def test_a_mistake_of_the_caller_is_reported(
    shell: Shell, uri: str, tmp_path: Path, words: list[str], reported: str
) -> None:
    code, message = shell.fails(*(word.format(tmp_path) for word in words))
    assert code == 2
    assert reported in message


def test_status_as_json_is_exactly_what_the_store_says(shell: Shell, uri: str) -> None:
    with Store.open(uri) as store:
        assert shell.json("status", uri) == json.loads(json.dumps(store.status()))


def test_the_picture_draws_a_block_for_every_tablet(shell: Shell, uri: str) -> None:
    lines = [line.split() for line in shell.ok("status", uri).splitlines()]
    drawn = {line[0]: line[-1] for line in lines if line[1:3] == ["4", "tablets"]}
    assert drawn == {"s1": "■■■■", "s2": "■■■■"}


def test_the_picture_lists_tables_and_leases(shell: Shell, uri: str) -> None:
    shell.run("scan", uri, "t", "--pages", 1)
    reported = shell.ok("status", uri)
    assert "5,000" in reported
    assert "leases" in reported


def test_tables_are_listed_with_their_columns(shell: Shell, uri: str) -> None:
    (found,) = shell.json("tables", uri)
    assert found["columns"] == {"id": "int64", "name": "string", "value": "double"}
    assert (found["primary_key"], found["rows"]) == (["id"], 5_000)
    assert "double" in shell.ok("tables", uri)


def test_tables_are_listed_without_a_look_at_their_files(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table
) -> None:
    with Store.open(uri) as store:
        store.table("t").upsert(rows.slice(0, 10))
    for file in tmp_path.glob("made.store/shards/s1/t*/*.arrow"):
        file.unlink()
    (reported,) = shell.json("tables", uri)
    assert f" ≤ {reported['rows']:,} " in shell.ok("tables", uri)
    assert reported["rows"] >= rows.num_rows and not reported["rows_exact"]


def test_a_store_without_tables_says_how_to_make_one(shell: Shell, tmp_path: Path) -> None:
    shell.ok("create", tmp_path / "s", "--shard", "s1")
    assert "elasticscan load" in shell.ok("tables", tmp_path / "s")


def test_with_json_an_error_is_json_on_stderr(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell.run("status", tmp_path / "nowhere", "--json")
    error = json.loads(err)["error"]
    assert (code, out) == (2, "")
    assert (error["code"], error["exit_code"]) == ("ES_STORE_NOT_FOUND", 2)
    assert "nowhere" in error["fields"]["uri"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["status", "--jsn", "--json"], "No such option: --jsn"),
        (["status", "--json"], "Missing argument 'URI'"),
        (["scan", "there", "--page-rows", "many", "--json"], "Invalid value for '--page-rows'"),
        (["tag", "create", "--json"], "Missing argument"),
        (["statu", "there", "--json"], "No such command 'statu'"),
    ],
)
def test_with_json_wrong_words_are_reported_as_json(shell: Shell, words: list[str], why: str) -> None:
    code, out, err = shell.run(*words)
    error = json.loads(err)["error"]
    assert (code, out) == (2, "")
    assert (error["code"], error["exit_code"]) == ("ES_INVALID_OPTION", 2)
    assert why in error["message"]
    assert "--help" in error["message"]


def test_a_table_is_dropped_when_that_is_confirmed(shell: Shell, uri: str) -> None:
    code, reported = shell.fails("drop", uri, "t")
    assert (code, "--yes" in reported) == (2, True)
    assert [table["name"] for table in shell.json("tables", uri)] == ["t"]
    assert shell.json("drop", uri, "t", "--yes") == {"dropped": "t"}
    assert shell.json("tables", uri) == []
    assert shell.fails("drop", uri, "t", "--yes")[0] == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.FilterError("x"), 2),
        (errors.MoveInProgress("x"), 3),
        (errors.SnapshotExpired("x"), 4),
        (errors.DiskFull("x"), 5),
        (errors.ElasticScanError("x"), 1),
    ],
)
def test_the_exit_code_says_who_has_to_act(
    error: errors.ElasticScanError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_error(error, as_json=False) == code
    assert report_error(error, as_json=True) == code
    assert f"[{error.code}] x" in capsys.readouterr().err


def test_the_version_is_reported(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 9.9")
    assert shell.ok("--version") == "elasticscan 9.9\n"


def test_without_an_installation_there_is_no_version(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert shell.ok("--version") == "unknown (not installed)\n"


def test_without_its_extras_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom elasticscan.cli import main\nmain()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "pip install 'elasticscan[cli]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_command_runs_as_a_module_too() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "elasticscan.cli", "--help"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "explain" in ended.stdout


def test_durations_have_units() -> None:
    assert [seconds_of(text, "x") for text in ("0", "90s", "1.5m", "2h", "7d")] == [
        0,
        90,
        90,
        7_200,
        604_800,
    ]


def test_sizes_have_units() -> None:
    assert [bytes_of(text, "x") for text in (None, "10", "10K", "1.5m", "2G")] == [
        None,
        10,
        10_000,
        1.5e6,
        2e9,
    ]


@pytest.mark.parametrize(
    "text", ["", "d", "-1", "7", "90", "7w", "1e3", "1.2.3d", "٣", "٣d", "9" * 5_000 + "d"]
)
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidOption, match="--retention"):
        seconds_of(text, "--retention")


def test_a_speed_of_nothing_is_refused() -> None:
    with pytest.raises(errors.InvalidOption, match="more than 0"):
        bytes_of("0", "--bytes-per-second")


def test_lists_of_names_may_have_spaces() -> None:
    assert names_of(["a, b,,c ", "d"]) == ["a", "b", "c", "d"]
    assert names_of(None) is names_of([]) is None
    assert names_of(None) is None


def test_a_shard_is_named_once() -> None:
    assert shards_of(["a=/x", "b"]) == (["a", "b"], {"a": "/x"})
    with pytest.raises(errors.InvalidOption, match="named twice"):
        shards_of(["a", "b", "a"])
