"""Where a server has the catalog, things end by its clock, whatever those of the processes say."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.store import Store
from tests.base.postgres import Server

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
HOURS = 3_700.0  # a little more than a lease holds

# A process whose clock is set otherwise writes all rows again, merges, and removes what nobody needs.
ELSEWHERE = """
import sys, time
right, skew = time.time, float(sys.argv[2])
time.time = lambda: right() + skew
import pyarrow as pa
from elasticscan.store import Store
with Store.open(sys.argv[1], upkeep="off") as store:
    table = store.table("t")
    for value in (1, 2):
        table.upsert(pa.table({"k": range(100), "v": [value] * 100}, schema=table.schema))
    table.compact()
    store.collect_garbage(grace_seconds=0, trash_seconds=0)
    store.collect_garbage(grace_seconds=0, trash_seconds=0)
    if len(sys.argv) > 3:
        scan = table.scan(page_rows=10)
        next(scan)
        print(scan.key, flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def store(postgres: Server, tmp_path: Path) -> Iterator[Store]:
    with postgres.database() as name:
        url = postgres.url(name)
        with Store.create(url, {"a": str(tmp_path / "a")}, tablets=4, slots=16, upkeep="off") as made:
            made.create_table("t", SCHEMA, ["k"])
            made.table("t").upsert(pa.table({"k": range(100), "v": [0] * 100}, schema=SCHEMA))
            made.table("t").set_retention("0s")
            yield made


@pytest.mark.long
@pytest.mark.parametrize("skew", [HOURS, -HOURS])
def test_a_process_with_another_clock_ends_no_lease(store: Store, skew: float) -> None:
    table = store.table("t")
    scan = table.scan(page_rows=10)
    found = next(scan).rows.to_pylist()
    subprocess.run([sys.executable, "-c", ELSEWHERE, store.uri, str(skew)], check=True)
    for page in scan:
        found += page.rows.to_pylist()
    assert sorted(row["k"] for row in found) == list(range(100))
    assert {row["v"] for row in found} == {0}
    made = [commit.created_at for commit in table.history()]
    assert made == sorted(made)
    assert all(abs(at - time.time()) < HOURS / 2 for at in made), "a commit has another clock's time"


@pytest.mark.long
@pytest.mark.parametrize("skew", [HOURS, -HOURS])
def test_nobody_ends_the_lease_of_a_process_with_another_clock(store: Store, skew: float) -> None:
    command = [sys.executable, "-c", ELSEWHERE, store.uri, str(skew), "scan"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        key = other.stdout.readline().strip()
        table = store.table("t")
        table.upsert(pa.table({"k": range(100), "v": [3] * 100}, schema=SCHEMA))
        table.compact()
        store.collect_garbage(grace_seconds=0, trash_seconds=0)
        rest = store.resume(key).to_table()
        other.communicate("")
    assert rest.num_rows > 80 and set(rest["v"].to_pylist()) == {2}
