"""One suite that every disk passes, special cases of the local disk, and full disks."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    DiskFull,
    FragmentDamaged,
    OperatorNeeded,
    OutOfResources,
    ShardUnavailable,
)
from elasticscan.base.limits import OPEN_FILES
from elasticscan.storage.disk import Disk, LocalDisk, OpenFile, open_disk
from elasticscan.store import Store, stage
from tests.base.manual_clock import ManualClock
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.memory_disk import MemoryDisk

PATH = "t1/a.arrow"
PATHS = (PATH, "t1/b c%+ü", "t2/deeper/c", "t1/d/a.arrow", "mark")


@dataclass
class Made:
    """A disk, and operations on it that only tests use."""

    disk: Disk
    lose_root: Callable[[], object]


@pytest.fixture(params=["local", "memory", "faulty, without faults", "objects"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    if request.param == "memory":
        memory = MemoryDisk()
        return Made(memory, lambda: setattr(memory, "present", False))
    if request.param == "objects":
        bucket, client = request.getfixturevalue("bucket"), request.getfixturevalue("s3_server").client
        # No cache, because these tests change files without the disk's knowledge.
        objects = open_disk(f"s3://{bucket}/root").uncached

        def lose_bucket() -> None:
            for path, _ in objects.list():
                objects.delete(path)
            client.delete_bucket(Bucket=bucket)

        return Made(objects, lose_bucket)
    root = tmp_path / "root"
    root.mkdir()
    disk = LocalDisk(root) if request.param == "local" else FaultyDisk(LocalDisk(root))
    return Made(disk, lambda: root.rename(tmp_path / "elsewhere"))


def write(disk: Disk, path: str, content: bytes) -> None:
    with disk.create(path) as file:
        file.write(content)


def content_of(file: OpenFile) -> bytes:
    content: bytes = file.read_at(0, file.size).to_pybytes()
    return content


def paths(disk: Disk) -> list[str]:
    return sorted(path for path, _ in disk.list())


# ------------------------------------------------------------------------- what every disk promises


class Program:
    """Files that are created and removed, compared with a dictionary."""

    def __init__(self, disk: Disk, seed: int) -> None:
        self.disk, self.rng = disk, random.Random(seed)
        self.files: dict[str, bytes] = {}
        self.opened: list[tuple[OpenFile, bytes]] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.rng.choice((self.create, self.create, self.fail, self.note, self.delete, self.open))
            step(self.rng.choice(PATHS))
            self.check()

    def check(self) -> None:
        times = dict(self.disk.list())
        assert times.keys() == self.files.keys()
        assert all(isinstance(changed, float) and changed >= 0 for changed in times.values())
        for path in PATHS:
            self.check_file(path)
        for file, content in self.opened:  # even if it was removed since
            assert content_of(file) == content

    def check_file(self, path: str) -> None:
        if path in self.files:
            file = self.disk.open(path)
            assert (file.size, content_of(file)) == (len(self.files[path]), self.files[path])
        else:
            with pytest.raises(FragmentDamaged, match="is missing") as caught:
                self.disk.open(path)
            assert path in str(caught.value)

    def content(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((1, 3, 5_000, 100_000)))

    def create(self, path: str) -> None:
        content = self.content()
        with self.disk.create(path) as file:
            for start in range(0, len(content), 30_000):
                file.write(content[start : start + 30_000])
            self.check_file(path)
            assert (path in paths(self.disk)) == (path in self.files), "nothing is seen before the end"
        self.files[path] = content

    def fail(self, path: str) -> None:
        error = self.rng.choice((ValueError("no"), KeyboardInterrupt()))

        def half() -> None:
            with self.disk.create(path) as file:
                file.write(b"half of what was meant")
                raise error

        with pytest.raises(type(error)):
            half()

    def note(self, path: str) -> None:
        self.files[path] = self.content()
        self.disk.note(path, self.files[path])
        times = dict(self.disk.list())
        assert times[path] == max(times.values()), "the newest file tells the time"

    def delete(self, path: str) -> None:
        self.disk.delete(path)
        self.files.pop(path, None)

    def open(self, path: str) -> None:
        if len(self.files.get(path, bytes(9_999))) < 9_999:
            self.opened.append((self.disk.open(path), self.files[path]))


@pytest.mark.parametrize("seed", range(3))
def test_programs_of_files_end_as_on_a_dictionary(made: Made, seed: int) -> None:
    Program(made.disk, seed).run(10 if made.disk.is_far else 40)


def test_a_root_that_is_gone_is_out_of_reach_and_not_made_anew_by_a_write(made: Made) -> None:
    """Otherwise files would be written below an empty mount point. A bucket's prefix, however, is created."""
    write(made.disk, PATH, b"x")
    made.lose_root()
    attempts: list[Callable[[], Any]] = [lambda: made.disk.open(PATH), lambda: made.disk.note("mark", b"x")]
    attempts += [lambda: write(made.disk, PATH, b"x"), made.disk.list]
    for attempt in attempts:
        with pytest.raises(ShardUnavailable):
            attempt()


# ---------------------------------------------------------------------------------- the local disk


@pytest.mark.parametrize("inside", ["a root that is a file", "a folder in the way", "a pipe"])
def test_what_is_no_file_or_directory_is_an_error_and_not_waited_for(tmp_path: Path, inside: str) -> None:
    root = tmp_path / "root"
    disk, write_there = LocalDisk(root), lambda: write(LocalDisk(root), PATH, b"x")
    attempts: list[Callable[[], Any]] = [lambda: disk.open(PATH)]
    if inside == "a root that is a file":
        root.write_text("not a directory")
        attempts += [write_there, disk.list]
    elif inside == "a folder in the way":
        (root / PATH).mkdir(parents=True)
        assert paths(disk) == []
        attempts += [write_there, lambda: disk.delete(PATH)]
    else:
        (root / PATH).parent.mkdir(parents=True)
        os.mkfifo(root / PATH)
    for attempt in attempts:
        with pytest.raises(ShardUnavailable if inside == "a root that is a file" else OperatorNeeded):
            attempt()


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_no_signal(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    write(disk, PATH, b"content" * 10_000)
    opened = disk.open(PATH)
    first = opened.read_at(0, 7)
    os.truncate(tmp_path / PATH, 5)
    with pytest.raises(FragmentDamaged, match="was cut"):
        opened.read_at(60_000, 7)
    assert first.to_pybytes() == b"content"


def test_few_files_stay_open_however_many_are_read(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    disk = LocalDisk(tmp_path)
    for number in range(200):
        write(disk, f"t1/{number}", bytes([number]))
    before = open_files()
    opened = [disk.open(f"t1/{number}") for number in range(200)]
    assert open_files() - before <= OPEN_FILES
    assert [file.read_at(0, 1).to_pybytes()[0] for file in opened] == list(range(200))
    assert open_files() - before <= OPEN_FILES


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_directory_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Otherwise garbage collection would forget its files, and a repair would leave them out."""
    disk, scandir = LocalDisk(tmp_path), os.scandir
    for path in ("t1/a", "t2/b", "t2/below/c"):
        write(disk, path, b"x")

    def refused(where: Any) -> Any:
        if str(where).endswith("below"):
            raise OSError(number, "refused", str(where))
        return scandir(where)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ShardUnavailable, match="below"):
        disk.list()


def test_memory_that_runs_out_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    with pytest.raises(OutOfResources, match="memory"), disk.create("b"):
        raise pa.ArrowMemoryError("malloc of size 64 failed")


# --------------------------------------------------------------------------------------- full disks


@pytest.mark.usefixtures("rows_in_files")
def test_garbage_goes_from_a_disk_that_is_full(tmp_path: Path) -> None:
    """No marker can be written, whose time would be used as the disk's clock."""
    disks: dict[str, FaultyDisk] = {}

    def faulty(root: str) -> FaultyDisk:
        return disks.setdefault(root, FaultyDisk(LocalDisk(root)))

    clock, rows = ManualClock(1_000.0), pa.table({"k": range(100)})
    Store.create(tmp_path / "store", ["a", "b"], tablets=4, slots=16, clock=clock).close()
    with Store.open(tmp_path / "store", clock, faulty) as store:
        table = store.create_table("t", rows.schema, ["k"])
        left = stage(store.context, table.definition, rows.to_batches())
        for disk in disks.values():
            disk.full_after = disk.written
        with pytest.raises(DiskFull):
            stage(store.context, table.definition, rows.to_batches())
        assert store.collect_garbage(grace_seconds=0, orphan_seconds=0).removed == len(left) == 2
