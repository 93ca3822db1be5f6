"""The rows that count, by commit and by slot: bounds of commits, and slots that the same fragments serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elasticscan.metadata.fragments import Fragment


def floor_at(overwrites: Iterable[int], snapshot: int) -> int:
    """Return the newest overwrite up to a snapshot: rows of earlier commits are not in it; 0 for none."""
    return max((number for number in overwrites if number <= snapshot), default=0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The commits that count: from `floor` (everything before was overwritten) to `snapshot`.

    `since` is the oldest snapshot that is looked at: history that only older ones need does not count.
    """

    floor: int
    snapshot: int
    since: int = 0

    def wholly_hold(self, fragment: Fragment) -> bool:
        return self.floor <= fragment.min_commit and fragment.max_commit <= self.snapshot

    def touch(self, fragment: Fragment) -> bool:
        within = self.floor <= fragment.max_commit and fragment.min_commit <= self.snapshot
        return within and fragment.is_needed_at(self.since)


@dataclass(frozen=True, slots=True)
class SlotInterval:
    """Slots `[start, end)` that are served by the same fragments."""

    start: int
    end: int
    fragments: tuple[Fragment, ...]


def intervals_of(fragments: Iterable[Fragment]) -> tuple[SlotInterval, ...]:
    """Sorted, disjoint intervals covering every slot that some fragment serves."""
    events: dict[int, tuple[set[int], set[int]]] = {}
    by_id = {fragment.id: fragment for fragment in fragments}
    for fragment in by_id.values():
        for start, end in fragment.slots:
            events.setdefault(start, (set(), set()))[0].add(fragment.id)
            events.setdefault(end, (set(), set()))[1].add(fragment.id)
    intervals: list[SlotInterval] = []
    active: dict[int, Fragment] = {}
    previous = 0
    for at in sorted(events):
        if active:
            intervals.append(SlotInterval(previous, at, tuple(active.values())))
        begins, ends = events[at]
        for fragment_id in ends - begins:
            active.pop(fragment_id)
        for fragment_id in begins - ends:
            active[fragment_id] = by_id[fragment_id]
        previous = at
    return tuple(intervals)
