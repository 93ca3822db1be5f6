"""A program for a process of its own: all kinds of reads, a move and merges over very many small fragments.

    python -m tests.store.many_files DIRECTORY COMMITS OPEN_FILES

ends with an error if something needs more than so many open files, or returns wrong rows.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from elasticscan.base import limits
from elasticscan.store import Scan, Store, Table
from tests.base.manual_clock import ManualClock
from tests.simulation.programs import fast_store
from tests.simulation.world import START

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
STEP, ROWS = 3, 8  # each commit writes so many rows, all but a few of which the next one writes again
KINDS = 50


def rows_of(commit: int) -> pa.Table:
    ids = range(commit * STEP, commit * STEP + ROWS)
    return pa.table({"id": ids, "k": [i % KINDS for i in ids], "v": [commit] * ROWS}, schema=SCHEMA)


def rows_after(commits: int) -> dict[int, int]:
    return {i: min(i // STEP, commits - 1) for i in range((commits - 1) * STEP + ROWS)}


def values_in(scan: Scan) -> dict[int, int]:
    rows = scan.to_table()
    found = dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
    assert len(found) == rows.num_rows
    return found


def check(table: Table, numbers: Sequence[int]) -> None:
    """Look at a table that was created, and then written by many commits, which have these numbers."""
    first, *writes = numbers
    commits, half = len(writes), numbers[len(writes) // 2]
    expected = rows_after(commits)
    assert values_in(table.scan()) == expected
    assert values_in(table.scan(snapshot=half)) == rows_after(commits // 2)
    seven = {i: v for i, v in expected.items() if i % KINDS == 7}
    assert values_in(table.scan(filter="k = 7", index="by_k")) == seven
    assert table.changes(first, feed=False).count() == commits * ROWS
    later = commits - commits // 2
    assert table.changes(half).count() == later * (2 * ROWS - STEP)


def main(place: Path, commits: int, open_files: int) -> None:
    limits.INLINE_BYTES = 0
    Store.create(place, ["s1", "s2"], tablets=4, slots=16).close()
    clock = ManualClock(START)
    with fast_store(place, clock) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.create_index("by_k", ["k"])
        numbers = [table.definition.created_commit]
        numbers += [table.upsert(rows_of(commit)) for commit in range(commits)]
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, most))
        check(table, numbers)
        tablet = store.context.placement().tablets[0]
        store.move(tablet.id, "s2" if tablet.shard == 1 else "s1")
        check(table, numbers)
        assert table.compact() > commits
        check(table, numbers)
        assert store.verify() == []
        clock.advance(START)
        table.compact()
        assert values_in(table.scan()) == rows_after(commits)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
