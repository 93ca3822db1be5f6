"""Two streams over a store that is written, moved and compacted, and whose Spark drivers are killed.

    ELASTICSCAN_SOAK_SECONDS=600 python -m tests.soak.soak

At the end everything else stops, the streams read what is left, and what they wrote is compared with the
source. Ends with 1 and says what is wrong, if anything is.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from elasticscan.base.errors import ElasticScanError
from elasticscan.catalog import IdempotencyKey
from elasticscan.store import Store, Table
from tests.soak import oracle
from tests.soak.killer import Killer, Unexpected, newest
from tests.soak.processes import Program
from tests.soak.programs import COPY, FIRST_ROWS, SCHEMA, SOURCE, names, rows

STREAMS = ("copy", "feed")
WRITERS = ("write 1", "write 2")
OTHERS = (*WRITERS, "move", "tidy")
SLOTS, TABLETS = 256, 12
RETENTION_SECONDS = 30.0  # beyond that, changes are only kept by the streams' leases
FOLLOWED_ROWS, DRAINED_ROWS = "12000", "200000"  # of a micro-batch; large commits have more than the first
LEAST_KILLS = 2
LONGEST_SECONDS = 900.0  # for what has no end of its own: a program that takes longer has hung
FIRST_WRITER = 0  # filled the table before the writers begin

SEED = int(os.environ.get("ELASTICSCAN_SOAK_SEED", "1"))
FAULT = os.environ.get("ELASTICSCAN_SOAK_FAULT")


@dataclass
class Outcome:
    """What happened, and what is wrong with it."""

    counts: dict[str, object] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{name:<34} {value}" for name, value in self.counts.items()]
        return "\n".join([*lines, *(f"WRONG: {text}" for text in self.wrong), ""])


def run(place: Path, seconds: float) -> Outcome:
    """Write and kill for so long at least, let the streams come to their end, and compare.

    Args:
        place: a new directory for the store, the checkpoints and all logs.
    """
    began, uri, outcome = time.monotonic(), str(place / "soak.store"), Outcome()
    for name in ("logs", "tmp", "checkpoints"):
        (place / name).mkdir(parents=True)
    with Store.create(uri, ["s1", "s2", "s3"], TABLETS, SLOTS) as store:
        for table in (SOURCE, COPY):
            store.create_table(table, SCHEMA, ["id"])
            store.table(table).set_retention(f"{RETENTION_SECONDS}s")
        first = store.table(SOURCE).upsert(rows(np.arange(FIRST_ROWS), FIRST_WRITER))
        killer, others = Killer(place, store, FAULT), {}
        try:
            for name in OTHERS:
                command, *number = name.split()
                log = place / "logs" / f"{name.replace(' ', '-')}.err"
                others[name] = Program("tests.soak.programs", command, uri, str(SEED), *number, log=log)
            kill_drivers(killer, others, began, seconds)
            for name, program in others.items():
                if program.finish(LONGEST_SECONDS):
                    raise Unexpected(f"{name} ended: {program.why()}")
            for stream in STREAMS:
                killer.run_to_the_end(stream, DRAINED_ROWS)
            compare(place, store, first, others, outcome)
        except Unexpected as error:
            outcome.wrong.append(str(error))
        finally:
            killer.end()
            for program in others.values():
                program.kill()
    outcome.counts |= killer.counts() | {"seconds": round(time.monotonic() - began)}
    sys.stdout.write(str(outcome))
    return outcome


def kill_drivers(killer: Killer, others: dict[str, Program], began: float, seconds: float) -> None:
    """Start and kill drivers in turns; one lives at a time."""
    chance, scale = random.Random(SEED * 7), min(1.0, seconds / 120)
    while time.monotonic() - began < seconds or killer.kills_of_drivers < LEAST_KILLS:
        for stream in STREAMS:
            killer.run_and_kill(stream, FOLLOWED_ROWS, chance, scale)
            for name, program in others.items():
                if program.code() is not None:
                    raise Unexpected(f"{name} ended: {program.why()}")


# What came of it


def compare(place: Path, store: Store, first: int, others: dict[str, Program], outcome: Outcome) -> None:
    """Enter all that is wrong, and how much was done."""
    outcome.counts |= counts_of(others)
    said = {each["commit"] for name in WRITERS for each in others[name].said}
    checks = (wrong_with_store(store, {first, *said}), wrong_with_feed(place, store, outcome))
    for check in (*checks, wrong_with_copy(place, store)):
        try:
            outcome.wrong += check
        except (AssertionError, ElasticScanError, OSError, ValueError) as error:
            outcome.wrong.append(f"{type(error).__name__}: {error}")


def counts_of(others: dict[str, Program]) -> dict[str, object]:
    said = [each for name in WRITERS for each in others[name].said]
    kinds, large = Counter(each["kind"] for each in said), sum(each["rows"] >= 5_000 for each in said)
    done, refused = others["move"].answers("done"), others["move"].answers("refused")
    merged, files = (others["tidy"].answers(word) for word in ("fragments", "files"))
    return {
        "commits of the writers": f"{len(said)} {dict(kinds)}, {large} of 5,000 rows or more",
        "changes of the topology": f"{len(done)} {dict(Counter(done))}, {len(refused)} refused",
        "compactions": f"{len(merged)}, of {sum(merged)} fragments; {sum(files)} files removed",
    }


def wrong_with_store(store: Store, known: set[int]) -> Iterator[str]:
    if (unknown := commits_of(store.table(SOURCE)) ^ known) != set():
        yield f"commits that writers and store do not agree on: {unknown}"
    named = {stream["name"] for stream in store.status()["streams"]}
    if named != set(STREAMS):
        yield f"the store knows of the streams {named}"
    if store.status()["moves"]:
        yield "moves were left behind"
    store.collect_garbage(grace_seconds=0)
    yield from map(str, store.verify())


def wrong_with_feed(place: Path, store: Store, outcome: Outcome) -> Iterator[str]:
    found = oracle.feed_written(place / "feed")
    commits = len(found["_commit_version"].unique())
    outcome.counts["rows of the feed"] = f"{len(found):,} of {commits:,} commits"
    if not found["name"].equals(names(found["id"], found["v"])):
        yield "rows of the feed hold the values of several rows"
    yield from oracle.broken_chains(found, store.table(SOURCE).scan().to_table())


def wrong_with_copy(place: Path, store: Store) -> Iterator[str]:
    """Compare the copy with the source, and its commits with the micro-batches of its checkpoint."""
    checkpoint, copy = place / "checkpoints" / "copy", store.table(COPY)
    source = store.table(SOURCE).scan().to_table()
    yield from oracle.differences("copy", copy.scan().to_table(), source)
    query = json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"]
    with store.context.catalog.reading() as tx:
        committed = {
            tx.commit_of_txn(copy.definition.id, IdempotencyKey(f"stream:{query}", batch))
            for batch in range(newest(checkpoint / "offsets") + 1)
        } - {None}
    if (others := commits_of(copy) ^ committed) != set():
        yield f"copy: commits {others} are not one for each micro-batch"


def commits_of(table: Table) -> set[int]:
    return {commit.number for commit in table.history() if commit.kind != "create"}


def main() -> None:
    with contextlib.ExitStack() as stack:
        kept = os.environ.get("ELASTICSCAN_SOAK_PLACE")
        place = Path(kept) if kept else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        outcome = run(place, float(os.environ.get("ELASTICSCAN_SOAK_SECONDS", "600")))
    sys.exit(bool(outcome.wrong))


if __name__ == "__main__":
    main()
