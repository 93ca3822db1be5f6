"""Several keepers work on one store while it is written, one is killed, with the catalog at a server."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from elasticscan.store import Store
from tests.base.postgres import Server
from tests.processes.test_killed_processes import SCHEMA, apply, program, rows

WRITERS, WRITES, KEEPERS = 2, 25, 3

pytestmark = pytest.mark.long


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that a program says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"it ended by itself, with {process.wait()}"
    heard: dict[str, Any] = json.loads(line)
    return heard


def all_said(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(line) for line in process.stdout if line.endswith("\n")]


def test_keepers_share_a_store_with_writers_though_one_is_killed(
    postgres: Server, postgres_url: str, tmp_path: Path
) -> None:
    shards = {name: str(tmp_path / name) for name in ("s1", "s2", "s3")}
    log, before = postgres.directory / "log", len((postgres.directory / "log").read_bytes())
    with Store.create(postgres_url, shards, tablets=12, slots=256) as store, ExitStack() as stack:
        store.create_table("t", SCHEMA, ["id"])
        keepers = [stack.enter_context(program("keep", postgres_url, str(n))) for n in range(KEEPERS + 1)]
        rounds = [said(keeper) for keeper in keepers]
        writers = [
            stack.enter_context(program("write", postgres_url, str(seed), str(WRITES)))
            for seed in range(WRITERS)
        ]
        time.sleep(1.0)
        keepers[0].send_signal(signal.SIGKILL)
        rounds += all_said(keepers.pop(0))
        commits = {
            line["commit"]: (seed, line["done"])
            for seed, writer in enumerate(writers)
            for line in all_said(writer)
            if "done" in line
        }
        assert len(commits) == WRITERS * WRITES
        for keeper in keepers:
            assert keeper.stdin is not None
            keeper.stdin.close()
            rounds += all_said(keeper)
            assert keeper.wait() == 0
        state: dict[int, int] = {}
        for _, (seed, number) in sorted(commits.items()):
            state = apply(state, seed, number)
        assert rows(store) == state
        # Two keepers that want the same find so in the catalog: that is no problem of either.
        assert [problem for each in rounds for problem in each["problems"]] == []
        assert sum(each["merges"] for each in rounds) > 0
        assert sum(each["others"] for each in rounds) > 0
        assert store.status()["moves"] == []
        assert store.verify() == []
        store.context.catalog.check_whole()
    assert b"deadlock" not in log.read_bytes()[before:]
