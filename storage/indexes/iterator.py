"""The entries of one index run, in either direction.

An iterator counts its entries in the order in which it meets them: place 0 is the first entry, or the
last one when it descends. What ranges and positions mean is then the same in both directions.

A position covers the order keys up to it; those of a descending iterator are inverted, byte by byte.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elasticscan.base.key_encoding import inverted
from elasticscan.metadata import Fragment
from elasticscan.protocol import Cursors
from elasticscan.storage.indexes.run import RunReader


class RunIterator:
    """The way through the entries of a run that are still to be read.

    Args:
        fragment, run: the run, and whose it is.
        cursors: the slots that are read, and the positions beyond which they are.
        descending: the direction.
    """

    def __init__(self, fragment: Fragment, run: RunReader, cursors: Cursors, descending: bool) -> None:
        self.fragment, self.run, self._descending = fragment, run, descending
        end = fragment.slots.ranges[-1][1]
        self._first_places = np.full(end + 1, run.entries, dtype=np.int64)  # the last is that of all beyond
        for cursor in cursors:
            if slots := cursor.slots & fragment.slots:
                first = 0 if cursor.position is None else self.past(cursor.position)
                for start, end in slots:
                    self._first_places[start:end] = first
        self._begin = int(self._first_places.min())

    def find(self, low: bytes, high: bytes) -> tuple[int, int]:
        """[first, end) of the places of a range, without those before all positions."""
        if self._begin == self.run.entries:
            return 0, 0
        first, end = self.run.range_of(low, high)
        if self._descending:
            first, end = self.run.entries - end, self.run.entries - first
        return max(first, self._begin), max(first, self._begin, end)

    def entries(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the entries at some places."""
        return self.run.entries - 1 - places if self._descending else places

    def selects(self, entries: NDArray[np.int64], slots: NDArray[np.uint16]) -> NDArray[np.bool_]:
        """Return a mask of the entries whose slots are read, and that lie beyond their slot's cursor."""
        firsts = self._first_places[np.minimum(slots, len(self._first_places) - 1)]
        mask: NDArray[np.bool_] = firsts <= self.entries(entries)  # which turns numbers into places, too
        return mask

    def position(self, entry: int) -> bytes:
        """Return the position of an entry, which covers it."""
        key = self.run.key(entry)
        return inverted(key) if self._descending else key

    def position_at(self, place: int) -> bytes:
        return self.position(self.run.entries - 1 - place if self._descending else place)

    def past(self, position: bytes) -> int:
        """Return the first place beyond a position."""
        if self._descending:
            return self.run.entries - self.run.lower_bound(inverted(position))
        return self.run.upper_bound(position)
