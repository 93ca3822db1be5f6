"""Upkeep by the process that writes or moves: bounded work after a commit, and after a plan of moves.

After a commit, its writer counts the fragments at the shards that it wrote to. If there are too many, it
carries out steps of upkeep. If several writers find the same step, one of them owns it.

The work of a writer is bounded by an *allowance* of bytes, which grows with each commit. More work is left to
later commits or a keeper. Moves whose process died are carried out within the allowance, too. After a plan of
moves, the small fragments that it left are merged, so that reads are as fast as before. An error here does
not fail the commit: `status` shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from contextlib import suppress
from dataclasses import dataclass, field

from elasticscan.base.errors import TryAgain, UsageError
from elasticscan.catalog import StoreState
from elasticscan.metadata import MEMORY, StagedFragment
from elasticscan.store.context import Context, Upkeep
from elasticscan.store.moves import elasticity
from elasticscan.store.moves.balancing import tablet_bytes
from elasticscan.store.moves.owners import moves_in, owner_is_gone, owning
from elasticscan.store.upkeep.collector import collect_dropped
from elasticscan.store.upkeep.executor import Executor, Site, has_much, pending_flush, plan_sites, states_of
from elasticscan.store.upkeep.planning import Policy, plan_scattered

# A commit adds these bytes to the allowance, in addition to its own size; and the maximum of the allowance.
COMMIT_BYTES, MOST_BYTES = 2 << 20, 256 << 20
# If a slot has more than so many times the fragments of the policy, merges ignore the allowance.
OVERDUE = 2
# A step that failed, had nothing to do or was too large is tried again after so many commits.
RETRY_EVERY = 4
# Dead owners of moves are searched after the first commit, and every so many commits after it.
LOOK_EVERY = 16
# After so many replaced fragments, at most so many dropped files are deleted, if their grace period is over.
GARBAGE_EVERY, GARBAGE_FILES = 256, 512


@dataclass
class AfterCommit(Upkeep):
    """The upkeep of one open store after its commits; threads may share it."""

    context: Context
    policy: Policy = field(default_factory=Policy)
    mode: str = "auto"
    problem: str | None = None
    _allowance: float = MOST_BYTES / 4
    # At the limit: a process that commits only once deletes dropped files after its first merge.
    _gone: int = GARBAGE_EVERY
    _commits: int = 0
    # The value of `_commits` until which a step is not tried again.
    _retry: dict[Site, int] = field(default_factory=dict)

    def after_commit(self, state: StoreState | None, table: int, staged: Collection[StagedFragment]) -> None:
        """See `Upkeep`."""
        self._commits += 1
        allowed = self._allowance + COMMIT_BYTES + sum(fragment.bytes for fragment in staged)
        self._allowance = min(MOST_BYTES, allowed)
        try:
            if state is not None:
                self._work(state, table, {fragment.shard for fragment in staged} - {MEMORY})
            if self._commits % LOOK_EVERY == 1:
                self._take_over_moves()
        except Exception as error:  # of any kind: the commit has succeeded
            self.problem = str(error) or type(error).__name__

    def after_moves(self) -> None:
        """See `Upkeep`."""
        try:
            state = self.context.state()
            states = [site for table in state.infos() for site in states_of(state, table.id).items()]
            with owning() as owner:
                executor = Executor(self.context, owner)
                for site, fragments in states:
                    for merge in plan_scattered(fragments.current, self.policy):
                        executor.carry_out(site, merge)
        except Exception as error:
            self.problem = str(error) or type(error).__name__

    def _work(self, state: StoreState, table: int, shards: Set[int]) -> None:
        """Carry out flushes, and merges at the shards to which a commit wrote, that are pending now."""
        sites = [*pending_flush(state, table), *self._crowded(state, table, shards)]
        sites = [site for site in sites if self._commits >= self._retry.get(site, 0)]
        if not sites:
            return
        with owning() as owner:
            executor = Executor(self.context, owner)
            while sites:
                site = sites.pop(0)
                self._retry[site] = self._commits + RETRY_EVERY  # unless the step succeeds
                if site.shard != MEMORY:
                    self._merge(site, executor)
                elif executor.carry_out(site).gone:
                    state = self.context.state()
                    sites += self._crowded(state, site.table)
                    if not has_much(state, site.table):  # else a tablet is being moved, or a shard is away
                        self._retry.pop(site, None)
        self.problem = None

    def _crowded(self, state: StoreState, table: int, shards: Set[int] | None = None) -> list[Site]:
        """Return the sites of a table, at the given shards or at all, that have too many fragments."""
        sites = states_of(state, table, shards) if shards or shards is None else {}
        return [site for site, fragments in sites.items() if fragments.is_pending(self.policy)]

    def _merge(self, site: Site, executor: Executor) -> None:
        """Carry out merges at a site while the allowance lasts; overdue merges in any case."""
        planned = plan_sites(self.context, self.context.catalog.newest(), site.table, self.policy, site.shard)
        for merge, depth in ((merge, depth) for merges, depth in planned.values() for merge in merges):
            if merge.bytes > self._allowance and depth <= OVERDUE * self.policy.slot_fragments:
                break
            self._allowance -= merge.bytes
            if gone := executor.carry_out(site, merge).gone:
                self._gone += gone
                self._retry.pop(site, None)
        if self._gone >= GARBAGE_EVERY:
            self._gone = 0
            collect_dropped(self.context, site.table, GARBAGE_FILES)

    def _take_over_moves(self) -> None:
        """Carry out moves whose owners are gone, while the allowance lasts."""
        tx = self.context.catalog.newest()
        for move in (move for move in moves_in(tx) if owner_is_gone(move, tx.times.expiry)):
            size = tablet_bytes(tx.state.placement, tx.state.fragments()).get(move.tablet, 0)
            if size <= self._allowance:
                self._allowance -= size
                with suppress(UsageError, TryAgain):  # another process was first
                    target = self.context.shard_names().get(move.target, "")
                    elasticity.move(self.context, move.tablet, target)
