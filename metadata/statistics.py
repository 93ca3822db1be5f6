"""Statistics of the values in a fragment, which decide whether it has to be read.

Values are written as value keys (`elasticscan.base.key_encoding`): bytes in the order of the values,
nulls first. Long ones are cut: a lower bound to a prefix, an upper bound to the successor of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgpack

from elasticscan.filters import NULLS, KeySet, KeySets

KEY_BYTES = 32  # bounds longer than this are cut
_SHARE_BYTES = 12  # more of them would not make an estimate better

Packed = bytes  # statistics as files and the catalog keep them; unpacked when they are asked for


class Block(NamedTuple):
    """Some consecutive rows of a column: every value that is not null has low <= key < high."""

    low: bytes
    high: bytes
    nulls: int


@dataclass(frozen=True, slots=True)
class FragmentStatistics:
    """A fragment's columns, each with a block for every record batch; types without an order are missing.

    `block_rows` are the rows of each record batch. Files name columns by their marks (`TableColumn.mark`).
    """

    block_rows: tuple[int, ...]
    columns: dict[str, tuple[Block, ...]]

    @property
    def rows(self) -> int:
        return sum(self.block_rows)

    def renamed(self, names: Mapping[str, str]) -> FragmentStatistics:
        """Return the statistics by other names; columns that have none are left out."""
        columns = {names[name]: blocks for name, blocks in self.columns.items() if name in names}
        return FragmentStatistics(self.block_rows, columns)

    def share_of(self, column: str, keys: KeySet) -> float:
        """About the share of a column's values that is in a set, as if they were spread evenly."""
        blocks = self.columns.get(column, ())
        low, high = min((b.low for b in blocks), default=b""), max((b.high for b in blocks), default=b"")
        if low >= high:
            return 1.0
        ends = ((max(low, least), min(high, most)) for least, most in keys.intervals)
        return sum(_share(low, end, high) - _share(low, begin, high) for begin, end in ends if begin < end)

    def may_match(self, block: int, key_sets: KeySets) -> bool:
        """Return True if a block can have a row all of whose values are in the sets; False is certain."""
        for name, keys in key_sets.items():
            if keys.is_empty:
                return False
            column = self.columns.get(name)
            if column is not None:
                bounds = column[block]
                nulls = bounds.nulls > 0 and keys.overlaps(*NULLS.intervals[0])
                if not nulls and not keys.overlaps(bounds.low, bounds.high):
                    return False
        return True


def _share(low: bytes, key: bytes, high: bytes) -> float:
    """Return how far from low to high a key is, from 0 to 1, reading them as numbers; low <= key <= high."""
    same = 0
    while same < len(low) and low[same] == high[same]:
        same += 1
    bottom, place, top = (
        int.from_bytes(bound[same : same + _SHARE_BYTES].ljust(_SHARE_BYTES, b"\0"), "big")
        for bound in (low, key, high)
    )
    return (place - bottom) / (top - bottom) if top > bottom else float(key > low)


def pack_statistics(statistics: FragmentStatistics) -> bytes:
    packed: bytes = msgpack.packb([statistics.block_rows, statistics.columns])
    return packed


def unpack_statistics(packed: bytes) -> FragmentStatistics:
    block_rows, columns = msgpack.unpackb(packed)
    blocks = {name: tuple(Block(*block) for block in blocks) for name, blocks in columns.items()}
    return FragmentStatistics(tuple(block_rows), blocks)
