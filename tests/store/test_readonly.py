"""Stores that can only be read: another user's, on a read-only mount, or opened so."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.managers import BaseManager, RemoteError
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import ReadOnlyStore, SnapshotExpired
from elasticscan.store import Store
from elasticscan.store.context.leases import Hold, leases_in
from tests.base.manual_clock import ManualClock
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
            "collect garbage": lambda: store.collect_garbage(grace_seconds=0),
            "adopt": store.adopt,
        }
    )


class Reader:
    """A store that can only be read, step by step; in a process of its own if it is another user's."""

    def __init__(self, uri: str, read_only: bool = False) -> None:
        self.store = Store.open(uri, read_only=read_only)

    def why(self) -> str | None:
        return self.store.read_only

    def ids(self) -> list[int]:
        return sorted(self.store.table("t").scan().to_table()["id"].to_pylist())

    def begin(self) -> tuple[list[int], str, str]:
        """Read a page: its ids, the key after it, and what keeps the snapshot."""
        scan = self.store.table("t").scan(page_rows=20)
        page = next(scan)
        return page.rows["id"].to_pylist(), str(page.key), scan.explain()["kept_by"]

    def resume(self, key: str) -> list[int]:
        found: list[int] = self.store.resume(key).to_table()["id"].to_pylist()
        return found

    def look(self) -> tuple[int, int, bool, list[Any]]:
        status, history = self.store.status(), self.store.table("t").history()
        is_known = status["read_only"] == self.store.read_only
        return status["snapshot"], len(history), is_known, self.store.verify()

    def write(self) -> None:
        """Try everything that writes; each is refused."""
        for write in writes(self.store).values():
            with pytest.raises(ReadOnlyStore, match="nothing was changed"):
                write()

    def close(self) -> None:
        self.store.close()


class Readers(BaseManager):
    """The process of another user, who has `Reader`s."""


Readers.register("Reader", Reader)


def become(user: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:  # imports whatever is imported late, while it may
        with Store.create(Path(scratch) / "s", ["a"]) as store:
            store.create_table("t", rows(0, 1), "id")
        Reader(f"{scratch}/s", read_only=True).begin()
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


@pytest.fixture
def opened_by_another() -> Iterator[Callable[..., Any]]:
    """How another user opens a store."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    readers = Readers(("127.0.0.1", 0), ctx=get_context("spawn"))
    readers.start(become, (NOBODY_UID,))
    yield readers.Reader  # type: ignore[attr-defined]
    readers.shutdown()


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


def check_reads(uri: str, reader: Any) -> None:
    """Nothing is written by a reader, who sees all that the owner writes."""
    before = files_of(uri)
    reader.write()
    assert reader.ids() == list(range(200))
    got, key, by = reader.begin()
    assert by == "retention" and sorted(got + reader.resume(key)) == list(range(200))
    assert reader.look() == (2, 2, True, [])
    assert files_of(uri) == before
    with Store.open(uri) as store:
        for turn in range(200, 205):
            store.table("t").upsert(rows(turn, turn + 1))
            assert reader.ids() == list(range(turn + 1))
            assert reader.look()[0] == store.status()["snapshot"]
        got, key, _ = reader.begin()
        store.expand(["c"])
        store.contract("a")
        assert sorted(got + reader.resume(key)) == list(range(205))
        store.compact()
        assert reader.ids() == list(range(205))
    assert reader.ids() == list(range(205))
    reader.close()


def test_nothing_writes_to_a_store_that_was_opened_for_reading(uri: str) -> None:
    reader = Reader(uri, read_only=True)
    assert reader.why() == "it was opened with read_only=True"
    check_reads(uri, reader)


@pytest.mark.long
def test_another_user_reads_what_the_directory_lets_in(
    uri: str, place: Path, opened_by_another: Callable[..., Any]
) -> None:
    reader = opened_by_another(uri)
    assert "may not write" in reader.why()
    check_reads(uri, reader)
    Store.create(place / "private", ["a"]).close()
    with pytest.raises(RemoteError, match="ES_STORE_NOT_FOUND"):
        opened_by_another(str(place / "private"))


def test_a_store_is_read_from_a_read_only_mount(uri: str, mounted: str) -> None:
    reader = Reader(mounted)
    assert "mounted read-only" in str(reader.why())
    check_reads(uri, reader)


def test_changes_that_a_killed_writer_left_beside_the_catalog_are_read(uri: str, tmp_path: Path) -> None:
    """Without the file that says how to read them: as in a copy or a snapshot of the disk."""
    copy = tmp_path / "copy"
    with Store.open(uri) as store:
        store.table("t").upsert(rows(200, 210))
        shutil.copytree(uri, copy)
    (copy / "catalog.db-shm").unlink()
    assert (copy / "catalog.db-wal").stat().st_size
    before = files_of(str(copy))
    assert Reader(str(copy), read_only=True).ids() == list(range(210))
    assert files_of(str(copy)) == before


def test_readers_do_not_stay_with_a_log_that_was_removed(uri: str) -> None:
    with Store.open(uri) as store, Store.open(uri, read_only=True) as reader:
        assert reader.context.catalog.versions()[1] == 2
        for end in ("-wal", "-shm"):
            Path(f"{uri}/catalog.db{end}").unlink()
        store.table("t").upsert(rows(200, 210))
        assert reader.context.catalog.versions()[1] == 3


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
            writer.collect_garbage(grace_seconds=0)
            for use in (lambda: list(scan), lambda: reader.resume(str(first.key))):
                with pytest.raises(SnapshotExpired):
                    use()
