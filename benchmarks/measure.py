"""Timing in turns, and the table of results."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the processor time of all threads; wall time would depend on other work on the machine."""
    started = time.process_time()
    work()
    return time.process_time() - started


def family_seconds(ancestor: int) -> float:
    """Return the processor time of a process and its children, ended ones included."""
    parents, seconds = dict[int, int](), dict[int, float]()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = status.read_text().rpartition(")")[2].split()
            process = int(status.parent.name)
            parents[process], ticks = int(fields[1]), sum(map(int, fields[11:15]))
            seconds[process] = ticks / os.sysconf("SC_CLK_TCK")
    family = {ancestor}
    while more := {process for process, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(seconds.get(process, 0.0) for process in family)


def by_turns(rounds: int, warmups: int = 1, **works: Callable[[], object]) -> dict[str, float]:
    """Return the median seconds of each task, run as A B C, A B C, …: changes of load affect all equally.

    The first rounds are not counted: a JVM needs several to warm up.
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
    """Measured ratios with their wanted values."""

    rows: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def at_least(self, what: str, value: float, wanted: float, detail: str = "") -> None:
        self._add(what, f"{value:.2f}", f"≥ {wanted:g}", value >= wanted, detail)

    def at_most(self, what: str, value: float, wanted: float, detail: str = "") -> None:
        self._add(what, f"{value:.2f}", f"≤ {wanted:g}", value <= wanted, detail)

    def _add(self, what: str, value: str, wanted: str, good: bool, detail: str) -> None:
        what += f" ({detail})" if detail else ""
        self.rows.append((what, value, wanted, good))
        print(f"{'ok  ' if good else 'MISS'}  {value:>8}  {wanted:<8}  {what}", flush=True)
