"""Stores in a bucket whose server fails in all ways: exact, or a typed error; writers that are killed.

An oracle is a dict. What a write that raises was to change is not there. Weather comes and goes between the
operations: refusals, cut and altered answers, refused credentials, and a bucket that is away.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from elasticscan.base.errors import (
    FragmentDamaged,
    FragmentMissing,
    ShardUnavailable,
    WriteConflict,
)
from elasticscan.storage.disk import bucket as bucket_module
from elasticscan.store import Store
from tests.base.s3 import Fault, Request, S3Server
from tests.store import bucket_writer
from tests.store.test_object_storage import SCHEMA, empty_memory, rows

ROWS_IN_FILES = True

# For each weather the faults it brings, and how often one comes in a hundred requests.
WEATHERS: dict[str, tuple[tuple[Fault, ...], int]] = {
    "busy": (("503", "500", "slow"), 30),
    "torn": (("cut", "drop"), 30),
    "altered": (("flip",), 20),
    "gale": (("503", "cut", "drop", "flip", "500"), 40),
    "refused": (("denied", "key", "skew"), 50),
    "away": (("bucket",), 100),
    "down": (("drop",), 100),
    "hiding": (("missing",), 10),
}
PASSING = {"busy", "torn"}
TYPED_ERRORS = (ShardUnavailable, FragmentMissing, FragmentDamaged, WriteConflict)


@pytest.mark.long
@pytest.mark.parametrize("weather", WEATHERS)
def test_operations_are_exact_or_end_with_a_typed_error_whatever_the_server_does(
    tmp_path: Path, bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, weather: str
) -> None:
    roots = {name: f"s3://{bucket}/{name}" for name in ("a", "b")}
    with Store.create(tmp_path / "store", roots, tablets=4, slots=64, upkeep="off") as store:
        table: Any = store.create_table("t", SCHEMA, primary_key=["id"])
        table.create_index("by_k", ["k"])
        table.upsert(rows(np.arange(1_000)))
        dice, oracle = random.Random(weather), dict.fromkeys(range(1000), "a")
        faults, share = WEATHERS[weather]

        def fault(request: Request) -> Fault | None:
            if dice.randrange(100) >= share:
                return None
            chosen = dice.choice(faults)
            return None if chosen in ("flip", "missing") and ".arrow" not in request.path else chosen

        def upsert(turn: int) -> None:
            ids = np.array(dice.sample(range(1_500), 300))
            table.upsert(rows(ids, str(turn)))
            oracle.update(dict.fromkeys(ids.tolist(), str(turn)))

        def delete(_: int) -> None:
            ids = dice.sample(range(1_500), 50)
            table.delete(ids)
            for key in ids:
                oracle.pop(key, None)

        def scan(_: int) -> None:
            found = table.scan(["id", "text"], page_rows=200).to_table().to_pylist()
            assert {row["id"]: row["text"].partition(":")[0] for row in found} == oracle
            assert len(found) == len(oracle)

        def look_up(turn: int) -> None:
            for how in ({"filter": f"id = {turn}"}, {"filter": f"k = {turn * 7}", "index": "by_k"}):
                assert table.scan(["id"], **how).count() == (turn in oracle)

        def upkeep(_: int) -> None:
            table.compact()
            store.collect_garbage(grace_seconds=0)

        def move(turn: int) -> None:
            tablet = store.status()["tablets"][turn % 4]
            store.move(tablet["id"], "b" if tablet["shard"] == "a" else "a")

        operations: list[Callable[[int], None]] = [upsert, scan, delete, look_up, move, scan, upkeep, scan]
        for turn in range(3 if weather in PASSING else 1):
            for operation in operations:
                empty_memory(monkeypatch)
                bucket_module._client_of.cache_clear()  # `botocore` asks less often again after many refusals
                s3_server.line.fault = fault
                try:
                    operation(turn)
                except TYPED_ERRORS:
                    assert weather not in PASSING
                finally:
                    s3_server.line.fault = lambda _: None
            scan(turn)
        assert store.verify() == []


@pytest.mark.long
def test_writers_that_are_killed_leave_all_or_nothing_and_nothing_for_ever(
    tmp_path: Path, bucket: str, s3_server: S3Server
) -> None:
    dice, roots = random.Random(1), {name: f"s3://{bucket}/{name}" for name in ("a", "b")}
    with Store.create(tmp_path / "store", roots, tablets=4, slots=64) as store:
        store.create_table("t", bucket_writer.SCHEMA, primary_key=["id"])
    acknowledged = 0
    for seed in range(4):
        command = [sys.executable, "-m", "tests.store.bucket_writer", str(tmp_path / "store"), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == "open\n"
            try:
                # One of them is let through once, however slow the machine is.
                first = writer.stdout.readline() if seed == 0 else ""
                sleep(dice.uniform(0.2, 2.5))
            finally:
                writer.kill()
            acknowledged = max([acknowledged, *map(int, (first + writer.stdout.read()).split())])
        with Store.open(tmp_path / "store", upkeep="off") as store:
            assert acknowledged <= bucket_writer.generation_of(store) <= acknowledged + 1
            acknowledged = bucket_writer.generation_of(store)
    with Store.open(tmp_path / "store", upkeep="off") as store:
        store.collect_garbage(grace_seconds=0)
        assert store.verify() == [] and bucket_writer.generation_of(store) == acknowledged > 0
    assert not s3_server.client.list_multipart_uploads(Bucket=bucket).get("Uploads")
