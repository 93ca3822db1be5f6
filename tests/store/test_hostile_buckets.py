"""Programs on a store in a bucket whose server fails in all ways: exact, or a typed error.

An oracle is a dict. What a write that raises was to change is not there, unless the error says that nobody
knows. Weather comes and goes between the steps: refusals, cut and altered answers, refused credentials, and
a bucket that is away.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pyarrow as pa
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
from tests.store.test_object_storage import empty_memory

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("text", pa.string())])
IDS = 4_000
# For each weather the faults it brings, and how often one comes in a hundred requests.
WEATHERS: dict[str, tuple[tuple[Fault, ...], int]] = {
    "clear": ((), 0),
    "busy": (("503", "500", "slow"), 30),
    "torn": (("cut", "drop"), 30),
    "altered": (("flip",), 20),
    "gale": (("503", "cut", "drop", "flip", "500"), 40),
    "refused": (("denied", "key", "skew"), 50),
    "away": (("bucket",), 100),
    "down": (("drop",), 100),
    "hiding": (("missing",), 10),
}
PASSING = {"clear", "busy", "torn"}
TOLD = (ShardUnavailable, FragmentMissing, FragmentDamaged, WriteConflict)
Oracle = dict[int, tuple[int, str]]


class Program:
    """One program, drawn by a seed."""

    def __init__(self, seed: int, store: Store, line: Any, patch: pytest.MonkeyPatch) -> None:
        self.dice, self.store, self.line, self.patch = random.Random(seed), store, line, patch
        self.oracle: Oracle = {}
        self.versions: dict[int, Oracle] = {}
        self.weather, self.said = "clear", list[str]()
        self.errors = 0
        self._keys: list[tuple[str, int, list[int]]] = []  # key of a scan, its snapshot, ids that came before
        self._faults = random.Random(seed)

    def run(self, steps: int) -> None:
        doings: list[Callable[[], None]] = [
            *[self.upsert] * 4, self.delete, *[self.scan] * 3, self.look_up, self.by_index, self.changes,
            self.begin, self.resume, self.resume, self.upkeep, self.move, self.reopen,
        ]  # fmt: skip
        for _ in range(steps):
            self.turn(self.dice.choice([*WEATHERS, "clear", "clear"]))
            doing = self.dice.choice(doings)
            self.said.append(f"{self.weather}: {doing.__name__}")
            try:
                doing()
            except TOLD as error:
                self.errors += 1
                self.said.append(f"  {type(error).__name__}: {error}"[:300])
                if self.weather in PASSING:
                    raise
        self.turn("clear")
        self.scan()
        self.by_index()
        assert self.store.verify() == []

    def turn(self, weather: str) -> None:
        self.weather = weather
        faults, share = WEATHERS[weather]

        def fault(request: Request) -> Fault | None:
            if not faults or self._faults.randrange(100) >= share:
                return None
            chosen = self._faults.choice(faults)
            return None if chosen in ("flip", "missing") and ".arrow" not in request.path else chosen

        self.line.fault = fault
        bucket_module._client_of.cache_clear()  # `botocore` asks less often again after many refusals

    @property
    def table(self) -> Any:
        return self.store.table("t")

    def upsert(self) -> None:
        count = self.dice.choice([1, 10, 300])
        ids = np.array(self.dice.sample(range(IDS), count))
        mark = f"{self.dice.randrange(1 << 30)}, and more " * self.dice.choice([1, 30])
        rows = pa.table({"id": ids, "k": ids * 7 % 1_009, "text": [mark] * count}, schema=SCHEMA)
        self._commit(self.table.upsert(rows), {i: (i * 7 % 1_009, mark) for i in ids.tolist()})

    def delete(self) -> None:
        ids = self.dice.sample(range(IDS), 50)
        self._commit(self.table.delete(ids), dict.fromkeys(ids))

    def _commit(self, number: int, changes: dict[int, tuple[int, str] | None]) -> None:
        merged = {**self.oracle, **changes}
        self.oracle = {key: row for key, row in merged.items() if row is not None}
        self.versions[number] = self.oracle

    def scan(self) -> None:
        columns = self.dice.choice([["id", "k", "text"], ["id"], ["text"], ["id", "k"]])
        rows = self.table.scan(columns=columns).to_table().to_pylist()
        expected = [dict(zip(SCHEMA.names, (key, *row), strict=True)) for key, row in self.oracle.items()]
        self._same(rows, [{name: row[name] for name in columns} for row in expected])

    def _same(self, rows: list[Any], expected: list[Any]) -> None:
        assert sorted(map(str, rows)) == sorted(map(str, expected)), self.said[-8:]

    def look_up(self) -> None:
        key = self.dice.randrange(IDS)
        rows = self.table.scan(filter=f"id = {key}").to_table().to_pylist()
        row = self.oracle.get(key)
        self._same(rows, [] if row is None else [{"id": key, "k": row[0], "text": row[1]}])

    def by_index(self) -> None:
        low = self.dice.randrange(1_009)
        scan = self.table.scan(columns=["id"], filter=f"k >= {low} and k < {low + 50}", index="by_k")
        self._same(
            scan.to_table()["id"].to_pylist(), [i for i, (k, _) in self.oracle.items() if low <= k < low + 50]
        )

    def changes(self) -> None:
        if len(self.versions) < 2:
            return
        first, last = sorted(self.dice.sample(sorted(self.versions), 2))
        feed = self.table.changes(first, last).to_table()
        before, after = self.versions[first], self.versions[last]
        ids = set(feed["id"].to_pylist())
        differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        assert differing <= ids, self.said[-8:]

    def begin(self) -> None:
        newest = max(self.versions, default=None)
        if newest is None:
            return
        page = next(iter(self.table.scan(columns=["id"], page_rows=200)), None)
        if page is not None and page.key is not None:
            self._keys.append((page.key, newest, page.rows["id"].to_pylist()))

    def resume(self) -> None:
        if not self._keys:
            return
        key, version, before = self.dice.choice(self._keys)
        rest = self.store.resume(key).to_table()["id"].to_pylist()
        assert sorted([*before, *rest]) == sorted(self.versions[version]), self.said[-8:]

    def upkeep(self) -> None:
        done = self.dice.choice([self.table.compact, lambda: self.store.collect_garbage(grace_seconds=0)])
        done()

    def move(self) -> None:
        tablet = self.dice.choice(self.store.status()["tablets"])
        self.store.move(tablet["id"], "b" if tablet["shard"] == "a" else "a")

    def reopen(self) -> None:
        uri = self.store.uri
        self.store.close()
        self.store = Store.open(uri, upkeep="off")
        empty_memory(self.patch)


@pytest.fixture
def store(tmp_path: Path, bucket: str) -> Iterator[Store]:
    roots = {name: f"s3://{bucket}/{name}" for name in ("a", "b")}
    with Store.create(tmp_path / "store", roots, tablets=4, slots=64) as store:
        store.create_table("t", SCHEMA, primary_key=["id"]).create_index("by_k", ["k"])
    return Store.open(tmp_path / "store", upkeep="off")


@pytest.mark.long
@pytest.mark.parametrize("seed", [0])
def test_programs_are_exact_or_reported_whatever_the_server_does(
    store: Store, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    Program(seed, store, s3_server.line, monkeypatch).run(60)


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
