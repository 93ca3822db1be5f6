"""The fragments that one shard serves of one table at one moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from elasticscan.metadata import Bounds, Fragment, SlotInterval, intervals_of

_MOST_BOUNDS = 64


class View:
    """The fragments of one table at one shard; read-only, so threads may share it."""

    def __init__(self, fragments: Iterable[Fragment]) -> None:
        self.fragments = tuple(fragments)
        self._intervals: dict[Bounds, tuple[tuple[SlotInterval, ...], tuple[int, ...]]] = {}

    def between(self, start: int, end: int, bounds: Bounds) -> Iterator[SlotInterval]:
        """The intervals of `[start, end)`, cut to it, with the fragments that count in `bounds`."""
        cached = self._intervals.get(bounds)
        if cached is None:
            if len(self._intervals) >= _MOST_BOUNDS:  # a change scan asks for each commit once
                self._intervals.clear()
            intervals = intervals_of(f for f in self.fragments if bounds.touch(f))
            cached = self._intervals[bounds] = (intervals, tuple(i.end for i in intervals))
        intervals, ends = cached
        for index in range(bisect_right(ends, start), len(intervals)):
            interval = intervals[index]
            if interval.start >= end:
                return
            yield SlotInterval(max(start, interval.start), min(end, interval.end), interval.fragments)
