"""Stores whose shards are in object storage: what they cost, what they survive, what they never tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from elasticscan.base.errors import (
    InvalidOption,
    ShardUnavailable,
    WriteConflict,
    WrongRoot,
)
from elasticscan.storage.disk import objects as objects_module
from elasticscan.storage.disk.objects import MOST_AT_ONCE
from elasticscan.store import Store
from elasticscan.store.roots.location import MARKER
from elasticscan.store.upkeep.garbage import Action
from tests.base.s3 import SECRET, Fault, Request, S3Server
from tests.simulation.programs import Programs

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("text", pa.string())])
ROWS = 60_000


def rows(ids: np.ndarray, mark: str = "a") -> pa.Table:
    texts = [f"{mark}: the text of row {number}, which is not short" for number in ids.tolist()]
    return pa.table({"id": ids, "k": ids * 7 % 1_000_003, "text": texts}, schema=SCHEMA)


def made(tmp_path: Path, bucket: str, shards: tuple[str, ...] = ("a", "b")) -> Store:
    store = Store.create(tmp_path / "store", {name: f"s3://{bucket}/{name}" for name in shards}, tablets=8)
    store.create_table("t", SCHEMA, primary_key=["id"])
    return store


def ids(store: Store) -> list[int]:
    return sorted(store.table("t").scan(columns=["id"]).to_table()["id"].to_pylist())


@pytest.fixture
def store(tmp_path: Path, bucket: str, s3_server: S3Server) -> Iterator[Store]:
    with made(tmp_path, bucket) as store:
        store.table("t").upsert(rows(np.arange(ROWS)))
        s3_server.line.clear()
        yield store


def test_a_status_asks_for_no_object(store: Store, s3_server: S3Server) -> None:
    with Store.open(store.uri) as fresh:
        before = fresh.status()["tables"][0]
    assert (before["rows"], before["rows_exact"]) == (ROWS, True)
    store.table("t").delete([1])
    s3_server.line.clear()
    with Store.open(store.uri) as fresh:
        after = fresh.status()["tables"][0]
    assert after["rows"] >= ROWS - 1
    assert not after["rows_exact"]
    assert [request for request in s3_server.line.requests if ".arrow" in request.path] == []


@pytest.mark.long
def test_a_store_is_made_again_of_a_backup_in_a_bucket(store: Store, bucket: str, tmp_path: Path) -> None:
    copy = f"s3://{bucket}/backup"
    store.backup(copy)
    with pytest.raises(InvalidOption, match="not empty"):
        store.backup(copy)
    roots = {name: f"s3://{bucket}/restored/{name}" for name in "ab"}
    with Store.from_backup(copy, tmp_path / "restored", roots) as restored:
        assert ids(restored) == list(range(ROWS))


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
    assert ids(store) == list(range(ROWS))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("PUT", ".arrow", id="files"),
        pytest.param("GET", MARKER, id="looks at marks", marks=pytest.mark.long),
        pytest.param("PUT", MARKER, id="marks", marks=pytest.mark.long),
    ],
)
def test_a_commit_goes_to_several_shards_at_once(
    bucket: str, tmp_path: Path, s3_server: S3Server, method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, under_way = s3_server.line, list[int]()

    def slow(request: Request) -> Fault | None:
        if request.method != method or path not in request.path:
            return None
        answered = sum(other.method == method and path in other.path for other in line.requests)
        under_way.append(len(under_way) + 1 - answered)
        return "slow"

    with made(tmp_path, bucket, ("a", "b", "c", "d")) as store:
        table = store.table("t")
        table.upsert(rows(np.arange(100)))
        line.clear()
        monkeypatch.setattr(line, "fault", slow)
        table.upsert(rows(np.arange(100), "b"))
        assert len(under_way) == 4 and max(under_way) >= 2
        assert ids(store) == list(range(100))


@pytest.mark.long
def test_a_commit_looks_whether_a_collection_took_its_objects(store: Store, s3_server: S3Server) -> None:
    table, context = store.table("t"), store.context
    staged, collected = context.checkpoint, list[int]()

    def collect(where: str) -> None:
        staged(where)
        if where == "rows staged" and not collected:
            collected.append(0)
            with Store.open(store.uri) as other:
                collected[0] = other.collect_garbage(grace_seconds=0).removed

    context.checkpoint = collect
    with pytest.raises(WriteConflict, match="longer grace"):
        table.upsert(rows(np.arange(100), "b"))
    assert collected == [2]
    table.upsert(rows(np.arange(50), "c"))
    assert ids(store) == list(range(ROWS)) and store.verify() == []


def test_a_prefix_that_was_copied_over_another_is_not_written_to(
    store: Store, bucket: str, s3_server: S3Server
) -> None:
    client = s3_server.client
    source = {"Bucket": bucket, "Key": f"a/{MARKER}"}
    client.copy_object(Bucket=bucket, Key=f"b/{MARKER}", CopySource=source)
    with Store.open(store.uri) as other, pytest.raises(WrongRoot):
        other.table("t").upsert(rows(np.arange(100)))
    assert ids(store) == list(range(ROWS))


def empty_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, nothing was read yet."""
    blocks = objects_module.BlockCache()
    for module in ("objects", "prefix"):
        monkeypatch.setattr(f"elasticscan.storage.disk.{module}.shared_blocks", lambda: blocks)


@pytest.fixture
def cold(store: Store, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store, opened again, with nothing of it nearby."""
    store.table("t").upsert(rows(np.arange(ROWS, 6 * ROWS)))
    store.table("t").create_index("by_k", ["k"])
    store.table("t").compact()
    empty_memory(monkeypatch)
    with Store.open(store.uri) as other:
        s3_server.line.clear()
        yield other


@pytest.mark.parametrize(
    "what", ["first page", *(pytest.param(w, marks=pytest.mark.long) for w in ("key", "index"))]
)
def test_a_cold_first_page_or_look_up_takes_six_requests_and_two_megabytes(
    cold: Store, s3_server: S3Server, what: str
) -> None:
    table = cold.table("t")
    if what == "first page":
        assert next(iter(table.scan(page_rows=1_000))).rows.num_rows
    else:
        chosen = {"key": "id = 4711", "index": f"k = {4711 * 7}"}[what]
        matching = table.scan(filter=chosen, index="by_k" if what == "index" else "auto").to_table()["id"]
        assert matching.to_pylist() == [4711]
    assert 0 < len(s3_server.line.requests) <= 6
    assert s3_server.line.answered <= 2 << 20


@pytest.mark.long
def test_a_scan_of_few_columns_fetches_little_else(cold: Store, s3_server: S3Server) -> None:
    size = sum(fragment["bytes"] for fragment in cold.status()["tables"])
    assert ids(cold) == list(range(6 * ROWS))
    narrow = s3_server.line.answered
    assert narrow < 0.5 * size
    s3_server.line.clear()
    assert ids(cold) == list(range(6 * ROWS))
    assert s3_server.line.requests == []
    assert cold.table("t").scan().to_table().num_rows == 6 * ROWS
    assert s3_server.line.answered <= size  # what is near is fetched again where other columns lie between


@pytest.mark.long
def test_the_ends_of_many_fragments_are_fetched_beside_each_other(
    store: Store, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, line = store.table("t"), s3_server.line
    for number in range(12):
        table.upsert(rows(np.arange(number, ROWS, 4_000), "b"))
    expected = ids(store)
    empty_memory(monkeypatch)
    line.fault = lambda _: "slow"
    with Store.open(store.uri, upkeep="off") as other:
        line.clear()
        assert next(iter(other.table("t").scan(page_rows=1_000))).rows.num_rows
        assert 3 <= line.most_at_once <= MOST_AT_ONCE + 2 and len(line.requests) >= 5
        line.fault = lambda _: None
        assert ids(other) == expected
    paths = [request.path for request in line.requests if request.answered <= 65_536]
    assert max(Counter(paths).values()) <= 3


@pytest.mark.long
def test_verification_looks_past_what_is_in_memory(store: Store, bucket: str, s3_server: S3Server) -> None:
    assert ids(store) == list(range(ROWS)) and store.verify() == []
    for item in s3_server.client.list_objects_v2(Bucket=bucket)["Contents"]:
        if item["Key"].endswith(".arrow"):
            s3_server.client.delete_object(Bucket=bucket, Key=item["Key"])
    assert ids(store) == list(range(ROWS))
    assert len(store.verify()) == 2


@pytest.mark.long
def test_stores_in_one_bucket_leave_each_other_alone(store: Store, bucket: str, tmp_path: Path) -> None:
    with Store.create(tmp_path / "other", {"x": f"s3://{bucket}/ab", "y": f"s3://{bucket}/a/b"}) as other:
        other.create_table("t", SCHEMA, primary_key=["id"]).upsert(rows(np.arange(1_000)))
        for either in (store, other):
            done = either.collect_garbage(grace_seconds=0)
            assert not done.count(Action.TRASH) and not done.count(Action.DELETE)
        assert ids(other) == list(range(1_000)) and ids(store) == list(range(ROWS))
        with pytest.raises(InvalidOption, match="another store"):
            other.expand({"z": f"s3a://{bucket}/b"})


def test_no_secret_is_kept_or_reported(
    store: Store, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    root = f"s3://{s3_server.client.meta.region_name}:{SECRET}@{bucket}/c?secret_key={SECRET}"
    with pytest.raises(InvalidOption, match="AWS_PROFILE") as refused:
        store.expand({"c": root})
    s3_server.line.fault = lambda _: "denied"
    with Store.open(store.uri) as other, pytest.raises(ShardUnavailable, match="may not") as denied:
        ids(other)
    s3_server.line.fault = lambda _: None
    page = next(iter(store.table("t").scan(page_rows=1_000)))
    message = [
        *(str(caught.value) + repr(caught.value.fields) for caught in (refused, denied)),
        repr(store.status()),
        repr(store.table("t").scan().explain()),
        str(page.key),
    ]
    assert not [text for text in message if SECRET in text]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files and not [file for file in files if SECRET.encode() in file.read_bytes()]
    objects = s3_server.client.list_objects_v2(Bucket=bucket)["Contents"]
    contents = [
        s3_server.client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read() for item in objects
    ]
    assert not [content for content in contents if SECRET.encode() in content]


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
    with ObjectPrograms(tmp_path) as programs:
        programs.bucket = bucket
        programs.run(seed)
