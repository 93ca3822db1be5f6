"""Keepers that are killed at their n-th look at the catalog, or between two of their steps.

python -m tests.store.keeper_kills TEMPLATE PLACE N ...    copies the store to PLACE/N, and kills there
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticscan.store import Store
from elasticscan.store.moves.balancing import Balance
from elasticscan.store.upkeep.keeper import Keeper
from elasticscan.store.upkeep.planning import Policy
from tests.base.connections import call_at_statements
from tests.base.manual_clock import ManualClock
from tests.store.copies_of_stores import copied_store

START = 4_000_000_000.0
HOURS = 3_600.0
POLICY = Policy(
    slot_fragments=3,
    small_bytes=2_000,
    step_bytes=30_000,
    garbage_files=1,
    balance=Balance(split_bytes=9_000, join_bytes=4_000, fewest_tablets=4, share=0.1, bytes=1_000),
)
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def make(place: Path) -> dict[int, int]:
    """Make a store with a lot to do: many fragments, uneven shards, tablets too large, garbage."""
    rows: dict[int, int] = {}
    with Store.create(
        place, ["s1", "s2"], tablets=6, slots=64, retention_seconds=0, clock=ManualClock(START), upkeep="off"
    ) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.create_index("by_v", ["v"])
        for number in range(10):
            ids = range(150 * number, 150 * number + 400)
            table.upsert(pa.table({"id": ids, "v": [number] * len(ids)}, schema=SCHEMA))
            rows |= dict.fromkeys(ids, number)
            if number == 4:
                table.compact()  # its sources are garbage two hours later
        table.delete([*range(100, 200)])
        for gone in range(100, 200):
            del rows[gone]
        for tablet in store.topology.placement.tablets[3:5]:
            store.move(tablet.id, "s1")
    return rows


def opened(place: Path, hours: float, checkpoint: Callable[[str], None] = lambda _: None) -> Store:
    return Store.open(place, clock=ManualClock(START + hours * HOURS), checkpoint=checkpoint, upkeep="off")


def keep(store: Store, most_rounds: int = 12) -> None:
    """Keep a store until nothing is due."""
    for _ in range(most_rounds):
        kept = Keeper(store.context, POLICY).keep()
        assert kept.problems == []
        if not kept.steps:
            return
    raise AssertionError(f"after {most_rounds} rounds there is still something to do: {kept}")


def keep_until_killed(place: Path, point: int) -> None:
    left = point

    def come_closer(*_: Any, **__: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with opened(place, 2, come_closer) as store:
        call_at_statements(store.context.catalog, come_closer)
        keep(store)


def main(template: str, place: str, *points: str) -> None:
    for point in points:
        copy = Path(place) / point
        copied_store(Path(template), copy, ManualClock(START))
        child = os.fork()
        if child == 0:
            keep_until_killed(copy, int(point))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{point} {os.waitstatus_to_exitcode(status)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
