"""Stores that can only be read: another user's, on a read-only mount, or opened so."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import NotFound, ReadOnlyStore, SnapshotExpired
from elasticscan.store import Store
from elasticscan.store.context.leases import Hold, leases_in
from tests.base.manual_clock import ManualClock
from tests.processes.test_forks import ended_well, forked
from tests.store.test_root_scenarios import catalog_changes, changes

ROWS_IN_FILES = True

NOBODY_UID = 65_534


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"id": range(first, last), "v": range(first, last)})


def writes(store: Store) -> dict[str, Callable[[], object]]:
    """Everything that writes to a store with shards `a` and `b`."""
    return (
        changes(store)
        | catalog_changes(store)
        | {
            "expand": lambda: store.expand(["z"]),
            "collect garbage": lambda: store.collect_garbage(grace_seconds=0, orphan_seconds=0),
            "adopt": store.adopt,
        }
    )


def ids(store: Store) -> list[int]:
    return sorted(store.table("t").scan().to_table()["id"].to_pylist())


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can reach; those of pytest are not."""
    place = Path(tempfile.mkdtemp(prefix="elasticscan-test-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def uri(place: Path) -> str:
    """A store that was opened to the group of nobody, on purpose."""
    uri = place / "s"
    uri.mkdir()
    if os.geteuid() == 0:
        os.chown(uri, 0, NOBODY_UID)
    uri.chmod(0o2750)
    with Store.create(uri, ["a", "b"], tablets=4, slots=16) as store:
        store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
        store.table("t").upsert(rows(0, 200))
    return str(uri)


@pytest.fixture
def mounted(uri: str, place: Path) -> Iterator[str]:
    """The same store, mounted read-only elsewhere."""
    there = place / "mounted"
    there.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root mounts")
    for command in (["mount", "--bind", uri, str(there)], ["mount", "-o", "remount,ro,bind", str(there)]):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            subprocess.run(["umount", str(there)], capture_output=True, check=False)
            pytest.skip("mounting is not allowed here")
    yield str(there)
    subprocess.run(["umount", str(there)], capture_output=True, check=True)


def files_of(uri: str) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mode, p.read_bytes()) for p in Path(uri).rglob("*") if p.is_file()}


def check_reads(uri: str, reader: Store) -> None:
    """Nothing is written by a reader, who sees all that the owner writes."""
    before = files_of(uri)
    for write in writes(reader).values():
        with pytest.raises(ReadOnlyStore, match="nothing was changed"):
            write()
    assert ids(reader) == list(range(200))
    scan = reader.table("t").scan(page_rows=20)
    page, key = next(scan).rows["id"].to_pylist(), str(scan.key)
    assert scan.explain()["kept_by"] == "retention"
    status = reader.status()
    assert (status["snapshot"], status["read_only"], reader.verify()) == (2, reader.read_only, [])
    assert files_of(uri) == before
    with Store.open(uri) as store:
        for turn in range(200, 205):
            store.table("t").upsert(rows(turn, turn + 1))
            assert ids(reader) == list(range(turn + 1))
        store.expand(["c"])
        store.contract("a")
        rest = reader.resume(key).to_table()["id"].to_pylist()
        assert sorted(page + rest) == list(range(200))
        store.compact()
        assert ids(reader) == list(range(205))
    assert ids(reader) == list(range(205))
    reader.close()


def test_nothing_writes_to_a_store_that_was_opened_for_reading(uri: str) -> None:
    reader = Store.open(uri, read_only=True)
    assert reader.read_only == "it was opened with read_only=True"
    check_reads(uri, reader)


def test_a_store_is_read_from_a_read_only_mount(uri: str, mounted: str) -> None:
    reader = Store.open(mounted)
    assert "mounted read-only" in str(reader.read_only)
    check_reads(uri, reader)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_what_the_directory_lets_in(uri: str, place: Path) -> None:
    Store.create(place / "private", ["a"]).close()

    def read() -> None:
        os.setgroups([])
        os.setgid(NOBODY_UID)
        os.setuid(NOBODY_UID)
        with Store.open(uri) as reader:
            assert "may not write" in str(reader.read_only)
            assert ids(reader) == list(range(200))
            with pytest.raises(ReadOnlyStore):
                reader.table("t").delete([1])
        with pytest.raises(NotFound):
            Store.open(place / "private")

    assert ended_well(forked(read))


def test_changes_that_a_killed_writer_left_beside_the_catalog_are_read(uri: str, tmp_path: Path) -> None:
    """Without the file that says how to read them: as in a copy or a snapshot of the disk."""
    copy = tmp_path / "copy"
    with Store.open(uri) as store:
        store.table("t").upsert(rows(200, 210))
        shutil.copytree(uri, copy)
    (copy / "catalog.db-shm").unlink()
    assert (copy / "catalog.db-wal").stat().st_size
    before = files_of(str(copy))
    with Store.open(copy, read_only=True) as reader:
        assert ids(reader) == list(range(210))
    assert files_of(str(copy)) == before


def test_a_scan_without_a_lease_goes_on_until_its_snapshot_is_gone(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with Store.create(tmp_path / "s", ["a"], 1, 16, retention_seconds=60, clock=clock) as writer:
        writer.create_table("t", rows(0, 200), "id")
        with Store.open(writer.uri, clock=clock, read_only=True) as reader:
            scan = reader.table("t").scan(page_rows=20)
            assert writer.table("t").scan(page_rows=20).explain()["kept_by"] == "lease"
            with writer.context.catalog.writing() as tx:
                for lease in leases_in(tx):
                    tx.remove_lease(Hold, lease["id"])
            first = next(scan)
            writer.table("t").upsert(rows(0, 10))
            clock.advance(3_000)
            next(scan)  # renews nothing, and is still there
            clock.advance(3_000)
            writer.compact()
            writer.collect_garbage(grace_seconds=0, orphan_seconds=0)
            for use in (lambda: list(scan), lambda: reader.resume(str(first.key))):
                with pytest.raises(SnapshotExpired):
                    use()
