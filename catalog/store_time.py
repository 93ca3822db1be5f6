"""The time that a store believes in: pure functions of values.

Processes have clocks of their own, and some of them are wrong. What is kept for a time (snapshots,
leases, dropped files, moves that are silent) must not end because one clock is ahead, and must end some day
although nobody may have looked for months. So the catalog keeps a time that it *believes*, and perhaps one
that was *claimed*. Every writing transaction looks at its clock:

    the clock says            with no claim           with a claim C
    up to believed + a day    believed, if later      the same, and a claim beyond that day is forgotten:
                                                      somebody just contradicted it
    later, before C           –                       the claim is that time instead: it was contradicted
    later, up to C + 1 hour   it becomes the claim    nothing changes
    later, from C + 1 hour    it becomes the claim    C is believed, and then the clock is looked at again

So one process whose clock is thirty days ahead changes nothing as long as others, or its own next
transaction within the hour, are at work; and a store that was idle for thirty days believes in the present an
hour after somebody came back. In doubt, things are kept.

    `Times.stamp`     the later of clock and belief: for what must not look older than it is
    `Times.expiry`    the earlier of both: for deciding that something's time is over
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticscan.base.limits import CLAIM_SECONDS, TRUSTED_JUMP_SECONDS


@dataclass(frozen=True, slots=True)
class Belief:
    """The newest time that is believed, and one that is not yet."""

    believed_at: float
    claimed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """A process's clock alongside what the store believes."""

    clock: float
    believed: float

    @property
    def stamp(self) -> float:
        return max(self.clock, self.believed)

    @property
    def expiry(self) -> float:
        return min(self.clock, self.believed)

    @property
    def agreed(self) -> bool:
        """True if the clock is what is believed."""
        return self.clock == self.believed


def observe(belief: Belief, clock: float) -> Belief:
    """Return what is believed after a transaction whose clock says `clock`."""
    believed, claimed = belief.believed_at, belief.claimed_at
    trusted_until = believed + TRUSTED_JUMP_SECONDS
    if clock <= trusted_until:
        return Belief(max(believed, clock))
    if claimed is None or clock < claimed:
        return Belief(believed, clock)
    if clock < claimed + CLAIM_SECONDS:
        return belief
    return observe(Belief(max(believed, claimed)), clock)
