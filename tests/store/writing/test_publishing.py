"""Commits of what many tasks staged: few files of each, whole with their index runs, or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    DiskFull,
    ElasticScanError,
    FragmentDamaged,
    FragmentMissing,
    InvalidOption,
    WriteConflict,
)
from elasticscan.metadata import Fragment, StagedFragment
from elasticscan.storage import ingest
from elasticscan.store import Store
from elasticscan.store.writing import publishing, staging

pytestmark = pytest.mark.usefixtures("rows_in_files")

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64())])
TASKS, ROWS = 40, 30


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=8, slots=64) as it:
        it.create_table("t", SCHEMA, ["id"]).create_index("by_k", ["k"])
        yield it


def rows_of(task: int) -> pa.Table:
    ids = range(task * ROWS, (task + 1) * ROWS)
    return pa.table({"id": ids, "k": [i % 7 for i in ids]}, schema=SCHEMA)


def staged_by_tasks(store: Store) -> list[StagedFragment]:
    table = store.table("t").definition
    tasks = (staging.stage(store.context, table, rows_of(task).to_batches()) for task in range(TASKS))
    return [fragment for task in tasks for fragment in task]


def fragments_of(store: Store) -> tuple[Fragment, ...]:
    with store.context.catalog.reading() as tx:
        return tx.state.fragments(table=store.table("t").definition.id)


def files_of(store: Store) -> set[str]:
    return {path.name for path in Path(store.uri).rglob("*.arrow")}


def check_all_is_there(store: Store) -> None:
    table = store.table("t")
    assert sorted(table.scan().to_table()["id"].to_pylist()) == list(range(TASKS * ROWS))
    assert table.scan(filter="k = 3", index="by_k").count() == sum(i % 7 == 3 for i in range(TASKS * ROWS))
    assert store.verify() == []


def test_many_tasks_leave_one_fragment_a_shard_and_no_other_file(store: Store) -> None:
    staged = staged_by_tasks(store)
    assert len(staged) > TASKS
    assert not any(fragment.runs for fragment in staged)
    publishing.publish(store.context, store.table("t").definition, staged)
    assert sorted(fragment.shard for fragment in fragments_of(store)) == [1, 2]
    check_all_is_there(store)
    assert len(files_of(store)) == 4  # with a run of each


def test_large_fragments_stay_and_small_ones_become_few(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = staged_by_tasks(store)
    largest = max(fragment.bytes for fragment in staged)
    monkeypatch.setattr(ingest, "SMALL_FRAGMENT_BYTES", largest)
    monkeypatch.setattr(ingest, "GATHERED_BYTES", 8 * largest)
    publishing.publish(store.context, store.table("t").definition, staged)
    committed = fragments_of(store)
    large = {fragment.path for fragment in staged if fragment.bytes == largest}
    assert large <= {fragment.path for fragment in committed}
    assert len(committed) - len(large) <= 2 * -(-TASKS // 8)
    check_all_is_there(store)


def test_a_write_that_cannot_be_gathered_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = staged_by_tasks(store)
    copy, shards = ingest.copy_slots, list[int]()

    def full(source, slots, bounds, keep, to, committed=True):  # type: ignore[no-untyped-def]
        shards.append(to.shard)
        if len(shards) == 2:
            raise DiskFull("no room")
        return copy(source, slots, bounds, keep, to, committed)

    with monkeypatch.context() as patch:
        patch.setattr(ingest, "copy_slots", full)
        with pytest.raises(DiskFull):
            publishing.publish(store.context, store.table("t").definition, staged)
    assert files_of(store) == set()
    assert fragments_of(store) == ()


@pytest.mark.parametrize("keeps", [False, True])
def test_a_commit_that_fails_leaves_what_its_request_keeps_and_no_more(
    store: Store, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    staged = staged_by_tasks(store)
    before = files_of(store)
    request = publishing.CommitRequest(keep={fragment.path for fragment in staged} if keeps else set())

    def refused(*_: object) -> bool:
        raise ElasticScanError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "_in_place", refused)
        with pytest.raises(ElasticScanError, match="not now"):
            publishing.publish(store.context, store.table("t").definition, staged, request)
    assert files_of(store) == (before if keeps else set())
    assert fragments_of(store) == ()


def test_garbage_collected_during_a_slow_write_asks_to_try_again(store: Store) -> None:
    """A write stages in parts; the first one is gone when it merges them."""
    batches = [batch for task in range(TASKS) for batch in rows_of(task).to_batches()]

    def slow() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == TASKS - 2:
                assert store.collect_garbage(grace_seconds=0, share=1.0).removed > 0
            yield batch

    reader = pa.RecordBatchReader.from_batches(SCHEMA, slow())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "WRITE_BUFFER_BYTES", 2_000)
        with pytest.raises(WriteConflict, match="longer grace"):
            publishing.write(store.context, store.table("t").definition, reader)
    assert store.table("t").scan().count() == 0


def test_a_staged_file_that_was_damaged_is_reported_as_damage_and_not_as_garbage(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "WRITE_BUFFER_BYTES", 2_000)
    rows = pa.table({"id": range(1_000), "k": range(1_000)}).to_batches(max_chunksize=100)
    before = set(Path(store.uri).rglob("*.arrow"))

    def slow() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows):
            if number == 8:
                for staged in set(Path(store.uri).rglob("*.arrow")) - before:
                    content = bytearray(staged.read_bytes())
                    content[100] ^= 1
                    staged.write_bytes(content)
            yield batch

    table = store.table("t").definition
    reader = pa.RecordBatchReader.from_batches(table.schema, slow())
    with pytest.raises(FragmentDamaged, match="elasticscan repair OLD NEW") as caught:
        publishing.write(store.context, table, reader)
    assert not isinstance(caught.value, FragmentMissing)
    assert store.table("t").scan().count() == 0


def test_texts_of_a_commit_hold_no_zero_byte(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", shards=["a"]) as store:
        table = store.create_table("t", pa.table({"id": [1]}), "id")
        for name in ("a\0b", "", "é" * 513):
            with pytest.raises(InvalidOption, match=r"txn.* must be a name of 1 to 1,024 bytes"):
                table.upsert(pa.table({"id": [2]}), txn=(name, 1))
            with pytest.raises(InvalidOption, match=r"job.* must be a name of 1 to 1,024 bytes"):
                store.load("t", tmp_path, job=name)
        assert table.scan().count() == 1
        table.upsert(pa.table({"id": [2]}), txn=("é" * 512, 1))
