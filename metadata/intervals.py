"""The rows that count, by commit and by slot: bounds of commits, and slots that the same fragments serve."""

from __future__ import annotations

from collections import defaultdict
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

    @property
    def is_plain(self) -> bool:
        """True if it holds no two versions of a row, so that its rows can be read batch by batch."""
        only = self.fragments[0]
        return len(self.fragments) == 1 and only.unique and not only.tombstones


def intervals_of(fragments: Iterable[Fragment]) -> tuple[SlotInterval, ...]:
    """Sorted, disjoint intervals covering every slot that some fragment serves."""
    begins, ends = defaultdict[int, list[Fragment]](list), defaultdict[int, list[Fragment]](list)
    for fragment in {fragment.id: fragment for fragment in fragments}.values():
        for start, end in fragment.slots:
            begins[start].append(fragment)
            ends[end].append(fragment)
    intervals: list[SlotInterval] = []
    active: dict[int, Fragment] = {}
    previous = 0
    for at in sorted({*begins, *ends}):
        if active:
            intervals.append(SlotInterval(previous, at, tuple(active.values())))
        for fragment in ends[at]:
            del active[fragment.id]
        active |= {fragment.id: fragment for fragment in begins[at]}
        previous = at
    return tuple(intervals)
