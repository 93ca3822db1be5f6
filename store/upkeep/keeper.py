"""A keeper: a process that keeps a store fast which others write to.

A round looks at everything once: flushes, merges at every table's every shard until nothing is pending,
splits, joins and moves, then garbage. Any number of keepers may be at work, alongside writers that do upkeep
themselves; `executor` says why no two do the same. A move that was interrupted is undone and planned again.

A keeper gives way: while others commit, it rests for as long as it works.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from elasticscan.base.errors import ElasticScanError, TryAgain, UsageError
from elasticscan.base.limits import GC_GRACE_SECONDS
from elasticscan.catalog import Tx, retry_interrupted
from elasticscan.store.context import Context
from elasticscan.store.moves.balancing import plan_joins, plan_moves, plan_splits, tablet_bytes
from elasticscan.store.moves.boundaries import split_and_join
from elasticscan.store.moves.elasticity import Elasticity
from elasticscan.store.moves.owners import beating, owner_is_gone, owning
from elasticscan.store.moves.under_way import moves_in
from elasticscan.store.upkeep.collector import collect_garbage
from elasticscan.store.upkeep.executor import (
    BALANCE,
    GARBAGE,
    Executor,
    OnStep,
    RoundDone,
    Site,
    end_step,
    look_at,
    plan_at,
    states_of,
    steps_in,
)
from elasticscan.store.upkeep.flushing import pending_tables
from elasticscan.store.upkeep.garbage import GarbageRules
from elasticscan.store.upkeep.planning import Policy
from elasticscan.topology import Move

MOST_ROUNDS = 32  # of planning at one site; few are needed until nothing is pending
MOST_MOVES = 8  # in one round: the next one plans with what has become of the store meanwhile
MOST_CHANGES = 1_024  # likewise of splits, and of joins; writers wait during all of them
MOST_REST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LastCollection:
    """The time of the last collection of garbage by a keeper, in seconds since 1970."""

    at: float


class Keeper:
    """Keeps a store, round after round.

    Args:
        context: the store.
        policy: the bounds.
        bytes_per_second: most bytes that merges and moves copy in a second; None for no bound.
        on_step: called before each step with what it is.
    """

    def __init__(
        self,
        context: Context,
        policy: Policy | None = None,
        bytes_per_second: float | None = None,
        on_step: OnStep = lambda _: None,
    ) -> None:
        self._context, self._policy = context, policy or Policy()
        self._bytes_per_second, self._on_step = bytes_per_second, on_step

    def keep(self) -> RoundDone:
        """Do all that is pending now; returns what was done.

        What fails is noted and does not keep the rest from being done.

        Raises:
            ReadOnlyStore: the store cannot be written.
        """
        self._context.catalog.check_writable()
        done = RoundDone()
        self._forget_dead()
        with owning() as owner, beating(self._context.catalog, owner):
            pace = _Pace(self._context, self._bytes_per_second)
            executor = Executor(self._context, owner, done, pace, self._on_step)
            self._flush(executor)
            for site in self._sites(done):
                with _noting(done, f"merging table {site.table} at shard {site.shard}"):
                    self._merge_at(site, executor)
            with _noting(done, "balancing"):
                self._balance(executor)
            with _noting(done, "collecting garbage"):
                self._collect(executor)
        return done

    @retry_interrupted
    def _forget_dead(self) -> None:
        """End the steps of owners that are gone: what they left undone is pending, and found again."""
        with self._context.catalog.reading() as tx:
            dead = [step for step in steps_in(tx) if owner_is_gone(step, tx.times.expiry)]
        if dead:
            with self._context.catalog.leasing() as tx:
                for step in dead:
                    end_step(tx, step.target, step.owner)

    def _flush(self, executor: Executor) -> None:
        """Flush the tables that have much in the log, or had it there for long."""
        for table in self._context.ask(pending_tables):
            with _noting(executor.done, f"flushing table {table.name!r}"):
                executor.flush(table.id)

    # Merges

    @retry_interrupted
    def _sites(self, done: RoundDone) -> list[Site]:
        """Return the sites where something is to be merged, by one look for all tables at all shards."""
        found = list[Site]()
        with self._context.catalog.reading() as tx:
            for table in tx.state.infos():
                with _noting(done, f"looking for merges of table {table.id}"):
                    for site, state in states_of(tx, table.id).items():
                        if plan_at(self._context, tx, site, state, self._policy, tidy=True):
                            found.append(site)
        return found

    def _merge_at(self, site: Site, executor: Executor) -> None:
        for _ in range(MOST_ROUNDS):
            with self._context.catalog.reading() as tx:
                merges, _ = look_at(self._context, tx, site, self._policy, tidy=True)
            merged = [executor.merge(site, merge) for merge in merges]
            if not any(each.gone or each.added for each in merged):
                return

    # Tablets

    def _balance(self, executor: Executor) -> None:
        with self._context.catalog.reading() as tx:
            moves, now, placement = moves_in(tx), tx.times.expiry, tx.state.placement
            shards, sizes = [*tx.state.shards.values()], tablet_bytes(placement, tx.state.fragments())
        dead, bounds = any(owner_is_gone(move, now) for move in moves), self._policy.balance
        if moves and not dead:
            return  # another process is changing the placement
        splits = plan_splits(placement, sizes, bounds)[:MOST_CHANGES]
        joins = plan_joins(placement, sizes, bounds)[:MOST_CHANGES]
        # A shard that is still to be emptied, while nothing moves: its process died, or gave up.
        interrupted = dead or any(shard.draining for shard in shards)
        active = [shard.id for shard in shards if not shard.draining]
        # Tablets move as they are after a split.
        unbalanced = not splits and not joins and bool(plan_moves(placement, sizes, active, bounds))
        if not (interrupted or splits or joins or unbalanced):
            return
        with executor.step(BALANCE) as mine:
            if not mine:
                return
            done = executor.done
            if interrupted:
                self._on_step("resume moves that were interrupted")
                with _noting(done, "resuming moves that were interrupted"):
                    done.moves += Elasticity(self._context, self._bytes_per_second).resume()
                    return  # what is pending now depends on where tablets are since
            there = self._reachable(active, done) if unbalanced else ()
            to_move = plan_moves(placement, sizes, there, bounds)[:MOST_MOVES]
            self._change(splits, joins, to_move, done)

    def _reachable(self, shards: Sequence[int], done: RoundDone) -> list[int]:
        """Return the shards whose storage is available; others must not stop moves between these."""
        there = list[int]()
        for shard in shards:
            with _noting(done, "balancing"), self._context.unless_left(shard):
                self._context.check_root(shard)
                there.append(shard)
        return there

    def _change(
        self, splits: Sequence[int], joins: Sequence[tuple[int, int]], moves: Sequence[Move], done: RoundDone
    ) -> None:
        """Change tablets. A change that others have made impossible meanwhile is left out."""
        elasticity = Elasticity(self._context, self._bytes_per_second)
        names = self._context.shard_names()
        for tablet in splits:
            self._on_step(f"split tablet {tablet}")
        for left, right in joins:
            self._on_step(f"join tablets {left} and {right}")
        if splits or joins:
            with suppress(UsageError, TryAgain):
                cut, joined = split_and_join(self._context, splits, joins)
                done.splits += cut
                done.joins += joined
        for move in moves:
            self._on_step(f"move tablet {move.tablet} to {names.get(move.target)}")
            with _noting(done, f"moving tablet {move.tablet}"), suppress(UsageError, TryAgain):
                elasticity.move(move.tablet, names.get(move.target, ""))
                done.moves += 1

    # Garbage

    def _collect(self, executor: Executor) -> None:
        with self._context.catalog.reading() as tx:
            if not self._is_collection_pending(tx):
                return
        done = executor.done
        with executor.step(GARBAGE) as mine:
            if mine:
                self._on_step("collect garbage")
                collected = collect_garbage(self._context, GarbageRules())
                done.files_removed = collected.removed
                done.problems += [
                    f"collecting garbage at shard {shard!r}: {why}" for shard, why in collected.skipped
                ]
                with self._context.catalog.leasing() as tx:
                    tx.put_lease(GARBAGE, LastCollection(tx.times.stamp))

    def _is_collection_pending(self, tx: Tx) -> bool:
        """Return whether dropped files are many, or have waited for a while.

        Files that died writers left are in no catalog, so all roots are looked at now and then.
        """
        dropped = sum(tx.times.expiry - f.dropped_at >= GC_GRACE_SECONDS for f in tx.state.removed_files())
        last = tx.lease(LastCollection, GARBAGE)
        since = float("inf") if last is None else tx.times.expiry - last.value.at
        waited = self._policy.garbage_seconds if dropped else self._policy.quiet_collection_seconds
        return dropped >= self._policy.garbage_files or since >= waited


@contextmanager
def _noting(done: RoundDone, work: str) -> Iterator[None]:
    """Note an error instead of raising it: other work may be done all the same."""
    try:
        yield
    except ElasticScanError as error:
        done.problems.append(f"{work}: {error}")


class _Pace:
    """Throttle of a round's merges, which gives way to commits."""

    def __init__(self, context: Context, bytes_per_second: float | None) -> None:
        self._context, self._most = context, bytes_per_second
        self._began = self._rested = context.clock.now()
        self._newest, self._bytes = context.versions()[1], 0

    def __call__(self, count: int) -> None:
        now, newest = self._context.clock.now(), self._context.versions()[1]
        self._bytes += count
        rest = 0.0 if self._most is None else self._began + self._bytes / self._most - now
        if newest != self._newest:
            rest = max(rest, min(now - self._rested, MOST_REST_SECONDS))
        if rest > 0:
            self._context.clock.sleep(rest)
        self._newest, self._rested = newest, self._context.clock.now()
