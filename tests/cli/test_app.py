"""Help, versions, and the exit codes of errors."""

from __future__ import annotations

import datetime
import inspect
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import typer

import elasticscan
from elasticscan.base import errors
from elasticscan.base.clock import seconds_of
from elasticscan.cli.app import COMMANDS, app
from elasticscan.cli.output import report_error, take_json
from tests.cli.conftest import Shell

HEAVY = """
pandas pyspark duckdb polars pyarrow.dataset pyarrow.parquet pyarrow.flight pyarrow.orc
psycopg botocore http.server elasticscan.connector
"""
CALLS = re.compile(r"Example: elasticscan (.*)")


def test_the_examples_of_the_help_are_calls() -> None:
    calls = list[str]()
    for each in (each for panel in COMMANDS.values() for each in panel):
        commands = each.registered_commands if isinstance(each, typer.Typer) else [None]
        for function in (each if command is None else command.callback for command in commands):
            calls += CALLS.findall(inspect.getdoc(function) or "")
    assert len(calls) > 20
    root = typer.main.get_command(app)
    for call in calls:
        command, words, context = root, take_json(shlex.split(call)), None
        while hasattr(command, "commands"):
            context = typer.Context(command, parent=context, info_name=words[0])
            command, words = command.commands[words[0]], words[1:]
        command.make_context(call, words, parent=context)


def run_python(*words: str, stdout: int = subprocess.PIPE) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a process of Python."""
    done = subprocess.run(
        [sys.executable, *words], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_the_package_runs_as_a_module_and_without_its_extras_says_what_to_install() -> None:
    assert run_python("-m", "elasticscan", "--version")[1].strip() == elasticscan.__version__
    code = "import sys; sys.modules['typer'] = None\nfrom elasticscan.cli import main\nmain()"
    ended, _, err = run_python("-c", code)
    assert ended == 1
    assert "pip install 'elasticscan[cli]'" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("command", "heavy"),
    [("--help", "apsw sqlglot elasticscan.store elasticscan.catalog pandas"), ("status", HEAVY)],
)
def test_a_start_imports_only_what_the_command_needs(uri: str, command: str, heavy: str) -> None:
    words = ["elasticscan", command, *([uri] if command == "status" else [])]
    code = (
        f"import sys\nfrom elasticscan.cli import main\nsys.argv = {words!r}\ntry:\n    main()\n"
        f"finally:\n    print(sorted(set({heavy.split()!r}) & set(sys.modules)), file=sys.stderr)"
    )
    ended, out, err = run_python("-c", code)
    assert (ended, err.strip()) == (0, "[]")
    assert ("rotate-secret" if command == "--help" else "topology") in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "{}/none"], "none"),
        (["status", "--jsn"], "No such option: --jsn"),
        (["status"], "Missing argument 'URI'"),
        (["scan", "there", "t", "--limit", "many"], "Invalid value for '--limit'"),
        (["tag", "create"], "Missing argument"),
        (["statu", "there"], "Did you mean 'status'?"),
    ],
)
def test_with_json_an_error_is_json_on_stderr(
    shell: Shell, tmp_path: Path, words: list[str], message: str
) -> None:
    code, out, err = shell.run(*(word.format(tmp_path) for word in words), "--json")
    error = json.loads(err)["error"]
    assert (code, out, error["exit_code"]) == (2, "", 2)
    assert error["code"] in ("ES_INVALID_OPTION", "ES_NOT_FOUND")
    assert message in error["message"]


def test_the_exit_code_says_who_has_to_act() -> None:
    kinds = (errors.ElasticScanError, errors.FilterError, errors.CatalogUnavailable)
    kinds += (errors.SnapshotExpired, errors.DiskFull)
    assert [report_error(kind("x")) for kind in kinds] == [1, 2, 3, 4, 5]


def test_keys_of_an_error_are_values_in_python_and_json_in_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = pa.schema([pa.field("day", pa.date32(), False), pa.field("raw", pa.binary(), False)])
    key = {"day": datetime.date(2026, 1, 31), "raw": b"\xff"}
    with elasticscan.create(tmp_path / "keys.store", shards=["s1"]) as store:
        table = store.create_table("t", schema, ["day", "raw"])
        table.insert([key])
        with pytest.raises(errors.UsageError) as caught:
            table.insert([key])
    assert pickle.loads(pickle.dumps(caught.value)).fields["keys"] == [key]
    take_json(["--json"])
    assert report_error(caught.value) == 2
    found = json.loads(capsys.readouterr().err)["error"]["fields"]["keys"]
    assert found == [{"day": "2026-01-31", "raw": "/w=="}]


@pytest.mark.parametrize("words", [["scan", "t", "--json"], ["scan", "t", "--format", "csv"]])
def test_a_reader_of_stdout_that_has_gone_is_no_error(uri: str, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        code, _, err = run_python("-m", "elasticscan", words[0], uri, *words[1:], stdout=writer)
        assert (code, err) == (1, "")
    finally:
        os.close(writer)


def test_durations_have_units() -> None:
    texts = ("0", "90s", "1.5m", "2h", "7d")
    assert [seconds_of("x", text) for text in texts] == [0, 90, 90, 7_200, 604_800]
    for text in ("", "d", "-1", "7w", "1e3", "1.2.3d", "٣", "٣d", "9" * 5_000 + "d"):
        with pytest.raises(errors.InvalidOption, match="--retention"):
            seconds_of("--retention", text)
