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

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from elasticscan.catalog import Tx, retry_interrupted
from elasticscan.metadata import MEMORY, StagedFragment, floor_at
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import by_shard
from elasticscan.store.moves.owners import claim, end_step
from elasticscan.store.upkeep.compaction import Merged, plan_merge
from elasticscan.store.upkeep.flushing import FLUSH, flush
from elasticscan.store.upkeep.horizons import horizon_of
from elasticscan.store.upkeep.planning import (
    Merge,
    Policy,
    SiteState,
    depth_of,
    is_current,
    plan_site,
)

BALANCE, GARBAGE = "balance", "garbage"


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
        return f"{FLUSH}/{self.table}" if self.shard == MEMORY else f"merge/{self.table}/{self.shard}"


def states_of(tx: Tx, table: int, shards: Collection[int] | None = None) -> dict[Site, SiteState]:
    """Return the state of a table at some shards, or at all that have fragments of it."""
    floor, runs = floor_at(tx.state.overwrites(table), tx.state.commit), tx.state.runs(table)
    fragments = (each for each in tx.state.fragments(table) if shards is None or each.shard in shards)
    here = sorted(by_shard(fragments).items())
    return {Site(table, shard): SiteState(own, runs, floor) for shard, own in here}


def plan_sites(
    context: Context, tx: Tx, table_id: int, policy: Policy, shard: int | None = None, tidy: bool = False
) -> dict[Site, tuple[tuple[Merge, ...], int]]:
    """Plan the merges of a table at a shard, or at all, and from how many fragments the worst slot is read.

    `tidy` as for `plan_merges`. The horizon is looked at only where there is history.
    """
    table, horizon = tx.state.info(table_id), 0
    if table is None:
        return {}
    states = states_of(tx, table_id, None if shard is None else [shard])
    if not all(is_current(f, state.floor) for state in states.values() for f in state.fragments):
        horizon = horizon_of(tx, table_id, context.retention_of(table))
    oldest = floor_at(tx.state.overwrites(table_id), horizon)
    return {
        site: (plan_site(state, horizon, oldest, policy, tidy), depth_of(state.current, policy))
        for site, state in states.items()
    }


class Executor:
    """Carries out the steps of one owner.

    Args:
        context: the store.
        owner: as from `owning`.

    Attributes:
        done: what was done.
    """

    def __init__(self, context: Context, owner: str) -> None:
        self._context, self._owner = context, owner
        self.done = RoundDone()

    @contextmanager
    def step(self, target: str) -> Iterator[bool]:
        """Own a step for the length of a block; false when another process is at it."""
        mine = self._claim(target)
        try:
            if mine:
                self._context.checkpoint("step begun")
            yield mine
        finally:
            if mine:
                self._end(target)

    @retry_interrupted
    def _claim(self, target: str) -> bool:
        with self._context.catalog.leasing() as tx:
            return claim(tx, target, self._owner)

    @retry_interrupted
    def _end(self, target: str) -> None:
        with self._context.catalog.leasing() as tx:
            end_step(tx, target, self._owner)

    def flush(self, table: int) -> list[StagedFragment] | None:
        """Flush a table's rows; returns the files, None where no row left the log."""
        with self.step(Site(table, MEMORY).target) as mine:
            files = flush(self._context, table) if mine else None
        self.done.flushes += files is not None
        return files

    @retry_interrupted
    def merge(self, site: Site, merge: Merge) -> Merged:
        """Carry out a merge; nothing where it is not worth it any more, or another process is at the site."""
        tx = self._context.catalog.newest()
        merging, merged = plan_merge(self._context, tx, *site, merge.fragments, merge.slots), Merged()
        if merging is not None:
            with self.step(site.target) as mine:
                if mine:
                    merged = merging.carry_out()
        self.done.merges += merged != Merged()
        return merged
