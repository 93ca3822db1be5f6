"""Walking through the entries of one index run, in either direction, range by range.

An iterator counts its entries in the order in which it meets them: place 0 is the first entry, or the
last one when it descends. What ranges and positions mean is then the same in both directions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elasticscan.base.key_encoding import inverted
from elasticscan.metadata import Fragment
from elasticscan.storage.indexes.run import FEW_RANGES, RunReader

# One round of a page finds at most so many ranges in each run; lists of values may be long.
RANGES_PER_ROUND = 256
_ZEROS = bytes(64)  # more zeros than the part of a key after a bound can begin with


def _floor(low: bytes) -> bytes:
    """Return a string between the keys before `low` and the others, for descending iterators.

    A position covers the order keys up to it. Those of a descending iterator are inverted, byte by byte,
    which turns their order round, except where one string begins with another:

        `low`              80 05             inverted   7f fa
        a key from it on   80 05 01 ...      inverted   7f fa fe ...      not covered by 7f fa
        the floor of it    80 05 00 ... 00   inverted   7f fa ff ... ff   covers the key

    No key goes on with 64 zeros after a bound, so the floor is below all keys from `low` on. Bounds
    that differ by zeros at their ends (80 05 and 80 05 00) have no key between them. They get the same
    floor, so that no floor begins with another.
    """
    return low.rstrip(b"\0") + _ZEROS


class RunIterator:
    """The rest of a run that is still to be read.

    Args:
        fragment, run: the run, and whose it is.
        ranges: of index keys, ascending and disjoint.
        descending: the direction.
        positions: where pieces of the page go on (None: at the start), as cursors say it.
        pieces: for each slot the number of its piece, one more than the index in `positions`;
            0 for slots that are not read. The last one stands for all slots beyond.
    """

    def __init__(
        self,
        fragment: Fragment,
        run: RunReader,
        ranges: Sequence[tuple[bytes, bytes]],
        descending: bool,
        positions: Sequence[bytes | None],
        pieces: NDArray[np.intp],
    ) -> None:
        self.fragment, self.run = fragment, run
        self._ranges, self._descending = ranges, descending
        self._spans: deque[tuple[int, int]] = deque()
        self._near = 0  # entries before this one are of no range that is still to be found
        self.ranges_found = 0
        begins = [run.entries, *(0 if at is None else self._past(at) for at in positions)]
        self._first_places = np.full(len(pieces), run.entries, dtype=np.int64)
        by_slot = np.array(begins, dtype=np.int64)[pieces]
        for start, end in fragment.slots:
            self._first_places[start:end] = by_slot[start:end]
        self._begin = self._passed = int(self._first_places.min())
        if self._begin == run.entries:
            self._next_range = len(ranges)
        else:
            self._next_range = self._first_range(positions)

    @property
    def left(self) -> int:
        """Count the entries of the run that were not passed yet, in ranges or between them."""
        return self.run.entries - self._passed

    @property
    def finished(self) -> bool:
        return not self._spans and self._next_range == len(self._ranges)

    def look_ahead(self, count: int) -> bytes | None:
        """Find about `count` places to read; returns the position up to which all places are found.

        None means that all places of the run are found. A position compares, as bytes, with the order
        keys of places, which are inverted when descending: it covers the keys up to it.
        """
        places, looked = sum(end - start for start, end in self._spans), 0
        while places <= count and self._next_range < len(self._ranges) and looked < RANGES_PER_ROUND:
            places += self._find_range()
            looked += 1
        if places > count:
            return self.position(self._entry(self._place_number(count)))
        if self._next_range == len(self._ranges):
            return None
        if self._descending:
            # Keys that begin with `low` are found as well; `low` itself, inverted, would not cover them.
            return inverted(_floor(self._range(self._next_range - 1)[0]))
        return self._range(self._next_range)[0]

    def take(self, up_to: bytes | None) -> NDArray[np.int64]:
        """Entries of the places that were found up to a position, or of all that were found."""
        pieces = []
        end = self.run.entries
        if up_to is not None and self._spans:
            end = self._past(up_to, self._spans[0][0])
        while self._spans and self._spans[0][0] < end:
            start, stop = self._spans.popleft()
            if stop > end:
                self._spans.appendleft((end, stop))
                stop = end
            pieces.append(np.arange(start, stop, dtype=np.int64))
            self._passed = stop
        places = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
        return self.run.entries - 1 - places if self._descending else places

    def selects(self, entries: NDArray[np.int64], slots: NDArray[np.uint16]) -> NDArray[np.bool_]:
        """Return a mask of the entries whose slots are read, and that lie beyond their slot's cursor."""
        places = self.run.entries - 1 - entries if self._descending else entries
        firsts = self._first_places[np.minimum(slots, len(self._first_places) - 1)]
        mask: NDArray[np.bool_] = firsts <= places
        return mask

    def position(self, entry: int) -> bytes:
        key = self.run.key(entry)
        return inverted(key) if self._descending else key

    def _entry(self, place: int) -> int:
        return self.run.entries - 1 - place if self._descending else place

    def _past(self, position: bytes, near: int = 0) -> int:
        """Return the first place beyond a position, which does not lie before the place `near`."""
        if self._descending:
            return self.run.entries - self.run.lower_bound(inverted(position))
        return self.run.upper_bound(position, near)

    def _range(self, number: int) -> tuple[bytes, bytes]:
        return self._ranges[len(self._ranges) - 1 - number if self._descending else number]

    def _first_range(self, positions: Sequence[bytes | None]) -> int:
        """Return the first range that does not lie wholly before all positions."""
        reached = [position for position in positions if position is not None]
        if len(reached) < len(positions):
            return 0
        if self._descending:
            lowest = inverted(min(reached))
            numbers = range(len(self._ranges))
            return bisect_left(numbers, True, key=lambda number: _floor(self._range(number)[0]) < lowest)
        return bisect_right(self._ranges, min(reached), key=lambda r: r[1])

    def _find_range(self) -> int:
        """Find the places of the next range; returns their number."""
        low, high = self._range(self._next_range)
        self._next_range += 1
        self.ranges_found += 1
        if len(self._ranges) <= FEW_RANGES:
            first, end = self.run.range_of(low, high)
        else:
            first = self.run.lower_bound(low, self._near)
            end = self.run.lower_bound(high, first)
        self._near = 0 if self._descending else end
        if self._descending:
            first, end = self.run.entries - end, self.run.entries - first
        first = max(first, self._begin)
        if first >= end:
            return 0
        self._spans.append((first, end))
        return end - first

    def _place_number(self, count: int) -> int:
        """Return the `count`-th of the places found."""
        for start, end in self._spans:
            if count <= end - start:
                return start + count - 1
            count -= end - start
        raise AssertionError("no such place was found")
