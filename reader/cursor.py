"""The cursor rule as pure functions over values: no clock, no randomness, no I/O.

The front page of this folder explains the rule and why it is exact. `plan_read` is step 1: choose a shard and
the parts of the cursors that live there. `accept_page` is step 3: drop the slots that moved and advance
the others. Step 2, reading rows at a shard, is I/O and a method of `elasticscan.protocol.Shards`.
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
    """The next read: a shard, and the parts of the cursors that live there in `placement`."""

    shard: int
    cursors: Cursors
    placement: Placement

    @property
    def slots(self) -> SlotSet:
        return slots_of(self.cursors)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The cursors after a page, the slots that it finished, and the slots whose rows must be dropped."""

    cursors: Cursors
    finished: SlotSet
    moved: SlotSet


def plan_read(
    cursors: Cursors, placement: Placement, later: SlotSet = _NO_SLOTS, lowest: bool = False
) -> ShardRead | None:
    """Return the next read of a scan, or None if nothing is left to read.

    Shards with a partly read slot come first. So few slots are partly read at a time, and
    the continuation key stays small. All cursors at the shard are read in one pass.

    Args:
        cursors: the cursors of the scan.
        placement: the placement to plan by.
        later: slots that a shard has just refused. They are skipped until all others were read.
        lowest: choose the shard with the lowest position, to return rows in one order over all shards.
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
    """Return the cursors that a page did not finish; refused slots keep their positions.

    A slot that is neither refused nor in a cursor counts as finished.
    """
    if not page.refused:
        return page.after
    assert page.refused <= read.slots, "a shard refused slots that were not requested"
    assert not page.refused & slots_of(page.after), "a shard refused slots that it answered for"
    return merge((*page.after, *restrict(read.cursors, page.refused)))


def accept_page(cursors: Cursors, read: ShardRead, after: Cursors, placement: Placement) -> Accepted:
    """Advance a scan by one page.

    Args:
        cursors: the scan's cursors before the page.
        read: the read that returned the page.
        after: the cursors of the shard's answer, for the slots of `read`; a slot in no cursor has
            no more rows.
        placement: the placement, read after the rows.

    Slots whose (shard, epoch) changed since `read.placement` keep their old position, and the
    caller drops their rows from the page: the shard may have returned only a part of them.
    """
    requested = read.slots
    left = slots_of(after)
    assert left <= requested, "a shard answered for slots that were not requested"
    _assert_forward(read.cursors, after)
    moved = placement.changed_since(read.placement, requested)
    staying = requested - moved
    advanced = [Cursor(c.slots - requested, c.position) for c in cursors]
    advanced += [Cursor(c.slots & moved, c.position) for c in read.cursors]
    advanced += [Cursor(c.slots & staying, c.position) for c in after]
    return Accepted(merge(advanced), staying - left, moved)


def staying_rows(slots: npt.NDArray[np.uint16], moved: SlotSet) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows whose slots did not move (step 3); `slots` has the slot of each row."""
    return ~moved.mask(slots)


def _assert_forward(before: Cursors, after: Cursors) -> None:
    """Assert that no position of a slot decreases."""
    for new in after:
        for old in before:
            if old.position is not None and old.slots & new.slots:
                assert new.position is not None and new.position >= old.position, "a position went back"
