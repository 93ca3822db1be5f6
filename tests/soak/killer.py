"""Runs drivers, kills them where it hurts, and starts them again on the same checkpoint."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from elasticscan.store import Store
from tests.soak.driver import FAILED
from tests.soak.processes import Program
from tests.soak.programs import COPY

PLANT = Path(__file__).with_name("plant")
PATIENCE_SECONDS = 600.0  # a driver that does nothing for so long has hung
# How a driver is killed, in turns: the moment a micro-batch is in the sink and Spark has perhaps not
# noted it, at any time, after one of its Python workers, and before it has done anything.
WAYS = ("written", "any time", "worker", "start", "written", "any time")


class Unexpected(Exception):
    """A program ended without being killed, or made no progress."""


class Killer:
    """Of one run of the soak."""

    def __init__(self, place: Path, store: Store, fault: str | None) -> None:
        self._place, self._store = place, store
        self._more = {"TMPDIR": str(place / "tmp")}
        if fault is not None:
            path = [str(PLANT), *filter(None, [os.environ.get("PYTHONPATH")])]
            self._more |= {"ELASTICSCAN_SOAK_FAULT": fault, "PYTHONPATH": os.pathsep.join(path)}
        self._runs: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._running: dict[str, Program] = {}
        self._copy = store.table(COPY).definition.id

    @property
    def kills_of_drivers(self) -> int:
        return self._kills.total()

    def counts(self) -> dict[str, object]:
        return {
            "drivers started": f"{self._runs.total()} {dict(self._runs)}",
            "drivers killed": f"{self._kills.total()} {dict(sorted(self._kills.items()))}",
        }

    def end(self) -> None:
        """Nothing of it is left behind."""
        for program in list(self._running.values()):
            program.kill()

    # One life of a driver

    def run_and_kill(self, stream: str, rows: str, chance: random.Random, scale: float) -> None:
        """Start a stream's driver, and kill it in the way whose turn it is.

        Args:
            rows: the most of a micro-batch.
            scale: of the times between its first micro-batch and its end.
        """
        way = WAYS[self._runs[stream] % len(WAYS)]
        program = self._started(stream, "follow", rows)
        died = False
        if way == "start":
            self._wait(program, stream, chance.uniform(0.0, 8.0))
        elif self._wait(program, stream, None, lambda: program.answers("batch")):
            self._wait(program, stream, chance.uniform(5.0, 25.0) * scale)
            if way == "written":
                before = self._written(stream)
                self._wait(program, stream, 10.0, lambda: self._written(stream) != before)
            elif way == "worker":
                died = self._kill_workers(program, stream, chance, scale)
        if program.code() is not None and not died:
            raise Unexpected(f"the stream {stream!r} ended by itself: {program.why()}")
        program.kill()
        self._kills[f"{stream}, {way}"] += not died

    def run_to_the_end(self, stream: str, rows: str) -> None:
        """Let a stream read all there is."""
        program = self._started(stream, "drain", rows)
        self._wait(program, stream, None, lambda: program.answers("ended"))
        if not program.answers("ended"):
            raise Unexpected(f"the stream {stream!r} did not come to its end: {program.why()}")
        program.kill()  # what it started and has not ended yet

    def _started(self, stream: str, trigger: str, rows: str) -> Program:
        number = self._runs[stream]
        self._runs[stream] += 1
        log = self._place / "logs" / f"{stream}-{number}.err"
        given = (stream, trigger, self._store.uri, str(self._place), rows, str(number))
        self._running[stream] = Program("tests.soak.driver", *given, log=log, more=self._more)
        return self._running[stream]

    def _wait(
        self,
        program: Program,
        stream: str,
        seconds: float | None,
        until: Callable[[], object] | None = None,
    ) -> bool:
        """Whether it came true; False at the end of the time, and when the driver ended."""
        end = time.monotonic() + (PATIENCE_SECONDS if seconds is None else seconds)
        while time.monotonic() < end and program.code() is None:
            if until is not None and until():
                return True
            time.sleep(0.003)
        if seconds is None and time.monotonic() >= end:
            raise Unexpected(f"the stream {stream!r} made no progress: {program.why()}")
        if program.code() is not None:
            program.hear_out()
        return until is not None and bool(until())

    def _kill_workers(self, program: Program, stream: str, chance: random.Random, scale: float) -> bool:
        """Kill some of a driver's Python processes; whether its stream ended by that."""
        for _ in range(3):
            workers = program.workers()
            if workers:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(workers), signal.SIGKILL)
            self._wait(program, stream, chance.uniform(2.0, 8.0) * scale)
            if program.code() is not None:
                errors = program.answers("error")
                if program.code() != FAILED or any("[ES_" in error for error in errors):
                    raise Unexpected(f"{stream!r} was to lose a worker, but: {program.why()}")
                return True
        return False

    # What a kill left

    def _written(self, stream: str) -> object:
        """Changes whenever the sink has got another micro-batch."""
        if stream == "copy":
            with self._store.context.catalog.reading() as tx:
                return tx.state.table(self._copy).newest
        with suppress(FileNotFoundError):
            return max(_names(self._place / "feed" / "_spark_metadata"), key=_batch)
        return None


def newest(log: Path) -> int:
    """The newest batch of one of Spark's logs; -1 if there is none."""
    with suppress(FileNotFoundError):
        return max(map(_batch, _names(log)), default=-1)
    return -1


def _names(log: Path) -> list[str]:
    return [path.name for path in log.iterdir()]


def _batch(name: str) -> int:
    number = name.removesuffix(".compact")
    return int(number) if number.isdigit() else -1
