"""A sealed file that was changed, or is on a faulty disk: reads return its rows or raise a typed error."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.base.errors import FragmentDamaged, OutOfResources
from elasticscan.metadata import Seal, StagedFragment, TableInfo
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.fragment import SLOT, FragmentReader, fragment_schema, is_fragment_path
from elasticscan.storage.fragment_writer import Destination, write_fragment
from elasticscan.storage.sealed_file import (
    PIECE_BYTES,
    SEGMENT_BYTES,
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
TABLE = TableInfo(1, "t", SCHEMA, ("id",), ("id",), None, 0, 0)


def staged(disk: FaultyDisk, rows: int, seed: int = 0, compression: str | None = None) -> StagedFragment:
    """A fragment of three slots."""
    rng = random.Random(seed)
    schema = fragment_schema(SCHEMA, versioned=False, tombstones=False)
    texts, slots = [f"{rng.getrandbits(64):016x}" for _ in range(rows)], [n * 3 // rows for n in range(rows)]
    columns = {"id": range(rows), "v": texts, SLOT: slots}
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    table = replace(TABLE, compression=compression)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return write_fragment(Destination(disk, 1, ORIGIN), table, SlotSet.span(0, 16), [batch])


def rows_in(disk: FaultyDisk, fragment: StagedFragment) -> list[tuple[int, str]]:
    reader = FragmentReader(disk, fragment.path, ("id", "v"), fragment.seal, TABLE)
    for slot in range(4):
        reader.seek(slot, b"")
        reader.seek(slot, b"\x80")
    found = [tuple(row.values()) for batch in reader for row in batch.select(["id", "v"]).to_pylist()]
    return [(int(number), str(text)) for number, text in found]


def test_a_file_that_is_another_one_or_was_never_sealed_says_so() -> None:
    disk, sink = FaultyDisk(MemoryDisk()), pa.BufferOutputStream()
    fragment, other = staged(disk, 200), staged(disk, 200, seed=1)
    with pa.ipc.new_file(sink, SCHEMA):
        pass
    for content, says in ((disk.content(other.path), "written as"), (sink.getvalue(), "never sealed")):
        disk.stale[fragment.path] = bytes(content)
        with pytest.raises(FragmentDamaged, match=says):
            read_manifest(disk, fragment.path)
        for tail in (1, 40, len(content)):
            sealed = Seal(len(content), tail, digest_of(content[-tail:]))
            with pytest.raises(FragmentDamaged):
                FragmentReader(disk, fragment.path, ["id"], sealed, TABLE)


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


def test_memory_that_runs_out_while_reading_is_no_damage() -> None:
    reads = count()

    class Exhausted(FaultyDisk):
        """A disk whose reads run out of memory after a number of reads."""

        def fail(self, name: str) -> None:
            if name == "read_at" and next(reads) > 2:
                raise pa.ArrowMemoryError("malloc of size 64 failed")

    disk = Exhausted(MemoryDisk())
    with pytest.raises(OutOfResources, match="memory"):
        rows_in(disk, staged(disk, 100_000))


def test_only_what_can_be_a_fragment_is_taken_for_one() -> None:
    path = staged(FaultyDisk(MemoryDisk()), 9).path
    assert is_fragment_path(path) and is_fragment_path(path + ".unfinished")
    others = ("catalog.db", "b/" + path, path + ".bak", "t1/precious.arrow", "t/" + "0" * 32)
    assert not any(map(is_fragment_path, others))
