"""The executor of upkeep: carries steps out, each owned in the catalog by the process that works at it.

Steps, by the name of their lease:

merge/<table>/<shard>   a merge of a table's fragments at a shard
flush/<table>           a flush of its rows in the log
balance                 splits, joins and moves of tablets
garbage                 a collection of garbage

Any number of processes may be at work, writers and keepers. A step is a lease without an end, entered before
it begins, so that two never do the same, and what it changes becomes visible in one transaction. So a process
that is killed leaves the store as it was before the step, or after it, and files that garbage collection
removes; the next process takes the step over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from elasticscan.catalog import Tx, retry_interrupted
from elasticscan.metadata import MEMORY, Fragment, IndexRun, StagedFragment, floor_at
from elasticscan.store.context import Context
from elasticscan.store.moves.owners import OwnedStep, owner_is_gone
from elasticscan.store.upkeep.compaction import Merged, Pace, plan_merge
from elasticscan.store.upkeep.flushing import FLUSH, flush
from elasticscan.store.upkeep.horizons import horizon_of
from elasticscan.store.upkeep.planning import Merge, Policy, SiteState, depth_of, is_current, plan_site

BALANCE, GARBAGE = "balance", "garbage"
_MERGE = "merge"

OnStep = Callable[[str], None]


def steps_in(tx: Tx) -> tuple[OwnedStep, ...]:
    """Return all steps under way, the oldest first."""
    found = (lease.value for lease in tx.leases(OwnedStep))
    return tuple(sorted(found, key=lambda step: (step.started_at, step.target)))


def claim(tx: Tx, target: str, owner: str) -> bool:
    """Begin a step, or take it over, unless a live owner is at it."""
    lease, at = tx.lease(OwnedStep, target), tx.times.stamp
    if lease is not None and lease.value.owner != owner and not owner_is_gone(lease.value, tx.times.expiry):
        return False
    tx.put_lease(target, OwnedStep(target, owner, at, at))
    return True


def end_step(tx: Tx, target: str, owner: str) -> None:
    """End the step of an owner, unless another one has taken it over."""
    lease = tx.lease(OwnedStep, target)
    if lease is not None and lease.value.owner == owner:
        tx.remove_lease(OwnedStep, target)


@dataclass(slots=True)
class RoundDone:
    """The work of a round of upkeep.

    Attributes:
        flushes: how many tables had rows copied from the log to files.
        merges: of fragments.
        splits, joins, moves: of tablets.
        files_removed: garbage.
        problems: what could not be done, and why; all else was done.
    """

    flushes: int = 0
    merges: int = 0
    splits: int = 0
    joins: int = 0
    moves: int = 0
    files_removed: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Return how many steps were carried out."""
        return self.flushes + self.merges + self.splits + self.joins + self.moves + (self.files_removed > 0)


class Site(NamedTuple):
    """One table at one shard: what merges work at; at `MEMORY`, what a flush works at."""

    table: int
    shard: int

    @property
    def target(self) -> str:
        return f"{FLUSH}/{self.table}" if self.shard == MEMORY else f"{_MERGE}/{self.table}/{self.shard}"


def states_of(tx: Tx, table: int, shards: Collection[int] | None = None) -> dict[Site, SiteState]:
    """Return the state of a table at some shards, or at all that have fragments of it."""
    floor, at = floor_at(tx.state.overwrites(table), tx.state.commit), dict[int, int]()
    found: dict[int, tuple[list[Fragment], list[IndexRun]]] = {}
    for fragment in tx.state.fragments(table):
        if shards is None or fragment.shard in shards:
            found.setdefault(fragment.shard, ([], []))[0].append(fragment)
            at[fragment.id] = fragment.shard
    for run in tx.state.runs(table) if at else ():
        if run.fragment in at:
            found[at[run.fragment]][1].append(run)
    return {Site(table, shard): SiteState(*here, floor) for shard, here in sorted(found.items())}


def plan_at(
    context: Context, tx: Tx, site: Site, state: SiteState, policy: Policy, tidy: bool = False
) -> tuple[Merge, ...]:
    """Plan the merges at a site; history is looked at only where there is some."""
    table, horizon = tx.state.info(site.table), 0
    if table is None:
        return ()
    if not all(is_current(fragment, state.floor) for fragment in state.fragments):
        horizon = horizon_of(tx, table.id, context.retention_of(table))
    oldest = floor_at(tx.state.overwrites(table.id), horizon)
    return plan_site(state, horizon, oldest, policy, tidy)


def look_at(
    context: Context, tx: Tx, site: Site, policy: Policy, tidy: bool = False
) -> tuple[tuple[Merge, ...], int]:
    """Return the merges that are planned at a site, and from how many fragments its worst slot is read."""
    state = states_of(tx, site.table, [site.shard]).get(site)
    if state is None:
        return (), 0
    return plan_at(context, tx, site, state, policy, tidy), depth_of(state.current, policy)


class Executor:
    """Carries out the steps of one owner.

    Args:
        context: the store.
        owner: as from `owning`.
        done: gets what was done.
        pace: called with the number of bytes just merged; it may sleep.
        on_step: called before each step with what it is.
    """

    def __init__(
        self,
        context: Context,
        owner: str,
        done: RoundDone,
        pace: Pace | None = None,
        on_step: OnStep = lambda _: None,
    ) -> None:
        self._context, self.owner, self.done = context, owner, done
        self._pace, self.on_step = pace, on_step

    @contextmanager
    def step(self, target: str) -> Iterator[bool]:
        """Own a step for the length of a block; false when another process is at it."""
        mine = self._claim(target)
        try:
            yield mine
        finally:
            if mine:
                self.end(target)

    @retry_interrupted
    def _claim(self, target: str) -> bool:
        with self._context.catalog.leasing() as tx:
            return claim(tx, target, self.owner)

    @retry_interrupted
    def end(self, target: str) -> None:
        """End a step, unless another owner has taken it over."""
        with self._context.catalog.leasing() as tx:
            end_step(tx, target, self.owner)

    def flush(self, table: int) -> list[StagedFragment] | None:
        """Flush a table's rows; returns the files, None where no row left the log."""
        with self.step(Site(table, MEMORY).target) as mine:
            if not mine:
                return None
            info = self._context.state().info(table)
            self.on_step(f"flush {table if info is None else info.name!r}")
            files = flush(self._context, table)
            self.done.flushes += files is not None
            return files

    @retry_interrupted
    def merge(self, site: Site, merge: Merge) -> Merged:
        """Carry out a merge; nothing where it is not worth it any more, or another process is at the site."""
        with self._context.catalog.reading() as tx:
            merging = plan_merge(self._context, tx, *site, merge.fragments, merge.slots)
        if merging is None or not self._claim(site.target):
            return Merged()
        self.on_step(f"merge {len(merging.fragments)} fragments of {merging.table.name!r}")
        try:
            self._context.checkpoint("step begun")
            # The step ends in the transaction that swaps the files in, so that no one finds it between.
            merged = merging.carry_out(self._pace, lambda tx: end_step(tx, site.target, self.owner))
        except BaseException:
            self.end(site.target)
            raise
        self.done.merges += merged != Merged()
        return merged
