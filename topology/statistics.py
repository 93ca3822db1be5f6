"""What is known about the values in a fragment without reading it.

Values are written as value keys (`elasticscan.base.value_keys`): bytes in the order of the values,
nulls first. Long ones are cut: a lower bound to a prefix, an upper bound to the successor of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

KEY_BYTES = 32  # bounds longer than this are cut


@dataclass(frozen=True, slots=True)
class KeyHistogram:
    """Equal-depth histogram of value keys, of one column or of the columns of an index.

    Attributes:
        rows: how many rows it describes, nulls included.
        distinct: how many different keys there are: of the first column, of the first two, …
            (about, where it comes from a sample).
        bounds: keys that cut the sorted rows into equally many each: the lowest, then one at every
            step, at last the highest. Fewer than two only if there are no rows.
    """

    rows: int
    distinct: tuple[int, ...]
    bounds: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Some consecutive rows of a column: every value that is not null has low <= key < high."""

    low: bytes
    high: bytes
    nulls: int


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """One column of a fragment: a block for each of its record batches, and a histogram."""

    histogram: KeyHistogram
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class FragmentStatistics:
    """A fragment's columns; those of types without an order are missing.

    `block_rows` are the rows of each record batch.
    """

    block_rows: tuple[int, ...]
    columns: dict[str, ColumnStatistics]


def pack_histogram(histogram: KeyHistogram) -> bytes:
    packed = msgpack.packb(_flat(histogram))
    assert isinstance(packed, bytes)
    return packed


def unpack_histogram(packed: bytes) -> KeyHistogram:
    return _histogram(msgpack.unpackb(packed))


def pack_statistics(statistics: FragmentStatistics) -> bytes:
    columns = {
        name: [_flat(column.histogram), [[block.low, block.high, block.nulls] for block in column.blocks]]
        for name, column in statistics.columns.items()
    }
    packed = msgpack.packb([list(statistics.block_rows), columns])
    assert isinstance(packed, bytes)
    return packed


def unpack_statistics(packed: bytes) -> FragmentStatistics:
    block_rows, columns = msgpack.unpackb(packed)
    return FragmentStatistics(
        tuple(block_rows),
        {
            name: ColumnStatistics(_histogram(flat), tuple(Block(*block) for block in blocks))
            for name, (flat, blocks) in columns.items()
        },
    )


def _flat(histogram: KeyHistogram) -> list[object]:
    return [histogram.rows, list(histogram.distinct), list(histogram.bounds)]


def _histogram(flat: list[list[bytes]]) -> KeyHistogram:
    rows, distinct, bounds = flat
    return KeyHistogram(rows, tuple(distinct), tuple(bounds))  # type: ignore[arg-type]
