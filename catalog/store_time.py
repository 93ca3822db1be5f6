"""The time of a store, which one wrong clock cannot change: pure functions of values.

Processes have clocks of their own, and some of them are wrong. What is kept for a time (snapshots,
leases, dropped files, moves that are silent) must not end because one clock is ahead, and must end some day
also in a store that was idle for months. So the catalog keeps an *accepted* time, and perhaps a later
*claimed* one. Every writing transaction compares them with its clock:

    the clock says            with no claim           with a claim C
    up to accepted + a day    accepted, if later      the same, and a claim beyond that day is dropped:
                                                      this clock contradicts it
    later, before C           –                       the claim is that time instead: it was contradicted
    later, up to C + 1 hour   it becomes the claim    nothing changes
    later, from C + 1 hour    it becomes the claim    C is accepted, and then the clock is compared again

So one process whose clock is thirty days ahead changes nothing as long as others, or its own next
transaction within the hour, are at work; and a store that was idle for thirty days accepts the present an
hour after its first use. In doubt, things are kept.

    `Times.stamp`     the later of clock and belief: for what must not look older than it is
    `Times.expiry`    the earlier of both: for deciding that something's time is over
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticscan.base.limits import CLAIM_SECONDS, TRUSTED_JUMP_SECONDS


@dataclass(frozen=True, slots=True)
class Belief:
    """The newest accepted time, and a claimed one."""

    accepted_at: float
    claimed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """A process's clock alongside what the store believes."""

    clock: float
    accepted: float

    @property
    def stamp(self) -> float:
        return max(self.clock, self.accepted)

    @property
    def expiry(self) -> float:
        return min(self.clock, self.accepted)

    @property
    def agreed(self) -> bool:
        """True if the clock is the accepted time."""
        return self.clock == self.accepted


def observe(belief: Belief, clock: float) -> Belief:
    """Return what is accepted and claimed after a transaction whose clock says `clock`."""
    accepted, claimed = belief.accepted_at, belief.claimed_at
    trusted_until = accepted + TRUSTED_JUMP_SECONDS
    if clock <= trusted_until:
        return Belief(max(accepted, clock))
    if claimed is None or clock < claimed:
        return Belief(accepted, clock)
    if clock < claimed + CLAIM_SECONDS:
        return belief
    return observe(Belief(max(accepted, claimed)), clock)
