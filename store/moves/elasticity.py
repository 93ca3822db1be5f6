"""Operations on the topology: expand, contract, rebalance, move, resume, split, join.

Each transaction that changes the placement also changes the topology history. The new topology is published
when the whole plan is done; until then, scans begin with the topology before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from elasticscan.base.concurrency import parallel
from elasticscan.base.errors import (
    AlreadyExists,
    Busy,
    ElasticScanError,
    InvalidCall,
    NotFound,
    TryAgain,
)
from elasticscan.base.limits import DRAIN_WAIT_SECONDS, PARALLEL_MOVES
from elasticscan.catalog import Tx, append_topology, newest_topology, retry_interrupted
from elasticscan.metadata import ShardDefined, TabletsChanged
from elasticscan.store.context import Context
from elasticscan.store.moves.balancing import Balance, after_moves, plan_even, tablet_bytes
from elasticscan.store.moves.mover import Mover, when_possible
from elasticscan.store.moves.owners import (
    beating,
    check_at_rest,
    enter_moves,
    forget_dead,
    moves_in,
    owning,
    transition,
)
from elasticscan.store.roots import Claims
from elasticscan.topology import Event, Move, Shard, Tablet, Topology, join_tablets, split_tablet

EXPAND_ROUNDS = 3
_POLL_SECONDS = 0.02


@retry_interrupted
def expand(context: Context, new: Sequence[tuple[str, str]]) -> Topology:
    """Add shards (name, root), if any, and move the fewest tablets that balance the store.

    A shard that exists already is skipped; if it is draining, it takes tablets again. So an expansion that
    failed can be called again, and a contraction can be called off. Returns the newest topology, which is the
    old one if nothing had to change.

    Raises:
        AlreadyExists: a shard of the name exists with another root.
    """
    with context.catalog.writing() as tx, context.roots.claims() as claims:
        changes = _add_or_restore(tx, claims, new)
    # A tablet that another process was moving is planned again, in a few rounds at most.
    for _ in range(EXPAND_ROUNDS):
        moves = _carry_out(context, _plan, tolerate=True)
        if not moves:
            break
        changes += len(moves)
    tx = context.catalog.newest()
    if not changes and tx.state.topology[1]:
        return newest_topology(tx)
    return _publish(context, f"expanded by {', '.join(name for name, _ in new)}" if new else "rebalanced")


@retry_interrupted
def contract(context: Context, name: str) -> Topology:
    """Move all tablets off a shard, then remove it. Waits for running moves to the shard."""
    with context.catalog.writing() as tx:
        shard = tx.state.shard_named(name)
        if not _active(tx) - {shard.id}:
            raise InvalidCall(
                f"{name!r} is the last shard that takes tablets; expand the store first", shard=name
            )
        if not shard.draining:
            tx.append(ShardDefined(replace(shard, draining=True)))
    _drain(context, shard.id)
    return _publish(context, f"contracted by {name}")


def move(context: Context, tablet_id: int, target_name: str) -> Topology:
    """Move one tablet."""

    def plan(tx: Tx) -> list[Move]:
        tablet, target = tx.state.tablet(tablet_id), tx.state.shard_named(target_name)
        if target.draining or tablet.shard == target.id:
            why = "is being emptied" if target.draining else "has it already"
            raise InvalidCall(
                f"tablet {tablet_id} cannot move to shard {target_name!r}, which {why}; choose another",
                tablet=tablet_id,
                shard=target_name,
            )
        forget_dead(tx, tablet_id)
        return [Move(tablet_id, tablet.shard, target.id)]

    _carry_out(context, plan)
    return _publish(context, f"tablet {tablet_id} moved to {target_name}")


@retry_interrupted
def resume(context: Context) -> int:
    """Resume the moves and contractions of processes that died; return the number of tablets moved.

    Each of their moves is undone, planned again and carried out. Draining shards are emptied and removed. All
    of this is tried, and the first error is raised at the end, so that a shard that is away does not block
    the others.
    """
    errors, emptied, moved = list[Exception](), 0, 0
    tx = context.catalog.newest()
    draining, holding = sorted(tx.state.shards.keys() - _active(tx)), tx.state.placement.shards
    with _keeping(errors):
        moved += len(_carry_out(context, _adopt_dead) or ())
    for shard in draining:
        with _keeping(errors), context.unless_left(shard):
            if shard in holding:  # fails early if it is away, before its tablets are planned
                context.check_root(shard)
            moved += _drain(context, shard)
            emptied += 1
    if emptied or not context.state().topology[1]:
        _publish(context, "interrupted moves resumed")
    if errors:
        raise errors[0]
    return moved


def _add_or_restore(tx: Tx, claims: Claims, new: Sequence[tuple[str, str]]) -> int:
    """Add the shards that do not exist, end the draining of others; return the number of changes."""
    existing = {shard.name: shard for shard in tx.state.shards.values()}
    changed = 0
    for name, root in dict.fromkeys(new):
        before = existing.get(name)
        if before is None:
            shard = Shard(tx.state.newest_ids["shard"] + 1, name, root)
            tx.append(ShardDefined(shard))
            claims.claim(shard)
        elif before.root != root:
            raise AlreadyExists(
                f"the store already has a shard {name!r}, with another root; choose another name", shard=name
            )
        elif before.draining:
            tx.append(ShardDefined(replace(before, draining=False)))
        changed += before is None or before.draining
    return changed


def _drain(context: Context, shard: int) -> int:
    """Move all tablets off a draining shard, in several rounds, and remove it; return the number of moves."""
    waited, moved = 0.0, 0
    while True:
        moves = _carry_out(context, partial(_plan_draining, shard), tolerate=True)
        if moves is None:
            return moved
        moved += len(moves)
        if moves:
            continue
        if waited > DRAIN_WAIT_SECONDS:
            raise Busy(
                f"shard {shard} could not be emptied: another process has been moving its tablets for "
                f"{DRAIN_WAIT_SECONDS:.0f} s; look at `elasticscan status`",
                shard=shard,
                kind="tablet",
            )
        context.clock.sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS


def _plan_draining(shard: int, tx: Tx) -> list[Move] | None:
    """Return moves that empty a shard; [] while others move its tablets, None after it was removed."""
    info = tx.state.shards.get(shard)
    if info is None:
        return None  # another process removed it
    if not info.draining:
        raise InvalidCall(
            f"an expansion has called off the contraction of shard {info.name!r}; it stays in the store",
            shard=info.name,
        )
    if not tx.state.placement.at(shard) and not any(shard in (m.source, m.target) for m in moves_in(tx)):
        tx.append(ShardDefined(info, removed=True))
        return None
    return _plan(tx, only_from=shard)


def _plan(tx: Tx, only_from: int | None = None) -> list[Move]:
    """Plan balancing moves for the placement after all running moves; only from one shard if given."""
    adopted = _adopt_dead(tx)
    under_way = [*moves_in(tx), *adopted]
    moving, after = {move.tablet for move in under_way}, after_moves(tx.state.placement, under_way)
    even = plan_even(after, tablet_bytes(after, tx.state.fragments()), sorted(_active(tx)), Balance())
    return adopted + [p for p in even if p.tablet not in moving and only_from in (None, p.source)]


def _adopt_dead(tx: Tx) -> list[Move]:
    """Undo the moves of processes that died; return those that are still possible, for a new plan."""
    active, dead = _active(tx), [move for move in moves_in(tx) if forget_dead(tx, move.tablet)]
    return [
        Move(move.tablet, move.source, move.target)
        for move in dead
        if tx.state.tablet(move.tablet).shard == move.source and move.target in active
    ]


@retry_interrupted
def _carry_out(
    context: Context, plan: Callable[[Tx], list[Move] | None], tolerate: bool = False
) -> list[Move] | None:
    """Claim planned moves and run them, a few in parallel; return the plan.

    All moves are tried, and the first error is raised at the end. With `tolerate`, no error is raised if
    another process has changed the tablet or its target: the caller plans again.
    """
    tolerated: tuple[type[Exception], ...] = (InvalidCall, TryAgain) if tolerate else ()
    errors = list[Exception]()
    with owning() as owner:
        with context.catalog.writing() as tx:
            moves = plan(tx)
            enter_moves(tx, moves or (), owner)
        if not moves:
            return moves

        def carry_out(move: Move) -> None:
            try:
                Mover(context, owner, move).carry_out()
            except tolerated:
                pass
            except Exception as error:
                errors.append(error)

        try:
            with beating(context.catalog, owner):
                parallel(carry_out, moves, PARALLEL_MOVES)
        finally:
            # After an interrupt, running moves finish and others do not start. If the catalog is unreachable,
            # another process ends them later.
            when_possible(context, lambda tx: [transition(tx, move, owner, Event.FAILED) for move in moves])
    if errors:
        raise errors[0]
    return moves


@retry_interrupted
def _publish(context: Context, reason: str) -> Topology:
    with context.catalog.writing() as tx:
        topology = append_topology(tx, reason)
    context.upkeep.after_moves()
    return topology


def _active(tx: Tx) -> set[int]:
    """Return the shards that take tablets."""
    return {shard.id for shard in tx.state.shards.values() if not shard.draining}


@contextmanager
def _keeping(errors: list[Exception]) -> Iterator[None]:
    """Append an error to a list instead of raising it."""
    try:
        yield
    except ElasticScanError as error:
        errors.append(error)


# Splits and joins copy nothing. A tablet that is being moved cannot be split or joined. If its mover is gone,
# the move is undone first.


@retry_interrupted
def split(context: Context, tablet_id: int, at: int | None = None) -> Topology:
    """Split a tablet in two, in the middle or before slot `at`."""
    with context.catalog.writing() as tx:
        left = _new_tablet_id(tx)
        tx.append(TabletsChanged(*split_tablet(_resting(tx, tablet_id), at, (left, left + 1))))
        return append_topology(tx, f"tablet {tablet_id} split into {left} and {left + 1}")


@retry_interrupted
def join(context: Context, left: int, right: int) -> Topology:
    """Join two neighbouring tablets at one shard."""
    with context.catalog.writing() as tx:
        joined = _new_tablet_id(tx)
        tx.append(TabletsChanged(*join_tablets(_resting(tx, left), _resting(tx, right), joined)))
        return append_topology(tx, f"tablets {left} and {right} joined into {joined}")


@retry_interrupted
def split_and_join(
    context: Context, splits: Sequence[int], joins: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Split tablets in the middle and join neighbours, all in one transaction.

    No tablet may be named twice. Changes that became impossible meanwhile are skipped. Returns (number of
    splits, number of joins).
    """
    done, before, after = Counter[int](), list[Tablet](), list[Tablet]()
    with context.catalog.writing() as tx:
        new = _new_tablet_id(tx)
        for tablets in (*((tablet,) for tablet in splits), *joins):
            with suppress(InvalidCall, NotFound, Busy):
                old = [_resting(tx, tablet) for tablet in tablets]
                if len(old) == 1:
                    changed = split_tablet(old[0], None, (new, new + 1))
                else:
                    changed = join_tablets(old[0], old[1], new)
                before, after, new = [*before, *changed[0]], [*after, *changed[1]], new + len(changed[1])
                done[len(old)] += 1
        if done:
            tx.append(TabletsChanged(tuple(before), tuple(after)))
            append_topology(tx, f"{done[1]} tablets split, {done[2]} pairs of neighbours joined")
    return done[1], done[2]


def _resting(tx: Tx, tablet_id: int) -> Tablet:
    """Return a tablet that is not being moved; raises `NotFound` or `Busy`."""
    tablet = tx.state.tablet(tablet_id)
    forget_dead(tx, tablet_id)
    check_at_rest(tx, {tablet_id})
    return tablet


def _new_tablet_id(tx: Tx) -> int:
    """Return the lowest id that was never used for a tablet."""
    return tx.state.newest_ids["tablet"] + 1
