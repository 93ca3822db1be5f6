"""The executor of upkeep: carries steps out, each owned in the catalog by the process that works at it.

merge/<table>/<shard>   merges of a table's fragments at a shard
flush/<table>           a flush of its rows in the log
balance                 splits, joins and moves of tablets
garbage                 a collection of garbage

Any number of processes may be at work, those that write and those that do nothing else. A step has one owner,
and what it changes becomes visible in one transaction. So a process that is killed leaves the store as it was
before the step, or after it, and files that garbage collection removes; the next process takes the step over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from elasticscan.catalog import Tx
from elasticscan.metadata import MEMORY, Fragment, IndexRun, floor_at
from elasticscan.store.context import Context
from elasticscan.store.upkeep.compaction import Merged, Merging, Pace, merge_together, plan_merge
from elasticscan.store.upkeep.flushing import FLUSH
from elasticscan.store.upkeep.horizons import horizon_of
from elasticscan.store.upkeep.planning import Merge, SiteState, is_current, plan_site
from elasticscan.store.upkeep.policy import Policy
from elasticscan.store.upkeep.steps import claim, end_steps

BALANCE, GARBAGE = "balance", "garbage"
_MERGE = "merge"

OnStep = Callable[[str], None]


@dataclass(slots=True)
class Kept:
    """The work of a round of upkeep.

    Attributes:
        flushes: how many tables had rows copied from the log to files.
        merges: how many, over `fragments_gone` fragments.
        bytes_read, bytes_written: by merges.
        splits, joins, moves: of tablets.
        files_removed: garbage.
        problems: what could not be done, and why; all else was done.
    """

    flushes: int = 0
    merges: int = 0
    fragments_gone: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    splits: int = 0
    joins: int = 0
    moves: int = 0
    files_removed: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Return how many steps were carried out."""
        return self.flushes + self.merges + self.splits + self.joins + self.moves + (self.files_removed > 0)


@dataclass(frozen=True, slots=True)
class Site:
    """One table at one shard: what merges work at; at `MEMORY`, what a flush works at."""

    table: int
    shard: int

    @property
    def target(self) -> str:
        return f"{FLUSH}/{self.table}" if self.shard == MEMORY else f"{_MERGE}/{self.table}/{self.shard}"

    @classmethod
    def of(cls, target: str) -> Site | None:
        """Return what a step merges; None for any other step."""
        kind, _, rest = target.partition("/")
        table, _, shard = rest.partition("/")
        return cls(int(table), int(shard)) if kind == _MERGE else None


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


class Executor:
    """Carries out the steps of one owner.

    Args:
        context: the store.
        owner: as from `owning`.
        kept: gets what was done.
        pace: called with the number of bytes just merged; it may sleep.
        on_step: called before each step with what it is.
    """

    def __init__(
        self,
        context: Context,
        owner: str,
        kept: Kept,
        pace: Pace | None = None,
        on_step: OnStep = lambda _: None,
    ) -> None:
        self._context, self.owner, self.kept = context, owner, kept
        self._pace, self.on_step = pace, on_step

    @contextmanager
    def step(self, target: str) -> Iterator[bool]:
        """Own a step for the length of a block; false when another process is at it."""
        with self._context.catalog.writing() as tx:
            mine = claim(tx, target, self.owner)
        try:
            yield mine
        finally:
            if mine:
                self.end([target])

    def end(self, targets: Collection[str]) -> None:
        """End steps, as far as no other owner has taken them over."""
        with self._context.catalog.writing() as tx:
            end_steps(tx, dict.fromkeys(targets, self.owner))

    def merge(self, plans: Mapping[Site, Sequence[Merge]]) -> Counter[Site]:
        """Carry out merges at several sites, of each one after the other, by steps that the owner has.

        What is merged at once becomes visible in one transaction. The steps are over then, also on an error.
        Returns how many fragments went, by the sites where something was merged. At others a process came
        first, or a mover copies.
        """
        left, running, done = {site: [*merges] for site, merges in plans.items()}, set(plans), Counter[Site]()
        try:
            while mergings := self._begin(left):
                last = {site for site in mergings if len(left[site]) == 1}
                for site, merged in self._merge_together(mergings, last).items():
                    if merged == Merged():
                        left[site] = []
                        continue
                    del left[site][0]
                    done[site] += len(merged.gone)
                    running -= {site} & last
            return done
        finally:
            if running:
                self.end([site.target for site in running])

    def _begin(self, left: Mapping[Site, list[Merge]]) -> dict[Site, Merging]:
        """Return the next merge at each site, without merges that are not worth it any more."""
        begun = dict[Site, Merging]()
        with self._context.catalog.reading() as tx:
            for site, merges in left.items():
                while merges and site not in begun:
                    fragments, slots = merges[0].fragments, merges[0].slots
                    merging = plan_merge(self._context, tx, site.table, site.shard, fragments, slots)
                    if merging is None:
                        del merges[0]
                    else:
                        begun[site] = merging
        return begun

    def _merge_together(self, mergings: Mapping[Site, Merging], last: Collection[Site]) -> dict[Site, Merged]:
        """Carry out a merge at each of some sites; the steps at the `last` ones are over with it."""
        for merging in mergings.values():
            self.on_step(f"merge {len(merging.fragments)} fragments of {merging.table.name!r}")
        self._context.checkpoint("step begun")
        planned = {site.target: merging for site, merging in mergings.items()}
        owners = {site.target: self.owner for site in last}
        merged = merge_together(self._context, planned, self._pace, owners)
        for of in merged:
            self.kept.merges += of != Merged()
            self.kept.fragments_gone += len(of.gone) - of.added
            self.kept.bytes_read += of.bytes_read
            self.kept.bytes_written += of.bytes_written
        return dict(zip(mergings, merged, strict=True))
