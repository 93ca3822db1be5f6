"""kill -9 at random moments of writers, movers, keepers and readers that share a store (`adversary.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.store import Store
from tests.base.postgres import Server
from tests.processes import adversary

ROUNDS = os.environ.get("ELASTICSCAN_ADVERSARY_ROUNDS", "4")

pytestmark = pytest.mark.long


@pytest.mark.parametrize("where", ["disk", "server"])
def test_processes_that_are_killed_over_and_over_leave_each_acknowledged_write_once(
    request: pytest.FixtureRequest, tmp_path: Path, where: str
) -> None:
    more, server = list[str](), None
    if where == "server":
        server = request.getfixturevalue("postgres")
        assert isinstance(server, Server)
        log, before = server.directory / "log", len((server.directory / "log").read_bytes())
        more = ["--server", request.getfixturevalue("postgres_url")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.processes.adversary", tmp_path, "--rounds", ROUNDS, *more],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, f"{done.stderr}\nthe store and the journal are in {tmp_path}"
    message = json.loads(done.stdout)
    assert message["kills"] >= message["rounds"]
    if server is not None:
        assert b"deadlock" not in log.read_bytes()[before:]


@pytest.mark.parametrize("wrong", ["lost", "moved", "undead", "twice", "altered", "said"])
def test_the_oracle_of_killed_processes_notices_what_is_wrong(tmp_path: Path, wrong: str) -> None:
    uri, journal = str(tmp_path / "store"), adversary.Journal(tmp_path / "journal")
    with Store.create(uri, ["s1"], tablets=2, slots=8) as store:
        table = store.create_table("t", adversary.SCHEMA, ["id"])

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
            journal.tell(wrong="what no one expects")
    with pytest.raises(AssertionError):
        adversary.check(uri, journal)
