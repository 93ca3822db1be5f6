"""Keepers, passwords, stores that can only be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elasticscan.store import Store
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
