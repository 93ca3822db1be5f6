"""Statistics of the values in a fragment. They decide whether a scan must read the fragment.

Values are encoded as value keys (`elasticscan.base.key_encoding`): bytes that sort like the values,
nulls first. Long keys are truncated: a lower bound to a prefix, an upper bound to the successor of a prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgpack

from elasticscan.filters import NULLS, KeySet, KeySets

KEY_BYTES = 32  # longer bounds are truncated
_SHARE_BYTES = 12  # more bytes would not improve an estimate

Packed = bytes  # statistics as the catalog stores them; unpacked when a plan needs them


class Block(NamedTuple):
    """Bounds of a column in one record batch: low <= key < high for every value that is not null."""

    low: bytes
    high: bytes
    nulls: int


@dataclass(frozen=True, slots=True)
class FragmentStatistics:
    """A block for each column and record batch of a fragment; columns without an order have none.

    `block_rows` is the number of rows of each record batch. Columns have the names `TableColumn.mark`.
    """

    block_rows: tuple[int, ...]
    columns: dict[str, tuple[Block, ...]]

    @property
    def rows(self) -> int:
        return sum(self.block_rows)

    def renamed(self, names: Mapping[str, str]) -> FragmentStatistics:
        """Return the statistics with new column names; columns that are not in `names` are left out."""
        columns = {names[name]: blocks for name, blocks in self.columns.items() if name in names}
        return FragmentStatistics(self.block_rows, columns)

    def share_of(self, column: str, keys: KeySet) -> float:
        """Estimate the share of a column's values that is in a set, as if values were spread evenly."""
        blocks = self.columns.get(column, ())
        low, high = min((b.low for b in blocks), default=b""), max((b.high for b in blocks), default=b"")
        if low >= high:
            return 1.0
        ends = ((max(low, least), min(high, most)) for least, most in keys.intervals)
        return sum(_share(low, end, high) - _share(low, begin, high) for begin, end in ends if begin < end)

    def may_match(self, block: int, key_sets: KeySets) -> bool:
        """Return False only if no row of a block can have all its values in the sets."""
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
    """Return the position of a key between low and high, 0 to 1, as if all three were binary fractions."""
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
