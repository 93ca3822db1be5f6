"""Stores whose shards are in object storage: what they cost, what they survive, what they never tell."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from elasticscan.base.errors import (
    Busy,
    FragmentDamaged,
    InvalidOption,
    ShardUnavailable,
)
from elasticscan.storage.disk import MissingFile
from elasticscan.storage.disk import bucket as bucket_module
from elasticscan.storage.disk.objects import shared_blocks
from elasticscan.store import Store
from elasticscan.store.roots.location import MARKER
from tests.base.s3 import SECRET, Fault, Request, S3Server
from tests.simulation.programs import Programs

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("text", pa.string())])
ROWS = 60_000


def rows(ids: np.ndarray, mark: str = "a") -> pa.Table:
    texts = [f"{mark}: the text of row {number}, which is not short" for number in ids.tolist()]
    return pa.table({"id": ids, "k": ids * 7 % 1_000_003, "text": texts}, schema=SCHEMA)


def made(tmp_path: Path, bucket: str, shards: str = "ab", **options: Any) -> Store:
    roots = {name: f"s3://{bucket}/{name}" for name in shards}
    store = Store.create(tmp_path / "store", roots, tablets=8, **options)
    store.create_table("t", SCHEMA, primary_key=["id"])
    return store


def ids(store: Store) -> list[int]:
    return sorted(store.table("t").scan(columns=["id"]).to_table()["id"].to_pylist())


def empty_memory() -> None:
    """As in a new process, nothing was read yet."""
    shared_blocks()._blocks.clear()


@pytest.fixture
def store(tmp_path: Path, bucket: str, s3_server: S3Server) -> Iterator[Store]:
    with made(tmp_path, bucket) as store:
        store.table("t").upsert(rows(np.arange(ROWS)))
        s3_server.line.clear()
        yield store


# What it costs


def test_a_status_asks_for_no_object(store: Store, s3_server: S3Server) -> None:
    for deleted in (0, 1):
        store.table("t").delete([1] * deleted)
        s3_server.line.clear()
        with Store.open(store.uri) as fresh:
            (found,) = fresh.status()["tables"]
        assert (found["rows"] >= ROWS - deleted, found["rows_exact"]) == (True, not deleted)
        assert [request for request in s3_server.line.requests if ".arrow" in request.path] == []


@pytest.mark.long
@pytest.mark.parametrize("indexes", [0, 1])
def test_a_small_commit_is_four_requests_for_each_shard_at_most(
    store: Store, s3_server: S3Server, indexes: int
) -> None:
    if indexes:
        store.table("t").create_index("by_k", ["k"])
    for _ in range(2):
        with Store.open(store.uri, upkeep="off") as fresh:
            table = fresh.table("t")
            for _ in range(3):  # the first one of a process, too
                s3_server.line.clear()
                table.upsert(rows(np.arange(100)))
                assert s3_server.line.methods == {"PUT": 4 + 2 * indexes, "GET": 2}


def test_a_commit_goes_to_several_shards_at_once(
    bucket: str, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, under_way = s3_server.line, Counter[tuple[str, bool]]()
    most = Counter[tuple[str, bool]]()

    def slow(request: Request) -> Fault | None:
        kind = (request.method, MARKER in request.path)
        under_way[kind] += 1
        answered = sum((other.method, MARKER in other.path) == kind for other in line.requests)
        most[kind] = max(most[kind], under_way[kind] - answered)
        return "slow"

    with made(tmp_path, bucket, "abcd") as store:
        table = store.table("t")
        table.upsert(rows(np.arange(100)))
        line.clear()
        monkeypatch.setattr(line, "fault", slow)
        table.upsert(rows(np.arange(100), "b"))
        assert {kind: count for kind, count in most.items() if count < 2} == {}
        assert len(most) == 3, "files are put, and marks looked at and put"
        assert ids(store) == list(range(100))


@pytest.fixture
def cold(store: Store, s3_server: S3Server) -> Iterator[Store]:
    """The store, opened again, with nothing of it nearby."""
    store.table("t").upsert(rows(np.arange(ROWS, 6 * ROWS)))
    store.table("t").create_index("by_k", ["k"])
    store.table("t").compact()
    empty_memory()
    with Store.open(store.uri) as other:
        s3_server.line.clear()
        yield other


def test_a_cold_first_page_or_look_up_takes_six_requests_and_two_megabytes(
    cold: Store, s3_server: S3Server
) -> None:
    table = cold.table("t")
    looks: list[Callable[[], bool]] = [
        lambda: next(table.scan(page_rows=1_000)).rows.num_rows > 0,
        lambda: table.scan(filter="id = 4711").to_table()["id"].to_pylist() == [4711],
        lambda: table.scan(filter=f"k = {4711 * 7}", index="by_k").to_table()["id"].to_pylist() == [4711],
    ]
    for look in looks:
        empty_memory()
        s3_server.line.clear()
        assert look()
        assert 0 < len(s3_server.line.requests) <= 6
        assert s3_server.line.answered <= 2 << 20


@pytest.mark.long
def test_a_scan_of_few_columns_fetches_little_else(cold: Store, s3_server: S3Server) -> None:
    size = sum(fragment["bytes"] for fragment in cold.status()["tables"])
    assert ids(cold) == list(range(6 * ROWS))
    assert s3_server.line.answered < 0.5 * size
    s3_server.line.clear()
    assert ids(cold) == list(range(6 * ROWS))
    assert s3_server.line.requests == []
    assert cold.table("t").scan().to_table().num_rows == 6 * ROWS
    assert s3_server.line.answered <= size  # what is near is fetched again where other columns lie between


# What it survives


@pytest.mark.long
def test_a_commit_looks_whether_a_collection_took_its_objects(store: Store) -> None:
    collected = list[int]()

    def collect(where: str) -> None:
        if where == "rows staged" and not collected:
            collected.append(store.collect_garbage(grace_seconds=0, orphan_seconds=0).removed)

    with Store.open(store.uri) as other:
        other.context.sync_point = collect
        with pytest.raises(Busy, match="collected before it ended"):
            other.table("t").upsert(rows(np.arange(100), "b"))
        assert collected == [2]
        other.table("t").upsert(rows(np.arange(50), "c"))
        assert ids(store) == list(range(ROWS)) and store.verify() == []


@pytest.mark.long
def test_stores_and_backups_in_one_bucket_leave_each_other_alone(
    store: Store, bucket: str, tmp_path: Path, s3_server: S3Server
) -> None:
    store.backup(f"s3://{bucket}/backup")
    with pytest.raises(InvalidOption, match="not empty"):
        store.backup(f"s3://{bucket}/backup")
    roots = {"a": f"s3://{bucket}/ab", "b": f"s3://{bucket}/a/b"}
    with Store.from_backup(f"s3://{bucket}/backup", tmp_path / "other", roots) as other:
        for either in (store, other):
            done = either.collect_garbage(grace_seconds=0, orphan_seconds=0)
            assert not done.removed
            assert ids(either) == list(range(ROWS))
        with pytest.raises(InvalidOption, match="another store"):
            other.expand({"z": f"s3a://{bucket}/b"})
    dying = store.context.disk_of(1).create(f"t1/{'f' * 32}.arrow")
    dying.__enter__().write(bytes(bucket_module.PART_BYTES))  # and no more
    uploads = partial(s3_server.client.list_multipart_uploads, Bucket=bucket)
    assert len(uploads()["Uploads"]) == 1
    store.collect_garbage(grace_seconds=0, orphan_seconds=0)
    assert not uploads().get("Uploads"), "what a dead writer sent in parts is ended"
    for item in s3_server.client.list_objects_v2(Bucket=bucket, Prefix="b/")["Contents"]:
        if item["Key"].endswith(".arrow"):
            s3_server.client.delete_object(Bucket=bucket, Key=item["Key"])
    assert ids(store) == list(range(ROWS)), "they are in memory"
    assert len(store.verify()) == 1, "which verification looks past"


class ObjectPrograms(Programs):
    """Programs whose first shards are in a bucket; those that join later are directories."""

    bucket = ""

    def make(self, place: Path, retention: int) -> Path:
        roots = {name: f"s3://{self.bucket}/{place.name}/{name}" for name in ("s1", "s2", "s3")}
        self.create(place, roots, retention)
        return place


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_programs_are_exact_with_shards_in_a_bucket(tmp_path: Path, bucket: str, seed: int) -> None:
    programs = ObjectPrograms(tmp_path)
    programs.bucket = bucket
    with programs:
        programs.run(seed)


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
TYPED_ERRORS = (ShardUnavailable, MissingFile, FragmentDamaged, Busy)


@pytest.mark.long
@pytest.mark.parametrize("weather", WEATHERS)
def test_operations_are_exact_or_end_with_a_typed_error_whatever_the_server_does(
    tmp_path: Path, bucket: str, s3_server: S3Server, weather: str
) -> None:
    """What a write that raises was to change is not there: an oracle is a dictionary."""
    dice, oracle = random.Random(weather), dict.fromkeys(range(1_000), "a")
    faults, share = WEATHERS[weather]

    def fault(request: Request) -> Fault | None:
        if dice.randrange(100) >= share:
            return None
        chosen = dice.choice(faults)
        return None if chosen in ("flip", "missing") and ".arrow" not in request.path else chosen

    with made(tmp_path, bucket, upkeep="off") as store:
        table: Any = store.table("t")
        table.create_index("by_k", ["k"])
        table.upsert(rows(np.arange(1_000)))

        def upsert(turn: int) -> None:
            some = dice.sample(range(1_500), 300)
            table.upsert(rows(np.array(some), str(turn)))
            oracle.update(dict.fromkeys(some, str(turn)))

        def delete(_: int) -> None:
            some = dice.sample(range(1_500), 50)
            table.delete(some)
            for key in some:
                oracle.pop(key, None)

        def scan(turn: int) -> None:
            found = table.scan(["id", "text"], page_rows=200).to_table().to_pylist()
            assert {row["id"]: row["text"].partition(":")[0] for row in found} == oracle
            assert len(found) == len(oracle)
            for how in ({"filter": f"id = {turn}"}, {"filter": f"k = {turn * 7}", "index": "by_k"}):
                assert table.scan(["id"], **how).count() == (turn in oracle)

        def upkeep(_: int) -> None:
            table.compact()
            store.collect_garbage(grace_seconds=0, orphan_seconds=0)

        def move(turn: int) -> None:
            tablet = store.status()["tablets"][turn % 4]
            store.move(tablet["id"], "b" if tablet["shard"] == "a" else "a")

        operations: list[Callable[[int], None]] = [upsert, scan, delete, scan, move, scan, upkeep, scan]
        for turn in range(3 if weather in PASSING else 1):
            for operation in operations:
                empty_memory()
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


# What it never tells


def test_no_secret_is_kept_or_reported(
    store: Store, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    client = s3_server.client
    root = f"s3://{client.meta.region_name}:{SECRET}@{bucket}/c?secret_key={SECRET}"
    with pytest.raises(InvalidOption, match="AWS_PROFILE") as refused:
        store.expand({"c": root})
    s3_server.line.fault = lambda _: "denied"
    with Store.open(store.uri) as other, pytest.raises(ShardUnavailable, match="may not") as denied:
        ids(other)
    s3_server.line.fault = lambda _: None
    texts = [f"{caught.value}{caught.value.fields!r}" for caught in (refused, denied)]
    texts += [repr(store.status()), repr(store.table("t").scan().explain())]
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    objects = [
        client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
        for item in client.list_objects_v2(Bucket=bucket)["Contents"]
    ]
    assert files and objects
    assert SECRET not in "".join(texts)
    assert SECRET.encode() not in b"".join(files + objects)
