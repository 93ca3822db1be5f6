"""What the tests of the command line share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from elasticscan.cli.app import app
from elasticscan.store import Store

ROWS = 5_000


class Shell:
    """Runs commands; each method says how the command is expected to end."""

    def run(self, *words: object) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        ended = CliRunner().invoke(app, [str(word) for word in words])
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return ended.exit_code, ended.stdout, ended.stderr

    def ok(self, *words: object) -> str:
        """Stdout of a command that succeeds and complains of nothing."""
        code, out, err = self.run(*words)
        assert (code, err) == (0, ""), err
        return out

    def json(self, *words: object) -> Any:
        return json.loads(self.ok(*words, "--json"))

    def fails(self, *words: object) -> tuple[int, str]:
        """Exit code and message of a command that fails."""
        code, out, err = self.run(*words)
        assert code != 0, out
        return code, err


@pytest.fixture
def shell() -> Shell:
    return Shell()


@pytest.fixture
def rows() -> pa.Table:
    numbers = range(ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([f"n{number % 7}" for number in numbers]),
            "value": pa.array([None if number % 5 == 0 else number / 4 for number in numbers], pa.float64()),
        }
    )


@pytest.fixture
def uri(tmp_path: Path, rows: pa.Table) -> str:
    """Make a store with two shards, eight tablets and a table `t`."""
    path = str(tmp_path / "made.store")
    with Store.create(path, ["s1", "s2"], tablets=8, retention_seconds=3_600) as store:
        store.create_table("t", rows.schema, ["id"])
        store.table("t").upsert(rows)
    return path
