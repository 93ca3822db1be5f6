"""The time of a store, which no single wrong clock can change. Pure functions of values.

Each process has its own clock, and some clocks are wrong. Snapshots, leases, removed files and silent moves
are kept for a time. They must not expire because one clock is ahead. They must expire at some time, even if
the store was idle for months. So the state has an *accepted* time, and perhaps a later *claimed* time. Every
writing transaction compares them with its clock:

    the clock's time          with no claim           with a claim C
    up to accepted + a day    accepted, if later      accepted, if later; the claim is dropped, since this
                                                      clock contradicts it
    later, before C           –                       replaces the claim, which it contradicts
    later, up to C + 1 hour   becomes the claim       nothing changes
    later, from C + 1 hour    becomes the claim       C is accepted; then the clock is compared again

So a process whose clock is thirty days ahead changes nothing if another process writes within the hour. A
store that was idle for thirty days accepts the present time an hour after its first use. In doubt, things
are kept.

    `Times.stamp`     the later of clock and accepted time: for times of new things
    `Times.expiry`    the earlier of both: for deciding whether something has expired
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticscan.base.limits import CLAIM_SECONDS, TRUSTED_JUMP_SECONDS


@dataclass(frozen=True, slots=True)
class Belief:
    """The accepted time and the claimed time, in seconds since 1970."""

    accepted_at: float
    claimed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """A process's clock and the store's accepted time, in seconds since 1970."""

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
    """Return the accepted and claimed times after a transaction at the time `clock`."""
    accepted, claimed = belief.accepted_at, belief.claimed_at
    trusted_until = accepted + TRUSTED_JUMP_SECONDS
    if clock <= trusted_until:
        return Belief(max(accepted, clock))
    if claimed is None or clock < claimed:
        return Belief(accepted, clock)
    if clock < claimed + CLAIM_SECONDS:
        return belief
    return observe(Belief(max(accepted, claimed)), clock)
