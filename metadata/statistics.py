"""Statistics of the values in a fragment, which decide whether it has to be read.

Values are written as value keys (`elasticscan.base.key_encoding`): bytes in the order of the values,
nulls first. Long ones are cut: a lower bound to a prefix, an upper bound to the successor of one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import msgpack

from elasticscan.base.key_encoding import successor
from elasticscan.filters import NULLS, KeySet, KeySets

KEY_BYTES = 32  # bounds longer than this are cut
_SHARE_BYTES = 12  # more of them would not make an estimate better

Packed = bytes  # statistics as files and the catalog keep them; unpacked when they are asked for


@dataclass(frozen=True, slots=True)
class KeyHistogram:
    """Equal-depth histogram of the keys of an index run.

    Attributes:
        rows: how many rows it describes, nulls included.
        distinct: how many different keys there are: of the first column, of the first two, …
        bounds: keys that cut the sorted rows into equally many each: the lowest, then one at every
            step, at last the highest. Fewer than two only if there are no rows.
    """

    rows: int
    distinct: tuple[int, ...]
    bounds: tuple[bytes, ...]

    @classmethod
    def unknown(cls, rows: int) -> KeyHistogram:
        """Return a guess about rows of which nothing else is known."""
        return cls(rows, (), (b"", b"\xff" * 8))

    @property
    def step(self) -> float:
        """The number of rows between one bound and the next."""
        return self.rows / max(1, len(self.bounds) - 1)

    def rows_between(self, low: bytes, high: bytes) -> float:
        """About how many rows have low <= key < high.

        Wrong by up to two steps where the keys between two bounds are not spread evenly.
        """
        low, high = _cut(low, high)
        return max(0.0, self._rank(high) - self._rank(low))

    def rows_equal(self, low: bytes, high: bytes, columns: int = 1, share: float = 1.0) -> float:
        """About how many rows have one value in each of the first columns; [low, high) are its keys.

        Or a share of them, whose keys these are.

        As many as values have in the mean, as far as the bounds allow: with 100 rows and bounds a b b b d,
        each of the four steps has 25 rows. The key b is three of the bounds, so all rows of the two steps
        between them have it, and it may begin or end in the steps alongside them: it has 50 to 100 rows.
        """
        low, high = _cut(low, high)
        if not self.bounds or low >= high or high <= self.bounds[0] or low > self.bounds[-1]:
            return 0.0
        different = self.distinct[min(columns, len(self.distinct)) - 1] if self.distinct else 1
        inside = bisect_left(self.bounds, high) - bisect_left(self.bounds, low)
        mean = min(share * self.rows / max(1, different), (inside + 1) * self.step)
        return min(float(self.rows), max(mean, (inside - 1) * self.step))

    def _rank(self, key: bytes) -> float:
        """About how many rows have a key below this one."""
        after = bisect_left(self.bounds, key)
        if after == 0:
            return 0.0
        if after == len(self.bounds):
            return float(self.rows)
        return (after - 1 + _share(self.bounds[after - 1], key, self.bounds[after])) * self.step


@dataclass(frozen=True, slots=True)
class Block:
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
        ends = [(max(low, least), min(high, most)) for least, most, _ in keys.intervals]
        shares = [
            (_share_upto(low, begin, high), _share_upto(low, end, high)) for begin, end in ends if begin < end
        ]
        return sum(end - begin for begin, end in shares)

    def may_match(self, block: int, key_sets: KeySets) -> bool:
        """Return True if a block can have a row all of whose values are in the sets; False is certain."""
        for name, keys in key_sets.items():
            if keys.is_empty:
                return False
            column = self.columns.get(name)
            if column is not None:
                bounds = column[block]
                nulls = bounds.nulls > 0 and keys.overlaps(*NULLS.intervals[0][:2])
                if not nulls and not keys.overlaps(bounds.low, bounds.high):
                    return False
        return True


def _share_upto(low: bytes, key: bytes, high: bytes) -> float:
    """As `_share`, for a key that may be the lowest."""
    return _share(low, key, high) if low < key else 0.0


def _cut(low: bytes, high: bytes) -> tuple[bytes, bytes]:
    """Return a range as long as bounds are, which holds all bounds that were cut from keys within it."""
    return low[:KEY_BYTES], high if len(high) <= KEY_BYTES else successor(high[:KEY_BYTES])


def _share(low: bytes, key: bytes, high: bytes) -> float:
    """Return how far from low to high a key is, from 0 to 1, reading them as numbers; low < key <= high."""
    same = 0
    while same < len(low) and low[same] == high[same]:
        same += 1
    bottom, place, top = (
        int.from_bytes(bound[same : same + _SHARE_BYTES].ljust(_SHARE_BYTES, b"\0"), "big")
        for bound in (low, key, high)
    )
    return (place - bottom) / (top - bottom) if top > bottom else 1.0


def pack_histogram(histogram: KeyHistogram) -> bytes:
    packed = msgpack.packb([histogram.rows, histogram.distinct, histogram.bounds])
    assert isinstance(packed, bytes)
    return packed


def unpack_histogram(packed: bytes) -> KeyHistogram:
    rows, distinct, bounds = msgpack.unpackb(packed)
    return KeyHistogram(rows, tuple(distinct), tuple(bounds))


def pack_statistics(statistics: FragmentStatistics) -> bytes:
    columns = {
        name: [[block.low, block.high, block.nulls] for block in blocks]
        for name, blocks in statistics.columns.items()
    }
    packed = msgpack.packb([list(statistics.block_rows), columns])
    assert isinstance(packed, bytes)
    return packed


def unpack_statistics(packed: bytes) -> FragmentStatistics:
    block_rows, columns = msgpack.unpackb(packed)
    return FragmentStatistics(
        tuple(block_rows),
        {name: tuple(Block(*block) for block in blocks) for name, blocks in columns.items()},
    )
