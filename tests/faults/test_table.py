"""The table of planted faults in docs/testing.md is true, so a fault whose test goes is noticed."""

from __future__ import annotations

from tests.faults.harnesses import FAULTS, SCENARIOS
from tests.faults.table import BEGIN, END, PAGE, table


def test_every_scenario_of_a_fault_is_a_test() -> None:
    named = {fault.style for fault in FAULTS if fault.harness == "scenarios"}
    assert named - SCENARIOS.keys() == set(), "rename the style of the fault, or move it to another test"


def test_the_guide_has_the_table_of_planted_faults() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "run python -m tests.faults.table"
