"""Random programs against the real store, compared with a dictionary of every snapshot.

Set ELASTICSCAN_SEEDS, and ELASTICSCAN_FAULT_SEEDS for programs with faults, to one seed or to a range such
as 0-5000 to run others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.base.postgres import Server
from tests.seeds import ranges_of_seeds
from tests.simulation.engine import Step, shrunk
from tests.simulation.faults import FAULTS
from tests.simulation.programs import FAULTY, Programs
from tests.simulation.tables import BY_KEY, CHANGING, CHECKING, KEEPERS, KEPT_CHANGING, MERGES, PAST

ROOT = Path(__file__).parents[2]
FAULT_SEEDS = "ELASTICSCAN_FAULT_SEEDS"
# For each style: the number of programs, the number in one test, and the number of tests that are not `long`.
# None: the seed chooses one of the common styles.
RUNS: dict[str | None, tuple[int, int, int]] = {
    None: (20, 1, 1),
    BY_KEY: (6, 3, 0),
    CHECKING: (6, 1, 1),
    KEEPERS: (7, 1, 0),
    CHANGING: (6, 3, 0),
    KEPT_CHANGING: (7, 1, 0),
    MERGES: (8, 2, 0),
    PAST: (6, 1, 0),
}


def _runs() -> Iterator[Any]:
    for style, (count, size, short) in RUNS.items():
        for seeds in ranges_of_seeds(count // size, size, short):
            given, marks = (seeds.values[0], seeds.marks) if hasattr(seeds, "values") else (seeds, ())
            yield pytest.param(style, given, marks=marks, id=f"{style or 'any'} {given}")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with Programs(tmp_path_factory.mktemp("programs")) as programs:
        yield programs


@pytest.mark.parametrize(("style", "seeds"), list(_runs()))
def test_a_store_answers_as_the_oracle_whatever_is_done_to_it(
    programs: Programs, style: str | None, seeds: range
) -> None:
    for seed in seeds:
        programs.run(seed, style)


def _programs_with_faults() -> Iterator[Any]:
    """Programs with random faults, and one for each fault; several run in one process."""
    if os.environ.get(FAULT_SEEDS):
        yield pytest.param([FAULTY], os.environ[FAULT_SEEDS])
        return
    yield pytest.param([FAULTY], "0-2")
    names = sorted(FAULTS)
    for first in range(4):
        yield pytest.param(names[first::4], "0", marks=pytest.mark.long)


@pytest.mark.parametrize(("styles", "seeds"), list(_programs_with_faults()), ids=str)
def test_a_store_that_a_fault_befalls_answers_right_or_with_a_typed_error(
    styles: list[str], seeds: str
) -> None:
    """In another process, so that a signal or an endless loop fails with the number of its seed."""
    command = [sys.executable, "-m", "tests.simulation", *(f"--style={style}" for style in styles), seeds]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr


class ServerPrograms(Programs):
    """Programs whose stores are in one database, each in the place of the one before."""

    uri = ""

    def make(self, place: Path, retention: int) -> str:
        self.create(self.uri, {name: str(place / name) for name in ("s1", "s2", "s3")}, retention)
        return self.uri


@pytest.mark.parametrize("style", [None, CHECKING])
@pytest.mark.parametrize("seeds", ranges_of_seeds(2, 1, short=0), ids=str)
def test_programs_are_exact_with_a_catalog_at_a_server(
    tmp_path: Path, postgres: Server, style: str | None, seeds: range
) -> None:
    with ServerPrograms(tmp_path) as programs:
        for seed in seeds:
            with postgres.database() as database:
                programs.uri = postgres.url(database)
                programs.run(seed, style)


@pytest.mark.parametrize("seed", range(5))
def test_a_program_that_fails_is_cut_down_to_the_steps_that_matter(seed: int) -> None:
    """A step that causes the failure stays; other steps, and nested steps of others, are removed."""
    chance = Random(seed)
    steps = [Step(name, None) for name in "abcdefghijklmnop"]
    needed = set(chance.sample([step.name for step in steps], 3))
    few = shrunk(steps, lambda some: needed <= {step.name for step in some})
    assert {step.name for step in few} == needed
    assert all(step.quiet for step in few)
