"""The byte ranges of a record batch's values in its file, to read single columns and rows.

A record batch in a file is Arrow's description of it, then the buffers of its columns:

    begin   ffffffff, length of the description (4 bytes, little-endian), the description
    …       column id: validity (one bit a row; absent where nothing is null), values (8 bytes a row)
    …       column s:  validity, offsets (4 bytes a row, and 4), the texts themselves
    end

So value 70,000 of `id` is the 8 bytes at offset 560,000 of its second buffer. This is true for uncompressed
batches, and for columns of plain types: numbers, times, booleans, fixed binaries, texts. All other columns
are read as a whole, by Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from elasticscan.storage.sealed_file import SEGMENT_BYTES, SealedFile

# The columns of batches of at least this size are compressed and decompressed in parallel. For smaller ones,
# threads are slower than one thread, and much slower if all processors are busy.
THREADS_FROM_BYTES = 256 << 10

_PREFIX_BYTES = 8  # the marker, and the length of the description
_MARKER = b"\xff\xff\xff\xff"
_OFFSET_BYTES = {
    pa.string().id: 4,
    pa.binary().id: 4,
    pa.large_string().id: 8,
    pa.large_binary().id: 8,
}

_EMPTY = pa.py_buffer(b"")
_NEAR_BYTES = 64 << 10  # columns with a smaller gap between them are read together with the gap
_DENSE = 3  # random rows per segment: with so many, only one segment in twenty has no row

Numbers = NDArray[np.int64]
Ranges = tuple[Numbers, Numbers]  # the begins and the ends of byte ranges of a file
Place = tuple[int, int]  # the offset of a buffer in the file, and its length
Read = Callable[[int, int], pa.Buffer]  # returns verified bytes of a file, given offset and length


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """A column of a plain type in one batch that is not empty; a buffer that it does not have is None."""

    type: pa.DataType
    null_count: int
    buffers: tuple[Place | None, ...]

    @property
    def offset_bytes(self) -> int:
        """The size of one offset into the column's last buffer; 0 for a column of fixed width."""
        return _OFFSET_BYTES.get(self.type.id, 0)

    @property
    def begin(self) -> int:
        return min(place for place, size in filter(None, self.buffers) if size)

    @property
    def end(self) -> int:
        return max(place + size for place, size in filter(None, self.buffers) if size)

    def array(self, rows: int, data: pa.Buffer, begin: int) -> pa.Array:
        """Return the column; `data` are bytes of the file from offset `begin` on."""
        buffers = [
            place and (data.slice(place[0] - begin, place[1]) if place[1] else _EMPTY)
            for place in self.buffers
        ]
        return pa.Array.from_buffers(self.type, rows, buffers, self.null_count)


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """A record batch: its byte range in the file, its rows, and its columns of plain types."""

    begin: int
    end: int
    rows: int
    columns: Mapping[str, ColumnLayout]


def read_layout(read: Read, begin: int, end: int, schema: pa.Schema) -> BatchLayout:
    """Return the layout of the uncompressed record batch in [begin, end) of a file.

    If there is none, raises ValueError or an error of Arrow.
    """
    prefix = read(begin, _PREFIX_BYTES).to_pybytes()
    length = _PREFIX_BYTES + int.from_bytes(prefix[4:], "little")
    if prefix[:4] != _MARKER or begin + length > end:
        raise ValueError("a record batch is not where it should be")
    # Arrow reads only the batch's description, and wraps the body into arrays without reading it.
    # So the body is untouched memory, for which the system allocates no page.
    room = pa.allocate_buffer(end - begin)
    memoryview(room).cast("B")[:length] = memoryview(read(begin, length)).cast("B")
    batch = ipc.read_record_batch(ipc.read_message(pa.BufferReader(room)), schema)
    first = room.address - begin
    columns = {}
    for name, column in zip(schema.names, batch.columns, strict=True):
        if _is_plain(column.type) and any(buffer and buffer.size for buffer in column.buffers()):
            buffers = [b if b is None else (b.size and b.address - first, b.size) for b in column.buffers()]
            columns[name] = ColumnLayout(column.type, column.null_count, tuple(buffers))
    return BatchLayout(begin, end, batch.num_rows, columns if batch.num_rows else {})


def read_columns(read: Read, layout: BatchLayout, columns: Sequence[ColumnLayout]) -> list[pa.Array]:
    """Read whole columns of a batch; neighbouring columns in one read."""
    arrays: dict[int, pa.Array] = {}
    order = sorted(range(len(columns)), key=lambda number: columns[number].begin)
    while order:
        begin = end = columns[order[0]].begin
        together = []
        while order and columns[order[0]].begin - end <= _NEAR_BYTES:
            together.append(order.pop(0))
            end = max(end, columns[together[-1]].end)
        data = read(begin, end - begin)
        for number in together:
            arrays[number] = columns[number].array(layout.rows, data, begin)
    return [arrays[number] for number in range(len(columns))]


def _is_plain(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind) or kind.num_fields:
        return False
    return (
        kind.id in _OFFSET_BYTES
        or pa.types.is_primitive(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_decimal(kind)
    )


def take_rows(
    file: SealedFile, layout: BatchLayout, columns: Sequence[ColumnLayout], rows: Numbers
) -> list[pa.Array]:
    """Read rows of a batch by number, in this order, in some columns, without reading the rest.

    Memory for the whole batch is reserved. Only the segments that contain values of the rows are read
    into it, and Arrow takes the rows from there. The rest of the memory is never touched.

    Raises `ValueError` if a text is not within its column.
    """
    indices = pa.array(rows)
    largest = max((place[1] for column in columns for place in column.buffers if place), default=0)
    if len(rows) * SEGMENT_BYTES >= _DENSE * largest:  # selecting segments would take longer
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
    """Yield the byte ranges of the rows' validity bits, values and offsets."""
    validity, values = column.buffers[:2]
    if validity is not None:
        yield (begins := validity[0] + (rows >> 3)), begins + 1
    if values is None:
        return
    place, size = values
    if column.offset_bytes:  # Arrow always reads the first and the last offset
        edges = np.array([0, max(size - column.offset_bytes, 0)]) + place
        yield edges, edges + min(size, column.offset_bytes)
        yield (begins := place + rows * column.offset_bytes), begins + 2 * column.offset_bytes
    else:
        bits = column.type.bit_width
        yield place + (rows * bits >> 3), place + (rows * bits + bits + 7 >> 3)


def _texts(column: ColumnLayout, room: NDArray[np.uint8], begin: int, rows: Numbers) -> Ranges:
    """Return the byte ranges of the texts of the rows."""
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
    """Return a mask of the `count` segments from `first` on: those that overlap a byte range."""
    starts, ends = (np.concatenate(edges) for edges in zip(*ranges, strict=True))
    starts, ends = starts[starts < ends], ends[starts < ends]
    depth = np.bincount(starts // SEGMENT_BYTES - first, minlength=count + 1)
    depth -= np.bincount((ends - 1) // SEGMENT_BYTES - first + 1, minlength=count + 1)
    chosen: NDArray[np.bool_] = np.cumsum(depth)[:-1] > 0
    return chosen
