"""The proof that a scan returned all of its slots, and each once."""

from __future__ import annotations

from elasticscan.base.errors import CoverageBroken
from elasticscan.topology import SlotSet


class Coverage:
    """Keeps book of finished slots, independently of the cursors.

    A cursor set that lost a slot looks exactly like one that finished it. This book is filled
    from the pages instead, so a mistake in either shows as a difference between the two.
    """

    def __init__(self, slots: SlotSet, pending: SlotSet) -> None:
        self.slots = slots
        self.finished = slots - pending

    def finish(self, slots: SlotSet) -> None:
        again = self.finished & slots
        if again or not slots <= self.slots:
            raise CoverageBroken(
                f"slots {again or slots} were finished twice or never asked for; this is a defect in "
                "elasticscan: the result so far must not be used, run the scan again and report it",
                slots=str(again or slots),
            )
        self.finished |= slots

    def prove(self) -> None:
        """Raise `CoverageBroken` unless every slot was finished."""
        missing = self.slots - self.finished
        if missing:
            raise CoverageBroken(
                f"the scan ended without slots {missing}; this is a defect in elasticscan: the result "
                "must not be used, run the scan again and report it",
                slots=str(missing),
            )
