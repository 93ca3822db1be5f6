"""Files of several disks that end side by side."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition

import pyarrow as pa
import pytest

from elasticscan.base.errors import ShardUnavailable
from elasticscan.storage import Disk, LocalDisk, MemoryDisk, Together
from elasticscan.storage.together import WAITING
from elasticscan.store import Store
from tests.storage.faulty_disk import Crashed, FaultyDisk


def files_below(place: Path) -> list[str]:
    return sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())


def kinds_below(place: Path) -> dict[int, str]:
    """What is below a directory, by inode: how a file's name ends. Files may get other names meanwhile."""
    entries = [entry for folder, _, _ in os.walk(place) for entry in os.scandir(folder)]
    return {entry.inode(): Path(entry.name.removesuffix(".unfinished")).suffix for entry in entries}


def disks(place: Path, count: int) -> list[LocalDisk]:
    made = []
    for number in range(count):
        (place / str(number)).mkdir()
        made.append(LocalDisk(place / str(number)))
    return made


def write(made: Sequence[Disk], then: BaseException | None = None) -> None:
    """A file `f` on each disk, side by side."""
    with Together() as together:
        for disk in made:
            with together.of(disk).create("f") as file:
                file.write(b"x")
        if then is not None:
            raise then


@pytest.fixture
def all_flush_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """From now on the first flushes of each kind of this test's files wait until so many are under way."""

    def begin(count: int) -> None:
        began, changed = Counter[str](), Condition()
        flush = os.fsync

        def wait(handle: int) -> None:
            kind = kinds_below(tmp_path).get(os.fstat(handle).st_ino)
            if kind is not None:
                with changed:
                    began[kind] += 1
                    changed.notify_all()
                    assert changed.wait_for(lambda: began[kind] >= count, 60), "files are flushed in turn"
            flush(handle)

        monkeypatch.setattr(os, "fsync", wait)

    return begin


def test_files_are_flushed_side_by_side_and_there_when_the_block_ends(
    tmp_path: Path, all_flush_at_once: Callable[[int], None]
) -> None:
    all_flush_at_once(3)
    with Together() as together:
        for number, disk in enumerate(disks(tmp_path, 3)):
            with together.of(disk).create("f") as file:
                file.write(bytes([number]))
        assert not [name for name in files_below(tmp_path) if name.endswith("f")]
    assert files_below(tmp_path) == ["0/f", "1/f", "2/f"]
    assert [(tmp_path / name).read_bytes() for name in files_below(tmp_path)] == [b"\0", b"\1", b"\2"]


def test_a_commit_to_several_shards_waits_for_one_flush_and_so_do_the_runs_of_its_indexes(
    tmp_path: Path, all_flush_at_once: Callable[[int], None]
) -> None:
    rows = pa.table({"id": range(100), "v": range(100)})
    with Store.create(tmp_path / "s", ["a", "b", "c"], tablets=6, slots=64, upkeep="off") as store:
        table = store.create_table("t", rows.schema, ["id"])
        table.create_index("by_v", ["v"])
        table.create_index("v_by_hash", ["v"], kind="hash")
        table.upsert(rows)
        all_flush_at_once(3)
        table.upsert(rows.slice(20, 60))
        assert table.scan(filter="v < 50", index="by_v").count() == 50


def test_nothing_is_left_of_a_block_that_raises(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write(disks(tmp_path, 3), ZeroDivisionError())
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_flush_that_fails_is_reported_and_leaves_nothing_unfinished(tmp_path: Path, failing: int) -> None:
    made = [FaultyDisk(disk) for disk in disks(tmp_path, 3)]
    made[failing].raise_at_call["finish"] = 1
    with pytest.raises(ShardUnavailable):
        write(made)
    assert set(files_below(tmp_path)) <= {f"{number}/f" for number in range(3) if number != failing}


def test_a_process_that_dies_while_files_get_their_names_has_those_that_did(tmp_path: Path) -> None:
    made = [FaultyDisk(disk) for disk in disks(tmp_path, 2)]
    made[0].crash_before_rename = True
    with pytest.raises(Crashed):
        write(made)
    assert set(files_below(tmp_path)) <= {"0/f.unfinished", "1/f"}


def test_few_files_wait(tmp_path: Path) -> None:
    (disk,) = disks(tmp_path, 1)
    with Together() as together:
        for number in range(3 * WAITING + 1):
            with together.of(disk).create(f"{number}") as file:
                file.write(b"x")
            unfinished = [name for name in files_below(tmp_path) if name.endswith(".unfinished")]
            assert len(unfinished) < WAITING
    assert len(files_below(tmp_path)) == 3 * WAITING + 1


def test_a_file_that_is_not_written_to_its_end_is_none_of_them() -> None:
    disk = MemoryDisk()
    away = ShardUnavailable("away", root="s")
    with Together() as together:
        with suppress(ShardUnavailable), together.of(disk).create("f") as file:
            file.write(b"x")
            raise away
        with together.of(disk).create("g") as file:
            file.write(b"y")
        assert together.of(disk).list() == []
    assert disk.files == {"g": b"y"}
