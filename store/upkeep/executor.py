"""The executor of upkeep: carries out steps, each of which has one owner in the catalog.

Steps, by the name of their lease:

merge/<table>/<shard>   a merge of a table's fragments at a shard
flush/<table>           a flush of a table's rows in the log
balance                 splits, joins and moves of tablets
garbage                 a garbage collection

Any number of writers and keepers may work at the same time. A step is a lease without an expiry, written
before the step begins, so two processes do not do the same. The exception is an owner that was wrongly
considered gone (a writer's step has no heartbeat): then the second transaction finds that its sources have
been replaced, and changes nothing. If a process is killed, the store is as before the step or as after it;
unused files are left to garbage collection, and another process takes the step over.

A writer carries out some steps after a commit (`after_commit`). A round of a keeper, `keep`, does all pending
work once: flushes; merges of each table at each shard; splits, joins and moves; garbage collection. A move
that was interrupted is undone and planned again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from elasticscan.base.errors import ElasticScanError, TryAgain, UsageError
from elasticscan.base.limits import (
    FLUSH_BYTES,
    FLUSH_COMMITS,
    FLUSH_SECONDS,
    GC_GRACE_SECONDS,
    MEMORY_STORE_BYTES,
)
from elasticscan.catalog import StoreState, Tx, retry_interrupted
from elasticscan.metadata import MEMORY, TableInfo, floor_at
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import by_shard
from elasticscan.store.moves import elasticity
from elasticscan.store.moves.balancing import Balance, plan_joins, plan_moves, plan_splits, tablet_bytes
from elasticscan.store.moves.owners import (
    OwnedStep,
    beating,
    claim,
    end_step,
    moves_in,
    owner_is_gone,
    owning,
    steps_in,
)
from elasticscan.store.upkeep.collector import collect_garbage
from elasticscan.store.upkeep.compaction import FLUSH, Merged, horizon_of, plan_flush, plan_merge
from elasticscan.store.upkeep.garbage import GarbageRules
from elasticscan.store.upkeep.planning import Merge, Policy, SiteState, depth_of, plan_site

BALANCE, GARBAGE = "balance", "garbage"
MOST_ROUNDS = 32  # of planning and merging at one site; usually a few are enough
MOST_MOVES = 8  # in one round; the next round plans again for the changed store
MOST_CHANGES = 1_024  # splits in one round, and joins; writers wait during all of them
# Seconds between garbage collections while dropped files wait, and while none does. Files of killed writers
# are in no catalog, so they do not count as waiting.
GARBAGE_SECONDS, QUIET_GARBAGE_SECONDS = 600.0, 86_400.0


@dataclass(slots=True)
class RoundDone:
    """The result of a round of upkeep: numbers of steps.

    Attributes:
        flushes: tables whose rows were copied from the log to files.
        merges: merges of fragments.
        splits, joins, moves: changes of tablets.
        files_removed: files that garbage collection deleted.
        problems: the steps that failed, each with its error; all other steps were done.
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
        """Return the number of steps that were carried out."""
        return self.flushes + self.merges + self.splits + self.joins + self.moves + (self.files_removed > 0)

    @contextmanager
    def noting(self, work: str) -> Iterator[None]:
        """Add an error to `problems` instead of raising it, so that other steps are done."""
        try:
            yield
        except ElasticScanError as error:
            self.problems.append(f"{work}: {error}")


@dataclass(frozen=True, slots=True)
class LastCollection:
    """The time of the last garbage collection by a keeper, in seconds since 1970."""

    at: float


class Site(NamedTuple):
    """A table at a shard, where a merge works; or a table at `MEMORY`, which a flush empties."""

    table: int
    shard: int

    @property
    def target(self) -> str:
        return f"{FLUSH}/{self.table}" if self.shard == MEMORY else f"merge/{self.table}/{self.shard}"


def states_of(state: StoreState, table: int, shards: Collection[int] | None = None) -> dict[Site, SiteState]:
    """Return the state of a table at the given shards, or at all shards that have fragments of it."""
    floor, runs = floor_at(state.overwrites(table), state.commit), state.runs(table)
    fragments = (each for each in state.fragments(table) if shards is None or each.shard in shards)
    here = sorted(by_shard(fragments).items())
    return {Site(table, shard): SiteState.of(parts, runs, floor) for shard, parts in here}


def plan_sites(
    context: Context, tx: Tx, table_id: int, policy: Policy, shard: int | None = None, tidy: bool = False
) -> dict[Site, tuple[tuple[Merge, ...], int]]:
    """Return (merges, depth) for each site of a table, or for the one at a shard, that has merges to do.

    The depth is the largest number of fragments of a slot (`depth_of`). `tidy` is that of `plan_merges`.
    """
    table, horizon = tx.state.info(table_id), 0
    if table is None:
        return {}
    states = states_of(tx.state, table_id, None if shard is None else [shard])
    if any(state.history for state in states.values()):
        horizon = horizon_of(tx, table_id, context.retention_of(table))
    oldest = floor_at(tx.state.overwrites(table_id), horizon)
    plans = {site: plan_site(state, horizon, oldest, policy, tidy) for site, state in states.items()}
    return {
        site: (merges, depth_of(states[site].current, policy)) for site, merges in plans.items() if merges
    }


def has_much(state: StoreState, table_id: int) -> bool:
    """Return whether a table has so many bytes or commits in the log that it should be flushed."""
    table = state.tables.get(table_id)
    return table is not None and (len(table.memory) >= FLUSH_COMMITS or table.memory_bytes >= FLUSH_BYTES)


def pending_flush(state: StoreState, table_id: int) -> list[Site]:
    """Return the table to flush after a commit to a table: this one, or the largest if the log is full."""
    size = {number: table.memory_bytes for number, table in state.tables.items()}
    if not has_much(state, table_id):
        if sum(size.values()) < MEMORY_STORE_BYTES - FLUSH_BYTES:
            return []
        table_id = max(size, key=size.__getitem__)
    return [Site(table_id, MEMORY)]


def _pending_tables(tx: Tx) -> list[TableInfo]:
    """Return the tables that have many rows in the log, or old ones (`FLUSH_SECONDS`)."""
    old, pending = tx.newest_commit_at(tx.times.stamp - FLUSH_SECONDS), list[TableInfo]()
    for table in tx.state.infos():
        oldest = tx.state.memory(table.id)[:1]
        if has_much(tx.state, table.id) or any(commit.number <= old for commit in oldest):
            pending.append(table)
    return pending


class Executor:
    """Carries out the steps of one owner (see `owning`), and counts them in `done`."""

    def __init__(self, context: Context, owner: str) -> None:
        self._context, self._owner = context, owner
        self.done = RoundDone()

    @contextmanager
    def step(self, target: str) -> Iterator[bool]:
        """Own a step during a block; yields False if another process owns it."""
        is_owner = claim(self._context.catalog, target, self._owner)
        try:
            if is_owner:
                self._context.sync_point("step begun")
            yield is_owner
        finally:
            if is_owner:
                end_step(self._context.catalog, target, self._owner)

    @retry_interrupted
    def carry_out(self, site: Site, merge: Merge | None = None) -> Merged:
        """Carry out a merge, or a flush if `merge` is None; nothing if it is useless or has another owner."""
        context, merged = self._context, Merged()
        tx = context.catalog.newest()
        if merge is None:
            merging = plan_flush(context, tx, site.table)
        else:
            merging = plan_merge(context, tx, *site, merge.fragments, merge.slots)
        if merging is not None:
            with self.step(site.target) as is_owner:
                if is_owner:
                    merged = merging.carry_out()
        self.done.flushes += merge is None and merged != Merged()
        self.done.merges += merge is not None and merged != Merged()
        return merged


# A keeper's round


def keep(context: Context, policy: Policy | None = None) -> RoundDone:
    """Do all pending steps once; return what was done.

    The errors of steps are in the result; other steps are done nevertheless.

    Raises:
        ReadOnlyStore: the store cannot be written.
    """
    context.catalog.check_writable()
    policy = policy or Policy()
    _forget_dead(context)
    with owning() as owner, beating(context.catalog, owner):
        executor = Executor(context, owner)
        done = executor.done
        for table in context.ask(_pending_tables):
            with done.noting(f"flushing table {table.name!r}"):
                executor.carry_out(Site(table.id, MEMORY))
        with done.noting("looking for merges"):
            for table in context.state().infos():
                for site in plan_sites(context, context.catalog.newest(), table.id, policy, tidy=True):
                    with done.noting(f"merging table {site.table} at shard {site.shard}"):
                        _merge_at(context, site, policy, executor)
        with done.noting("balancing"):
            _balance(context, policy.balance, executor)
        with done.noting("collecting garbage"):
            _collect(context, executor)
    return done


@retry_interrupted
def _forget_dead(context: Context) -> None:
    """End the steps of owners that are gone; unfinished ones are planned again."""
    with context.catalog.leasing() as tx:
        for step in steps_in(tx):
            if owner_is_gone(step, tx.times.expiry):
                tx.remove_lease(OwnedStep, step.target)


def _merge_at(context: Context, site: Site, policy: Policy, executor: Executor) -> None:
    for _ in range(MOST_ROUNDS):
        planned = plan_sites(context, context.catalog.newest(), site.table, policy, site.shard, tidy=True)
        merged = [executor.carry_out(site, merge) for merges, _ in planned.values() for merge in merges]
        if not any(map(any, merged)):
            return


def _balance(context: Context, bounds: Balance, executor: Executor) -> None:
    """Resume interrupted moves and contractions; if there are none, split, join and move tablets."""
    done, tx = executor.done, context.catalog.newest()
    moves, placement, shards = moves_in(tx), tx.state.placement, [*tx.state.shards.values()]
    dead = any(owner_is_gone(move, tx.times.expiry) for move in moves)
    if moves and not dead:
        return  # another process is changing the placement
    sizes = tablet_bytes(placement, tx.state.fragments())
    splits = plan_splits(placement, sizes, bounds)[:MOST_CHANGES]
    joins = plan_joins(placement, sizes, bounds)[:MOST_CHANGES]
    # If a shard is draining and nothing moves, its process died or gave up.
    interrupted = dead or any(shard.draining for shard in shards)
    active = [shard.id for shard in shards if not shard.draining]
    # Tablets move in a later round, after splits and joins.
    unbalanced = not (splits or joins) and bool(plan_moves(placement, sizes, active, bounds))
    if not (interrupted or splits or joins or unbalanced):
        return
    with executor.step(BALANCE) as is_owner:
        if is_owner and interrupted:  # what is pending afterwards is planned in the next round
            with done.noting("resuming moves that were interrupted"):
                done.moves += elasticity.resume(context)
                return
        if is_owner and (splits or joins):
            cut, joined = elasticity.split_and_join(context, splits, joins)
            done.splits, done.joins = done.splits + cut, done.joins + joined
        if is_owner and unbalanced:
            reachable, names = set[int](), context.shard_names()
            for shard in active:  # a shard that is away must not stop moves between others
                with done.noting("balancing"), context.unless_left(shard):
                    context.check_root(shard)
                    reachable.add(shard)
            for move in plan_moves(placement, sizes, sorted(reachable), bounds)[:MOST_MOVES]:
                # Another process may have made the move impossible meanwhile.
                with done.noting(f"moving tablet {move.tablet}"), suppress(UsageError, TryAgain):
                    elasticity.move(context, move.tablet, names.get(move.target, ""))
                    done.moves += 1


def _collect(context: Context, executor: Executor) -> None:
    """Collect garbage if the last collection was long ago."""
    tx = context.catalog.newest()
    now, last = tx.times.expiry, tx.lease(LastCollection, GARBAGE)
    waits = any(now - file.dropped_at >= GC_GRACE_SECONDS for file in tx.state.removed_files())
    if last is not None and now - last.value.at < (GARBAGE_SECONDS if waits else QUIET_GARBAGE_SECONDS):
        return
    with executor.step(GARBAGE) as is_owner:
        if is_owner:
            collected = collect_garbage(context, GarbageRules())
            executor.done.files_removed = collected.removed
            for name, why in collected.skipped:
                executor.done.problems.append(f"collecting garbage at shard {name!r}: {why}")
            with context.catalog.leasing() as tx:
                tx.put_lease(GARBAGE, LastCollection(tx.times.stamp))
