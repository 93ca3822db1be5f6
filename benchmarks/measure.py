"""Timing by turns, and the table of results."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def processor_seconds(work: Callable[[], object]) -> float:
    """Of all threads: wall time would show who else uses the machine."""
    started = time.process_time()
    work()
    return time.process_time() - started


def by_turns(rounds: int, warmups: int = 1, **works: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each, measured A B C, A B C, …: drift of the machine hits all alike.

    The first rounds warm up and are not counted: a JVM needs several.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for round_number in range(warmups + rounds):
        for name, work in works.items():
            took = seconds(work)
            if round_number >= warmups:
                times[name].append(took)
    return {name: statistics.median(taken) for name, taken in times.items()}


@dataclass
class Results:
    """Ratios with what is wanted of them."""

    rows: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def at_least(self, what: str, value: float, wanted: float, detail: str = "") -> None:
        self._add(what, f"{value:.2f}", f"≥ {wanted:g}", value >= wanted, detail)

    def at_most(self, what: str, value: float, wanted: float, detail: str = "") -> None:
        self._add(what, f"{value:.2f}", f"≤ {wanted:g}", value <= wanted, detail)

    def _add(self, what: str, value: str, wanted: str, good: bool, detail: str) -> None:
        self.rows.append((what + (f" ({detail})" if detail else ""), value, wanted, good))
        self.show_last()

    def show_last(self) -> None:
        what, value, wanted, good = self.rows[-1]
        print(f"{'ok  ' if good else 'MISS'}  {value:>8}  {wanted:<8}  {what}", flush=True)
