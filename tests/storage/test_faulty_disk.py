"""A sealed file on a disk with faults: its rows, or a typed error, and its rows again when they are over."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.base.errors import FragmentDamaged, OperatorNeeded, ShardUnavailable
from elasticscan.metadata import StagedFragment, TableInfo
from elasticscan.storage.fragment import SLOT, FragmentReader, fragment_schema
from elasticscan.storage.fragment_writer import FragmentTarget, write_fragment
from elasticscan.storage.sealed_file import (
    PIECE_BYTES,
    SEGMENT_BYTES,
    SMALL_FILE_BYTES,
    SealedFile,
    verify_file,
)
from elasticscan.topology import SlotSet
from tests.storage.faulty_disk import FaultyDisk, _FaultyReads
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import ORIGIN

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
TABLE = TableInfo(1, "t", SCHEMA, ("id",), ("id",), None, 0, 0)
SIZES = {"small": 200, "large": 20_000}


def staged(disk: FaultyDisk, rows: int, seed: int = 0) -> StagedFragment:
    rng = random.Random(seed)
    schema = fragment_schema(SCHEMA, versioned=False, tombstones=False)
    columns = {"id": range(rows), "v": [f"{rng.getrandbits(64):016x}" for _ in range(rows)], SLOT: [3] * rows}
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    target = FragmentTarget(disk, 1, TABLE, schema, ORIGIN)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return write_fragment(target, SlotSet.span(0, 16), [batch])


def rows_in(disk: FaultyDisk, fragment: StagedFragment) -> list[tuple[int, str]]:
    reader = FragmentReader(disk, fragment.path, ("id", "v"), fragment.seal)
    found = [tuple(row.values()) for batch in reader for row in batch.select(["id", "v"]).to_pylist()]
    return [(int(number), str(text)) for number, text in found]


def _vanish(how: str) -> Callable[[FaultyDisk, StagedFragment], None]:
    return lambda disk, _: setattr(disk, "vanished", how)


def _stale(disk: FaultyDisk, fragment: StagedFragment) -> None:
    disk.stale[fragment.path] = disk.content(staged(disk, fragment.rows, seed=1).path)


def _zeros(disk: FaultyDisk, fragment: StagedFragment) -> None:
    disk.stale[fragment.path] = bytes(fragment.bytes)


def _flip_one(disk: FaultyDisk, fragment: StagedFragment) -> None:
    disk.flips[fragment.path] = {8 * (fragment.bytes // 3)}


# By fault: how it begins, the error that tells of it.
FAULTS: dict[str, tuple[Callable[[FaultyDisk, StagedFragment], None], type[OperatorNeeded]]] = {
    "a flipped bit": (_flip_one, FragmentDamaged),
    "another file's content": (_stale, FragmentDamaged),
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


def test_what_is_near_is_read_in_pieces_and_each_is_proven_before_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk(MemoryDisk())
    fragment = staged(disk, 100_000)
    file = SealedFile(disk, fragment.path, fragment.seal)
    whole = disk.content(fragment.path)
    count = (fragment.bytes - fragment.seal.tail) // SEGMENT_BYTES
    assert count * SEGMENT_BYTES > 3 * PIECE_BYTES
    seen: list[tuple[str, int]] = []
    read_at, prove = _FaultyReads.read_at, SealedFile._prove

    def reads(self: _FaultyReads, offset: int, length: int) -> pa.Buffer:
        seen.append(("read", offset))
        assert length <= PIECE_BYTES
        return read_at(self, offset, length)

    def proves(self: SealedFile, data: memoryview, first: int) -> None:
        seen.append(("proven", first * SEGMENT_BYTES))
        prove(self, data, first)

    monkeypatch.setattr(_FaultyReads, "read_at", reads)
    monkeypatch.setattr(SealedFile, "_prove", proves)
    pieces = range(SEGMENT_BYTES, count * SEGMENT_BYTES, PIECE_BYTES)
    wanted = [(what, place) for place in pieces for what in ("read", "proven")]
    length = (count - 1) * SEGMENT_BYTES
    assert file.read(SEGMENT_BYTES + 5, length - 9).to_pybytes() == whole[SEGMENT_BYTES + 5 :][: length - 9]
    assert seen == wanted
    seen.clear()
    room = np.zeros(length, dtype=np.uint8)
    file.read_segments(room, 1, np.ones(count - 1, dtype=bool))
    assert room.tobytes() == whole[SEGMENT_BYTES:][:length]
    assert seen == wanted


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
