"""The engine of random programs: it makes a list of steps from a seed, runs it, and reruns parts of it.

    engine.run(seed)         raises an error if a rule does not hold
    engine.explain(seed)     describes the shortest program that still fails

A step stores the state of the generator from which it draws, so it can be played without the others.
`tests/simulation/programs.py` has the programs of stores, `tests/catalog/programs.py` those of logs.
"""

from __future__ import annotations

import random
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

SHRINKING_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a program; the last one, "end", checks everything.

    Attributes:
        state: the state of the generator from which it draws.
        seconds: the clock before it.
        quiet: whether no steps of others are made during it.
    """

    name: str
    state: Any
    seconds: float = 0.0
    quiet: bool = False


class Played(Protocol):
    """The interface of the worlds in which programs are played.

    Attributes:
        random: the generator from which steps draw.
        trace: descriptions of the steps so far.
        outcomes: how many steps ended well, and with which errors.
    """

    random: random.Random
    trace: list[str]
    outcomes: Counter[str]


W = TypeVar("W", bound=Played)


class Engine(ABC, Generic[W]):
    """Runs programs by their seeds.

    Attributes:
        outcomes: the outcomes of the steps of all programs.
    """

    options: ClassVar[str] = ""  # of `python -m tests.simulation`

    def __init__(self) -> None:
        self.outcomes = Counter[str]()
        self._trace: list[str] = []  # of the program that was played last

    @abstractmethod
    def begin(self, stack: ExitStack, seed: int, style: str | None) -> tuple[W, Iterator[Step]]:
        """Make the world of a program, and draw its steps, each after the one before was played."""

    @abstractmethod
    def make_step(self, world: W, step: Step) -> None:
        """Make a step."""

    def run(self, seed: int, style: str | None = None) -> None:
        """Run the program of a seed; `style` is one of all styles, by default the seed's own."""
        try:
            self.play(seed, style)
        except BaseException as error:
            named = f"{self.options}--style {style!r} " if style else self.options
            error.add_note(f"shrink it with: python -m tests.simulation {named}{seed}")
            raise

    def play(
        self,
        seed: int,
        style: str | None = None,
        steps: Sequence[Step] | None = None,
        played: list[Step] | None = None,
    ) -> None:
        """Play the program of a seed, or some of its steps; `played` then has those that were begun."""
        with ExitStack() as stack:
            world, drawn = self.begin(stack, seed, style)
            self._trace = world.trace
            stack.callback(lambda: self.outcomes.update(world.outcomes))
            for step in drawn if steps is None else steps:
                if played is not None:
                    played.append(step)
                world.random.setstate(step.state)
                self.make_step(world, step)

    def explain(self, seed: int, style: str | None = None) -> str | None:
        """Run a program; return the fewest steps that still fail, and their error; None if it passes."""
        steps = list[Step]()
        error = self._failure(seed, style, None, steps)
        if error is None:
            return None
        until = time.monotonic() + SHRINKING_SECONDS

        def fails(fewer: Sequence[Step]) -> bool:
            if time.monotonic() > until:
                return False
            return type(self._failure(seed, style, [*fewer, *steps[-1:]], [])) is type(error)

        few = shrunk(steps[:-1], fails)
        last = self._failure(seed, style, [*few, *steps[-1:]], []) or error
        trace = "\n".join(self._trace)
        raised = "".join(traceback.format_exception(last)[-4:])
        return f"{len(few) + 1} of {len(steps)} steps:\n{trace}\n{raised}"

    def _failure(
        self, seed: int, style: str | None, steps: Sequence[Step] | None, played: list[Step]
    ) -> Exception | None:
        """How a program fails."""
        try:
            self.play(seed, style, steps, played)
        except Exception as error:
            if not played:
                raise
            return error
        return None


def shrunk(steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """Remove steps while the rest still fails: halves first (delta debugging), then steps of others."""
    left, size = list(steps), len(steps) // 2
    while size:
        at = 0
        while at < len(left):
            fewer = left[:at] + left[at + size :]
            if fails(fewer):
                left = fewer
            else:
                at += size
        size //= 2
    for at, step in enumerate(left):
        alone = [*left[:at], replace(step, quiet=True), *left[at + 1 :]]
        if not step.quiet and fails(alone):
            left = alone
    return left
