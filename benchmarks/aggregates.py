"""`Table.aggregate` alongside reading all rows and grouping them in Arrow: processor time, by turns.

python benchmarks/aggregates.py [--rows 10000000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from elasticscan.store import Store, Table

SCHEMA = pa.schema(
    {"id": pa.int64(), "g": pa.int32(), "many": pa.int64(), "n": pa.int64(), "x": pa.float64()}
)


def make_table(store: Store, rows: int) -> Table:
    table = store.create_table("t", SCHEMA, ["id"])
    draw = np.random.default_rng(1)
    for start in range(0, rows, 1_000_000):
        count = min(1_000_000, rows - start)
        columns = [
            np.arange(start, start + count), draw.integers(0, 100, count, dtype=np.int32),
            draw.integers(0, max(rows // 10, 1), count), draw.integers(-1000, 1000, count),
            draw.random(count),
        ]  # fmt: skip
        table.upsert(pa.table(columns, SCHEMA.names).cast(SCHEMA))
    table.compact()
    return table


def grouped(table: Table, column: str, by: list[str]) -> pa.Table:
    """Compute the same from all rows in memory."""
    return table.scan([*by, column]).to_table().group_by(by).aggregate([(column, "sum")])


def time_of(work: Callable[[], Any]) -> tuple[float, float]:
    """(processor seconds, seconds)"""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as work,
        Store.create(Path(work) / "store", ["s1", "s2"], upkeep="off") as store,
    ):
        table = make_table(store, asked.rows)
        pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "sum(n)": (lambda: table.aggregate("sum(n)"), lambda: grouped(table, "n", [])),
            "sum(x) by 100 values": (
                lambda: table.aggregate("sum(x)", "g"), lambda: grouped(table, "x", ["g"])
            ),
            "sum(n) by many values": (
                lambda: table.aggregate("sum(n)", "many"), lambda: grouped(table, "n", ["many"])
            ),
        }  # fmt: skip
        for name, (ours, theirs) in pairs.items():
            times = [(time_of(ours), time_of(theirs)) for _ in range(asked.rounds)]
            medians = [
                [statistics.median(pair[side][kind] for pair in times) for kind in (0, 1)] for side in (0, 1)
            ]
            print(
                f"{name}: processor {medians[0][0]:.3f} s, all rows then group_by {medians[1][0]:.3f} s, "
                f"ratio {medians[1][0] / medians[0][0]:.2f}; "
                f"wall {medians[0][1]:.3f} and {medians[1][1]:.3f} s"
            )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{asked.rows:,} rows; at most {peak:,.0f} MB of memory in all")


if __name__ == "__main__":
    main()
