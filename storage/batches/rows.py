"""Some rows of a record batch, without a read of the rest.

The segments of the file in which the rows' values lie are read into their places in memory that stands for
the whole batch, and Arrow takes the rows from there. The rest of that memory is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.limits import BATCH_BYTES
from elasticscan.storage.batches.layout import BatchLayout, ColumnLayout, fixed_bits, read_columns
from elasticscan.storage.sealed_file import SEGMENT_BYTES, SealedFile

MOST_BYTES = BATCH_BYTES + (4 << 20)  # of a batch that is read so; larger ones have few rows
_DENSE = 3  # of so many rows for each segment one in twenty segments has none


def take_rows(
    file: SealedFile, layout: BatchLayout, columns: Sequence[ColumnLayout], rows: NDArray[np.int64]
) -> list[pa.Array]:
    """Rows of a batch, by number, in the order asked, of some of its columns.

    Raises:
        FragmentDamaged: what was read is not what was written.
        ShardUnavailable: the disk cannot be read.
        Besides, ValueError where a text is not within its column.
    """
    indices = pa.array(rows)
    # Rows that need most segments of every buffer: to find out which would take longer.
    sizes = [place[1] for column in columns for place in column.buffers if place]
    if len(rows) * SEGMENT_BYTES >= _DENSE * max(sizes, default=0):
        return [column.take(indices) for column in read_columns(file.read, layout, columns)]
    first = layout.begin // SEGMENT_BYTES
    count = -(-layout.end // SEGMENT_BYTES) - first
    begin = first * SEGMENT_BYTES
    room = np.empty(count * SEGMENT_BYTES, dtype=np.uint8)
    chosen = _segments(columns, rows, begin, count)
    file.read_segments(room, first, chosen)
    texts = [_texts(column, room, begin, rows) for column in columns if column.offset_bytes]
    if texts:
        of_texts = np.zeros(count, dtype=bool)
        _mark(of_texts, *(np.concatenate(edges) for edges in zip(*texts, strict=True)))
        file.read_segments(room, first, of_texts & ~chosen)
    memory = pa.py_buffer(room)
    return [column.array(layout.rows, memory, begin).take(indices) for column in columns]


def _segments(
    columns: Sequence[ColumnLayout], rows: NDArray[np.int64], begin: int, count: int
) -> NDArray[np.bool_]:
    """Return the segments of a batch in which rows of columns are, and the places of their texts."""
    chosen, bits = np.zeros(count, dtype=bool), fixed_bits(columns)
    starts = (bits[:, :1] - 8 * begin + rows * bits[:, 1:2]).ravel()
    lengths = np.repeat(bits[:, 2], len(rows))
    _mark(chosen, starts >> 3, (starts + lengths + 7) >> 3)
    for column in columns:
        if column.offset_bytes:  # Arrow looks at the first and the last one whatever it takes
            chosen[_edges(column, begin)] = True
    return chosen


def _texts(
    column: ColumnLayout, room: NDArray[np.uint8], begin: int, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places in the room where the texts of some rows begin and end."""
    _, offsets, texts = column.buffers
    assert offsets is not None
    dtype = np.dtype(f"<i{column.offset_bytes}")
    place = offsets[0] - begin
    edges = room[place : place + offsets[1]].view(dtype) if offsets[1] else np.zeros(1, dtype)
    starts, ends = edges[rows].astype(np.int64), edges[rows + 1].astype(np.int64)
    length = 0 if texts is None else texts[1]
    if len(rows) and not (int(starts.min()) >= 0 and (starts <= ends).all() and int(ends.max()) <= length):
        raise ValueError("its texts are not where they should be")
    base = 0 if texts is None else texts[0] - begin
    return base + starts, base + ends


def _edges(column: ColumnLayout, begin: int) -> list[int]:
    """Return the segments where a text column's first and last offset are."""
    _, offsets, _ = column.buffers
    assert offsets is not None
    place, size = offsets
    return [(at - begin) // SEGMENT_BYTES for at in (place, place + max(size - 1, 0))]


def _mark(segments: NDArray[np.bool_], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    """Mark the segments that byte ranges lie in; empty ones lie in none."""
    some = ends > starts
    if not some.all():
        starts, ends = starts[some], ends[some]
    begins, lasts = starts // SEGMENT_BYTES, (ends - 1) // SEGMENT_BYTES
    if (lasts - begins <= 1).all():
        segments[begins] = True
        segments[lasts] = True
        return
    count = len(segments) + 1
    depth = np.bincount(begins, minlength=count) - np.bincount(lasts + 1, minlength=count)
    segments |= np.cumsum(depth)[:-1] > 0
