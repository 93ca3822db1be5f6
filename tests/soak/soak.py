"""Two streams over a store that is written, moved and compacted, and whose Spark drivers are killed.

    ELASTICSCAN_SOAK_SECONDS=600 python -m tests.soak.soak

At the end everything else stops, the streams read what is left, and what they wrote is compared with
what the writers did. Ends with 1 and says what is wrong, if anything is.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import numpy as np

from elasticscan.base.errors import ElasticScanError
from elasticscan.store import Store
from tests.soak import oracle
from tests.soak.killer import Killer, Unexpected
from tests.soak.processes import Program
from tests.soak.programs import COPY, FIRST_ROWS, SCHEMA, SOURCE, Step, rows, step

STREAMS = ("copy", "feed")
WRITERS = 2
SLOTS, TABLETS = 256, 12
RETENTION_SECONDS = 30.0  # beyond that, changes are only kept by the streams' leases
FOLLOWED_ROWS, DRAINED_ROWS = "12000", "200000"  # of a micro-batch; large commits have more than the first
LONGEST_SECONDS = 900.0  # for what has no end of its own: whoever waits longer has hung
FIRST_WRITER = 0  # filled the table before the writers begin


@dataclass(frozen=True)
class Plan:
    """What to run: for how long, how often drivers are to be killed at least, how many live at a time."""

    place: Path
    seconds: float
    seed: int = 1
    least_kills: int = 2
    drivers: int = 1
    fault: str | None = None


@dataclass
class Outcome:
    """What happened, and what is wrong with it."""

    counts: dict[str, object] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{name:<34} {value}" for name, value in self.counts.items()]
        return "\n".join([*lines, *(f"WRONG: {text}" for text in self.wrong), ""])


class Soak:
    """One run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.logs = plan.place / "logs"
        self.uri = str(plan.place / "soak.store")
        self.others: dict[str, Program] = {}
        self.began = time.monotonic()
        self.failed = Event()
        self.wrong: list[str] = []

    def run(self) -> Outcome:
        for name in ("logs", "tmp", "checkpoints"):
            (self.plan.place / name).mkdir(parents=True)
        with Store.create(self.uri, ["s1", "s2", "s3"], TABLETS, SLOTS) as store:
            for table in (SOURCE, COPY):
                store.create_table(table, SCHEMA, ["id"])
                store.table(table).set_retention(f"{RETENTION_SECONDS}s")
            first = store.table(SOURCE).upsert(rows(np.arange(FIRST_ROWS), FIRST_WRITER))
            killer = Killer(self.plan.place, store, self.plan.fault)
            try:
                self._start_others()
                self._run_lanes(killer)
                self._stop_others()
                if not self.wrong:
                    self._drain(killer)
            except Unexpected as error:
                self.wrong.append(str(error))
            finally:
                killer.end()
                for program in self.others.values():
                    program.kill()
            outcome = Outcome(wrong=self.wrong)
            if not self.wrong:
                Check(self, store, first).fill(outcome)
        outcome.counts |= killer.counts() | {"seconds": round(time.monotonic() - self.began)}
        return outcome

    # The others

    def _start_others(self) -> None:
        seed = str(self.plan.seed)
        named = {f"write {number}": ("write", str(number)) for number in range(1, WRITERS + 1)}
        for name, (command, *rest) in (named | {"move": ("move",), "tidy": ("tidy",)}).items():
            log = self.logs / f"{name.replace(' ', '-')}.err"
            self.others[name] = Program("tests.soak.programs", command, self.uri, seed, *rest, log=log)

    def _check_others(self) -> None:
        for name, program in self.others.items():
            if program.code() is not None:
                raise Unexpected(f"{name} ended: {program.why()}")

    def _stop_others(self) -> None:
        for name, program in self.others.items():
            if program.finish(LONGEST_SECONDS):
                raise Unexpected(f"{name} ended: {program.why()}")

    # The drivers

    def _run_lanes(self, killer: Killer) -> None:
        """Each lane has one driver at a time; several streams of a lane take turns."""
        lanes = [STREAMS[number :: self.plan.drivers] for number in range(self.plan.drivers)]
        threads = [
            Thread(target=self._run_lane, args=(killer, lane, number)) for number, lane in enumerate(lanes)
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                self._check_others()
                if self.failed.wait(0.2):
                    break
        finally:
            self.failed.set()
            for thread in threads:
                thread.join()

    def _run_lane(self, killer: Killer, streams: Sequence[str], number: int) -> None:
        chance = random.Random(self.plan.seed * 7 + number)
        scale = min(1.0, self.plan.seconds / 120)
        try:
            while not self.failed.is_set():
                for stream in streams:
                    killer.run_and_kill(stream, FOLLOWED_ROWS, chance, scale, self.failed)
                late = time.monotonic() - self.began >= self.plan.seconds
                if late and killer.kills_of_drivers >= self.plan.least_kills:
                    break
        except Unexpected as error:
            self.wrong.append(str(error))
            self.failed.set()
        except BaseException as error:  # a thread's own error would be lost
            self.wrong.append(f"the killer failed: {error!r}")
            self.failed.set()
            raise

    def _drain(self, killer: Killer) -> None:
        for stream in STREAMS:
            killer.run_to_the_end(stream, DRAINED_ROWS)


class Check:
    """What came of a run, compared with what had to."""

    def __init__(self, soak: Soak, store: Store, first: int) -> None:
        self.place, self.others, self.store = soak.plan.place, soak.others, store
        self.commits = [oracle.Commit(first, Step("write", np.arange(FIRST_ROWS), FIRST_WRITER))]
        for writer in range(1, WRITERS + 1):
            self.commits += [
                oracle.Commit(said["commit"], step(soak.plan.seed, writer, said["step"]))
                for said in self.others[f"write {writer}"].said
            ]

    def fill(self, outcome: Outcome) -> None:
        for check in (self._store, self._feed, self._copy):
            try:
                outcome.wrong += check(outcome.counts)
            except (AssertionError, ElasticScanError, OSError, ValueError) as error:
                outcome.wrong.append(f"{check.__name__[1:]}: {type(error).__name__}: {error}")

    def _store(self, counts: dict[str, object]) -> Iterator[str]:
        kinds = Counter(commit.step.kind for commit in self.commits)
        large = sum(len(commit.step.keys) >= 5_000 for commit in self.commits)
        counts["commits of the writers"] = f"{len(self.commits)} {dict(kinds)}, {large} of 5,000 rows or more"
        done, refused = self.others["move"].answers("done"), self.others["move"].answers("refused")
        counts["changes of the topology"] = f"{len(done)} {dict(Counter(done))}, {len(refused)} refused"
        tidied = [self.others["tidy"].answers(word) for word in ("fragments", "files")]
        counts["compactions"] = (
            f"{len(tidied[0])}, of {sum(tidied[0])} fragments; {sum(tidied[1])} files removed"
        )
        message = {commit.number for commit in self.store.table(SOURCE).history() if commit.kind != "create"}
        if message != {commit.number for commit in self.commits}:
            yield f"commits that no writer knows of: {message ^ {c.number for c in self.commits}}"
        named = {stream["name"] for stream in self.store.status()["streams"]}
        if named != set(STREAMS):
            yield f"the store knows of the streams {named}"
        if self.store.status()["moves"]:
            yield "moves were left behind"
        self.store.collect_garbage(grace_seconds=0)
        yield from map(str, self.store.verify())

    def _feed(self, counts: dict[str, object]) -> Iterator[str]:
        ends = oracle.offsets(self.place / "checkpoints" / "feed")
        wanted, table = oracle.feed_since(self.commits, oracle.begun(ends))
        found, wrong = oracle.feed_written(self.place / "feed")
        sizes = oracle.batch_sizes(ends, wanted, SLOTS)
        counts["micro-batches of the feed"] = _described(ends)
        counts["rows of the feed"] = f"{len(found):,} of {len(np.unique(found.commits)):,} commits"
        yield from (f"feed: {text}" for text in [*wrong, *oracle.differences(wanted, found)])
        if sum(sizes) != len(wanted):
            yield f"feed: its offsets hold {sum(sizes):,} changes of {len(wanted):,}"
        yield from oracle.table_differences("source", table, self.store.table(SOURCE).scan().to_table())

    def _copy(self, counts: dict[str, object]) -> Iterator[str]:
        ends = oracle.offsets(self.place / "checkpoints" / "copy")
        wanted, table = oracle.feed_since(self.commits, oracle.begun(ends))
        sizes = oracle.batch_sizes(ends, wanted, SLOTS)
        counts["micro-batches of the copy"] = _described(ends)
        counts["rows read for the copy"] = f"{sum(sizes):,}"
        yield from oracle.table_differences("copy", table, self.store.table(COPY).scan().to_table())
        written = sum(commit.kind != "create" for commit in self.store.table(COPY).history())
        if written != (full := sum(size > 0 for size in sizes)):
            yield f"copy: {full} micro-batches with rows became {written} commits, where each must be one"


def _described(ends: Sequence[dict[str, int]]) -> str:
    return f"{len(ends)}, of which {sum(end['slot'] > 0 for end in ends)} end within a commit or the snapshot"


def run(plan: Plan, say: Callable[[str], object] = sys.stdout.write) -> Outcome:
    outcome = Soak(plan).run()
    say(str(outcome))
    return outcome


def plan_from_environment(place: Path, seconds: float) -> Plan:
    given = os.environ.get
    return Plan(
        place=place,
        seconds=float(given("ELASTICSCAN_SOAK_SECONDS", str(seconds))),
        seed=int(given("ELASTICSCAN_SOAK_SEED", "1")),
        drivers=int(given("ELASTICSCAN_SOAK_DRIVERS", "1")),
        fault=given("ELASTICSCAN_SOAK_FAULT"),
    )


def main() -> None:
    with contextlib.ExitStack() as stack:
        kept = os.environ.get("ELASTICSCAN_SOAK_PLACE")
        place = Path(kept) if kept else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        outcome = run(plan_from_environment(place, 600))
    sys.exit(bool(outcome.wrong))


if __name__ == "__main__":
    main()
