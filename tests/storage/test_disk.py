"""One suite that every disk passes, disks that are full, and files that are not what they were."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    DiskFull,
    ElasticScanError,
    FragmentDamaged,
    OperatorNeeded,
    OutOfResources,
    ShardUnavailable,
)
from elasticscan.base.limits import OPEN_FILES
from elasticscan.metadata import Seal, StagedFragment, TableInfo
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.disk import Disk, LocalDisk, MemoryFile, open_disk
from elasticscan.storage.fragment import FragmentReader, fragment_schema, is_fragment_path
from elasticscan.storage.fragment_writer import FragmentTarget, write_fragment
from elasticscan.storage.sealed_file import digest_of, read_manifest, verify_file
from elasticscan.store import Store, stage
from elasticscan.topology import SlotSet
from tests.base.manual_clock import ManualClock
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import ORIGIN

PATH = "t1/a.arrow"


@dataclass
class Made:
    """A disk, and what only a test may do to it."""

    disk: Disk
    lose_root: Callable[[], None]
    put: Callable[[str, bytes], None]


def _local(tmp_path: Path) -> Made:
    root = tmp_path / "root"
    root.mkdir()

    def put(path: str, content: bytes) -> None:
        (root / path).write_bytes(content)

    return Made(LocalDisk(root), lambda: root.rename(tmp_path / "elsewhere") and None, put)


def _memory(_: Path) -> Made:
    disk = MemoryDisk()

    def lose_root() -> None:
        disk.present = False

    return Made(disk, lose_root, disk.files.__setitem__)


def _faultless(tmp_path: Path) -> Made:
    made = _local(tmp_path)
    return Made(FaultyDisk(made.disk), made.lose_root, made.put)


def _objects(bucket: str, client: Any) -> Made:

    # What these tests change behind a disk's back would not be seen in memory.
    disk = open_disk(f"s3://{bucket}/root").uncached

    def put(path: str, content: bytes) -> None:
        client.put_object(Bucket=bucket, Key=f"root/{path}", Body=content)

    def lose_root() -> None:
        for path, _ in disk.list():
            disk.delete(path)
        client.delete_bucket(Bucket=bucket)

    return Made(disk, lose_root, put)


DISKS = {
    "local": _local,
    "memory": _memory,
    "faulty, without faults": _faultless,
}


@pytest.fixture(params=[*sorted(DISKS), "objects"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    if request.param == "objects":
        bucket = request.getfixturevalue("bucket")
        return _objects(bucket, request.getfixturevalue("s3_server").client)
    return DISKS[request.param](tmp_path)


def write(disk: Disk, path: str, content: bytes) -> None:
    with disk.create(path) as file:
        file.write(content)


def read(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    content: bytes = file.read_at(0, file.size).to_pybytes()
    return content


def fail_while_writing(disk: Disk, error: BaseException) -> None:
    with disk.create(PATH) as file:
        file.write(b"half of what was meant")
        raise error


def paths(disk: Disk) -> list[str]:
    return sorted(path for path, _ in disk.list())


# ------------------------------------------------------------------------- what every disk promises


def test_a_file_reads_as_it_was_written(made: Made) -> None:
    content = bytes(range(256)) * 999
    with made.disk.create(PATH) as file:
        for start in range(0, len(content), 1_000):
            file.write(content[start : start + 1_000])
    assert read(made.disk, PATH) == content
    assert made.disk.open(PATH).size == len(content)
    assert paths(made.disk) == [PATH]


def test_files_are_listed_with_their_folders_and_the_time_they_were_made(made: Made) -> None:
    write(made.disk, "t1/a", b"x")
    write(made.disk, "t2/deeper/b", b"y")
    assert paths(made.disk) == ["t1/a", "t2/deeper/b"]
    assert all(isinstance(changed, float) and changed >= 0 for _, changed in made.disk.list())


def test_nothing_is_seen_under_the_path_before_the_block_ends(made: Made) -> None:
    with made.disk.create(PATH) as file:
        file.write(b"half")
        assert PATH not in paths(made.disk)
        with pytest.raises(FragmentDamaged):
            made.disk.open(PATH)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_nothing_stays_when_the_block_raises(made: Made, error: BaseException) -> None:
    with pytest.raises(type(error)):
        fail_while_writing(made.disk, error)
    assert made.disk.list() == []
    with pytest.raises(FragmentDamaged):
        made.disk.open(PATH)


def test_an_old_file_stays_when_its_replacement_fails(made: Made) -> None:
    write(made.disk, PATH, b"old")
    with pytest.raises(ValueError):
        fail_while_writing(made.disk, ValueError())
    assert read(made.disk, PATH) == b"old"
    assert paths(made.disk) == [PATH]


def test_a_file_that_is_written_again_is_replaced_whole(made: Made) -> None:
    write(made.disk, PATH, b"old and longer")
    before = made.disk.open(PATH)
    write(made.disk, PATH, b"new")
    assert read(made.disk, PATH) == b"new"
    assert before.read_at(0, before.size).to_pybytes() == b"old and longer"


def test_an_open_file_is_still_read_after_it_was_deleted(made: Made) -> None:
    write(made.disk, PATH, b"content")
    opened = made.disk.open(PATH)
    made.disk.delete(PATH)
    assert opened.read_at(0, opened.size).to_pybytes() == b"content"
    assert made.disk.list() == []


def test_a_file_takes_another_path_and_may_be_gone_already(made: Made) -> None:
    write(made.disk, PATH, b"rows")
    made.disk.rename(PATH, "trash/1/" + PATH)
    assert paths(made.disk) == ["trash/1/" + PATH]
    made.disk.rename(PATH, "trash/2/" + PATH)
    assert read(made.disk, "trash/1/" + PATH) == b"rows"


def test_a_note_takes_the_place_of_another_and_the_newest_file_tells_the_time(made: Made) -> None:
    write(made.disk, PATH, b"rows")
    for content in (b"a longer one", b"short"):
        made.disk.note("mark", content)
        assert read(made.disk, "mark") == content
    times = dict(made.disk.list())
    assert times["mark"] >= times[PATH]
    assert sorted(times) == sorted(["mark", PATH])
    made.lose_root()
    with pytest.raises(ShardUnavailable):
        made.disk.note("mark", b"x")


def test_a_file_that_is_gone_is_reported_as_damage(made: Made) -> None:
    write(made.disk, "t1/other", b"x")
    with pytest.raises(FragmentDamaged, match="is missing") as caught:
        made.disk.open(PATH)
    assert PATH in str(caught.value)


def test_a_root_that_is_gone_is_reported_as_the_shard_being_out_of_reach(made: Made) -> None:
    write(made.disk, PATH, b"x")
    made.lose_root()
    with pytest.raises(ShardUnavailable):
        made.disk.open(PATH)


@pytest.mark.parametrize("kind", ["local", "memory", "faulty, without faults"])
def test_a_root_that_is_gone_is_not_made_anew_by_a_write(kind: str, tmp_path: Path) -> None:
    """Otherwise files would go below an empty mount point. A bucket's prefix, though, is made so."""
    made = DISKS[kind](tmp_path)
    made.lose_root()
    with pytest.raises(ShardUnavailable), made.disk.create(PATH) as file:
        file.write(b"x")
    with pytest.raises(ShardUnavailable):
        made.disk.list()


# ------------------------------------------------------------------------------------- damaged files


@pytest.fixture
def fragment(made: Made, monkeypatch: pytest.MonkeyPatch) -> StagedFragment:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 20)
    return small_fragment(made.disk)


def small_fragment(disk: Disk, compression: str | None = None) -> StagedFragment:
    schema = fragment_schema(pa.schema([("k", pa.int64()), ("v", pa.string())]), False, False)
    columns = [pa.array(range(90)), pa.array([f"value {n}" for n in range(90)])]
    slots = pa.array([n // 30 for n in range(90)], pa.uint16())
    rows = pa.RecordBatch.from_arrays([*columns, slots], schema=schema)
    info = TableInfo(1, "t", schema.remove(2), ("k",), ("k",), compression, 0, 0)
    return write_fragment(FragmentTarget(disk, 1, info, schema, ORIGIN), SlotSet.span(0, 3), [rows])


def read_fragment(disk: Disk, staged: StagedFragment) -> list[Any]:
    reader = FragmentReader(disk, staged.path, ["k", "v"], staged.seal)
    for slot in range(4):
        reader.seek(slot, None)
        reader.seek(slot, b"\x80")
    return [row for batch in reader for row in batch.to_pylist()]


def test_an_arrow_file_that_was_never_sealed_is_reported_as_damage(
    made: Made, fragment: StagedFragment
) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("k", pa.int64()), ("v", pa.string())])):
        pass
    content = sink.getvalue().to_pybytes()
    made.put(fragment.path, content)
    for tail in (1, 40, len(content)):
        sealed = Seal(len(content), tail, digest_of(content[-tail:]))
        with pytest.raises(FragmentDamaged):
            FragmentReader(made.disk, fragment.path, ["k"], sealed)
    with pytest.raises(FragmentDamaged, match="never sealed"):
        read_manifest(made.disk, fragment.path)


def test_a_file_under_the_name_of_another_is_reported_as_damage(made: Made, fragment: StagedFragment) -> None:
    other = small_fragment(made.disk)
    made.put(fragment.path, read(made.disk, other.path))
    for seal in (fragment.seal, other.seal):
        with pytest.raises(FragmentDamaged):
            FragmentReader(made.disk, fragment.path, ["k"], seal)
    with pytest.raises(FragmentDamaged, match="written as"):
        read_manifest(made.disk, fragment.path)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_flipped_bit_is_reported_as_damage(
    compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 20)
    disk = MemoryDisk()
    staged = small_fragment(disk, compression)
    content = bytearray(disk.files[staged.path])
    for at in range(len(content)):
        bit = 1 << (at * 7 % 8)
        content[at] ^= bit
        disk.files[staged.path] = bytes(content)
        with pytest.raises(FragmentDamaged):
            read_fragment(disk, staged)
        with pytest.raises(FragmentDamaged):
            verify_file(disk, staged.path, staged.seal)
        content[at] ^= bit
    disk.files[staged.path] = bytes(content)
    assert len(read_fragment(disk, staged)) == 90


def test_any_arrow_reader_takes_a_sealed_file(made: Made, fragment: StagedFragment) -> None:
    table = pa.ipc.open_file(pa.BufferReader(read(made.disk, fragment.path))).read_all()
    assert table.column("k").to_pylist() == list(range(90))


# ---------------------------------------------------------------------------------- the local disk


def test_a_root_that_is_a_file_is_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("not a directory")
    disk = LocalDisk(tmp_path / "root")
    for attempt in (lambda: write(disk, PATH, b"x"), lambda: disk.open(PATH), disk.list):
        with pytest.raises(ShardUnavailable):
            attempt()


def test_a_folder_that_is_in_the_way_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / PATH).mkdir(parents=True)
    disk = LocalDisk(tmp_path)
    for attempt in (lambda: write(disk, PATH, b"x"), lambda: disk.open(PATH), lambda: disk.delete(PATH)):
        with pytest.raises(OperatorNeeded):
            attempt()
    assert paths(disk) == []


def test_too_many_open_files_are_not_reported_as_damage(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    write(disk, PATH, b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OutOfResources, match="too many files are open"):
            disk.open(PATH)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_no_signal(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    write(disk, PATH, b"content" * 10_000)
    opened = disk.open(PATH)
    first = opened.read_at(0, 7)
    os.truncate(tmp_path / PATH, 5)
    with pytest.raises(FragmentDamaged, match="was cut"):
        opened.read_at(60_000, 7)
    assert first.to_pybytes() == b"content"


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_few_files_stay_open_however_many_are_read(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    for number in range(200):
        write(disk, f"t1/{number}", bytes([number]))
    before = open_files()
    opened = [disk.open(f"t1/{number}") for number in range(200)]
    assert open_files() - before <= OPEN_FILES
    assert [file.read_at(0, 1).to_pybytes()[0] for file in opened] == list(range(200))
    assert open_files() - before <= OPEN_FILES


def test_a_file_is_only_for_whom_its_root_is(tmp_path: Path) -> None:
    for mode, wanted, below in (
        (0o700, 0o600, 0o700),
        (0o750, 0o640, 0o750),
        (0o755, 0o600, 0o700),  # which `mkdir` makes: nobody chose it
        (0o2755, 0o640, 0o2750),
    ):
        root = tmp_path / oct(mode)
        root.mkdir()
        root.chmod(mode)
        write(LocalDisk(root), PATH, b"x")
        assert (root / PATH).stat().st_mode & 0o777 == wanted
        assert (root / PATH).parent.stat().st_mode & 0o7777 == below


# ------------------------------------------------------------------------------------------- memory


def test_memory_that_runs_out_while_writing_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    disk = _local(tmp_path).disk
    with pytest.raises(OutOfResources, match="memory"):
        fail_while_writing(disk, pa.ArrowMemoryError("malloc of size 64 failed"))
    assert disk.list() == []


def large_fragment(disk: Disk) -> StagedFragment:
    """Some 2 MiB in several record batches, so that much of it is never read at once."""
    table = pa.schema([("k", pa.int64()), ("v", pa.string()), ("w", pa.int64())])
    schema = fragment_schema(table, False, False)
    count = 60_000
    columns = [pa.array(range(count)), pa.array([f"{n:09}" for n in range(count)]), pa.array(range(count))]
    slots = pa.array([n // 10_000 for n in range(count)], pa.uint16())
    rows = pa.RecordBatch.from_arrays([*columns, slots], schema=schema)
    info = TableInfo(1, "t", table, ("k",), ("k",), None, 0, 0)
    return write_fragment(FragmentTarget(disk, 1, info, schema, ORIGIN), SlotSet.span(0, 6), [rows])


def test_memory_that_runs_out_while_reading_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    staged = large_fragment(disk)
    reader = FragmentReader(disk, staged.path, ["k", "v", "w"], staged.seal)

    def refuse(*_: object) -> pa.Buffer:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(MemoryFile, "read_at", refuse)
    with pytest.raises(OutOfResources, match="memory"):
        list(reader)


# --------------------------------------------------------------------------------------- full disks


@contextmanager
def faulty_store(tmp_path: Path) -> Iterator[tuple[Store, dict[str, FaultyDisk]]]:
    """A store of two shards that lie when they are reported to."""
    disks: dict[str, FaultyDisk] = {}

    def faulty(root: str) -> FaultyDisk:
        return disks.setdefault(Path(root).name, FaultyDisk(LocalDisk(root)))

    clock = ManualClock(1_000.0)
    Store.create(tmp_path / "store", ["a", "b"], tablets=4, slots=16, clock=clock).close()
    with Store.open(tmp_path / "store", clock, faulty) as store:
        store.create_table("t", pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"])
        store.table("t").upsert(rows_of(range(100), "old"))
        yield store, disks


def rows_of(keys: range, value: str) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "v": [value] * len(keys)})


def values_in(store: Store) -> dict[int, str]:
    table = store.table("t").scan().to_table()
    assert len(set(table["k"].to_pylist())) == table.num_rows
    return dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))


@pytest.mark.parametrize("shard", ["a", "b"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.usefixtures("rows_in_files")
def test_a_write_that_fills_a_disk_leaves_the_store_as_it_was(
    tmp_path: Path, shard: str, share: float
) -> None:
    with faulty_store(tmp_path) as (store, disks):
        before, commits = values_in(store), store.table("t").history()
        files = {name: disk.list() for name, disk in disks.items()}
        disk = disks[shard]
        grown = disk.written
        disk.full_after = grown + int(share * grown)
        with pytest.raises(DiskFull):
            store.table("t").upsert(rows_of(range(50, 200), "new"))
        assert values_in(store) == before
        assert store.table("t").history() == commits
        assert {name: disk.list() for name, disk in disks.items()} == files
        disk.full_after = None
        store.table("t").upsert(rows_of(range(50, 200), "new"))
        assert values_in(store) == {k: "old" if k < 50 else "new" for k in range(200)}
        assert store.verify() == []


@pytest.mark.usefixtures("rows_in_files")
def test_garbage_leaves_a_disk_that_is_full(tmp_path: Path) -> None:
    """Although no marker can be written there, whose time says what time it is."""
    with faulty_store(tmp_path) as (store, disks):
        table = store.table("t")
        left = stage(store.context, table.definition, rows_of(range(100), "left").to_batches())
        for disk in disks.values():
            disk.full_after = disk.written
        assert store.collect_garbage(grace_seconds=0, trash_seconds=0).removed == len(left)


def test_only_what_can_be_a_fragment_is_taken_for_one() -> None:
    staged = small_fragment(MemoryDisk())
    assert is_fragment_path(staged.path)
    assert is_fragment_path(staged.path + ".unfinished")
    for path in (
        "catalog.db",
        "b/" + staged.path,
        staged.path + ".bak",
        "t1/precious.arrow",
        "t/" + "0" * 32,
    ):
        assert not is_fragment_path(path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_directory_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Garbage collection would forget its files, and a repair would do without them."""
    disk = _local(tmp_path).disk
    for path in ("t1/a", "t2/b", "t2/below/c"):
        with disk.create(path) as file:
            file.write(b"x")
    assert sorted(path for path, _ in disk.list()) == ["t1/a", "t2/b", "t2/below/c"]
    scandir = os.scandir

    def refused(where: Any) -> Any:
        if str(where).endswith("below"):
            raise OSError(number, "refused", str(where))
        return scandir(where)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ShardUnavailable, match="below"):
        disk.list()


def test_what_the_system_writes_in_part_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does where a disk is nearly full."""

    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: max(1, len(data) // 2)]))
    disk = _local(tmp_path).disk
    with disk.create("a") as file:
        assert file.write(b"x" * 1_000) == 1_000
    assert disk.open("a").size == 1_000


def test_a_pipe_in_the_place_of_a_file_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    disk = _local(tmp_path).disk
    with disk.create("t1/a") as file:
        file.write(b"x")
    (tmp_path / "root" / "t1" / "a").unlink()
    os.mkfifo(tmp_path / "root" / "t1" / "a")
    with pytest.raises(ElasticScanError, match="not a regular file"):
        disk.open("t1/a")
