"""Every planted fault is found, and without one the same programs pass."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.faults.planted_damage
import tests.faults.planted_roots  # noqa: F401 - enters its faults
from tests.faults.planted import FAULTS, Fault
from tests.reader.simulation import Simulation
from tests.store import root_scenarios
from tests.store.catalog_programs import CatalogPrograms
from tests.store.index_soup import IndexKitchen
from tests.store.schema_soup import SchemaKitchen
from tests.store.soup import Kitchen

# The effort after which a harness that found nothing has failed.
MOST_SIMULATIONS = 400
MOST_PROGRAMS = 100


Kitchens = dict[str, Kitchen | CatalogPrograms]
Program = tuple[str, str | None, int]  # a harness, a style, a seed


@pytest.fixture(scope="module")
def kitchens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchens]:
    plain = Kitchen(tmp_path_factory.mktemp("faults"))
    changing = SchemaKitchen(tmp_path_factory.mktemp("schema_faults"))
    with plain, IndexKitchen(tmp_path_factory.mktemp("index_faults")) as indexed, changing:
        yield {
            "soup": plain,
            "index soup": indexed,
            "schema soup": changing,
            "catalog": CatalogPrograms(tmp_path_factory.mktemp("catalog_faults")),
        }


@pytest.fixture(scope="module")
def passed() -> set[Program]:
    """Programs that pass without a fault. Several faults are found by the same one."""
    return set()


def found_by(fault: Fault, kitchens: Kitchens) -> int | None:
    """The first seed that fails while the fault is planted."""
    most = {"simulation": MOST_SIMULATIONS, "roots": 1}.get(fault.harness, MOST_PROGRAMS)
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        for seed in range(fault.seed, fault.seed + most):
            try:
                run(fault, kitchens, seed)
            except (Exception, pytest.fail.Exception):
                return seed
    return None


def run(fault: Fault, kitchens: Kitchens, seed: int) -> None:
    if fault.harness == "simulation":
        Simulation(seed).run()
    elif fault.harness == "roots":
        with tempfile.TemporaryDirectory() as place:
            next(play for play in root_scenarios.SCENARIOS if play.__name__ == fault.style)(Path(place))
    else:
        kitchens[fault.harness].run(seed, fault.style)


# Those of damage are in `test_planted_damage.py`: these kitchens wrap what theirs uses.
@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.harness != "damage soup"], ids=lambda fault: fault.name
)
def test_a_planted_fault_is_found_and_the_same_seed_passes_without_it(
    fault: Fault, kitchens: Kitchens, passed: set[Program]
) -> None:
    seed = found_by(fault, kitchens)
    assert seed is not None, f"nobody noticed that this was broken: {fault.breaks}"
    program = (fault.harness, fault.style, seed)
    if program not in passed:
        run(fault, kitchens, seed)
        passed.add(program)


def test_a_lost_cursor_is_noticed_by_the_proof_of_coverage() -> None:
    lost = next(fault for fault in FAULTS if fault.name == "cursor_gets_lost")
    errors = set()
    with pytest.MonkeyPatch.context() as patch:
        lost.plant(patch)
        for seed in range(20):
            try:
                Simulation(seed).run()
            except Exception as error:
                errors.add(type(error).__name__)
    assert "CoverageBroken" in errors


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30


def test_the_documentation_lists_every_fault_and_only_tests_that_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "docs" / "testing.md").read_text(encoding="utf-8")
    assert [f.name for f in FAULTS if f"| `{f.name}` | {f.breaks} | {f.harness} |" not in text] == []
    sources = "".join(p.read_text(encoding="utf-8") for p in (root / "tests").rglob("test_*.py"))
    assert [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in sources] == []
