"""Upkeep by the process that writes or moves: bounded work after a commit, and after a plan of moves.

The transaction of a commit looks at the fragments at the shards that it wrote to. Where there are too many,
it enters a step of upkeep, and the work is done when the commit is over and visible, at all shards in one
transaction. So of many writers each step has one, and no transaction is made to say so.

How much a writer does is bounded by an *allowance* of bytes, which grows with each commit: more than that is
left to the commits that follow, or to a keeper. Moves whose process died are carried out within it, too.
After a plan of moves the small fragments that it has left are merged, so that reads cost what they did
before. An error here is none of the commit: it is kept for `status`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from elasticscan.base.errors import ElasticScanError, TryAgain, UsageError
from elasticscan.catalog import Tx
from elasticscan.metadata import MEMORY, StagedFragment
from elasticscan.store.context import Context
from elasticscan.store.context.following import Claim, Upkeep
from elasticscan.store.moves.balancing import tablet_bytes
from elasticscan.store.moves.elasticity import Elasticity
from elasticscan.store.moves.owners import new_owner, owner_is_gone, owning, retire
from elasticscan.store.moves.under_way import moves_in
from elasticscan.store.upkeep.collector import collect_dropped
from elasticscan.store.upkeep.executor import (
    Executor,
    Kept,
    Site,
    plan_at,
    states_of,
)
from elasticscan.store.upkeep.flushing import flush, has_much, pending_after_commit
from elasticscan.store.upkeep.planning import Merge, SiteState, depth_of, plan_scattered
from elasticscan.store.upkeep.policy import Policy
from elasticscan.store.upkeep.steps import claim, end_steps

# What a commit adds to the allowance: a fixed part, so that small commits keep up, and one by its own size,
# so that large ones take no many times as long; and what the allowance never exceeds.
COMMIT_BYTES, COMMIT_SHARE, MOST_BYTES = 2 << 20, 1.0, 256 << 20
# With so many times the fragments that a slot should have, work is done whatever the allowance is.
OVERDUE = 2
# After so many commits a step is tried again that failed, had nothing to do, or was too large.
RETRY_EVERY = 4
# After so many commits the moves under way are looked at, after the first one, too.
LOOK_EVERY = 16
# After so many fragments went away, files whose grace period is over are removed, at most so many.
GARBAGE_EVERY, GARBAGE_FILES = 256, 512


@dataclass(slots=True)
class _Entered:
    """The steps that a commit's transaction enters, and how many bytes the commit brings.

    The owner is one of its own, so that threads that share a store are told apart.
    """

    owner: str | None = None
    sites: list[Site] = field(default_factory=list)
    bytes: int = 0


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

    @contextmanager
    def follow(self) -> Iterator[Claim]:
        """See `Upkeep`."""
        entered = _Entered()

        def claim_pending(tx: Tx, table: int, staged: Collection[StagedFragment]) -> None:
            entered.sites.clear()  # of a transaction that was interrupted, and begins again
            entered.bytes = sum(fragment.bytes for fragment in staged)
            flushing = pending_after_commit(tx, table)
            if flushing is not None:
                self._claim(tx, Site(flushing, MEMORY), entered)
            self._claim_merges(tx, table, staged, entered)

        try:
            yield claim_pending
            self._commits += 1
            self._allowance = min(MOST_BYTES, self._allowance + COMMIT_BYTES + COMMIT_SHARE * entered.bytes)
            self._work(entered)
        finally:
            if entered.owner is not None:
                retire(entered.owner)

    def after_moves(self) -> None:
        """See `Upkeep`."""
        try:
            with self.context.catalog.reading() as tx:
                states = [here for table in tx.state.infos() for here in states_of(tx, table.id).items()]
            plans = {site: plan_scattered(state.current, self.policy) for site, state in states}
            if any(plans.values()):
                with owning() as owner:
                    with self.context.catalog.writing() as tx:
                        plans = {
                            at: some for at, some in plans.items() if some and claim(tx, at.target, owner)
                        }
                    Executor(self.context, owner, Kept()).merge(plans)
        except ElasticScanError as error:
            self.problem = str(error)

    def _claim_merges(
        self, tx: Tx, table: int, staged: Collection[StagedFragment], entered: _Entered
    ) -> None:
        """Enter the steps that are pending at the shards that files were written to."""
        shards = {fragment.shard for fragment in staged} - {MEMORY}
        for site, state in states_of(tx, table, shards).items() if shards else ():
            if state.is_pending(self.policy):
                self._claim(tx, site, entered)

    def _claim(self, tx: Tx, site: Site, entered: _Entered) -> None:
        entered.owner = entered.owner or new_owner()
        if self._commits >= self._retry.get(site, 0) and claim(tx, site.target, entered.owner):
            entered.sites.append(site)

    def _work(self, entered: _Entered) -> None:
        """Carry steps out, as far as the allowance goes."""
        try:
            if entered.sites and entered.owner is not None:
                executor = Executor(self.context, entered.owner, Kept())
                if entered.sites[0].shard == MEMORY:
                    self._flush(entered.sites.pop(0), entered)
                if entered.sites:
                    self._merge(executor, entered.sites)
                self.problem = None
            if self._commits % LOOK_EVERY == 1:
                self._take_over_moves()
        except ElasticScanError as error:
            self.problem = str(error)

    def _merge(self, executor: Executor, sites: Sequence[Site]) -> None:
        self._retry.update(dict.fromkeys(sites, self._commits + RETRY_EVERY))  # unless something comes of it
        plans = {site: list[Merge]() for site in sites}
        with self.context.catalog.reading() as tx:
            # The table that was written to, and one that was flushed.
            for table in sorted({site.table for site in sites}):
                states = states_of(tx, table).items()
                plans |= {site: self._affordable(tx, site, state) for site, state in states if site in plans}
        for site, gone in executor.merge(plans).items():
            self._retry.pop(site, None)
            self._gone += gone
        if self._gone >= GARBAGE_EVERY:
            self._gone = 0
            collect_dropped(self.context, sites[0].table, GARBAGE_FILES)

    def _flush(self, memory: Site, entered: _Entered) -> None:
        """Flush rows of a table, and enter the steps at shards where its files are to be merged then."""
        assert entered.owner is not None, "claiming a site makes an owner"
        self._retry[memory], flushed = self._commits + RETRY_EVERY, None
        try:
            flushed = flush(self.context, memory.table)
        finally:
            with self.context.catalog.writing() as tx:
                end_steps(tx, {memory.target: entered.owner})
                if flushed is not None:
                    self._claim_merges(tx, memory.table, flushed, entered)
                    if not has_much(tx, memory.table):  # else a tablet is being moved, or a shard is away
                        self._retry.pop(memory, None)

    def _affordable(self, tx: Tx, site: Site, state: SiteState) -> list[Merge]:
        """Plan at a site; returns the first merges that the allowance is enough for, all when overdue."""
        chosen = list[Merge]()
        overdue = depth_of(state.current, self.policy) > OVERDUE * self.policy.slot_fragments
        for merge in plan_at(self.context, tx, site, state, self.policy):
            if merge.bytes > self._allowance and not overdue:
                break
            self._allowance -= merge.bytes
            chosen.append(merge)
        return chosen

    def _take_over_moves(self) -> None:
        """Carry out moves whose owners are gone, as far as the allowance goes."""
        with self.context.catalog.reading() as tx:
            dead = [move for move in moves_in(tx) if owner_is_gone(move, tx.times.expiry)]
            sizes = tablet_bytes(tx.state.placement, tx.state.fragments()) if dead else {}
        names = self.context.shard_names() if dead else {}
        for move in dead:
            if sizes.get(move.tablet, 0) <= self._allowance:
                self._allowance -= sizes.get(move.tablet, 0)
                with suppress(UsageError, TryAgain):  # another process was first
                    Elasticity(self.context).move(move.tablet, names.get(move.target, ""))
