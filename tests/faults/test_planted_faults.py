"""Every planted fault is found by the program of its stored seed, or of one of the seeds after it.

Without the fault that program passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.catalog.programs import DEFINITIONS, GARBAGE, INDEXES, TAGS
from tests.faults.harnesses import FAULTS, Fault, Harnesses, read_seeds
from tests.seeds import drawn
from tests.simulation.test_simulation import RUNS

SEEDS = read_seeds()
QUICK = frozenset({"simulation", "cluster"})
# A seed's program changes with the code that it runs, so the next seeds are tried if one finds nothing.
SEEDED = frozenset({"programs", "simulation", "log", "damage", "damaged log", "stream", "sink", "cluster"})
SEEDS_TRIED = 40
OF_LOGS = (DEFINITIONS, GARBAGE, INDEXES, TAGS)  # styles that `tests/catalog/test_programs.py` runs


def _run_elsewhere(fault: Fault) -> float:
    """The first seed whose program is not run without a fault by another test."""
    match fault.harness:
        case "programs":
            return drawn(RUNS.get(fault.style, (0,))[0])
        case "log":
            return 4 * drawn(15) if fault.style is None else 2 * drawn(3) * (fault.style in OF_LOGS)
        case "damage":
            return 1
        case "simulation":
            return 100 * drawn(20)
        case "cluster":
            return drawn(200)
        case "scenarios":
            return math.inf
    return 0


def _marks(fault: Fault) -> tuple[pytest.MarkDecorator, ...]:
    return () if fault.harness in QUICK else (pytest.mark.long,)


@pytest.fixture(scope="module")
def harnesses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harnesses]:
    harnesses = Harnesses(tmp_path_factory.mktemp("faults"))
    yield harnesses
    harnesses.close()


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, id=fault.name, marks=_marks(fault)) for fault in FAULTS],
)
def test_a_planted_fault_is_found_and_the_same_seed_passes_without_it(
    fault: Fault, harnesses: Harnesses
) -> None:
    first = SEEDS[fault.name]
    tried = range(first, first + (SEEDS_TRIED if fault.harness in SEEDED else 1))
    seed = next((seed for seed in tried if harnesses.notices(fault, seed)), None)
    assert seed is not None, (
        f"no seed of {tried} noticed that this was broken: {fault.breaks}; look for another one with "
        f"`python -m tests.faults.seeds {fault.name}`, and if there is none, mend the harness"
    )
    if seed >= _run_elsewhere(fault):
        harnesses.passes(fault, seed)


def test_a_lost_cursor_is_noticed_by_the_proof_of_coverage(harnesses: Harnesses) -> None:
    lost = next(fault for fault in FAULTS if fault.name == "cursor_gets_lost")
    errors = set()
    with pytest.MonkeyPatch.context() as patch:
        lost.plant(patch)
        for seed in range(20):
            try:
                harnesses.run(lost, seed)
            except Exception as error:
                errors.add(type(error).__name__)
    assert "CoverageBroken" in errors


def test_faults_have_names_of_their_own_and_each_has_a_seed() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30
    assert set(SEEDS) == {fault.name for fault in FAULTS}
