"""Steps of upkeep as the catalog knows them: each has a target, and one owner at a time.

merge/<table>/<shard>   merges of a table's fragments at a shard
balance                 splits, joins and moves of tablets
garbage                 a collection of garbage
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from elasticscan.catalog import Tx
from elasticscan.metadata import TableInfo
from elasticscan.store.context import Context
from elasticscan.store.moves.owners import owner_is_gone
from elasticscan.store.upkeep.compaction import Merged, Merging, merge_fragments, merge_together
from elasticscan.topology import SlotSet
from elasticscan.upkeep import Merge, Part, Policy, Written, parts_of, plan_history, plan_merges

BALANCE, GARBAGE = "balance", "garbage"
_MERGE = "merge"

Pace = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Site:
    """One table at one shard: what merges work at."""

    table: int
    shard: int

    @property
    def target(self) -> str:
        return f"{_MERGE}/{self.table}/{self.shard}"


def site_of(target: str) -> Site | None:
    """Return what a step merges; None for any other step."""
    kind, _, rest = target.partition("/")
    table, _, shard = rest.partition("/")
    return Site(int(table), int(shard)) if kind == _MERGE else None


def claim(tx: Tx, target: str, owner: str) -> bool:
    """Begin a step, unless somebody who lives is at it."""
    step = tx.step(target)
    if step is not None and step.owner != owner and not owner_is_gone(step, tx.times.expiry):
        return False
    tx.enter_step(target, owner)
    return True


def written_of(tx: Tx, table: int) -> Written:
    """Return the bytes that a table's commits brought, and those that its merges wrote."""
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
        """True if a merge makes slots be read from fewer fragments; false for history."""
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
    current = parts_of((f for f in fragments if f.superseded_at is None), runs)
    written = written or written_of(tx, site.table)
    merges = plan_merges(current, policy, written.credit(policy), tidy)
    history = [f for f in fragments if f.superseded_at is not None]
    if history:
        horizon = tx.horizon(site.table, context.retention_of(table))
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
    note = partial(_note, site, None)
    return merge_fragments(context, table, site.shard, merge.fragments, pace, merge.slots, note)


def carry_out_together(
    context: Context, mergings: Sequence[tuple[Site, Merging]], ends: Mapping[Site, str]
) -> dict[Site, Merged]:
    """Carry merges at several sites out, to be seen at once.

    The steps of `ends` are over with that, each of its owner, where something was merged.
    """
    sites = [site for site, _ in mergings]

    def note(tx: Tx, merged: Sequence[Merged]) -> None:
        for site, result in zip(sites, merged, strict=True):
            if result != Merged():
                _note(site, ends.get(site), tx, result)

    context.checkpoint("step begun")
    merged = merge_together(context, [merging for _, merging in mergings], None, note)
    return dict(zip(sites, merged, strict=True))


def _note(site: Site, ends: str | None, tx: Tx, merged: Merged) -> None:
    tx.add_done(site.target, len(merged.gone), merged.bytes_read, merged.bytes_written)
    if ends is not None:
        tx.end_step(site.target, ends)
