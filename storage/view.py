"""The fragments that one shard serves of one table at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from elasticscan.metadata import Bounds, Fragment, intervals_of
from elasticscan.topology import SlotSet

_MOST_BOUNDS = 64


@dataclass(frozen=True, eq=False)
class Layers:
    """A large fragment, the base, and the other fragments of its slots; without a base, any fragments."""

    base: Fragment | None
    others: tuple[Fragment, ...]

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        return self.others if self.base is None else (self.base, *self.others)


class Sections:
    """The slots of a view, divided by their layers within bounds of commits.

    Attributes:
        fragments: the fragments that may have rows within the bounds.
        parts: (slots, layers), ascending; neighbouring slots with the same layers are one part.
        shared: the slots that several fragments serve.
    """

    def __init__(self, fragments: Iterable[Fragment], bounds: Bounds) -> None:
        self.fragments = tuple(f for f in fragments if bounds.touch(f))
        self.parts = tuple(_parts_of(self.fragments, bounds))
        self.shared = shared_slots(self.fragments)


class View:
    """The fragments of one table at one shard; read-only, so threads may share it."""

    def __init__(self, fragments: Iterable[Fragment]) -> None:
        self.fragments = tuple(fragments)
        self._sections: dict[Bounds, Sections] = {}

    def within(self, bounds: Bounds) -> Sections:
        """Return the sections within `bounds`, cached."""
        sections = self._sections.get(bounds)
        if sections is None:
            if len(self._sections) >= _MOST_BOUNDS:  # a scan of changes needs each commit's bounds only once
                self._sections.clear()
            sections = self._sections[bounds] = Sections(self.fragments, bounds)
        return sections


def _parts_of(fragments: Sequence[Fragment], bounds: Bounds) -> Iterator[tuple[SlotSet, Layers]]:
    history = {fragment.id for fragment in fragments if fragment.superseded_at is not None}
    plain = [f for f in fragments if f.unique and not f.tombstones and bounds.wholly_hold(f)]
    density = {fragment.id: fragment.density for fragment in plain}
    ranges, by_base = list[tuple[int | None, tuple[int, int]]](), dict[int | None, dict[int, Fragment]]()
    for interval in intervals_of(fragments):
        served = {fragment.id: fragment for fragment in interval.fragments}
        # The base is the densest fragment on which the others can be laid; None if all must be merged.
        fitting = served.keys() & density.keys() if history.isdisjoint(served) else ()
        base = max(sorted(fitting), key=density.__getitem__, default=None)
        by_base.setdefault(base, {}).update(served)
        ranges.append((base, (interval.start, interval.end)))
    layers = {
        base: Layers(None if base is None else by_id.pop(base), tuple(by_id.values()))
        for base, by_id in by_base.items()
    }
    for base, neighbours in groupby(ranges, key=itemgetter(0)):
        yield SlotSet.of(ends for _, ends in neighbours), layers[base]


def shared_slots(fragments: Iterable[Fragment]) -> SlotSet:
    """Return the slots that more than one of the fragments serves."""
    once = shared = SlotSet()
    for fragment in fragments:
        shared |= once & fragment.slots
        once |= fragment.slots
    return shared


def most_rows(fragments: Iterable[Fragment], bounds: Bounds) -> tuple[int, bool]:
    """Return (upper bound of the rows, whether it is exact), from metadata alone."""
    read = [fragment for fragment in fragments if fragment.slots and bounds.touch(fragment)]
    exact = not shared_slots(read) and all(_is_plain(fragment, bounds) for fragment in read)
    return sum(fragment.rows - fragment.tombstones for fragment in read), exact


def _is_plain(fragment: Fragment, bounds: Bounds) -> bool:
    """Return whether a scan returns each row of a fragment, unless other fragments hide it."""
    return (
        fragment.unique
        and fragment.superseded_at is None
        and bounds.wholly_hold(fragment)
        and len(fragment.slots) == fragment.slots_written
    )
