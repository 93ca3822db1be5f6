"""Keepers, passwords, stores that can only be read, streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.store import Store
from elasticscan.store.context.leases import take_lease
from tests.cli.conftest import Shell


def test_status_as_json_is_exactly_the_status_of_the_store(shell: Shell, uri: str) -> None:
    with Store.open(uri) as store:
        assert shell.json("status", uri) == json.loads(json.dumps(store.status()))


def test_a_keeper_goes_on_when_the_catalog_was_away_until_it_is_stopped(uri: str) -> None:
    words = [sys.executable, "-m", "elasticscan", "keep", uri, "--every", "0.05s", "--json"]
    away = Path(uri).with_suffix(".away")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None and keeper.stderr is not None
        rounds = (json.loads(line)["problems"] for line in keeper.stdout)
        assert [next(rounds), next(rounds)] == [[], []]
        Path(uri).rename(away)
        assert next(problems for problems in rounds if problems)
        away.rename(uri)
        assert next(problems for problems in rounds if not problems) == []
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(60) == 0
        assert "[ES_CATALOG_UNAVAILABLE]" in keeper.stderr.read()


@pytest.mark.parametrize("command", ["status", "tables", "verify", "topologies"])
def test_no_command_shows_a_password(shell: Shell, command: str) -> None:
    place = "wat://ann:hunter2@db/x?password=hunter2"
    for words in ((command, place), (command, place, "--json")):
        code, out, err = shell.run(*words)
        assert code == 2
        assert "hunter2" not in out + err


def test_a_status_says_that_a_store_can_only_be_read(
    shell: Shell, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode, **__: mode != os.W_OK)
    assert "for reading alone, scans take no leases: this user may not write" in shell.ok("status", uri)
    code, message = shell.fails("compact", uri)
    assert code == 2
    assert message.startswith("[ES_READ_ONLY]")
    assert "rows of snapshot" in shell.ok("scan", uri, "t", "--limit", 5)


# Streams


def hold(store: Store, name: str, commit: int, seconds: float = 7 * 86_400) -> None:
    """Keep the changes after a commit of `t`, as a stream of this name does."""
    with store.context.catalog.writing() as tx:
        take_lease(tx, f"t/{name}", tx.state.table_named("t"), commit, f"stream:{name}", seconds)


@pytest.fixture
def followed(uri: str, rows: pa.Table) -> str:
    """Make the store of `uri` with a stream that has all of `t`, and one that is two commits behind."""
    with Store.open(uri) as store:
        hold(store, "slow", 2)
        store.table("t").upsert(rows.slice(0, 10))
        store.table("t").upsert(rows.slice(0, 3))
        hold(store, "quick", 4)
    return uri


def test_a_stream_is_as_far_behind_as_the_table_has_commits_after_its_own(
    shell: Shell, followed: str
) -> None:
    quick, slow = shell.json("status", followed)["streams"]
    assert (slow["name"], slow["table"], slow["commit"]) == ("slow", "t", 2)
    assert (slow["behind_commits"], slow["behind_rows"]) == (2, 13)
    assert slow["behind_seconds"] > 0
    behind = [quick[f"behind_{what}"] for what in ("commits", "rows", "seconds")]
    assert (quick["name"], quick["commit"], behind) == ("quick", 4, [0, 0, 0.0])
    lines = shell.ok("status", followed).partition("\nstreams\n")[2].splitlines()
    assert "behind rows" in lines[0]
    assert [line.split()[:5] for line in lines[1:3]] == [
        ["quick", "t", "4", "0", "0"],
        ["slow", "t", "2", "2", "13"],
    ]


def test_scans_ended_leases_and_streams_of_dropped_tables_are_no_streams(
    followed: str, rows: pa.Table
) -> None:
    with Store.open(followed) as store:
        next(store.table("t").scan(page_rows=10))
        hold(store, "gone", 2, seconds=-1)
        assert [stream["name"] for stream in store.status()["streams"]] == ["quick", "slow"]
        store.table("t").drop()
        assert store.status()["streams"] == []
        store.create_table("t", rows.schema, ["id"])
        assert store.status()["streams"] == []
