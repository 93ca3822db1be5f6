"""Parts of a file that are expected to be read, when not all of it is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

_MOST_PARTS = 32  # that are fetched together
_HOLE_BYTES = 192 << 10  # to leave out so much is worth one more request
_WORTH = 3 / 4  # of a file, or less, in parts


@dataclass(frozen=True, slots=True)
class Parts:
    """Ascending, disjoint parts [begin, end) of a file, each worth a request of its own."""

    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, places: Iterable[tuple[int, int]], align: int, size: int) -> Parts | None:
        """Parts with all of these places, which ascend; None where they are most of a file of this size."""
        begins, ends = list[int](), list[int]()
        for low, high in places:
            begin, end = low // align * align, -(-high // align) * align
            if ends and begin - ends[-1] < _HOLE_BYTES:
                ends[-1] = max(ends[-1], end)
            else:
                begins.append(begin)
                ends.append(end)
        return cls(tuple(begins), tuple(ends)) if sum(ends) - sum(begins) <= _WORTH * size else None

    def end_of_first(self, begin: int, end: int) -> int:
        """Return the end of the part that contains a position, up to `end`; else the position itself."""
        number = bisect_right(self.begins, begin) - 1
        return min(self.ends[number], end) if number >= 0 and begin < self.ends[number] else begin

    def after(self, begin: int, beyond: int, most_bytes: int) -> list[tuple[int, int]]:
        """Return the parts from a place on, up to another, that are about so many bytes together."""
        chosen, total = list[tuple[int, int]](), 0
        number = max(bisect_right(self.begins, begin) - 1, 0)
        while number < len(self.begins) and total < most_bytes and len(chosen) < _MOST_PARTS:
            low, high = max(self.begins[number], begin), min(self.ends[number], beyond)
            if low < high:
                chosen.append((low, high))
                total += high - low
            number += 1
        return chosen
