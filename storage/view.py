"""What one shard serves of one table at one moment, cut into slot intervals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elasticscan.metadata import Fragment


@dataclass(frozen=True, slots=True)
class Interval:
    """Slots `[start, end)` that are spoken for by the same fragments."""

    start: int
    end: int
    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which commits count: from `floor` (everything before was overwritten) to `snapshot`."""

    floor: int
    snapshot: int

    def wholly_hold(self, fragment: Fragment) -> bool:
        return self.floor <= fragment.min_commit and fragment.max_commit <= self.snapshot

    def touch(self, fragment: Fragment) -> bool:
        return self.floor <= fragment.max_commit and fragment.min_commit <= self.snapshot


def intervals_of(fragments: Iterable[Fragment]) -> tuple[Interval, ...]:
    """Sorted, disjoint intervals covering every slot that some fragment speaks for."""
    events: dict[int, tuple[set[int], set[int]]] = {}
    by_id = {fragment.id: fragment for fragment in fragments}
    for fragment in by_id.values():
        for start, end in fragment.slots:
            events.setdefault(start, (set(), set()))[0].add(fragment.id)
            events.setdefault(end, (set(), set()))[1].add(fragment.id)
    found: list[Interval] = []
    active: dict[int, Fragment] = {}
    previous = 0
    for at in sorted(events):
        if active:
            found.append(Interval(previous, at, tuple(active.values())))
        begins, ends = events[at]
        for fragment_id in ends - begins:
            active.pop(fragment_id)
        for fragment_id in begins - ends:
            active[fragment_id] = by_id[fragment_id]
        previous = at
    return tuple(found)


_MOST_BOUNDS = 64


class View:
    """The fragments of one table at one shard; read-only, so threads may share it."""

    def __init__(self, fragments: Iterable[Fragment]) -> None:
        self.fragments = tuple(fragments)
        self._intervals: dict[Bounds, tuple[tuple[Interval, ...], tuple[int, ...]]] = {}

    def between(self, start: int, end: int, bounds: Bounds) -> Iterator[Interval]:
        """The intervals of `[start, end)`, cut to it, with the fragments that count in `bounds`."""
        found = self._intervals.get(bounds)
        if found is None:
            if len(self._intervals) >= _MOST_BOUNDS:  # a change scan asks for each commit once
                self._intervals.clear()
            intervals = intervals_of(f for f in self.fragments if bounds.touch(f))
            found = self._intervals[bounds] = (intervals, tuple(i.end for i in intervals))
        intervals, ends = found
        for index in range(bisect_right(ends, start), len(intervals)):
            interval = intervals[index]
            if interval.start >= end:
                return
            yield Interval(max(start, interval.start), min(end, interval.end), interval.fragments)
