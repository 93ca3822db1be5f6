"""Cursors: positions of a scan, each with its slots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position of a scan: all rows of `slots` up to `position` were returned, and none after it.

    `position` is the order key of a row, or None at the beginning. A cursor does not store where its slots
    live: every page reads the placement, so moves that repeat, return or fail need no special rule.
    """

    slots: SlotSet
    position: bytes | None = None


Cursors = tuple[Cursor, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """The changes that the commits in `(after, upto]` made to the slots `[start, end)`."""

    after: int
    upto: int
    start: int
    end: int

    def __post_init__(self) -> None:
        assert self.after < self.upto and self.start < self.end, f"a segment of nothing: {self}"

    @property
    def slots(self) -> SlotSet:
        return SlotSet.span(self.start, self.end)


Segments = tuple[Segment, ...]


def slots_of(cursors: Iterable[Cursor]) -> SlotSet:
    return SlotSet.union(cursor.slots for cursor in cursors)


def merge(cursors: Iterable[Cursor]) -> Cursors:
    """Merge cursors of equal position and drop empty ones, to keep the continuation key small."""
    by_position: dict[bytes | None, SlotSet] = {}
    for cursor in cursors:
        if cursor.slots:
            joined = by_position.get(cursor.position)
            by_position[cursor.position] = joined | cursor.slots if joined else cursor.slots
    ordered = sorted(by_position.items(), key=lambda item: (item[0] is None, item[0] or b""))
    return tuple(Cursor(slots, position) for position, slots in ordered)


def restrict(cursors: Iterable[Cursor], slots: SlotSet) -> Cursors:
    """Return the cursors without all slots but `slots`; positions stay the same."""
    return merge(Cursor(cursor.slots & slots, cursor.position) for cursor in cursors)
