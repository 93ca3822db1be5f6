"""The proof that a scan returned each of its slots exactly once."""

from __future__ import annotations

from elasticscan.base.errors import CoverageBroken
from elasticscan.topology import SlotSet


class Coverage:
    """A record of the finished slots, independent of the cursors.

    Cursors that lost a slot look exactly like cursors that finished it. This record is filled
    from the pages instead, so an error in one of them shows as a difference between both.
    """

    def __init__(self, slots: SlotSet, pending: SlotSet) -> None:
        self.slots = slots
        self.finished = slots - pending

    def finish(self, slots: SlotSet) -> None:
        """Record slots that a page finished; each slot of the scan may come only once."""
        again = self.finished & slots
        if again or not slots <= self.slots:
            raise CoverageBroken(
                f"slots {again or slots} were finished twice or never requested, a defect in elasticscan; "
                "do not use the rows, and report it",
                slots=str(again or slots),
            )
        self.finished |= slots

    def prove(self) -> None:
        """Raise `CoverageBroken` unless every slot was finished."""
        missing = self.slots - self.finished
        if missing:
            raise CoverageBroken(
                f"the scan ended without slots {missing}, a defect in elasticscan; do not use its rows, run "
                "it again and report it",
                slots=str(missing),
            )
