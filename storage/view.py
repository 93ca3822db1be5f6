"""The fragments that one shard serves of one table at one moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from elasticscan.base.concurrency import cached_property
from elasticscan.metadata import Bounds, Fragment, SlotInterval, intervals_of
from elasticscan.storage.merge import Piece
from elasticscan.topology import SlotSet

_MOST_BOUNDS = 64


@dataclass(frozen=True, eq=False)
class Layers:
    """A fragment that has each key once, and others, wherever these meet it."""

    base: Fragment
    others: tuple[Fragment, ...]

    @cached_property
    def key(self) -> tuple[tuple[str, SlotSet], ...]:
        """Equal for the same files, serving the same slots."""
        return tuple((fragment.path, fragment.slots) for fragment in (self.base, *self.others))


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Slots `[start, end)` over the same large fragment; without layers, one interval."""

    start: int
    end: int
    layers: Layers | None


class Sections:
    """The slots as they are seen within some bounds.

    Attributes:
        fragments: those that count.
        intervals: all slots, with those of the fragments that serve them.
        slot_ranges: all slots in as few ranges as large fragments allow.
        shared: whether several fragments serve a slot, up to the last one that any serves.
    """

    def __init__(self, fragments: Iterable[Fragment], bounds: Bounds) -> None:
        self.fragments = tuple(f for f in fragments if bounds.touch(f))
        self.intervals = intervals_of(self.fragments)
        self.slot_ranges = _slot_ranges_of(self.fragments, self.intervals, bounds)
        self.shared = np.zeros(self.intervals[-1].end if self.intervals else 0, dtype=bool)
        for interval in self.intervals:
            self.shared[interval.start : interval.end] = len(interval.fragments) > 1


class View:
    """The fragments of one table at one shard; read-only, so threads may share it."""

    def __init__(self, fragments: Iterable[Fragment]) -> None:
        self.fragments = tuple(fragments)
        self._sections: dict[Bounds, Sections] = {}

    def between(self, piece: Piece, bounds: Bounds) -> Iterator[tuple[tuple[Fragment, ...], Piece]]:
        """Yield the intervals of a piece, cut to it, each with its fragments that count in `bounds`."""
        intervals = self.within(bounds).intervals
        for index in range(bisect_right(intervals, piece.start, key=lambda part: part.end), len(intervals)):
            interval = intervals[index]
            if interval.start >= piece.end:
                return
            start, end = max(piece.start, interval.start), min(piece.end, interval.end)
            yield interval.fragments, Piece(start, end, piece.low if start == piece.start else b"")

    def within(self, bounds: Bounds) -> Sections:
        """Return the slots as they are seen within `bounds`."""
        sections = self._sections.get(bounds)
        if sections is None:
            if len(self._sections) >= _MOST_BOUNDS:  # a change scan asks for each commit once
                self._sections.clear()
            sections = self._sections[bounds] = Sections(self.fragments, bounds)
        return sections


def _slot_ranges_of(
    fragments: Sequence[Fragment], intervals: Sequence[SlotInterval], bounds: Bounds
) -> tuple[SlotRange, ...]:
    history = {fragment.id for fragment in fragments if fragment.superseded_at is not None}
    plain = [f for f in fragments if f.unique and not f.tombstones and bounds.wholly_hold(f)]
    densities = {f.id: f.rows / max(f.slots_written, len(f.slots), 1) for f in plain}  # rows a slot, about
    bases: list[Fragment | None] = []
    base_of: dict[tuple[int, ...], Fragment | None] = {}  # many intervals have the same fragments
    others: dict[int, dict[int, Fragment]] = {}
    for interval in intervals:
        ids = tuple([fragment.id for fragment in interval.fragments])
        if ids not in base_of:
            # On which the others can be overlaid; None if they must be merged.
            fitting = [f for f in interval.fragments if f.id in densities and not history.intersection(ids)]
            base = base_of[ids] = max(fitting, key=lambda f: densities[f.id], default=None)
            if base is not None:
                others.setdefault(base.id, {}).update((f.id, f) for f in interval.fragments if f is not base)
        bases.append(base_of[ids])
    layers = {base.id: Layers(base, tuple(others[base.id].values())) for base in bases if base is not None}
    slot_ranges: list[SlotRange] = []
    for interval, base in zip(intervals, bases, strict=True):
        of = None if base is None else layers[base.id]
        last = slot_ranges[-1] if slot_ranges else None
        if last and of is not None and last.layers is of and last.end == interval.start:
            slot_ranges[-1] = SlotRange(last.start, interval.end, of)
        else:
            slot_ranges.append(SlotRange(interval.start, interval.end, of))
    return tuple(slot_ranges)


def most_rows(fragments: Iterable[Fragment], bounds: Bounds) -> tuple[int, bool]:
    """Return (the most possible rows, whether exactly so many), from what is known without a file."""
    read = [fragment for fragment in fragments if fragment.slots and bounds.touch(fragment)]
    is_shared = sum(len(f.slots) for f in read) > len(SlotSet.union(f.slots for f in read))
    exact = not is_shared and all(_is_plain(fragment, bounds) for fragment in read)
    return sum(fragment.rows - fragment.tombstones for fragment in read), exact


def _is_plain(fragment: Fragment, bounds: Bounds) -> bool:
    """Return whether each row of a fragment is one that a scan gives, unless other fragments hide it."""
    return (
        fragment.unique
        and fragment.superseded_at is None
        and bounds.wholly_hold(fragment)
        and len(fragment.slots) == fragment.slots_written
    )
