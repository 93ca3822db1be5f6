"""A scan by two workers of one core each, compared with one of `local[2]`, in turns in one run.

    PYTHONPATH=. python benchmarks/cluster.py [--rows 5000000] [--rounds 7]

It starts its own master, workers and two drivers on this machine; the catalog is in SQLite.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pyarrow as pa
from data import SCHEMA, batches, make_store
from measure import Results, by_turns

from tests.cluster.standalone import Cluster, Driver

WARMUPS = 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Cluster() as cluster:
        work = Path(name)
        make_store(work / "store", pa.RecordBatchReader.from_batches(SCHEMA, batches(given.rows))).close()
        asked = {"store": str(work / "store"), "query": "SELECT count(*), sum(v) FROM t"}
        settings = {"spark.driver.memory": "1g", "spark.cores.max": "2"}
        with Driver(cluster.master, work, settings) as two, Driver("local[2]", work, settings) as one:
            answers = [driver.ask("attached", **asked) for driver in (two, one)]
            assert answers[0][0][0] == answers[1][0][0] == given.rows
            took = by_turns(
                given.rounds,
                WARMUPS,
                workers=lambda: two.ask("attached", **asked),
                local=lambda: one.ask("attached", **asked),
            )
        rates = ", ".join(f"{name} {given.rows / seconds / 1e6:.1f}" for name, seconds in took.items())
        Results().at_least(
            "scan by two workers of one core / local[2]",
            took["local"] / took["workers"],
            0.9,
            f"{rates} million rows/s",
        )


if __name__ == "__main__":
    main()
