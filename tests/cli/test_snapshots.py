"""history, for people and for scripts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.cli.conftest import Shell


def test_the_history_lists_commits_and_what_was_said_of_them(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table
) -> None:
    pa.parquet.write_table(rows.slice(0, 10), tmp_path / "r.parquet")
    shell.ok(
        "load", uri, "t", tmp_path / "r.parquet", "--user-metadata", "job=[x]=1", "--user-metadata", "by=ann"
    )
    told = shell.json("history", uri, "t")
    assert [(commit["kind"], commit["rows"]) for commit in told] == [
        ("create", 0),
        ("write", 5_000),
        ("write", 10),
    ]
    assert told[-1]["user_metadata"] == {"by": "ann", "job": "[x]=1"}
    assert shell.json("history", uri, "t", "--limit", 1) == told[-1:]
    lines = shell.ok("history", uri, "t").splitlines()
    assert lines[0].split() == ["commit", "time", "operation", "rows", "bytes", "said", "of", "it"]
    assert "by=ann, job=[x]=1" in lines[-1]


@pytest.mark.parametrize("word", ["nightly", "k=" + "x" * 5_000])
def test_what_cannot_be_kept_with_a_commit_is_refused(
    shell: Shell, uri: str, tmp_path: Path, word: str
) -> None:
    pa.parquet.write_table(pa.table({"id": [1]}), tmp_path / "r.parquet")
    code, _ = shell.fails("load", uri, "t", tmp_path / "r.parquet", "--user-metadata", word)
    assert code == 2
    assert len(shell.json("history", uri, "t")) == 2
