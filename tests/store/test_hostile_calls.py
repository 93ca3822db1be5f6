"""A process without free files, files that are lost under a write, and a scan that threads share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Thread

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    FragmentDamaged,
    FragmentMissing,
    InvalidOption,
    ScanFinished,
    WriteConflict,
)
from elasticscan.store import Store
from elasticscan.store.writing import writer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s.store", ["s1", "s2"], tablets=4, slots=16) as made:
        made.create_table("t", pa.schema([("id", pa.int64()), ("s", pa.string())]), ["id"])
        made.table("t").upsert(pa.table({"id": range(100), "s": ["x"] * 100}))
        yield made


def test_threads_that_share_a_scan_get_each_page_once(store: Store) -> None:
    scan, start = store.table("t").scan(page_rows=3), Barrier(16)

    def read() -> list[int]:
        start.wait()
        try:
            return [key for page in scan for key in page.rows.column("id").to_pylist()]
        except ScanFinished:  # the others were quicker
            return []

    with ThreadPoolExecutor(16) as pool:
        found = [future.result() for future in [pool.submit(read) for _ in range(16)]]
    assert sorted(key for keys in found for key in keys) == list(range(100))


def test_a_process_without_threads_builds_an_index_and_moves_tablets(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refusing)
    store.table("t").create_index("by_s", ["s"])
    store.expand(["new"])
    assert {shard["name"]: shard["tablets"] for shard in store.status()["shards"]}["new"] == 1
    assert store.table("t").scan(index="by_s").count() == 100


@pytest.mark.parametrize(
    "work", ["store.expand(['c'])", "store.contract('b')", "store.table('t').create_index('by_v', ['v'])"]
)
def test_a_thread_that_outlives_the_main_thread_works_on(tmp_path: Path, work: str) -> None:
    code = f"""
import threading, time
import elasticscan

store = elasticscan.create("store", shards=["a", "b"], tablets=8)
store.create_table("t", {{"id": range(1000), "v": range(1000)}}, primary_key="id")

def late():
    threading.main_thread().join()
    time.sleep(0.2)
    {work}
    print(store.table("t").scan().count(), flush=True)

threading.Thread(target=late).start()
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.stdout == "1000\n", run.stderr


def test_a_process_without_free_files_is_reported_so_by_the_catalog(store: Store) -> None:
    child = """if True:
        import os, resource, sys, elasticscan
        from elasticscan.errors import OutOfResources
        store = elasticscan.open(sys.argv[1])
        tables = [table.name for table in store.tables()]
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        for free in (0, 1):
            held = []
            try:
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            for number in held[:free]:
                os.close(number)
            try:
                elasticscan.open(sys.argv[1])
            except OutOfResources as error:
                print(error.fields["what"])
            for number in held[free:]:
                os.close(number)
        print(elasticscan.open(sys.argv[1]).table("t").scan().count())
    """
    ended = subprocess.run(
        [sys.executable, "-c", child, store.uri], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout.split() == ["files", "files", "100"], ended.stderr


def test_garbage_collected_beside_a_slow_write_asks_to_try_again(store: Store) -> None:
    """A write stages in parts; what it staged first is gone when it merges them."""
    rows = pa.table({"id": range(1_000), "s": ["y"] * 1_000}).to_batches(max_chunksize=100)

    def slow() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows):
            if number == 8:
                assert store.collect_garbage(grace_seconds=0, share=1.0).removed > 0
            yield batch

    table = store.table("t").definition
    reader = pa.RecordBatchReader.from_batches(table.schema, slow())
    with pytest.raises(WriteConflict, match="longer grace"):
        writer.write(store.context, table, reader, buffer_bytes=2_000)
    assert store.table("t").scan().to_table().num_rows == 100


def test_a_staged_file_that_was_damaged_is_reported_as_damage_and_not_as_garbage(store: Store) -> None:
    rows = pa.table({"id": range(1_000), "s": ["y"] * 1_000}).to_batches(max_chunksize=100)
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
        writer.write(store.context, table, reader, buffer_bytes=2_000)
    assert not isinstance(caught.value, FragmentMissing)
    assert store.table("t").scan().to_table().num_rows == 100


def test_texts_of_a_commit_hold_no_zero_which_postgresql_would_refuse_amid_it(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", shards=["a"]) as store:
        table = store.create_table("t", pa.table({"id": [1]}), "id")
        for name in ("a\0b", "", "é" * 513):
            with pytest.raises(InvalidOption, match=r"txn.* must be a name of 1 to 1,024 bytes"):
                table.upsert(pa.table({"id": [2]}), txn=(name, 1))
            with pytest.raises(InvalidOption, match=r"job.* must be a name of 1 to 1,024 bytes"):
                store.load("t", tmp_path, job=name)
        assert table.scan().count() == 1
        table.upsert(pa.table({"id": [2]}), txn=("é" * 512, 1))
