"""Runs one program of any harness, with a fault or without one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from inspect import isgeneratorfunction, signature
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from elasticscan.base import limits
from tests.backends.redis.simulated import run_program
from tests.catalog.damage import befall_some
from tests.catalog.programs import LogPrograms
from tests.connector import test_stream_writing, test_streaming
from tests.faults.planted import FAULTS, Fault, Harness
from tests.reader.simulation import Simulation
from tests.simulation.programs import Programs

for path in sorted(Path(__file__).parent.glob("planted_*.py")):
    import_module(f"tests.faults.{path.stem}")  # which registers its faults
FAULTS.sort(key=lambda fault: fault.harness)  # so that each harness is opened once

# Named schedules: tests that need only a directory, patches and fixtures of their module.
_MODULES = (
    *("catalog.test_opening", "catalog.test_programs"),
    *("catalog.test_sqlite_files", "connector.test_partial_rows"),
    *("storage.test_faulty_disk", "store.context.test_high_water_marks", "store.reading.test_aggregating"),
    *("store.test_lost_connections", "store.test_older_catalog"),
    *("store.test_root_scenarios", "store.test_verifying"),
    *("store.writing.test_small_commits", "transcripts.test_transcripts"),
)
Scenario = Callable[[Path], object]


def _cases(name: str, test: Any) -> Iterator[tuple[str, Scenario]]:
    """The cases of a parametrized test, by their names in pytest."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for values in product(*(mark.args[1] for mark in marks)):
        given = dict(zip((mark.args[0] for mark in marks), values, strict=True))
        yield f"{name}[{'-'.join(map(str, values))}]" if marks else name, partial(_run_test, test, given)


def _run_test(test: Callable[..., object], given: Mapping[str, Any], directory: Path) -> None:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        catalog = directory / "catalog.db"
        asked = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "usefixtures"]
        if ("rows_in_files",) in asked or getattr(sys.modules[test.__module__], "ROWS_IN_FILES", False):
            patch.setattr(limits, "INLINE_BYTES", 0)
        known = {"tmp_path": directory, "monkeypatch": patch, "catalog_url": catalog, **given}
        test(**{name: _value(test, name, known, stack) for name in signature(test).parameters})


def _value(test: Callable[..., object], name: str, known: dict[str, Any], stack: ExitStack) -> Any:
    """Return an argument of a test, perhaps from a fixture of its module."""
    if name not in known:
        make = vars(sys.modules[test.__module__])[name]._get_wrapped_function()
        taken = {each: _value(test, each, known, stack) for each in signature(make).parameters}
        is_ended = isgeneratorfunction(make)
        known[name] = stack.enter_context(contextmanager(make)(**taken)) if is_ended else make(**taken)
    return known[name]


SCENARIOS = {
    name: scenario
    for module in _MODULES
    for test, function in vars(import_module(f"tests.{module}")).items()
    if test.startswith("test_")
    for name, scenario in _cases(test, function)
}
SEEDS_FILE = Path(__file__).with_name("seeds.json")

# Runs the program of a seed; the second argument is its style.
Run = Callable[[int, str | None], object]

# These errors show a patch with outdated names or arguments, not a fault that was found.
STALE = (TypeError, AttributeError, NameError, ImportError)


def read_seeds() -> dict[str, int]:
    """The stored seeds, by the names of the faults that their programs find."""
    seeds: dict[str, int] = json.loads(SEEDS_FILE.read_text(encoding="utf-8"))
    return seeds


@contextmanager
def _open(harness: Harness, directory: Path) -> Iterator[Run]:
    if harness in ("programs", "damage"):
        with Programs(directory) as programs:
            if harness == "damage":  # the stores are sound before they are damaged
                programs.make_lives()
            yield programs.run
    elif harness == "log":
        yield LogPrograms(directory).run
    elif harness == "damaged log":
        yield lambda seed, style: befall_some(Path(mkdtemp(dir=directory)), seed, style or "")
    elif harness == "simulation":
        yield lambda seed, _: Simulation(seed).run()
    elif harness == "cluster":
        yield lambda seed, _: run_program(seed)
    elif harness == "stream":
        yield lambda seed, _: test_streaming.play(Path(mkdtemp(dir=directory)), seed)
    elif harness == "sink":
        yield lambda seed, _: test_stream_writing.play(Path(mkdtemp(dir=directory)), seed)
    else:
        yield lambda _, style: SCENARIOS[style or ""](Path(mkdtemp(dir=directory)))


class Harnesses:
    """All harnesses; only one is open at a time, because several wrap the same functions."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._opened: tuple[Harness, Run] | None = None
        self._passed: set[tuple[Harness, str | None, int]] = set()

    def close(self) -> None:
        self._stack.close()
        self._opened = None

    def run(self, fault: Fault, seed: int) -> None:
        """Run the program of a seed, with the harness and style that must find the fault."""
        self.open(fault.harness)(seed, fault.style)

    def open(self, harness: Harness) -> Run:
        if self._opened is None or self._opened[0] != harness:
            self.close()
            place = self._directory / f"{harness}{len(list(self._directory.iterdir()))}"
            place.mkdir()
            self._opened = harness, self._stack.enter_context(_open(harness, place))
        return self._opened[1]

    def passes(self, fault: Fault, seed: int) -> None:
        """Run the program without the fault, unless it was run for another fault with the same program."""
        program = (fault.harness, fault.style, seed)
        if program not in self._passed:
            self.run(fault, seed)
            self._passed.add(program)

    def notices(self, fault: Fault, seed: int) -> bool:
        """Run the program with the fault; return whether it fails."""
        self.open(fault.harness)  # before the fault is planted
        with pytest.MonkeyPatch.context() as patch:
            fault.plant(patch)
            try:
                self.run(fault, seed)
            except STALE:
                raise
            except (Exception, pytest.fail.Exception):
                return True
        return False


__all__ = ["FAULTS", "SEEDS_FILE", "STALE", "Fault", "Harnesses", "read_seeds"]
