"""Requests, bytes, processor time and memory of a store whose shards are in object storage.

    python benchmarks/object_storage.py [MILLIONS OF ROWS]

It starts its own S3 server on loopback, behind a proxy that counts. Each figure is from a new process. The
processor time of a scan is compared in turns with a scan of the same rows in directories.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.memory import peak_mb
from elasticscan.store import Store
from tests.base.s3 import S3Server, start_s3

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.float64()), ("s", pa.string())])
STEP, TURNS = 500_000, 3
WORK = {
    "scan": lambda table: sum(page.rows.num_rows for page in table.scan()),
    "scan of the key": lambda table: sum(page.rows.num_rows for page in table.scan(columns=["id"])),
    "first page": lambda table: next(iter(table.scan(page_rows=1_000))).rows.num_rows,
    "look-up by key": lambda table: table.scan(filter="id = 4711").to_table().num_rows,
    "look-up by index": lambda table: (
        table.scan(filter=f"k = {key_of(4711)}", index="by_k").to_table().num_rows
    ),
    "commit of 10 rows": lambda table: table.upsert(rows(0, 10)),
}


def key_of(number: int) -> int:
    return number * 2_654_435_761 % (1 << 32)


def rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    texts = pa.array(np.char.add("the text of row ", ids.astype(str)))
    columns = [ids, ids * 2_654_435_761 % (1 << 32), np.sqrt(ids), texts]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)


def fill(place: Path, roots: dict[str, str] | list[str], millions: float) -> None:
    with Store.create(place, roots, tablets=8) as store:
        table = store.create_table("t", SCHEMA, primary_key=["id"])
        count = int(millions * 1_000_000)
        steps = (rows(first, min(STEP, count - first)) for first in range(0, count, STEP))
        table.upsert(
            pa.RecordBatchReader.from_batches(SCHEMA, (b for step in steps for b in step.to_batches()))
        )
        table.compact()
        table.create_index("by_k", ["k"])


def child(place: str, what: str) -> None:
    """Run one operation in this process; print its result, processor time and memory."""
    with Store.open(place, upkeep="off") as store:
        before, began = peak_mb(), time.process_time()
        result = WORK[what](store.table("t"))
        print(result, time.process_time() - began, peak_mb() - before)


def measured(server: S3Server, place: Path, what: str) -> tuple[int, int, float, float]:
    """Return (requests, bytes, processor time, memory) of one operation in a new process."""
    server.line.clear()
    environment = os.environ | server.environment
    command = [sys.executable, "-m", "benchmarks.object_storage", "child", str(place), what]
    message = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    return len(server.line.requests), server.line.answered, float(message[1]), float(message[2])


def tell(what: str, figures: tuple[int, int, float, float]) -> None:
    requests, answered, seconds, memory = figures
    print(
        f"{what:28} {requests:6} requests {answered / 1e6:10.2f} MB {seconds:7.2f} s {memory:7.0f} MB memory"
    )


def main() -> None:
    millions = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as work, start_s3() as server, server.bucket() as bucket:
        far, near = Path(work, "far"), Path(work, "near")
        fill(near, ["a", "b"], millions)
        fill(far, {name: f"s3://{bucket}/{name}" for name in ("a", "b")}, millions)
        with Store.open(far) as store:
            (table,) = store.status()["tables"]
        print(f"{table['rows']:,} rows, {table['bytes'] / 1e6:,.0f} MB in {table['fragments']} fragments")
        for what in WORK:
            tell(what, measured(server, far, what))
        ratios = []
        for _ in range(TURNS):
            remote, local = measured(server, far, "scan"), measured(server, near, "scan")
            ratios.append(local[2] / remote[2])
        tell("scan of directories", local)
        print(f"speed of a scan / of directories: {sorted(ratios)[TURNS // 2]:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        main()
