"""history and tags, for people and for scripts."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticscan.store import Store
from tests.cli.conftest import Shell


def test_the_history_lists_commits_and_what_was_said_of_them(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table
) -> None:
    pa.parquet.write_table(rows.slice(0, 10), tmp_path / "r.parquet")
    shell.ok(
        "load", uri, "t", tmp_path / "r.parquet", "--user-metadata", "job=[x]=1", "--user-metadata", "by=ann"
    )
    text = shell.json("history", uri, "t")
    assert [(commit["kind"], commit["rows"]) for commit in text] == [
        ("create", 0),
        ("write", 5_000),
        ("write", 10),
    ]
    assert text[-1]["user_metadata"] == {"by": "ann", "job": "[x]=1"}
    assert shell.json("history", uri, "t", "--limit", 1) == text[-1:]
    lines = shell.ok("history", uri, "t").splitlines()
    assert lines[0].split() == ["commit", "time", "operation", "rows", "bytes", "said", "of", "it"]
    assert "by=ann, job=[x]=1" in lines[-1]


def test_a_time_of_the_history_is_that_commit(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        pa.parquet.write_table(rows.slice(0, 10), tmp_path / "r.parquet")
        for _ in range(3):
            shell.ok("load", uri, "t", tmp_path / "r.parquet")
        for line in shell.ok("history", uri, "t").splitlines()[1:]:
            number, made = line.split()[:2]
            assert made.endswith("Z")
            assert shell.json("explain", uri, "t", "--snapshot", made)["snapshot"] == int(number)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_time_that_is_still_to_come_is_refused(shell: Shell, uri: str) -> None:
    commits = len(shell.json("history", uri, "t"))
    ahead = (datetime.now(UTC) + timedelta(hours=9)).isoformat()
    for command in (
        ("scan", uri, "t", "--snapshot", ahead),
        ("scan", uri, "t", "--snapshot", "2099-01-01T00:00Z"),
        ("tag", "create", uri, "t", "later", "--snapshot", ahead),
        ("restore-table", uri, "t", "--to", ahead),
    ):
        code, text = shell.fails(*command)
        assert code == 2
        assert "[ES_SNAPSHOT_NOT_FOUND]" in text
        assert "a past time with its zone" in " ".join(text.split())
    assert len(shell.json("history", uri, "t")) == commits
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    assert shell.json("explain", uri, "t", "--snapshot", soon)["snapshot"]


@pytest.mark.parametrize("word", ["nightly", "k=" + "x" * 5_000])
def test_what_cannot_be_kept_with_a_commit_is_refused(
    shell: Shell, uri: str, tmp_path: Path, word: str
) -> None:
    pa.parquet.write_table(pa.table({"id": [1]}), tmp_path / "r.parquet")
    code, _ = shell.fails("load", uri, "t", tmp_path / "r.parquet", "--user-metadata", word)
    assert code == 2
    assert len(shell.json("history", uri, "t")) == 2


def test_a_tag_is_made_read_listed_and_dropped(shell: Shell, uri: str) -> None:
    assert "no tags yet" in shell.ok("tag", "list", uri, "t")
    newest = shell.json("history", uri, "t")[-1]["number"]
    assert shell.ok("tag", "create", uri, "t", "loaded") == f"Tag loaded keeps snapshot {newest} of t.\n"
    first = shell.json("tag", "create", uri, "t", "made", "--snapshot", newest - 1)
    assert (first["name"], first["snapshot"]) == ("made", newest - 1)
    assert [tag["name"] for tag in shell.json("tag", "list", uri, "t")] == ["made", "loaded"]
    assert [line.split()[:2] for line in shell.ok("tag", "list", uri, "t").splitlines()[1:]] == [
        ["made", str(newest - 1)],
        ["loaded", str(newest)],
    ]
    assert shell.ok("scan", uri, "t", "--snapshot", "made").endswith(f"0 rows of snapshot {newest - 1}.\n")
    assert shell.json("explain", uri, "t", "--snapshot", "made")["snapshot"] == newest - 1
    shell.ok("tag", "drop", uri, "t", "made")
    code, text = shell.fails("scan", uri, "t", "--snapshot", "made")
    assert code == 2
    assert "[ES_TAG_NOT_FOUND]" in text


@pytest.mark.parametrize("snapshot", ["9" * 19, "9" * 5_000, "1e3", "²"])
def test_what_is_no_snapshot_is_refused(shell: Shell, uri: str, snapshot: str) -> None:
    code, text = shell.fails("tag", "create", uri, "t", "x", "--snapshot", snapshot)
    assert code == 2
    assert "[ES_SNAPSHOT_NOT_FOUND]" in text or "[ES_TAG_NOT_FOUND]" in text


def test_a_table_is_restored_to_a_commit_a_tag_or_a_time(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table
) -> None:
    before = shell.json("history", uri, "t")[-1]["number"]
    shell.ok("tag", "create", uri, "t", "loaded")
    pa.parquet.write_table(
        rows.slice(0, 10).set_column(1, "name", pa.array(["x"] * 10)), tmp_path / "r.parquet"
    )
    for to in (before, "loaded"):
        shell.ok("load", uri, "t", tmp_path / "r.parquet")
        text = shell.json("restore-table", uri, "t", "--to", to)
        assert (text["restored_to"], text["commit"]) == (
            before,
            shell.json("history", uri, "t")[-1]["number"],
        )
    newest = text["commit"]
    assert (
        shell.ok("restore-table", uri, "t", "--to", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}")
        == f"t is what it was at snapshot {newest}, since commit {newest + 1}.\n"
    )
    for to, code in (
        ("1999-01-01T00:00Z", "[ES_SNAPSHOT_NOT_FOUND]"),
        ("never", "[ES_TAG_NOT_FOUND]"),
        ("2026-13-01", "[ES_TAG_NOT_FOUND]"),
        ("", "[ES_TAG_NOT_FOUND]"),
    ):
        assert code in shell.fails("restore-table", uri, "t", "--to", to)[1]


def test_a_time_without_a_zone_is_refused_with_both_ways_to_write_it(shell: Shell, uri: str) -> None:
    for command in (
        ("scan", uri, "t", "--snapshot", "2026-03-01 12:00"),
        ("tag", "create", uri, "t", "then", "--snapshot", "2026-03-01 12:00"),
        ("restore-table", uri, "t", "--to", "2026-03-01 12:00"),
        ("changes", uri, "t", "--after", "2026-03-01 12:00"),
    ):
        code, text = shell.fails(*command)
        assert code == 2
        assert "'2026-03-01T12:00:00Z' for UTC" in text and "'2026-03-01T12:00:00+02:00'" in text


def test_a_tables_retention_is_set_and_given_back(shell: Shell, uri: str) -> None:
    assert shell.json("set-retention", uri, "t", "12h") == {"table": "t", "retention": 43_200.0}
    with Store.open(uri) as store:
        assert store.table("t").definition.retention_seconds == 43_200.0
    assert "as long as the store says" in shell.ok("set-retention", uri, "t", "store")
    with Store.open(uri) as store:
        assert store.table("t").definition.retention_seconds is None
    code, message = shell.fails("set-retention", uri, "t", "12")
    assert (code, "unit" in message) == (2, True)
