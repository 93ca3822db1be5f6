"""Places of a record batch's values in its file, so that some can be read without the others.

A record batch is Arrow's description of it, then the buffers of its columns one after another:

    begin   ffffffff, length of the description (4 bytes, little-endian), the description
    …       column id: validity (one bit a row; absent where nothing is null), values (8 bytes a row)
    …       column s:  validity, offsets (4 bytes a row, and 4), the texts themselves
    end

So value 70,000 of `id` are the 8 bytes at 560,000 of its second buffer. That holds for uncompressed
batches, and for columns of plain types: numbers, times, booleans, fixed binaries, texts. Others are read by
Arrow, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import ipc

# Columns of batches of so many bytes are compressed and decompressed side by side. Less takes threads longer
# than it takes one, many times so where all processors are busy.
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
_NEAR_BYTES = 64 << 10  # columns so near each other are read at once, with what lies between them

Place = tuple[int, int]  # where a buffer begins in the file, and its bytes
Read = Callable[[int, int], pa.Buffer]  # proven bytes of a file, by offset and length


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """A column of a plain type in one batch that has rows; a buffer is None where it has none."""

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
        """Return the column, of data that begins at a place in the file."""
        buffers = [
            place and (data.slice(place[0] - begin, place[1]) if place[1] else _EMPTY)
            for place in self.buffers
        ]
        return pa.Array.from_buffers(self.type, rows, buffers, self.null_count)


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """A record batch: the bytes of the file it lies in, its rows, its columns of plain types."""

    begin: int
    end: int
    rows: int
    columns: Mapping[str, ColumnLayout]

    def columns_of(self, names: Sequence[str]) -> list[ColumnLayout] | None:
        """Return the layouts of these columns; None if one of them has no plain type."""
        if not all(name in self.columns for name in names):
            return None
        return [self.columns[name] for name in names]


def read_layout(read: Read, begin: int, end: int, schema: pa.Schema) -> BatchLayout:
    """Return the layout of the uncompressed record batch in [begin, end) of a file.

    Raises what Arrow raises, and ValueError, where there is none.
    """
    prefix = read(begin, _PREFIX_BYTES).to_pybytes()
    length = _PREFIX_BYTES + int.from_bytes(prefix[4:], "little")
    if prefix[:4] != _MARKER or begin + length > end:
        raise ValueError("a record batch is not where it should be")
    # Arrow reads the batch's description alone: it wraps the body into arrays without reading it.
    # So the body may be untouched memory, of which the system holds no page.
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
    """Whole columns of a batch; neighbours are read at once."""
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
