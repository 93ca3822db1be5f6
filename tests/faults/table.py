"""Write the table of all planted faults, with their rules and finders, into README.md next to this file.

python -m tests.faults.table
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connector import test_sql_spark
from tests.faults import test_planted_inputs
from tests.faults.harnesses import FAULTS, SCENARIOS, Fault
from tests.store import test_index_oracle

PAGE = Path(__file__).with_name("README.md")
TITLE = "# All planted faults\n\nWritten by `python -m tests.faults.table`; see docs/testing.md.\n\n"

# Tests that plant faults themselves.
OWN: list[Callable[..., object]] = [
    test_planted_inputs.test_a_check_that_is_left_out_is_noticed,
    test_index_oracle.test_a_planted_fault_is_found,
    test_sql_spark.test_a_planted_fault_is_found,
]
PROGRAMS = {
    "simulation": "`reader/simulation.py`",
    "programs": "`simulation/programs.py`",
    "damage": "`simulation/faults.py`",
    "log": "`catalog/programs.py`",
    "damaged log": "`catalog/damage.py`",
    "cluster": "`backends/redis/simulated.py`",
    "stream": "`connector/test_streaming.py`",
    "sink": "`connector/test_stream_writing.py`",
}


def _finder(fault: Fault) -> str:
    if fault.harness == "scenarios":
        test: Any = SCENARIOS[fault.style or ""]
        return f"{_file(test.args[0])}: `{fault.style}`"
    return PROGRAMS[fault.harness] + (f": {fault.style}" if fault.style else "")


def _file(test: Callable[..., object]) -> str:
    return f"`{test.__module__.removeprefix('tests.').replace('.', '/')}.py`"


def _planted(test: Callable[..., object]) -> Iterator[str]:
    """Return the names of the faults among the parameters of a test."""
    marks: list[pytest.Mark] = test.pytestmark  # type: ignore[attr-defined]
    values: list[Any] = next(list(mark.args[1]) for mark in marks if mark.name == "parametrize")
    for value in values:
        first = value.values[0] if hasattr(value, "values") else value
        first = first[0] if isinstance(first, tuple) else first
        yield (first if isinstance(first, str) else first.__name__).strip("_").replace(" ", "_")


def table() -> str:
    """Return a table of the number of faults that each module finds, and the table of faults."""
    rows = [(_finder(fault), fault.breaks, fault.what or fault.name) for fault in FAULTS]
    rows += [(_file(test), "", name) for test in OWN for name in dict.fromkeys(_planted(test))]
    rows.sort(key=lambda row: row[0])
    counts = Counter(finder.partition(":")[0] for finder, _, _ in rows)
    lines = ["| found by, below `tests/` | faults |", "|---|---|"]
    lines += [f"| {finder} | {count} |" for finder, count in counts.items()]
    lines += [f"| all | {len(rows)} |", "", "| rule | fault that breaks it | found by |", "|---|---|---|"]
    lines += [f"| {rule} | `{name}` | {finder} |" for finder, rule, name in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    PAGE.write_text(TITLE + table(), encoding="utf-8")


if __name__ == "__main__":
    main()
