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
from typing import Any

from elasticscan.base.errors import ElasticScanError
from elasticscan.catalog import IdempotencyKey
from elasticscan.store import Store, Table
from tests.soak import oracle
from tests.soak.killer import Killer, Unexpected, newest
from tests.soak.processes import Program
from tests.soak.programs import COPY, FIRST_ROWS, SCHEMA, SOURCE, change

STREAMS = ("copy", "feed")
WRITERS = ("write 1", "write 2")
OTHERS = (*WRITERS, "move", "tidy")
SLOTS, TABLETS = 256, 12
RETENTION_SECONDS = 30.0  # beyond that, changes are only kept by the streams' leases
FOLLOWED_ROWS, DRAINED_ROWS = "12000", "200000"  # of a micro-batch; large commits have more than the first
LEAST_KILLS = 2
LONGEST_SECONDS = 900.0  # for what has no end of its own: a program that takes longer has hung
FIRST_VALUE = 0  # filled the table before the writers begin

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
        filled = rows_before_the_writers(store)
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
            compare(place, store, filled, others, outcome)
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


def rows_before_the_writers(store: Store) -> dict[str, Any]:
    """Fill the source; returns what a writer would have said of it."""
    keys = list(range(FIRST_ROWS))
    return change(store, "upsert", keys, FIRST_VALUE)


def compare(
    place: Path, store: Store, filled: dict[str, Any], others: dict[str, Program], outcome: Outcome
) -> None:
    """Enter all that is wrong, and how much was done."""
    said = [filled, *(each for name in WRITERS for each in others[name].said)]
    done, merged = others["move"].answers("done"), others["tidy"].answers("fragments")
    outcome.counts |= {
        "commits of the writers": f"{len(said)} {dict(Counter(each['kind'] for each in said))}",
        "changes of the topology": f"{len(done)} {dict(Counter(done))}",
        "compactions": f"{len(merged)}, of {sum(merged)} fragments",
    }
    for check in (wrong_with_store(store, said), wrong_with_streams(place, store, said, outcome)):
        try:
            outcome.wrong += check
        except (AssertionError, ElasticScanError, OSError, ValueError) as error:
            outcome.wrong.append(f"{type(error).__name__}: {error}")


def wrong_with_store(store: Store, said: list[dict[str, Any]]) -> Iterator[str]:
    if (unknown := commits_of(store.table(SOURCE)) ^ {each["commit"] for each in said}) != set():
        yield f"commits that writers and store do not agree on: {unknown}"
    named = {stream["name"] for stream in store.status()["streams"]}
    if named != set(STREAMS):
        yield f"the store knows of the streams {named}"
    if store.status()["moves"]:
        yield "moves were left behind"
    store.collect_garbage(grace_seconds=0)
    yield from map(str, store.verify())


def wrong_with_streams(
    place: Path, store: Store, said: list[dict[str, Any]], outcome: Outcome
) -> Iterator[str]:
    """Compare source, copy and feed with the model, and commits of the copy with its micro-batches."""
    feed = oracle.feed_written(place / "feed")
    commits = set(feed["_commit_version"].to_pylist())
    outcome.counts["rows of the feed"] = f"{len(feed):,} of {len(commits):,} commits"
    model = oracle.Model(said, snapshot=min(commits))
    found = oracle.rows_of(feed, "_change_type", "_commit_version")
    yield from oracle.differences("feed", found, model.feed)
    for name in (SOURCE, COPY):
        yield from oracle.differences(name, oracle.rows_of(store.table(name).scan().to_table()), model.rows)
    checkpoint, copy = place / "checkpoints" / "copy", store.table(COPY)
    query = json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"]
    with store.context.catalog.reading() as tx:
        committed = {
            tx.commit_of_txn(copy.definition.id, IdempotencyKey(f"stream:{query}", batch))
            for batch in range(newest(checkpoint / "offsets") + 1)
        } - {None}
    if (unknown := commits_of(copy) ^ committed) != set():
        yield f"copy: commits {unknown} are not one for each micro-batch"


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
