"""Every fault planted into what proves the bytes of files is found, and without it the same programs pass."""

from __future__ import annotations

import pytest

import tests.faults.planted_damage  # noqa: F401 - enters its faults
from tests.faults.planted import FAULTS, Fault
from tests.store.damage_soup import DamageKitchen

MOST_PROGRAMS = 100


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> DamageKitchen:
    kitchen = DamageKitchen(tmp_path_factory.mktemp("damage_faults"))
    kitchen.prepare()
    return kitchen


def found_by(fault: Fault, kitchen: DamageKitchen) -> int | None:
    """The first seed that fails while the fault is planted."""
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        for seed in range(fault.seed, fault.seed + MOST_PROGRAMS):
            try:
                kitchen.run(seed, fault.style)
            except Exception:
                return seed
    return None


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.harness == "damage soup"], ids=lambda fault: fault.name
)
def test_a_fault_in_what_proves_bytes_is_found_and_the_same_seed_passes_without_it(
    fault: Fault, kitchen: DamageKitchen
) -> None:
    seed = found_by(fault, kitchen)
    assert seed is not None, f"nobody noticed that this was broken: {fault.breaks}"
    kitchen.run(seed, fault.style)
