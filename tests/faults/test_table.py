"""The table of planted faults in README.md is up to date, so a fault that loses its test is noticed."""

from __future__ import annotations

from tests.faults.harnesses import FAULTS, SCENARIOS
from tests.faults.table import PAGE, TITLE, table


def test_every_scenario_of_a_fault_is_a_test() -> None:
    named = {fault.style for fault in FAULTS if fault.harness == "scenarios"}
    assert named - SCENARIOS.keys() == set(), "rename the style of the fault, or move it to another test"


def test_the_page_has_the_table_of_planted_faults() -> None:
    assert PAGE.read_text(encoding="utf-8") == TITLE + table(), "run python -m tests.faults.table"
