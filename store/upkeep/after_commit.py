"""Upkeep by the process that writes: bounded work after a commit.

The transaction of a commit counts the fragments at the shards that it wrote to, which costs one small query.
Where there are too many, it enters a step of upkeep under its own name, and the work is done when the commit
is over and visible, at all shards in one transaction. So of many writers each step has one, and no
transaction is made to say so.

How much a writer does is bounded by an *allowance* of bytes, which grows with each commit: more than that is
left to the commits that follow, or to a keeper. Moves whose process died are carried out within it, too. An
error here is none of the commit: it is kept for `status`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock

from elasticscan.base.errors import ElasticScanError, TryAgain, UsageError
from elasticscan.catalog import Tx
from elasticscan.metadata import MEMORY, StagedFragment
from elasticscan.store.context import Context
from elasticscan.store.context.following import Claim
from elasticscan.store.moves.elasticity import Elasticity
from elasticscan.store.moves.owners import new_owner, owner_is_gone, retire
from elasticscan.store.upkeep.collector import collect_dropped
from elasticscan.store.upkeep.compaction import Merged, Merging, plan_merge
from elasticscan.store.upkeep.flushing import due_after_commit, flush, has_much
from elasticscan.store.upkeep.steps import MergePlan, Site, carry_out_together, claim, look_at, written_of
from elasticscan.upkeep import Merge, Policy, Written, depth_of, tablet_bytes

# What a commit adds to the allowance: a fixed part, so that small commits keep up, and one by its own size,
# so that large ones take no many times as long; and what the allowance never exceeds.
COMMIT_BYTES, COMMIT_SHARE, MOST_BYTES = 2 << 20, 1.0, 256 << 20
# With so many times the fragments that a slot should have, work is done whatever the allowance is.
OVERDUE = 2
# After so many commits a merge that was too large for the allowance is looked at again.
PATIENCE = 4
# After so many commits a site with more fragments than a slot should have is looked at in any case; so are
# the moves under way, after the first commit, too.
LOOK_EVERY = 16
# After so many fragments went away, files whose grace period is over are removed, at most so many.
GARBAGE_EVERY, GARBAGE_FILES = 256, 512


@dataclass(slots=True)
class _Work:
    """The steps that are due at a site.

    Attributes:
        merges: those to come.
        depth, count: of fragments, as `depth_of` and the catalog count them.
        is_enough: the allowance is enough for some of what is due.
        ended: the step is over.
    """

    site: Site
    look: MergePlan
    merges: list[Merge]
    depth: int
    count: int
    is_enough: bool
    ended: bool = False


@dataclass(slots=True)
class AfterCommit:
    """The upkeep that one open store does after its commits; threads may share it."""

    context: Context
    policy: Policy = field(default_factory=Policy)
    mode: str = "auto"
    problem: str | None = None
    _allowance: float = MOST_BYTES / 4
    # A process that commits once and ends has its first merge to do it with.
    _gone: int = GARBAGE_EVERY
    # How many fragments a site may have, and until which commit, before it is looked at again: others may
    # have merged some of the irrelevant ones.
    _patience: dict[Site, tuple[int, int]] = field(default_factory=dict)
    _commits: int = 0
    # One owner for all steps of a process, and the sites where its threads are at work.
    _owner: str | None = None
    _busy: set[Site] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def follow(self) -> Iterator[Claim]:
        """See `Upkeep`."""
        sites: list[Site] = []
        self._commits += 1

        def claim_due(tx: Tx, table: int, staged: Collection[StagedFragment]) -> None:
            self._busy.difference_update(sites)  # of a transaction that was interrupted, and begins again
            sites.clear()
            self._claim_due(tx, table, staged, sites)

        try:
            yield claim_due
            self._work(sites)
        finally:
            self._busy.difference_update(sites)

    def _claim_due(self, tx: Tx, table: int, staged: Collection[StagedFragment], sites: list[Site]) -> None:
        """Enter the steps that are due at the shards that a commit wrote to; `sites` gets where."""
        size = sum(fragment.bytes for fragment in staged)
        self._allowance = min(MOST_BYTES, self._allowance + COMMIT_BYTES + COMMIT_SHARE * size)
        flushing = due_after_commit(tx, table)
        if flushing is not None:
            memory = Site(flushing, MEMORY)
            if self._commits > self._patience.get(memory, (0, 0))[1]:
                self._claim(tx, memory, sites)
        shards = {fragment.shard for fragment in staged} - {MEMORY}
        counts = tx.fragment_counts(table) if shards else {}
        for site in (Site(table, shard) for shard in sorted(shards)):
            count, most = counts.get(site.shard, 0), self.policy.slot_fragments
            limit, until = self._patience.get(site, (most, 0))
            is_due = count > limit or (count > most and self._commits > until)
            if is_due:
                self._claim(tx, site, sites)

    def _claim(self, tx: Tx, site: Site, sites: list[Site]) -> None:
        if self._take(site):
            sites.append(site)
            if not claim(tx, site.target, self._mine):
                self._busy.discard(sites.pop())

    def _take(self, site: Site) -> bool:
        """Take a site for this thread; false while another one is at work there."""
        with self._lock:
            self._owner = self._owner or new_owner()
            free = site not in self._busy
            self._busy.add(site)
            return free

    @property
    def _mine(self) -> str:
        assert self._owner is not None, "claiming a site makes an owner"
        return self._owner

    def close(self) -> None:
        """End all steps of this store: what is left undone is anybody's."""
        if self._owner is not None:
            retire(self._owner)
        self._owner = None

    def _work(self, sites: list[Site]) -> None:
        """Carry steps out, as far as the allowance goes."""
        is_due = bool(sites)
        try:
            if sites and sites[0].shard == MEMORY:
                self._flush(sites.pop(0), sites)
            if sites:
                self._merge_at(sites)
            if sites and self._gone >= GARBAGE_EVERY:
                self._gone = 0
                collect_dropped(self.context, sites[0].table, GARBAGE_FILES)
            if self._commits % LOOK_EVERY == 1:
                self._take_over_moves()
            self.problem = None if is_due else self.problem
        except ElasticScanError as error:
            self.problem = str(error)

    def _flush(self, memory: Site, sites: list[Site]) -> None:
        """Flush rows of a table; `sites` gets the shards where its files are to be merged then."""
        before = list(sites)

        def claim_due(tx: Tx, staged: Collection[StagedFragment]) -> None:
            self._busy.difference_update(set(sites) - set(before))  # of a transaction that begins again
            sites[:] = before
            if not before or before[0].table == memory.table:  # merges are of one table at a time
                self._claim_due(tx, memory.table, staged, sites)

        try:
            flush(self.context, memory.table, claim_due)
        finally:
            self._busy.discard(memory)
            with self.context.catalog.writing() as tx:
                tx.end_step(memory.target, self._mine)
                if has_much(tx, memory.table):  # a tablet is being moved, or a shard is away
                    self._patience[memory] = (0, self._commits + LOOK_EVERY)

    def _take_over_moves(self) -> None:
        """Carry out moves whose owners are gone, as far as the allowance goes."""
        with self.context.catalog.reading() as tx:
            dead = [move for move in tx.moves() if owner_is_gone(move, tx.times.expiry)]
            sizes = tablet_bytes(tx.placement(), tx.fragments()) if dead else {}
            names = {shard.id: shard.name for shard in tx.shards()} if dead else {}
        for move in dead:
            if sizes.get(move.tablet, 0) <= self._allowance:
                self._allowance -= sizes.get(move.tablet, 0)
                with suppress(UsageError, TryAgain):  # another process was first
                    Elasticity(self.context).move(move.tablet, names.get(move.target, ""))

    def _merge_at(self, sites: Sequence[Site]) -> None:
        """Merge at the shards of one table: what is due at each is planned, and becomes visible, together."""
        table = sites[0].table
        with self.context.catalog.reading() as tx:
            written = written_of(tx, table)
            works = [self._plan(tx, site, written) for site in sites]
            mergings = self._begin(tx, works)
        while mergings:
            ends = {work.site: self._mine for work in works if len(work.merges) == 1}
            merged = carry_out_together(self.context, mergings, ends)
            for work in works:
                if work.merges:
                    self._count(work, merged.get(work.site, Merged()))
            mergings = []
            if any(work.merges for work in works):
                with self.context.catalog.reading() as tx:
                    mergings = self._begin(tx, works)
        unended = []
        for work in works:
            waits = max(0, self.policy.slot_fragments - work.depth) if work.is_enough else PATIENCE
            self._patience[work.site] = work.count + waits, self._commits + LOOK_EVERY
            if not work.ended:
                unended.append(work.site)
        if unended:
            with self.context.catalog.writing() as tx:
                for site in unended:
                    tx.end_step(site.target, self._mine)

    def _plan(self, tx: Tx, site: Site, written: Written) -> _Work:
        look = look_at(self.context, tx, site, self.policy, written=written)
        depth = depth_of(look.parts, self.policy)
        merges = self._affordable(look.merges, overdue=depth > OVERDUE * self.policy.slot_fragments)
        self._allowance -= sum(merge.bytes for merge in merges)
        return _Work(site, look, merges, depth, look.fragments, bool(merges) or not look.merges)

    def _begin(self, tx: Tx, works: Sequence[_Work]) -> list[tuple[Site, Merging]]:
        """Return the next merge at each site, without merges that are not worth it any more."""
        begun = []
        for work in works:
            table = work.look.table
            while work.merges and table is not None:
                merge = work.merges[0]
                merging = plan_merge(self.context, tx, table, work.site.shard, merge.fragments, merge.slots)
                if merging is not None:
                    begun.append((work.site, merging))
                    break
                del work.merges[0]
        return begun

    def _count(self, work: _Work, merged: Merged) -> None:
        merge = work.merges.pop(0)
        self._gone += len(merged.gone)
        work.count -= len(merged.gone) - merged.added
        if work.look.is_of_newest(merge):
            work.depth -= max(0, len(merged.gone) - 1)
        work.ended = not work.merges and merged != Merged()

    def _affordable(self, merges: Sequence[Merge], overdue: bool) -> list[Merge]:
        """Return the first merges that the allowance is enough for; all when they are overdue."""
        chosen, left = [], self._allowance
        for merge in merges:
            if merge.bytes > left and not overdue:
                break
            chosen.append(merge)
            left -= merge.bytes
        return chosen
