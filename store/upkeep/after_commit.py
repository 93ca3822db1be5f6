"""Upkeep by the process that writes or moves: bounded work after a commit, and after a plan of moves.

The transaction of a commit looks at the fragments at the shards that it wrote to. Where there are too many,
steps of upkeep follow when the commit is over and visible; of many writers one owns each step.

How much a writer does is bounded by an *allowance* of bytes, which grows with each commit: more than that is
left to the commits that follow, or to a keeper. Moves whose process died are carried out within it, too.
After a plan of moves the small fragments that it has left are merged, so that reads cost what they did
before. An error here is none of the commit: it is kept for `status`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from elasticscan.base.errors import TryAgain, UsageError
from elasticscan.catalog import Tx
from elasticscan.metadata import MEMORY, StagedFragment
from elasticscan.store.context import Context, Upkeep
from elasticscan.store.moves import elasticity
from elasticscan.store.moves.balancing import tablet_bytes
from elasticscan.store.moves.owners import moves_in, owner_is_gone, owning
from elasticscan.store.upkeep.collector import collect_dropped
from elasticscan.store.upkeep.executor import Executor, Site, plan_sites, states_of
from elasticscan.store.upkeep.flushing import has_much, pending_after_commit
from elasticscan.store.upkeep.planning import Policy, plan_scattered

# What a commit adds to the allowance beyond its own size, so that small ones keep up; and what the allowance
# never exceeds.
COMMIT_BYTES, MOST_BYTES = 2 << 20, 256 << 20
# With so many times the fragments that a slot should have, work is done whatever the allowance is.
OVERDUE = 2
# After so many commits a step is tried again that failed, had nothing to do, or was too large.
RETRY_EVERY = 4
# After so many commits the moves under way are looked at, after the first one, too.
LOOK_EVERY = 16
# After so many fragments went away, files whose grace period is over are removed, at most so many.
GARBAGE_EVERY, GARBAGE_FILES = 256, 512


@dataclass
class AfterCommit(Upkeep):
    """The upkeep that one open store does after its commits; threads may share it."""

    context: Context
    policy: Policy = field(default_factory=Policy)
    mode: str = "auto"
    problem: str | None = None
    _allowance: float = MOST_BYTES / 4
    # A process that commits once and ends has its first merge to do it with.
    _gone: int = GARBAGE_EVERY
    _commits: int = 0
    # The commit before which a step is not tried again.
    _retry: dict[Site, int] = field(default_factory=dict)

    def pending(self, tx: Tx, table: int, staged: Collection[StagedFragment]) -> list[Site]:
        """See `Upkeep`."""
        flushing = pending_after_commit(tx, table)
        return [*([] if flushing is None else [Site(flushing, MEMORY)]), *self._crowded(tx, table, staged)]

    def _crowded(self, tx: Tx, table: int, staged: Collection[StagedFragment]) -> list[Site]:
        """Return the sites that files were written to, and that have too many now."""
        shards = {fragment.shard for fragment in staged} - {MEMORY}
        states = states_of(tx, table, shards) if shards else {}
        return [site for site, state in states.items() if state.is_pending(self.policy)]

    def after_commit(self, pending: Sequence[tuple[int, int]], committed_bytes: int) -> None:
        """See `Upkeep`."""
        self._commits += 1
        self._allowance = min(MOST_BYTES, self._allowance + COMMIT_BYTES + committed_bytes)
        try:
            self._work(pending)
            if self._commits % LOOK_EVERY == 1:
                self._take_over_moves()
        except Exception as error:  # of any kind: the commit is made
            self.problem = str(error) or type(error).__name__

    def after_moves(self) -> None:
        """See `Upkeep`."""
        try:
            tx = self.context.catalog.newest()
            states = [here for table in tx.state.infos() for here in states_of(tx, table.id).items()]
            with owning() as owner:
                executor = Executor(self.context, owner)
                for site, state in states:
                    for merge in plan_scattered(state.current, self.policy):
                        executor.merge(site, merge)
        except Exception as error:
            self.problem = str(error) or type(error).__name__

    def _work(self, pending: Sequence[tuple[int, int]]) -> None:
        """Carry steps out, as far as the allowance goes."""
        sites = [site for site in map(Site._make, pending) if self._commits >= self._retry.get(site, 0)]
        if not sites:
            return
        with owning() as owner:
            executor = Executor(self.context, owner)
            while sites:
                site = sites.pop(0)
                self._retry[site] = self._commits + RETRY_EVERY  # unless something comes of it
                if site.shard == MEMORY:
                    sites += self._flush(site, executor)
                else:
                    self._merge(site, executor)
        self.problem = None

    def _flush(self, memory: Site, executor: Executor) -> list[Site]:
        """Flush rows of a table; returns the sites where its files are to be merged then."""
        flushed = executor.flush(memory.table)
        tx = self.context.catalog.newest()
        if flushed and not has_much(tx, memory.table):  # else a tablet is being moved, or a shard is away
            self._retry.pop(memory, None)
        return self._crowded(tx, memory.table, flushed or ())

    def _merge(self, site: Site, executor: Executor) -> None:
        """Carry out the first merges at a site that the allowance is enough for, all of them when overdue."""
        planned = plan_sites(self.context, self.context.catalog.newest(), site.table, self.policy, site.shard)
        merges, depth = planned.get(site, ((), 0))
        for merge in merges:
            if merge.bytes > self._allowance and depth <= OVERDUE * self.policy.slot_fragments:
                break
            self._allowance -= merge.bytes
            gone = executor.merge(site, merge).gone
            self._gone += gone
            if gone:
                self._retry.pop(site, None)
        if self._gone >= GARBAGE_EVERY:
            self._gone = 0
            collect_dropped(self.context, site.table, GARBAGE_FILES)

    def _take_over_moves(self) -> None:
        """Carry out moves whose owners are gone, as far as the allowance goes."""
        tx = self.context.catalog.newest()
        dead = [move for move in moves_in(tx) if owner_is_gone(move, tx.times.expiry)]
        sizes = tablet_bytes(tx.state.placement, tx.state.fragments()) if dead else {}
        names = self.context.shard_names() if dead else {}
        for move in dead:
            if sizes.get(move.tablet, 0) <= self._allowance:
                self._allowance -= sizes.get(move.tablet, 0)
                with suppress(UsageError, TryAgain):  # another process was first
                    elasticity.move(self.context, move.tablet, names.get(move.target, ""))
