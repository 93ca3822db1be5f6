"""A keeper: a process that keeps a store fast which others write to.

A round looks at everything once: merges at every table's every shard until nothing is due, splits, joins and
moves, then garbage. Any number of keepers may be at work, alongside writers that do upkeep themselves: each
step has one owner in the catalog, and a step of an owner that is gone is taken over. What a step changes
becomes visible in one transaction, so a keeper that is killed leaves the store as it was before the step, or
after it, and files that garbage collection removes; a move is undone and planned again.

A keeper gives way: while others commit, it rests for as long as it works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from elasticscan.base.errors import ElasticScanError, TryAgain, UsageError
from elasticscan.base.limits import GC_GRACE_SECONDS
from elasticscan.metadata import MEMORY
from elasticscan.store.context import Context
from elasticscan.store.moves.elasticity import Elasticity
from elasticscan.store.moves.owners import beating, owner_is_gone, owning
from elasticscan.store.upkeep.collector import collect_garbage
from elasticscan.store.upkeep.compaction import Merged
from elasticscan.store.upkeep.flushing import due_tables, flush
from elasticscan.store.upkeep.garbage import GarbageRules
from elasticscan.store.upkeep.steps import BALANCE, GARBAGE, Due, Site, carry_out, claim, look_at
from elasticscan.topology import Move
from elasticscan.upkeep import (
    Join,
    Policy,
    Split,
    is_collection_due,
    plan_joins,
    plan_moves,
    plan_splits,
    tablet_bytes,
)

MOST_ROUNDS = 32  # of planning at one site; few are needed until nothing is due
MOST_MOVES = 8  # in one round: the next one plans with what has become of the store meanwhile
MOST_CHANGES = 1_024  # likewise of splits, and of joins; writers wait during all of them
MOST_REST_SECONDS = 1.0

OnStep = Callable[[str], None]


@dataclass(slots=True)
class Kept:
    """The work of a round.

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

    def keep(self) -> Kept:
        """Do all that is due now; returns what was done.

        What fails is noted and does not keep the rest from being done.

        Raises:
            ReadOnlyStore: the store cannot be written.
        """
        self._context.catalog.check_writable()
        kept = Kept()
        with _noting(kept, "taking over from keepers that are gone"):
            self._forget_dead()
        with owning() as owner, beating(self._context.catalog, owner):
            self._flush(owner, kept)
            due = self._due(kept)
            for site in due.sites:
                with _noting(kept, f"merging table {site.table} at shard {site.shard}"):
                    self._merge_at(site, due, owner, kept)
            with _noting(kept, "balancing"):
                self._balance(owner, kept)
            with _noting(kept, "collecting garbage"):
                self._collect(owner, kept)
        return kept

    def _forget_dead(self) -> None:
        """End the steps of owners that are gone: what they left undone is due, and found again."""
        with self._context.catalog.reading() as tx:
            steps, now = tx.steps(), tx.times.expiry
        dead = [step for step in steps if owner_is_gone(step, now)]
        if dead:
            with self._context.catalog.writing() as tx:
                for step in dead:
                    tx.end_step(step.target, step.owner)

    @contextmanager
    def _step(self, target: str, owner: str) -> Iterator[bool]:
        """Own a step for the length of a block; false when another keeper is at it."""
        with self._context.catalog.writing() as tx:
            mine = claim(tx, target, owner)
        try:
            yield mine
        finally:
            if mine:
                with self._context.catalog.writing() as tx:
                    tx.end_step(target, owner)

    # Flushes

    def _flush(self, owner: str, kept: Kept) -> None:
        """Flush the tables that have much in the log, or had it there for long."""
        with self._context.catalog.reading() as tx:
            due = due_tables(tx)
        for table in due:
            with (
                _noting(kept, f"flushing table {table.name!r}"),
                self._step(Site(table.id, MEMORY).target, owner) as mine,
            ):
                if mine:
                    self._on_step(f"flush {table.name!r}")
                    kept.flushes += flush(self._context, table.id)

    # Merges

    def _due(self, kept: Kept) -> Due:
        """One look for all tables at all shards: few of them have anything to merge."""
        with self._context.catalog.reading() as tx:
            due = Due(self._context, tx, tx.fragments())
            for table in due.tables:
                with _noting(kept, f"looking for merges of table {table}"):
                    due.add(table, self._policy)
        return due

    def _merge_at(self, site: Site, due: Due, owner: str, kept: Kept) -> None:
        for _ in range(MOST_ROUNDS):
            with self._context.catalog.reading() as tx:
                look = look_at(self._context, tx, site, self._policy, True, due.written[site.table])
            if look.table is None or not look.merges:
                return
            with self._step(site.target, owner) as mine:
                if not mine:
                    return
                for merge in look.merges:
                    self._on_step(f"merge {len(merge.fragments)} fragments of {look.table.name!r}")
                    pace = _Pace(self._context, self._bytes_per_second)
                    merged = carry_out(self._context, look.table, site, merge, pace)
                    if merged == Merged():
                        return  # another process was first, or a mover is at these slots
                    kept.merges += 1
                    kept.fragments_gone += len(merged.gone) - merged.added
                    kept.bytes_read += merged.bytes_read
                    kept.bytes_written += merged.bytes_written
                    wrote = due.written[site.table]
                    due.written[site.table] = replace(wrote, merged=wrote.merged + merged.bytes_written)

    # Tablets

    def _balance(self, owner: str, kept: Kept) -> None:
        with self._context.catalog.reading() as tx:
            moves, now, placement = tx.moves(), tx.times.expiry, tx.placement()
            shards, sizes = tx.shards(), tablet_bytes(placement, tx.fragments())
        dead = any(owner_is_gone(move, now) for move in moves)
        if moves and not dead:
            return  # another process is changing the placement
        splits = plan_splits(placement, sizes, self._policy)[:MOST_CHANGES]
        joins = plan_joins(placement, sizes, self._policy)[:MOST_CHANGES]
        # A shard that is still to be emptied, while nothing moves: its process died, or gave up.
        interrupted = dead or any(shard.draining for shard in shards)
        active = [shard.id for shard in shards if not shard.draining]
        # Tablets move as they are after a split.
        unbalanced = (
            not splits and not joins and bool(plan_moves(placement, sizes, active, self._policy, most=1))
        )
        if not (interrupted or splits or joins or unbalanced):
            return
        with self._step(BALANCE, owner) as mine:
            if not mine:
                return
            if interrupted:
                self._on_step("resume moves that were interrupted")
                with _noting(kept, "resuming moves that were interrupted"):
                    kept.moves += Elasticity(self._context, self._bytes_per_second).resume()
                    return  # what is due now depends on where tablets are since
            there = self._reachable(active, kept) if unbalanced else ()
            away = plan_moves(placement, sizes, there, self._policy, MOST_MOVES)
            self._carry_out(splits, joins, away, kept)

    def _reachable(self, shards: Sequence[int], kept: Kept) -> list[int]:
        """Return the shards whose storage is available; others must not stop moves between these."""
        there = list[int]()
        for shard in shards:
            with _noting(kept, "balancing"), self._context.unless_left(shard):
                self._context.check_root(shard)
                there.append(shard)
        return there

    def _carry_out(
        self, splits: Sequence[Split], joins: Sequence[Join], moves: Sequence[Move], kept: Kept
    ) -> None:
        """Change tablets. A change that others have made impossible meanwhile is left out."""
        elasticity = Elasticity(self._context, self._bytes_per_second)
        names = self._context.shard_names()
        for split in splits:
            self._on_step(f"split tablet {split.tablet}")
        for join in joins:
            self._on_step(f"join tablets {join.left} and {join.right}")
        if splits or joins:
            with suppress(UsageError, TryAgain):
                cut, joined = elasticity.change(
                    [split.tablet for split in splits], [(join.left, join.right) for join in joins]
                )
                kept.splits += cut
                kept.joins += joined
        for move in moves:
            self._on_step(f"move tablet {move.tablet} to {names.get(move.target)}")
            with _noting(kept, f"moving tablet {move.tablet}"), suppress(UsageError, TryAgain):
                elasticity.move(move.tablet, names.get(move.target, ""))
                kept.moves += 1
        with self._context.catalog.writing() as tx:
            tx.add_done(BALANCE, kept.splits + kept.joins + kept.moves)

    # Garbage

    def _collect(self, owner: str, kept: Kept) -> None:
        with self._context.catalog.reading() as tx:
            due = sum(tx.times.expiry - f.dropped_at >= GC_GRACE_SECONDS for f in tx.dropped_files())
            last = max((done.newest_at for done in tx.done() if done.target == GARBAGE), default=None)
            since = float("inf") if last is None else tx.times.expiry - last
        if not is_collection_due(due, since, self._policy):
            return
        with self._step(GARBAGE, owner) as mine:
            if mine:
                self._on_step("collect garbage")
                collected = collect_garbage(self._context, GarbageRules())
                kept.files_removed = collected.removed
                kept.problems += [
                    f"collecting garbage at shard {shard!r}: {why}" for shard, why in collected.skipped
                ]
                with self._context.catalog.writing() as tx:
                    tx.add_done(GARBAGE, kept.files_removed)


@contextmanager
def _noting(kept: Kept, work: str) -> Iterator[None]:
    """Note an error instead of raising it: other work may be done all the same."""
    try:
        yield
    except ElasticScanError as error:
        kept.problems.append(f"{work}: {error}")


class _Pace:
    """Throttle of a copy, which gives way to commits."""

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
