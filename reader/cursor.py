"""The cursor rule as pure functions over values: no clock, no randomness, no I/O.

A scan is a set of cursors over disjoint slots. `plan_read` is step 1 of the rule (look the
placement up, choose a shard, take the pieces of the cursors that live there), `accept_page` is
step 3 (look again, drop what moved meanwhile, advance the rest). Step 2, reading rows at a
shard, is I/O and lives behind `elasticscan.protocol.Shards`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elasticscan.protocol import Cursor, Cursors, PageRows, merge, restrict, slots_of
from elasticscan.topology import Placement, SlotSet

_NO_SLOTS = SlotSet()


@dataclass(frozen=True, slots=True)
class ShardRead:
    """The next read of one shard: the parts of the cursors that live there, by `placement`."""

    shard: int
    cursors: Cursors
    placement: Placement

    @property
    def slots(self) -> SlotSet:
        return slots_of(self.cursors)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The cursors after a page, the slots it finished and those whose rows must be dropped."""

    cursors: Cursors
    finished: SlotSet
    moved: SlotSet


def plan_read(
    cursors: Cursors, placement: Placement, later: SlotSet = _NO_SLOTS, lowest: bool = False
) -> ShardRead | None:
    """Return the next read of a scan, or None where nothing is left to read.

    Shards where a slot was left half-read come first, so that few positions are ever open and
    the continuation key stays small; all cursors at the shard are read in one pass.

    Args:
        cursors, placement: of the scan, and of its slots.
        later: slots that a shard has just refused: they are left out, and asked for again in the next pass,
            when all others were read.
        lowest: the shard with the lowest position comes first: rows leave in one order over all shards.
    """
    if later:
        cursors = restrict(cursors, slots_of(cursors) - later)
    if not cursors:
        return None
    if lowest:
        first = min(cursors, key=lambda cursor: cursor.position or b"").slots
    else:
        begun = SlotSet.of(r for c in cursors if c.position is not None for r in c.slots)
        first = begun or slots_of(cursors)
    shard = min(placement.split_by_shard(first))
    return ShardRead(shard, restrict(cursors, placement.at(shard)), placement)


def remaining(read: ShardRead, page: PageRows) -> Cursors:
    """Return the cursors that a page left over: refused slots stay where they were.

    A slot that was neither refused nor left over would count as finished, so the two must not be confused.
    """
    if not page.refused:
        return page.after
    assert page.refused <= read.slots, "a shard refused slots that it was not asked for"
    assert not page.refused & slots_of(page.after), "a shard refused slots that it answered for"
    return merge((*page.after, *restrict(read.cursors, page.refused)))


def accept_page(cursors: Cursors, read: ShardRead, after: Cursors, placement: Placement) -> Accepted:
    """Advance a scan by one page.

    Args:
        cursors: the scan's cursors before the page.
        read: the request that the page answers.
        after: the cursors that the shard left over for the slots of `read`; slots in none of
            them had no more rows.
        placement: the placement as it is now, after the rows were read.

    Slots whose (shard, epoch) changed since `read.placement` keep their old position, and the
    caller drops their rows from the page: they may have been invisible for part of the read.
    """
    asked = read.slots
    left = slots_of(after)
    assert left <= asked, "a shard answered for slots it was not asked about"
    _assert_forward(read.cursors, after)
    moved = placement.changed_since(read.placement, asked)
    staying = asked - moved
    advanced = [Cursor(c.slots - asked, c.position) for c in cursors]
    advanced += [Cursor(c.slots & moved, c.position) for c in read.cursors]
    advanced += [Cursor(c.slots & staying, c.position) for c in after]
    return Accepted(merge(advanced), staying - left, moved)


def staying_rows(slots: npt.NDArray[np.uint16], moved: SlotSet) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows whose slots did not move while they were read (step 3)."""
    return ~moved.mask(slots)


def _assert_forward(before: Cursors, after: Cursors) -> None:
    """Assert that no slot's position goes back."""
    for new in after:
        for old in before:
            if old.position is not None and old.slots & new.slots:
                assert new.position is not None and new.position >= old.position, "a position went back"
