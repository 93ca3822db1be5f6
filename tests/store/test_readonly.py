"""Stores that can only be read: another user's, on a read-only mount, or opened so."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import ReadOnlyStore, SnapshotExpired
from elasticscan.store import Store
from elasticscan.store.context.leases import Hold, leases_in
from tests.base.manual_clock import ManualClock
from tests.store.other_user import NOBODY_UID, WRITES, OtherUser, Steps

ROWS_IN_FILES = True

IDS = list(range(200))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def ids(first: int, last: int) -> pa.Table:
    return pa.table({"id": list(range(first, last))})


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
        store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        store.table("t").upsert(ids(0, 200))
    return str(uri)


def files_of(uri: str) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mode, p.read_bytes()) for p in Path(uri).rglob("*") if p.is_file()}


# ---------------------------------------------------------------------------------- opened so


@pytest.mark.parametrize("how", WRITES)
def test_nothing_writes_to_a_store_that_was_opened_for_reading(uri: str, how: str) -> None:
    before = files_of(uri)
    steps = Steps()
    assert steps.open(uri, True) == "it was opened with read_only=True"
    with pytest.raises(ReadOnlyStore, match=r"opened with read_only=True.*nothing was changed"):
        steps.write(how)
    assert steps.ids() == IDS
    steps.close()
    assert files_of(uri) == before


def test_reading_leaves_no_file_behind_and_tells_everything(uri: str) -> None:
    before = files_of(uri)
    with Store.open(uri, read_only=True) as store:
        scan = store.table("t").scan(page_rows=30)
        page = next(iter(scan))
        assert page.key is not None
        got = page.rows["id"].to_pylist() + store.resume(page.key).to_table()["id"].to_pylist()
        assert sorted(got) == IDS
        assert store.verify() == []
        assert store.status()["read_only"] == store.read_only
        assert [each.kind for each in store.table("t").history()] == ["create", "write"]
    assert files_of(uri) == before


def _of(store: Store) -> Steps:
    steps = Steps()
    steps.store = store
    return steps


def test_changes_that_a_killed_writer_left_beside_the_catalog_are_read(uri: str, tmp_path: Path) -> None:
    """Without the file that says how to read them: as in a copy or a snapshot of the disk."""
    copy = tmp_path / "copy"
    with Store.open(uri) as store:
        store.table("t").upsert(ids(200, 210))
        shutil.copytree(uri, copy)
    (copy / "catalog.db-shm").unlink()
    assert (copy / "catalog.db-wal").stat().st_size
    before = files_of(str(copy))
    with Store.open(copy, read_only=True) as reader:
        assert Steps.ids(_of(reader)) == list(range(210))
    assert files_of(str(copy)) == before


def test_readers_do_not_stay_with_a_log_that_was_removed(uri: str) -> None:
    with Store.open(uri) as store, Store.open(uri, read_only=True) as reader:
        assert reader.context.catalog.versions()[1] == 2
        for end in ("-wal", "-shm"):
            Path(f"{uri}/catalog.db{end}").unlink()
        store.table("t").upsert(ids(200, 210))
        assert reader.context.catalog.versions()[1] == 3


def test_a_scan_without_a_lease_goes_on_until_its_snapshot_is_gone(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with Store.create(tmp_path / "s", ["a"], 1, 16, retention_seconds=60, clock=clock) as writer:
        writer.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        writer.table("t").upsert(ids(0, 200))
        with Store.open(writer.uri, clock=clock, read_only=True) as reader:
            scan = reader.table("t").scan(page_rows=20)
            assert scan.explain()["kept_by"] == "retention"
            assert writer.table("t").scan(page_rows=20).explain()["kept_by"] == "lease"
            with writer.context.catalog.writing() as tx:
                for lease in leases_in(tx):
                    tx.remove_lease(Hold, lease["id"])
            pages = iter(scan)
            first = next(pages)
            writer.table("t").upsert(ids(0, 10))
            clock.advance(3_000)
            next(pages)  # renews nothing, and is still there
            clock.advance(3_000)
            writer.compact()
            writer.collect_garbage(grace_seconds=0)
            with pytest.raises(SnapshotExpired):
                list(pages)
            assert first.key is not None
            with pytest.raises(SnapshotExpired):
                reader.resume(first.key)


# ------------------------------------------------------------------------------- another user's


@pytest.mark.long
@needs_root
def test_another_user_reads_a_store_while_its_owner_writes(uri: str) -> None:
    with OtherUser(NOBODY_UID) as reader:
        assert "may not write" in reader("open", uri)
        assert reader("ids") == IDS
        for how in WRITES:
            assert reader("write", how)["error"] == "ES_READ_ONLY", how
        with Store.open(uri) as store:
            for turn in range(5):
                store.table("t").upsert(ids(200 + turn, 201 + turn))
                assert reader("ids") == list(range(201 + turn))
                assert reader("look")[:2] == [store.status()["snapshot"], [201 + turn]]
            assert reader("begin", 20) == "retention"
            got, key = reader("page")
            store.expand(["c"])
            store.contract("a")
            assert sorted(got + reader("resume", key)) == list(range(205))
            store.compact()
            assert reader("ids") == list(range(205))
        assert reader("ids") == list(range(205))
        assert reader("look")[3]


@pytest.mark.long
@needs_root
def test_another_user_does_not_learn_whether_a_private_store_is_there(place: Path) -> None:
    Store.create(place / "s", ["a"]).close()
    with OtherUser(NOBODY_UID) as reader:
        assert reader("open", str(place / "s"))["error"] == "ES_STORE_NOT_FOUND"


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


@pytest.mark.parametrize("user", [0, NOBODY_UID], ids=["root", "nobody"])
def test_a_store_is_read_from_a_read_only_mount_while_it_is_written_elsewhere(
    uri: str, mounted: str, user: int
) -> None:
    with OtherUser(user) as reader:
        assert "mounted read-only" in reader("open", mounted)
        assert reader("ids") == IDS
        for how in WRITES:
            assert reader("write", how)["error"] == "ES_READ_ONLY", how
        with Store.open(uri) as store:
            store.table("t").upsert(ids(200, 210))
            assert reader("ids") == list(range(210))
            store.move(1, "b")
            store.move(1, "a")
            assert reader("ids") == list(range(210))
        assert reader("ids") == list(range(210))
        reader("close")
