"""A sealed file on a disk with faults, or that is not what it was: its rows, or a typed error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.base.errors import FragmentDamaged, OperatorNeeded, OutOfResources, ShardUnavailable
from elasticscan.metadata import Seal, StagedFragment, TableInfo
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.disk import OpenFile
from elasticscan.storage.fragment import SLOT, FragmentReader, fragment_schema, is_fragment_path
from elasticscan.storage.fragment_writer import FragmentTarget, write_fragment
from elasticscan.storage.sealed_file import (
    PIECE_BYTES,
    SEGMENT_BYTES,
    SMALL_FILE_BYTES,
    SealedFile,
    digest_of,
    read_manifest,
    verify_file,
)
from elasticscan.topology import SlotSet
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import ORIGIN

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
SIZES = {"small": 200, "large": 20_000}


def staged(disk: FaultyDisk, rows: int, seed: int = 0, compression: str | None = None) -> StagedFragment:
    """A fragment of three slots."""
    rng = random.Random(seed)
    schema = fragment_schema(SCHEMA, versioned=False, tombstones=False)
    texts, slots = [f"{rng.getrandbits(64):016x}" for _ in range(rows)], [n * 3 // rows for n in range(rows)]
    columns = {"id": range(rows), "v": texts, SLOT: slots}
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    table = TableInfo(1, "t", SCHEMA, ("id",), ("id",), compression, 0, 0)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return write_fragment(FragmentTarget(disk, 1, table, schema, ORIGIN), SlotSet.span(0, 16), [batch])


def rows_in(disk: FaultyDisk, fragment: StagedFragment) -> list[tuple[int, str]]:
    reader = FragmentReader(disk, fragment.path, ("id", "v"), fragment.seal)
    for slot in range(4):
        reader.seek(slot, None)
        reader.seek(slot, b"\x80")
    found = [tuple(row.values()) for batch in reader for row in batch.select(["id", "v"]).to_pylist()]
    return [(int(number), str(text)) for number, text in found]


def _vanish(how: str) -> Callable[[FaultyDisk, StagedFragment], None]:
    return lambda disk, _: setattr(disk, "vanished", how)


def _stale(disk: FaultyDisk, fragment: StagedFragment) -> None:
    other = staged(disk, fragment.rows, seed=1)
    disk.stale[fragment.path] = disk.content(other.path)
    with pytest.raises(FragmentDamaged):
        FragmentReader(disk, fragment.path, ["id"], other.seal)
    with pytest.raises(FragmentDamaged, match="written as"):
        read_manifest(disk, fragment.path)


def _never_sealed(disk: FaultyDisk, fragment: StagedFragment) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA):
        pass
    content = disk.stale[fragment.path] = sink.getvalue().to_pybytes()
    for tail in (1, 40, len(content)):
        sealed = Seal(len(content), tail, digest_of(content[-tail:]))
        with pytest.raises(FragmentDamaged):
            FragmentReader(disk, fragment.path, ["id"], sealed)
    with pytest.raises(FragmentDamaged, match="never sealed"):
        read_manifest(disk, fragment.path)


def _zeros(disk: FaultyDisk, fragment: StagedFragment) -> None:
    disk.stale[fragment.path] = bytes(fragment.bytes)


def _flip_one(disk: FaultyDisk, fragment: StagedFragment) -> None:
    disk.flips[fragment.path] = {8 * (fragment.bytes // 3)}


# By fault: how it begins, the error that tells of it.
FAULTS: dict[str, tuple[Callable[[FaultyDisk, StagedFragment], None], type[OperatorNeeded]]] = {
    "a flipped bit": (_flip_one, FragmentDamaged),
    "another file's content": (_stale, FragmentDamaged),
    "a file that was never sealed": (_never_sealed, FragmentDamaged),
    "zeros": (_zeros, FragmentDamaged),
    "a root that is gone": (_vanish("gone"), ShardUnavailable),
    "a root that is empty": (_vanish("empty"), FragmentDamaged),
    "no file can be opened": (lambda disk, _: disk.raise_always.add("open"), ShardUnavailable),
    "nothing can be read": (lambda disk, _: disk.raise_always.add("read_at"), ShardUnavailable),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_on_a_disk_with_faults_is_not_read_and_is_there_again_when_they_are_over(
    fault: str, size: str
) -> None:
    disk = FaultyDisk(MemoryDisk())
    fragment = staged(disk, SIZES[size])
    assert (fragment.bytes > SMALL_FILE_BYTES) == (size == "large")
    right = rows_in(disk, fragment)
    begin, message = FAULTS[fault]
    begin(disk, fragment)
    with pytest.raises(message):
        rows_in(disk, fragment)
    with pytest.raises(message):
        verify_file(disk, fragment.path, fragment.seal)
    disk.flips, disk.stale, disk.raise_always, disk.vanished = {}, {}, set(), None
    assert rows_in(disk, fragment) == right


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_flipped_bit_is_damage(compression: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 20)
    disk = FaultyDisk(MemoryDisk())
    fragment = staged(disk, 40, compression=compression)
    for at in range(fragment.bytes):
        disk.flips[fragment.path] = {8 * at + at * 7 % 8}
        with pytest.raises(FragmentDamaged):
            rows_in(disk, fragment)
        with pytest.raises(FragmentDamaged):
            verify_file(disk, fragment.path, fragment.seal)
    any_reader = pa.ipc.open_file(pa.BufferReader(disk.content(fragment.path)))
    assert any_reader.read_all().column("id").to_pylist() == list(range(40))


def test_a_bit_that_flipped_in_any_piece_is_damage() -> None:
    disk = FaultyDisk(MemoryDisk())
    fragment = staged(disk, 100_000)
    file = SealedFile(disk, fragment.path, fragment.seal)
    data = fragment.bytes - fragment.seal.tail
    segments = np.ones(-(-data // SEGMENT_BYTES), dtype=bool)
    room = np.zeros(len(segments) * SEGMENT_BYTES, dtype=np.uint8)
    for place in [*range(PIECE_BYTES - 1, data, PIECE_BYTES), *range(0, data, PIECE_BYTES), data - 1]:
        disk.flips = {fragment.path: {8 * place + place % 8}}
        with pytest.raises(FragmentDamaged, match="their checksum differs"):
            file.read(0, data)
        with pytest.raises(FragmentDamaged, match="their checksum differs"):
            file.read_segments(room, 0, segments)
    disk.flips = {}
    assert file.read(0, data).to_pybytes() == disk.content(fragment.path)[:data]


class _Exhausted(OpenFile):
    """A file for whose bytes there is no memory after some reads."""

    is_near = True

    def __init__(self, file: OpenFile, reads: Iterator[int]) -> None:
        self._file, self._reads, self.size = file, reads, file.size

    def read_into(self, offset: int, room: memoryview) -> None:
        if next(self._reads) > 2:
            raise pa.ArrowMemoryError("malloc of size 64 failed")
        self._file.read_into(offset, room)


def test_memory_that_runs_out_while_reading_is_no_damage() -> None:
    reads = count()

    class Disk(FaultyDisk):
        def open(self, path: str) -> OpenFile:
            return _Exhausted(super().open(path), reads)

    disk = Disk(MemoryDisk())
    with pytest.raises(OutOfResources, match="memory"):
        rows_in(disk, staged(disk, 100_000))


def test_only_what_can_be_a_fragment_is_taken_for_one() -> None:
    path = staged(FaultyDisk(MemoryDisk()), 9).path
    assert is_fragment_path(path) and is_fragment_path(path + ".unfinished")
    others = ("catalog.db", "b/" + path, path + ".bak", "t1/precious.arrow", "t/" + "0" * 32)
    assert not any(map(is_fragment_path, others))
