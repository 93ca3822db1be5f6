"""A keeper: a process that keeps a store fast which others write to.

A round looks at everything once: flushes, merges at every table's every shard until nothing is pending,
splits, joins and moves, then garbage. Any number of keepers may be at work, alongside writers that do upkeep
themselves; `executor` says why no two do the same. A move that was interrupted is undone and planned again.

A keeper gives way: while others commit, it rests for as long as it works.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from elasticscan.base.errors import ElasticScanError, TryAgain, UsageError
from elasticscan.base.limits import GC_GRACE_SECONDS
from elasticscan.catalog import Tx, retry_interrupted
from elasticscan.store.context import Context
from elasticscan.store.moves import elasticity
from elasticscan.store.moves.balancing import Balance, plan_joins, plan_moves, plan_splits, tablet_bytes
from elasticscan.store.moves.owners import beating, end_step, moves_in, owner_is_gone, owning, steps_in
from elasticscan.store.upkeep.collector import collect_garbage
from elasticscan.store.upkeep.compaction import Pace
from elasticscan.store.upkeep.executor import (
    BALANCE,
    GARBAGE,
    Executor,
    RoundDone,
    Site,
    plan_sites,
)
from elasticscan.store.upkeep.flushing import pending_tables
from elasticscan.store.upkeep.garbage import GarbageRules
from elasticscan.store.upkeep.planning import Policy

MOST_ROUNDS = 32  # of planning at one site; few are needed until nothing is pending
MOST_MOVES = 8  # in one round: the next one plans with what has become of the store meanwhile
MOST_CHANGES = 1_024  # likewise of splits, and of joins; writers wait during all of them
MOST_REST_SECONDS = 1.0
# Between collections of garbage, while dropped files wait, and while none does: files that died writers left
# are in no catalog.
GARBAGE_SECONDS, QUIET_GARBAGE_SECONDS = 600.0, 86_400.0


@dataclass(frozen=True, slots=True)
class LastCollection:
    """The time of the last collection of garbage by a keeper, in seconds since 1970."""

    at: float


def keep(context: Context, policy: Policy | None = None) -> RoundDone:
    """Do all that is pending now; returns what was done.

    What fails is noted and does not keep the rest from being done.

    Raises:
        ReadOnlyStore: the store cannot be written.
    """
    context.catalog.check_writable()
    policy = policy or Policy()
    _forget_dead(context)
    with owning() as owner, beating(context.catalog, owner):
        executor = Executor(context, owner, _giving_way(context))
        done = executor.done
        for table in context.ask(pending_tables):
            with _noting(done, f"flushing table {table.name!r}"):
                executor.flush(table.id)
        with _noting(done, "looking for merges"):
            for site in context.ask(lambda tx: _sites(context, tx, policy)):
                with _noting(done, f"merging table {site.table} at shard {site.shard}"):
                    _merge_at(context, site, policy, executor)
        with _noting(done, "balancing"):
            _balance(context, policy.balance, executor)
        with _noting(done, "collecting garbage"):
            _collect(context, executor)
    return done


@contextmanager
def _noting(done: RoundDone, work: str) -> Iterator[None]:
    """Note an error instead of raising it: other work may be done all the same."""
    try:
        yield
    except ElasticScanError as error:
        done.problems.append(f"{work}: {error}")


@retry_interrupted
def _forget_dead(context: Context) -> None:
    """End the steps of owners that are gone: what they left undone is pending, and found again."""
    with context.catalog.leasing() as tx:
        for step in steps_in(tx):
            if owner_is_gone(step, tx.times.expiry):
                end_step(tx, step.target, step.owner)


def _giving_way(context: Context) -> Pace:
    """Return a pace that rests for as long as was worked, while others commit."""
    rested, newest = context.clock.now(), context.state().versions[1]

    def pace(_: int) -> None:
        nonlocal rested, newest
        before, newest = newest, context.state().versions[1]
        if newest != before:
            context.clock.sleep(min(context.clock.now() - rested, MOST_REST_SECONDS))
        rested = context.clock.now()

    return pace


def _sites(context: Context, tx: Tx, policy: Policy) -> list[Site]:
    """Return the sites where something is to be merged."""
    planned = (plan_sites(context, tx, table.id, policy, tidy=True) for table in tx.state.infos())
    return [site for sites in planned for site, (merges, _) in sites.items() if merges]


def _merge_at(context: Context, site: Site, policy: Policy, executor: Executor) -> None:
    for _ in range(MOST_ROUNDS):
        planned = plan_sites(context, context.catalog.newest(), site.table, policy, site.shard, tidy=True)
        merged = [executor.merge(site, merge) for merges, _ in planned.values() for merge in merges]
        if not any(map(any, merged)):
            return


def _balance(context: Context, bounds: Balance, executor: Executor) -> None:
    """Resume what was interrupted; else split, join and move tablets."""
    done = executor.done
    tx = context.catalog.newest()
    moves, now, placement = moves_in(tx), tx.times.expiry, tx.state.placement
    shards, sizes = [*tx.state.shards.values()], tablet_bytes(placement, tx.state.fragments())
    dead = any(owner_is_gone(move, now) for move in moves)
    if moves and not dead:
        return  # another process is changing the placement
    splits = plan_splits(placement, sizes, bounds)[:MOST_CHANGES]
    joins = plan_joins(placement, sizes, bounds)[:MOST_CHANGES]
    # A shard that is still to be emptied, while nothing moves: its process died, or gave up.
    interrupted = dead or any(shard.draining for shard in shards)
    active = [shard.id for shard in shards if not shard.draining]
    # Tablets move as they are after a split.
    unbalanced = not (splits or joins) and bool(plan_moves(placement, sizes, active, bounds))
    if not (interrupted or splits or joins or unbalanced):
        return
    with executor.step(BALANCE) as mine:
        if not mine:
            return
        if interrupted:
            with _noting(done, "resuming moves that were interrupted"):
                done.moves += elasticity.resume(context)
                return  # what is pending now depends on where tablets are since
        if splits or joins:
            cut, joined = elasticity.split_and_join(context, splits, joins)
            done.splits, done.joins = done.splits + cut, done.joins + joined
        if unbalanced:
            there = [shard for shard in active if _is_there(context, shard, done)]
            names = context.shard_names()
            for move in plan_moves(placement, sizes, there, bounds)[:MOST_MOVES]:
                # Others may have made it impossible meanwhile.
                with _noting(done, f"moving tablet {move.tablet}"), suppress(UsageError, TryAgain):
                    elasticity.move(context, move.tablet, names.get(move.target, ""))
                    done.moves += 1


def _is_there(context: Context, shard: int, done: RoundDone) -> bool:
    """Return whether a shard's storage is available; one that is away must not stop moves between others."""
    is_there = False
    with _noting(done, "balancing"), context.unless_left(shard):
        context.check_root(shard)
        is_there = True
    return is_there


def _collect(context: Context, executor: Executor) -> None:
    """Collect garbage where the last collection was long ago."""
    tx = context.catalog.newest()
    now, last = tx.times.expiry, tx.lease(LastCollection, GARBAGE)
    waits = any(now - file.dropped_at >= GC_GRACE_SECONDS for file in tx.state.removed_files())
    if last is not None and now - last.value.at < (GARBAGE_SECONDS if waits else QUIET_GARBAGE_SECONDS):
        return
    with executor.step(GARBAGE) as mine:
        if mine:
            collected = collect_garbage(context, GarbageRules())
            executor.done.files_removed = collected.removed
            for name, why in collected.skipped:
                executor.done.problems.append(f"collecting garbage at shard {name!r}: {why}")
            with context.catalog.leasing() as tx:
                tx.put_lease(GARBAGE, LastCollection(tx.times.stamp))
