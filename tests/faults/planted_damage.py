"""Faults in the verification of files, and in reads without damaged statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import FragmentDamaged
from elasticscan.catalog import Tx, transaction
from elasticscan.storage import FragmentReader, PageSource, sealed_file
from elasticscan.storage.batches.reader import BatchReader
from elasticscan.storage.sealed_file import PIECE_BYTES, SEGMENT_BYTES, SMALL_FILE_BYTES, SealedFile
from elasticscan.store import verifying
from elasticscan.store.context import readers
from elasticscan.store.moves import mover
from elasticscan.store.upkeep import compaction
from tests.faults.planted import Finder, Patch, fault, found_by, replacing


class Whatever(int):
    """A number that differs from no other one."""

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _unproven_if(patch: Patch, trusted: Any) -> None:
    """Skip the verification of segments of files for which `trusted` is true."""
    honest = SealedFile._prove

    def careless(self: SealedFile, data: memoryview, first: int) -> None:
        if not trusted(self):
            honest(self, data, first)

    patch.setattr(SealedFile, "_prove", careless)


@fault("damage", "segments are verified also where only some columns are read", style="wrong_value")
def some_columns_are_not_proven(patch: Patch) -> None:
    honest = BatchReader._read

    def careless(self: BatchReader, number: int, columns: Sequence[str]) -> Any:
        if len(columns) == len(self._schema_of_file):
            return honest(self, number, columns)
        proving = self._file
        self._file = copy.copy(proving)
        patch.setattr(self._file, "_prove", lambda data, first: None)
        try:
            return honest(self, number, columns)
        finally:
            self._file = proving

    patch.setattr(BatchReader, "_read", careless)


@fault("damage", "the tail of a file matches its digest in the catalog", style="footer_bit")
@replacing(sealed_file, "digest_of")
def digests_of_tails_are_not_compared(honest: Any, data: Any) -> int:
    # A read into a buffer is a read of a tail that the catalog knows.
    return Whatever(honest(data)) if isinstance(data, pa.Buffer) else honest(data)  # type: ignore[no-any-return]


@fault("damage", "a segment is verified whenever it is read", style="damage_that_is_copied")
def segments_are_proven_once(patch: Patch) -> None:
    honest, proven = SealedFile._prove, set[tuple[str, int]]()

    def hasty(self: SealedFile, data: memoryview, first: int) -> None:
        for at in range(0, len(data), SEGMENT_BYTES):
            segment = (self._path, first + at // SEGMENT_BYTES)
            if segment not in proven:
                honest(self, data[at : at + SEGMENT_BYTES], segment[1])
                proven.add(segment)

    patch.setattr(SealedFile, "_prove", hasty)


@fault("damage", "only a repair skips record batches that cannot be read", style="flipped_bit")
@replacing(readers, "FragmentReader")
def damaged_batches_are_passed_over(_: Any, *args: Any, **options: Any) -> FragmentReader:
    reader = FragmentReader(*args, **options)
    damaged = set()
    for number in range(reader.batch_count):
        try:
            reader.batch(number)
        except FragmentDamaged:
            damaged.add(number)
    return FragmentReader(*args, **options, without=damaged)


@fault("damage", "copied data is verified, else its new checksums would hide damage", "damage_that_is_copied")
def copies_are_not_proven(patch: Patch) -> None:
    def of_anything(table: Any, view: Any, open_fragment: Any, *rest: Any, **more: Any) -> PageSource:
        def unproven(*args: Any) -> FragmentReader:
            reader: FragmentReader = open_fragment(*args)
            patch.setattr(reader._file, "_prove", lambda data, first: None)
            return reader

        return PageSource(table, view, unproven, *rest, **more)

    patch.setattr(compaction, "PageSource", of_anything)
    patch.setattr(mover, "PageSource", of_anything)


@fault("damage", "without a catalog a file's footer matches the digest in its manifest")
@found_by("swapped_columns_below_a_repair")
@replacing(sealed_file, "digest_of")
def footers_are_believed_by_a_repair(honest: Any, data: Any) -> int:
    return Whatever(honest(data)) if isinstance(data, memoryview) else honest(data)


@fault("damage", "verify reads index runs, too", style="flipped_bit")
@replacing(verifying, "verify_file")
def runs_are_not_verified(honest: Any, disk: Any, path: str, seal: Any, label: str = "") -> Any:
    return None if ", index " in label else honest(disk, path, seal, label)


PIECES = "test_a_bit_that_flipped_in_any_piece_is_damage"


def _filled_by(patch: Patch, prove: Callable[[SealedFile, memoryview, int, int], None]) -> None:
    """Read local files piece by piece; verify each by `prove(file, piece, at, start)`."""

    def fill(self: SealedFile, room: memoryview, start: int) -> None:
        for at in range(0, len(room), PIECE_BYTES):
            piece = room[at : at + PIECE_BYTES]
            self._file.read_into(start + at, piece)
            prove(self, piece, at, start)

    patch.setattr(SealedFile, "_fill", fill)


@fault("scenarios", "each piece of a local file is verified", style=PIECES)
def later_pieces_are_not_proven(patch: Patch) -> None:
    def first_alone(file: SealedFile, piece: memoryview, at: int, start: int) -> None:
        if not at:
            file._prove(piece, start // SEGMENT_BYTES)

    _filled_by(patch, first_alone)


@fault("scenarios", "a segment that is cut by the end of the data is verified, too", style=PIECES)
def the_last_segment_is_not_proven(patch: Patch) -> None:
    def whole_ones(file: SealedFile, piece: memoryview, at: int, start: int) -> None:
        for place in range(0, len(piece) // SEGMENT_BYTES * SEGMENT_BYTES, SEGMENT_BYTES):
            file._prove(piece[place : place + SEGMENT_BYTES], (start + at + place) // SEGMENT_BYTES)

    _filled_by(patch, whole_ones)


@fault("damaged log", "statistics that are sound are used where others are damaged")
@found_by("damaged_statistics")
@replacing(Tx, "statistics")
def sound_statistics_go_with_damaged_ones(
    honest: Any, self: Tx, table: int, ids: Collection[int]
) -> dict[int, bytes]:
    found = honest(self, table, ids)
    return found if found.keys() >= set(ids) else {}


# Rules that one function keeps, and the replacement of that function.
flipped_bit = Finder("damage", "flipped_bit")
flipped_bit.rule("index runs are verified as fragments are").plants(
    _unproven_if, lambda file: file.manifest.kind == "index_run"
)
flipped_bit.rule("a file that is read at once is verified at once").plants(
    _unproven_if, lambda file: file.size <= SMALL_FILE_BYTES
)
Finder("scenarios", PIECES).rule("a piece is compared with the checksums of its own place").plants(
    _filled_by, lambda file, piece, at, start: file._prove(piece, start // SEGMENT_BYTES)
)
Finder("scenarios", "test_damaged_statistics_stop_nothing[a byte]").rule(
    "damaged statistics are left out, and stop nothing else"
).gives(transaction, "suppress", nullcontext())
