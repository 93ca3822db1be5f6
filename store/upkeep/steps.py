"""Steps of upkeep as the catalog knows them: each has a target, and one owner at a time.

merge/<table>/<shard>   merges of a table's fragments at a shard
flush/<table>           a flush of its rows in the log
balance                 splits, joins and moves of tablets
garbage                 a collection of garbage
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from elasticscan.catalog import Tx
from elasticscan.metadata import MEMORY, Fragment, IndexRun, TableInfo
from elasticscan.store.context import Context
from elasticscan.store.moves.owners import owner_is_gone
from elasticscan.store.upkeep.compaction import Merged, Merging, merge_fragments, merge_together
from elasticscan.store.upkeep.flushing import FLUSH
from elasticscan.topology import SlotSet
from elasticscan.upkeep import Merge, Part, Policy, Written, parts_of, plan_history, plan_merges

BALANCE, GARBAGE = "balance", "garbage"
_MERGE = "merge"

Pace = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Site:
    """One table at one shard: what merges work at; at `MEMORY`, what a flush works at."""

    table: int
    shard: int

    @property
    def target(self) -> str:
        return f"{FLUSH}/{self.table}" if self.shard == MEMORY else f"{_MERGE}/{self.table}/{self.shard}"


def site_of(target: str) -> Site | None:
    """Return what a step merges; None for any other step."""
    kind, _, rest = target.partition("/")
    table, _, shard = rest.partition("/")
    return Site(int(table), int(shard)) if kind == _MERGE else None


def claim(tx: Tx, target: str, owner: str) -> bool:
    """Begin a step, unless a live owner is at it."""
    step = tx.step(target)
    if step is not None and step.owner != owner and not owner_is_gone(step, tx.times.expiry):
        return False
    tx.enter_step(target, owner)
    return True


def written_of(tx: Tx, table: int) -> Written:
    """Return the bytes that a table's commits brought, and the bytes that its merges wrote."""
    done = tx.done([Site(table, shard).target for shard in tx.shard_roots()])
    return Written(tx.committed_bytes(table), sum(at.bytes_written for at in done))


def merged_by_table(tx: Tx) -> Counter[int]:
    """Return the bytes that the merges of each table wrote."""
    size = Counter[int]()
    for done in tx.done():
        if (site := site_of(done.target)) is not None:
            size[site.table] += done.bytes_written
    return size


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The fragments that newest rows are read from at a site, and what is to be merged there.

    `table` is None when it was dropped; `fragments` counts all, also those of history.
    """

    table: TableInfo | None
    parts: tuple[Part, ...]
    merges: tuple[Merge, ...]
    fragments: int = 0

    def is_of_newest(self, merge: Merge) -> bool:
        """Return whether a merge makes slots be read from fewer fragments; false for history."""
        return any(part.id in merge.fragments for part in self.parts)


def look_at(
    context: Context,
    tx: Tx,
    site: Site,
    policy: Policy,
    tidy: bool = False,
    written: Written | None = None,
) -> MergePlan:
    """Look at a site, and plan; `written` as from `written_of`, where it was looked up before."""
    table = tx.table_by_id(site.table)
    if table is None:
        return MergePlan(None, (), ())
    fragments = tx.fragments(table=site.table, shard=site.shard)
    runs = tx.runs(site.table) if tx.indexes(site.table) else ()

    def horizon() -> int:
        return tx.horizon(site.table, context.retention_of(table))

    return _planned(table, fragments, runs, policy, tidy, written or written_of(tx, site.table), horizon)


class Due:
    """The sites of a store where something is to be merged, by one look at the catalog for all of them.

    Attributes:
        sites: these, table by table.
        written: what a table's commits and merges wrote, by its id.
    """

    def __init__(self, context: Context, tx: Tx, fragments: Sequence[Fragment]) -> None:
        self.sites: list[Site] = []
        self.written: dict[int, Written] = {}
        self._context, self._tx = context, tx
        self._tables = {table.id: table for table in tx.tables()}
        self._at: dict[int, dict[int, list[Fragment]]] = {}
        for fragment in fragments:
            self._at.setdefault(fragment.table, {}).setdefault(fragment.shard, []).append(fragment)
        indexed = {index.table for index in tx.indexes()}
        self._runs: dict[int, list[IndexRun]] = {}
        of_fragments = {fragment.id: fragment.table for fragment in fragments} if indexed else {}
        for run in tx.runs() if indexed else ():
            if of_fragments.get(run.fragment) in indexed:
                self._runs.setdefault(run.fragment, []).append(run)
        merged, committed = merged_by_table(tx), tx.written()
        for table in self._at:
            self.written[table] = Written(committed.get(table, (0, 0))[1], merged[table])

    @property
    def tables(self) -> list[int]:
        """The ids of tables that have fragments and were not dropped."""
        return sorted(self._at.keys() & self._tables.keys())

    def add(self, table_id: int, policy: Policy) -> None:
        """Add the sites of a table where something is due; all is merged that is worth it."""
        table, written = self._tables[table_id], self.written[table_id]

        @lru_cache(maxsize=1)
        def horizon() -> int:
            return self._tx.horizon(table_id, self._context.retention_of(table))

        for shard, here in sorted(self._at[table_id].items()):
            runs = [run for fragment in here for run in self._runs.get(fragment.id, ())]
            if _planned(table, here, runs, policy, True, written, horizon).merges:
                self.sites.append(Site(table_id, shard))


def _planned(
    table: TableInfo,
    fragments: Sequence[Fragment],
    runs: Sequence[IndexRun],
    policy: Policy,
    tidy: bool,
    written: Written,
    oldest_needed: Callable[[], int],
) -> MergePlan:
    """Plan the merges of the fragments of one site; history is looked at only where there is some."""
    current = parts_of((f for f in fragments if f.superseded_at is None), runs)
    merges = plan_merges(current, policy, written.credit(policy), tidy)
    history = [f for f in fragments if f.superseded_at is not None]
    if history:
        horizon = oldest_needed()
        needed = parts_of((f for f in history if f.is_needed_at(horizon)), runs)
        over = [f for f in history if not f.is_needed_at(horizon)]
        merges += plan_history(needed, policy)
        if over:  # there is nothing to copy
            slots = SlotSet.of(r for fragment in over for r in fragment.slots)
            merges += (Merge(tuple(fragment.id for fragment in over), slots, 0),)
    return MergePlan(table, current, merges, len(fragments))


def carry_out(
    context: Context, table: TableInfo, site: Site, merge: Merge, pace: Pace | None = None
) -> Merged:
    """Carry one merge out; `pace` as in `merge_fragments`."""
    context.checkpoint("step begun")

    def note(tx: Tx, merged: Merged) -> None:
        _note({site: merged}, {}, tx)

    return merge_fragments(context, table, site.shard, merge.fragments, pace, merge.slots, note)


def carry_out_together(
    context: Context, mergings: Sequence[tuple[Site, Merging]], ends: Mapping[Site, str]
) -> dict[Site, Merged]:
    """Carry merges at several sites out, to be seen at once.

    The steps of `ends` are over with that, each of its owner, where something was merged.
    """
    sites = [site for site, _ in mergings]

    def note(tx: Tx, merged: Sequence[Merged]) -> None:
        _note({site: of for site, of in zip(sites, merged, strict=True) if of != Merged()}, ends, tx)

    context.checkpoint("step begun")
    merged = merge_together(context, [merging for _, merging in mergings], None, note)
    return dict(zip(sites, merged, strict=True))


def _note(merged: Mapping[Site, Merged], ends: Mapping[Site, str], tx: Tx) -> None:
    tx.add_all_done(
        {site.target: (len(of.gone), of.bytes_read, of.bytes_written) for site, of in merged.items()}
    )
    tx.end_steps({site.target: ends[site] for site in merged if site in ends})
