"""Some rows of a record batch, without a read of the rest.

The segments of the file in which the rows' values lie are read into their places in memory that stands for
the whole batch, and Arrow takes the rows from there. The rest of that memory is never touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.storage.batches.layout import BatchLayout, ColumnLayout, read_columns
from elasticscan.storage.sealed_file import SEGMENT_BYTES, SealedFile

_DENSE = 3  # of so many rows for each segment one in twenty segments has none

Numbers = NDArray[np.int64]
Ranges = tuple[Numbers, Numbers]  # where byte ranges of the file begin, and where they end


def take_rows(
    file: SealedFile, layout: BatchLayout, columns: Sequence[ColumnLayout], rows: Numbers
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
    count, begin = -(-layout.end // SEGMENT_BYTES) - first, first * SEGMENT_BYTES
    room = np.empty(count * SEGMENT_BYTES, dtype=np.uint8)
    chosen = _segments([part for column in columns for part in _fixed(column, rows)], first, count)
    file.read_segments(room, first, chosen)
    texts = [_texts(column, room, begin, rows) for column in columns if column.offset_bytes]
    if texts:
        file.read_segments(room, first, _segments(texts, first, count) & ~chosen)
    memory = pa.py_buffer(room)
    return [column.array(layout.rows, memory, begin).take(indices) for column in columns]


def _fixed(column: ColumnLayout, rows: Numbers) -> Iterator[Ranges]:
    """Yield where the rows' bits, values and offsets are."""
    validity, values = column.buffers[:2]
    if validity is not None:
        yield (begins := validity[0] + (rows >> 3)), begins + 1
    if values is None:
        return
    place, size = values
    if column.offset_bytes:  # Arrow looks at the first and the last one whatever it takes
        edges = np.array([0, max(size - column.offset_bytes, 0)]) + place
        yield edges, edges + min(size, column.offset_bytes)
        yield (begins := place + rows * column.offset_bytes), begins + 2 * column.offset_bytes
    else:
        bits = column.type.bit_width
        yield place + (rows * bits >> 3), place + (rows * bits + bits + 7 >> 3)


def _texts(column: ColumnLayout, room: NDArray[np.uint8], begin: int, rows: Numbers) -> Ranges:
    """Return where the texts of some rows are."""
    _, offsets, texts = column.buffers
    assert offsets is not None
    place, size = offsets
    edges = room[place - begin : place - begin + size].view(f"<i{column.offset_bytes}")
    starts, ends = edges[rows].astype(np.int64), edges[rows + 1].astype(np.int64)
    base, length = texts or (0, 0)
    if len(rows) and not (int(starts.min()) >= 0 and (starts <= ends).all() and int(ends.max()) <= length):
        raise ValueError("its texts are not where they should be")
    return base + starts, base + ends


def _segments(ranges: Sequence[Ranges], first: int, count: int) -> NDArray[np.bool_]:
    """Return which of the `count` segments from `first` on byte ranges lie in; empty ones lie in none."""
    starts, ends = (np.concatenate(edges) for edges in zip(*ranges, strict=True))
    starts, ends = starts[starts < ends], ends[starts < ends]
    depth = np.bincount(starts // SEGMENT_BYTES - first, minlength=count + 1)
    depth -= np.bincount((ends - 1) // SEGMENT_BYTES - first + 1, minlength=count + 1)
    chosen: NDArray[np.bool_] = np.cumsum(depth)[:-1] > 0
    return chosen
