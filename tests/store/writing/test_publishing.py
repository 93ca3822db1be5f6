"""Commits of what many tasks staged: few files of each, whole with their index runs, or none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    Busy,
    DiskFull,
    FragmentDamaged,
    TableChanged,
)
from elasticscan.metadata import Fragment, StagedFragment
from elasticscan.storage import MissingFile, ingest, open_disk
from elasticscan.store import Store
from elasticscan.store.writing import publishing
from elasticscan.store.writing.definitions import reserve_table
from elasticscan.store.writing.publishing import publish
from tests.storage.faulty_disk import FaultyDisk

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
    tasks = (publishing.stage(store.context, table, rows_of(task).to_batches()) for task in range(TASKS))
    return [fragment for task in tasks for fragment in task]


def fragments_of(store: Store) -> tuple[Fragment, ...]:
    return store.context.catalog.newest().state.fragments(table=store.table("t").definition.id)


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
    publish(store.context, store.table("t").definition, staged)
    assert sorted(fragment.shard for fragment in fragments_of(store)) == [1, 2]
    check_all_is_there(store)
    assert len(files_of(store)) == 4  # with a run of each


def test_large_fragments_stay_and_small_ones_become_few(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = staged_by_tasks(store)
    largest = max(fragment.bytes for fragment in staged)
    monkeypatch.setattr(ingest, "SMALL_FRAGMENT_BYTES", largest)
    publish(store.context, store.table("t").definition, staged)
    committed = fragments_of(store)
    large = {fragment.path for fragment in staged if fragment.bytes == largest}
    assert large <= {fragment.path for fragment in committed}
    assert len(committed) - len(large) <= 2
    check_all_is_there(store)


@pytest.mark.parametrize("fails", ["a shard", "the table"])
def test_a_commit_that_fails_leaves_what_was_staged_and_no_more(
    tmp_path: Path, store: Store, fails: str
) -> None:
    """At a shard that is full what tasks staged cannot be gathered; in a table that is gone not entered."""
    with Store.open(store.uri, disks=lambda root: FaultyDisk(open_disk(root))) as other:
        staged, table = staged_by_tasks(other), other.table("t")
        definition, before, disk = table.definition, files_of(other), other.context.disk_of(2)
        if fails == "a shard":
            disk.full_after = disk.written  # type: ignore[attr-defined]
        else:
            table.drop()
        with pytest.raises(DiskFull if fails == "a shard" else TableChanged):
            publish(other.context, definition, staged)
        assert files_of(store) == before
        publishing.remove_staged(other.context, ingest.files_of(staged))
    assert files_of(store) == set()


def test_a_write_alongside_moves_without_end_stages_its_rows_again_while_no_one_can_move_them(
    store: Store,
) -> None:
    moves = list[int]()

    def move(point: str) -> None:
        if point == "keys compared" and len(moves) < 2 * publishing.ATTEMPTS_WITHOUT_LOCK:
            moves.append(store.move(1, ("s2", "s1")[len(moves) % 2]).number)

    store.context.sync_point = move
    store.table("t").insert(rows_of(0))
    assert len(moves) == publishing.ATTEMPTS_WITHOUT_LOCK + 1
    assert sorted(store.table("t").scan().to_table()["id"].to_pylist()) == list(range(ROWS))
    assert store.verify() == []


def test_writes_that_make_the_same_table_at_once_share_it_and_no_other_table(store: Store) -> None:
    make = partial(reserve_table, store.context, schema=SCHEMA, primary_key=["id"])
    first, again, another = make("new"), make("new"), make("another")
    assert first == again and first.id != another.id
    assert publish(store.context, first, publishing.stage(store.context, first, rows_of(0).to_batches())) > 0
    assert publish(store.context, again, publishing.stage(store.context, again, rows_of(1).to_batches())) > 0
    assert sorted(store.table("new").scan().to_table()["id"].to_pylist()) == list(range(2 * ROWS))


@pytest.mark.parametrize("harm", ["collected", "damaged"])
def test_a_slow_write_says_what_became_of_the_parts_that_it_staged(store: Store, harm: str) -> None:
    """A write whose files were collected is to be tried again; damage is damage."""
    batches = [batch for task in range(TASKS) for batch in rows_of(task).to_batches()]

    def slow() -> Iterator[pa.RecordBatch]:
        yield from batches[:-2]
        if harm == "collected":
            assert store.collect_garbage(grace_seconds=0, share=1.0, orphan_seconds=0).removed > 0
        for staged in Path(store.uri).rglob("*.arrow") if harm == "damaged" else ():
            content = bytearray(staged.read_bytes())
            content[100] ^= 1
            staged.write_bytes(content)
        yield from batches[-2:]

    reader = pa.RecordBatchReader.from_batches(SCHEMA, slow())
    expected = Busy if harm == "collected" else FragmentDamaged
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "WRITE_BUFFER_BYTES", 2_000)
        with pytest.raises(expected) as caught:
            store.table("t").upsert(reader)
    assert not isinstance(caught.value, MissingFile)
    assert store.table("t").scan().count() == 0
