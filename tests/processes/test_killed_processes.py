"""kill -9 of writers and movers at random moments, with real processes on a real disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.store import Store
from tests.processes import adversary
from tests.processes.programs import change

PROGRAMS = Path(__file__).with_name("programs.py")
KILLS = int(os.environ.get("ELASTICSCAN_KILLS", "6"))
ADVERSARY_ROUNDS = os.environ.get("ELASTICSCAN_ADVERSARY_ROUNDS", "4")

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])

pytestmark = pytest.mark.long


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of `programs.py`, killed at the latest when the block ends."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAMS), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def run_and_kill(seconds: float, *arguments: str, lines: int = 1) -> list[dict[str, Any]]:
    """Run a program, kill -9 it some time after so many lines; returns what it had said."""
    with program(*arguments) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(lines)]
        assert all(first), "the program ended by itself"
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        said = [*first, *process.stdout]
    return [json.loads(line) for line in said if line.endswith("\n")]


def apply(state: dict[int, int], seed: int, number: int) -> dict[int, int]:
    kind, keys, value = change(seed, number)
    changed = dict(state)
    for key in keys:
        if kind == "write":
            changed[key] = value
        else:
            changed.pop(key, None)
    return changed


def rows(store: Store) -> dict[int, int]:
    table = store.table("t").scan().to_table()
    found = dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))
    assert len(found) == table.num_rows, "a key was returned twice"
    return found


@pytest.fixture
def uri(tmp_path: Path) -> str:
    place = str(tmp_path / "store")
    with Store.create(place, ["s1", "s2", "s3"], tablets=12, slots=256) as store:
        store.create_table("t", SCHEMA, ["id"])
    return place


@pytest.fixture(params=["sqlite", "postgresql"])
def any_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same store, with its catalog in its directory or at a server."""
    if request.param == "sqlite":
        uri: str = request.getfixturevalue("uri")
        return uri
    url: str = request.getfixturevalue("postgres_url")
    with Store.create(
        url, {n: str(tmp_path / n) for n in ("s1", "s2", "s3")}, tablets=12, slots=256
    ) as store:
        store.create_table("t", SCHEMA, ["id"])
    return url


def test_a_killed_writer_leaves_exactly_the_acknowledged_commits(any_uri: str) -> None:
    uri = any_uri
    chance = random.Random(7)
    state: dict[int, int] = {}
    with program("move", uri, "1"):
        for seed in range(KILLS):
            said = run_and_kill(chance.uniform(0.0, 0.4), "write", uri, str(seed))
            done = [line["done"] for line in said if "done" in line]
            begun = [line["begin"] for line in said if "begin" in line]
            for number in done:
                state = apply(state, seed, number)
            with Store.open(uri) as store:
                found = rows(store)
            if found != state:  # the one that was not acknowledged may be there, but then wholly
                assert begun[-1] not in done
                state = apply(state, seed, begun[-1])
            assert found == state


def test_a_killed_mover_leaves_each_tablet_served_from_one_place(uri: str) -> None:
    chance = random.Random(11)
    ids = np.arange(20_000)
    with Store.open(uri) as store:
        store.table("t").upsert(pa.table({"id": ids, "v": ids}))
        seen = set()
        for seed in range(KILLS):
            said = run_and_kill(chance.uniform(0.0, 0.03), "move-slowly", uri, str(seed), lines=1 + seed % 4)
            seen.add(said[-1]["at"])
            assert rows(store) == dict.fromkeys(ids.tolist()) | dict(
                zip(ids.tolist(), ids.tolist(), strict=True)
            )
            interrupted = len(store.status()["moves"])
            assert store.resume_moves() == interrupted
            assert store.status()["moves"] == []
            assert len(rows(store)) == len(ids)
        assert store.verify() == []
        store.collect_garbage(grace_seconds=0)
        assert len(rows(store)) == len(ids)
    assert len(seen) > 1, "the kills all fell into one phase"


def test_scans_beside_movers_are_exact_and_resume_in_another_process(uri: str) -> None:
    ids = np.arange(30_000)
    chance = random.Random(3)
    with Store.open(uri) as store:
        for part in range(3):
            some = ids[part::3]
            store.table("t").upsert(pa.table({"id": some, "v": some}))
        with (
            program("move", uri, "1") as mover,
            program("move", uri, "2"),
            program("resume", uri) as other,
        ):
            assert mover.stdout is not None
            assert other.stdin is not None
            assert other.stdout is not None
            assert mover.stdout.readline(), "the mover ended by itself"
            virtual = 0
            for turn in range(400):
                if turn >= 12 and virtual > 0:
                    break
                scan = store.table("t").scan(page_rows=chance.choice([400, 1_500, 5_000]))
                found: list[int] = []
                key = scan.key
                while key is not None:
                    if chance.random() < 0.5:
                        other.stdin.write(key + "\n")
                        other.stdin.flush()
                        said = json.loads(other.stdout.readline())
                        found += said["ids"]
                        key = said["key"]
                        continue
                    scan = store.resume(key)
                    for page in scan:
                        found += page.rows.column("id").to_pylist()
                        key = page.key
                        if chance.random() < 0.3:
                            break
                    virtual += scan.stats.virtual_reads
                assert sorted(found) == ids.tolist()
            assert virtual > 0, "no tablet had moved under a scan"


@pytest.mark.parametrize("disk", ["ample", "small"])
def test_processes_that_are_killed_over_and_over_leave_each_acknowledged_write_once(
    tmp_path: Path, disk: str
) -> None:
    small = ["--small"] if disk == "small" else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.processes.adversary", tmp_path, "--rounds", ADVERSARY_ROUNDS, *small],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, f"{done.stderr}\nthe store and the journal are in {tmp_path}"
    message = json.loads(done.stdout)
    if "skipped" in message:
        pytest.skip(message["skipped"])
    assert message["kills"] >= message["rounds"]


@pytest.mark.parametrize("wrong", ["lost", "moved", "undead", "twice", "altered", "said"])
def test_the_oracle_of_killed_processes_notices_what_is_wrong(tmp_path: Path, wrong: str) -> None:
    uri, journal = str(tmp_path / "store"), adversary.Journal(tmp_path / "journal")
    with Store.create(uri, ["s1"], tablets=2, slots=8) as store:
        table = store.create_table("t", SCHEMA, ["id"])

        def write(op: str, key: int, said: str = "done") -> None:
            journal.tell(begun=op, deletes=False, keys=[key], value=7)
            commit = table.upsert(pa.table({"id": [key], "v": [7]}), user_metadata={"op": op})
            journal.tell(**{said: op}, **({"known": True} if said == "refused" else {"commit": commit}))

        write("1.0", 1)
        write("1.1", 2, said="cut off")
        assert adversary.check(uri, journal, last=True)["cut off but there"] == 1
        journal.tell(begun="1.2", deletes=False, keys=[3], value=7)
        if wrong == "lost":
            journal.tell(done="1.2", commit=9)
        elif wrong == "moved":
            journal.tell(done="1.1", commit=9)
        elif wrong == "undead":
            write("1.3", 4, said="refused")
        elif wrong == "twice":
            write("1.0", 1)
        elif wrong == "altered":
            table.upsert(pa.table({"id": [1], "v": [8]}))
        else:
            journal.tell(wrong="what nobody expects")
    with pytest.raises(AssertionError):
        adversary.check(uri, journal)
