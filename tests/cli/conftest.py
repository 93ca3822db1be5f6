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
def uri(tmp_path: Path) -> str:
    """Make a store with two shards, eight tablets and a table `t` of 5,000 rows."""
    path = str(tmp_path / "made.store")
    with Store.create(path, ["s1", "s2"], tablets=8, retention_seconds=3_600) as store:
        rows = pa.table({"id": range(5_000), "name": [f"n{number % 7}" for number in range(5_000)]})
        store.create_table("t", rows.schema, ["id"])
        store.table("t").upsert(rows)
    return path
