"""Expand, contract, move, resume: plans made and carried out while readers and writers go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from elasticscan.base.concurrency import completed
from elasticscan.base.errors import (
    AlreadyExists,
    ElasticScanError,
    InvalidTopologyChange,
    NotReady,
    TryAgain,
)
from elasticscan.base.limits import DRAIN_WAIT_SECONDS, PARALLEL_MOVES
from elasticscan.catalog import Tx, append_topology, newest_topology, retry_interrupted
from elasticscan.metadata import ShardDefined
from elasticscan.store.context import Context
from elasticscan.store.moves.balancing import Balance, after_moves, plan_even, tablet_bytes
from elasticscan.store.moves.boundaries import forget_dead
from elasticscan.store.moves.mover import Mover, when_possible
from elasticscan.store.moves.owners import beating, owner_is_gone, owning
from elasticscan.store.moves.under_way import enter_moves, moves_in, transition
from elasticscan.store.roots import Claims
from elasticscan.topology import (
    Event,
    Move,
    Shard,
    Topology,
)

EXPAND_ROUNDS = 3
_POLL_SECONDS = 0.02

# Called after each move with (moves done, moves planned).
OnProgress = Callable[[int, int], None]


class Elasticity:
    """Changes of where tablets are.

    The topology history has each of them from the transaction on that makes it. Those of a plan are published
    together when it is done: until then scans begin with the topology before it.
    """

    def __init__(
        self,
        context: Context,
        bytes_per_second: float | None = None,
        on_progress: OnProgress | None = None,
        parallel: int = PARALLEL_MOVES,
    ) -> None:
        self._context = context
        self._bytes_per_second = bytes_per_second
        self._on_progress = on_progress or (lambda _done, _planned: None)
        self._parallel = parallel

    def expand(self, new: Sequence[tuple[str, str]]) -> Topology:
        """Add shards (name, root) and move the fewest tablets that balance.

        A shard that is there already stays, and one that is being emptied is kept: so an expansion that
        failed can be called again, and a contraction called off. The newest topology as it is where nothing
        was to be done.

        Raises:
            AlreadyExists: there is a shard of the name, with another root.
        """
        return self._balance(new, f"expanded by {', '.join(name for name, _ in new)}")

    def rebalance(self) -> Topology:
        """Move the fewest tablets that balance; the newest topology as it is where none has to move."""
        return self._balance((), "rebalanced")

    @retry_interrupted
    def _balance(self, new: Sequence[tuple[str, str]], reason: str) -> Topology:
        """Add shards, and move tablets until they balance; returns the topology, a new one if any changed."""
        changes = 0
        for attempt in range(EXPAND_ROUNDS):
            with owning() as owner:
                claims = Claims()
                with self._context.catalog.writing() as tx, claims.undone_on_errors():
                    changes += self._add_or_take_back(tx, claims, new) if attempt == 0 else 0
                    plans = self._plan(tx, owner)
                if not plans:
                    break
                changes += len(plans)
                # A tablet that another process was moving is planned again, but not for ever.
                self._carry_out(plans, owner, tolerate=True)
        with self._context.catalog.reading() as tx:
            if not changes and tx.state.topology[1]:
                return newest_topology(tx)
        return self._publish(reason)

    def contract(self, name: str) -> Topology:
        """Move everything off a shard, then remove it. Waits for moves to it that are under way."""
        self._empty(name)
        return self._publish(f"contracted by {name}")

    @retry_interrupted
    def _empty(self, name: str) -> None:
        with self._context.catalog.writing() as tx:
            shard = tx.state.shard_named(name)
            if not _active(tx) - {shard.id}:
                raise InvalidTopologyChange(
                    f"{name!r} is the last shard that takes tablets; expand the store first", shard=name
                )
            if not shard.draining:
                tx.append(ShardDefined(replace(shard, draining=True)))
        self._drain(shard.id)

    def move(self, tablet_id: int, target_name: str) -> Topology:
        """Move one tablet."""
        self._move(tablet_id, target_name)
        return self._publish(f"tablet {tablet_id} moved to {target_name}")

    @retry_interrupted
    def _move(self, tablet_id: int, target_name: str) -> None:
        with owning() as owner:
            with self._context.catalog.writing() as tx:
                tablet = tx.state.tablet(tablet_id)
                target = tx.state.shard_named(target_name)
                if target.draining:
                    raise InvalidTopologyChange(
                        f"shard {target_name!r} is being emptied and takes no tablets; choose another",
                        shard=target_name,
                    )
                if tablet.shard == target.id:
                    raise InvalidTopologyChange(
                        f"tablet {tablet_id} is at shard {target_name!r} already", tablet=tablet_id
                    )
                forget_dead(tx, tablet_id)
                move = Move(tablet_id, tablet.shard, target.id)
                enter_moves(tx, [move], owner)
            with beating(self._context.catalog, owner):
                Mover(self._context, owner, self._bytes_per_second).carry_out(move)

    def resume(self) -> int:
        """Finish what processes that died left behind; returns how many tablets were to move.

        Each of their moves is undone (the source goes on serving), planned again and carried out;
        shards that were being emptied are emptied and removed. All is tried; the first error is raised at the
        end, so that a shard that is away keeps no other one waiting.
        """
        return self._resume()

    @retry_interrupted
    def _resume(self) -> int:
        errors, emptied = list[Exception](), 0
        with owning() as owner:
            with self._context.catalog.writing() as tx:
                plans = self._adopt_dead(tx, owner)
                draining = sorted(tx.state.shards.keys() - _active(tx))
                holding = tx.state.placement.shards
            with _keeping(errors):
                self._carry_out(plans, owner)
        moved = len(plans)
        for shard in draining:
            with _keeping(errors), self._context.unless_left(shard):
                if shard in holding:  # else each of its tablets would be planned, tried and undone
                    self._context.check_root(shard)
                moved += self._drain(shard)
                emptied += 1
        with self._context.catalog.reading() as tx:
            published = tx.state.topology[1]
        if emptied or not published:
            self._publish("interrupted moves resumed")
        if errors:
            raise errors[0]
        return moved

    def _add_or_take_back(self, tx: Tx, claims: Claims, new: Sequence[tuple[str, str]]) -> int:
        """Return how many shards were not there already.

        Raises:
            AlreadyExists: there is a shard of a name.
        """
        there = {shard.name: shard for shard in tx.state.shards.values()}
        changed, taken = 0, [shard.id for shard in there.values()]
        for name, root in dict.fromkeys(new):
            before = there.get(name)
            if before is not None and before.root != root:
                raise AlreadyExists(
                    f"the store already has a shard {name!r}, with another root; choose another name",
                    shard=name,
                )
            if before is not None and not before.draining:
                continue
            shard = before or Shard(tx.state.newest_ids["shard"] + 1, name, root)
            tx.append(ShardDefined(replace(shard, draining=False)))
            if before is None:
                there[name] = shard
                self._context.roots.claim(claims, shard, taken)
                taken.append(shard.id)
            changed += 1
        return changed

    # How plans are carried out

    def _drain(self, shard: int) -> int:
        """Empty a draining shard, however many rounds that takes, and remove it; returns moves."""
        waited, moved = 0.0, 0
        while True:
            with owning() as owner:
                plans = self._plan_draining(shard, owner)
                if plans is None:
                    return moved
                self._carry_out(plans, owner, tolerate=True)
                moved += len(plans)
            if plans:
                continue
            if waited > DRAIN_WAIT_SECONDS:
                raise NotReady(
                    f"shard {shard} could not be emptied: another process has been moving its tablets for "
                    f"{DRAIN_WAIT_SECONDS:.0f} s; look at `elasticscan status`",
                    shard=shard,
                    kind="tablet",
                )
            self._context.clock.sleep(_POLL_SECONDS)
            waited += _POLL_SECONDS

    @retry_interrupted
    def _plan_draining(self, shard: int, owner: str) -> list[Move] | None:
        """Return moves that empty a shard; [] while others move its tablets, None when it was removed."""
        with self._context.catalog.writing() as tx:
            info = tx.state.shards.get(shard)
            if info is None:
                return None  # another process removed it
            if not info.draining:
                raise InvalidTopologyChange(
                    f"shard {info.name!r} was taken back by an expansion while it was being emptied; it "
                    "stays, and nothing is lost",
                    shard=info.name,
                )
            coming = [m for m in moves_in(tx) if shard in (m.source, m.target)]
            if not tx.state.placement.at(shard) and not coming:
                tx.append(ShardDefined(info, removed=True))
                return None
            return self._plan(tx, owner, only_from=shard)

    def _plan(self, tx: Tx, owner: str, only_from: int | None = None) -> list[Move]:
        """Plan on the placement as it will be after the moves under way; enter our part."""
        adopted = self._adopt_dead(tx, owner)
        under_way = moves_in(tx)
        moving, after = {move.tablet for move in under_way}, after_moves(tx.state.placement, under_way)
        even = plan_even(after, tablet_bytes(after, tx.state.fragments()), sorted(_active(tx)), Balance())
        plans = [p for p in even if p.tablet not in moving and only_from in (None, p.source)]
        enter_moves(tx, plans, owner)
        return adopted + plans

    def _carry_out(self, plans: Sequence[Move], owner: str, tolerate: bool = False) -> None:
        """Run planned moves, a few at a time. All are tried; the first error is raised at the end."""
        if not plans:
            return
        mover, errors = Mover(self._context, owner, self._bytes_per_second), list[Exception]()
        try:
            # On an interrupt, moves that have not begun are given up, those under way end.
            with (
                beating(self._context.catalog, owner),
                completed(mover.carry_out, plans, self._parallel) as outcomes,
            ):
                for done, outcome in enumerate(outcomes, 1):
                    try:
                        outcome.result()
                    except Exception as error:
                        # Another process changed the tablet or its target: the next plan knows of that.
                        if not (tolerate and isinstance(error, (InvalidTopologyChange, TryAgain))):
                            errors.append(error)
                    self._on_progress(done, len(plans))
        finally:
            # Moves that did not begin end, too. If the catalog stays away, the next process ends them.
            when_possible(
                self._context, lambda tx: [transition(tx, move, owner, Event.FAILED) for move in plans]
            )
        if errors:
            raise errors[0]

    @retry_interrupted
    def _publish(self, reason: str) -> Topology:
        with self._context.catalog.writing() as tx:
            topology = append_topology(tx, reason)
        self._context.upkeep.after_moves()
        return topology

    def _adopt_dead(self, tx: Tx, owner: str) -> list[Move]:
        """Make the moves of processes that died ours, where they still make sense."""
        active, adopted = _active(tx), list[Move]()
        for move in moves_in(tx):
            if owner_is_gone(move, tx.times.expiry):
                transition(tx, move, move.owner, Event.OWNER_DIED)  # the source goes on serving
                if tx.state.tablet(move.tablet).shard == move.source and move.target in active:
                    adopted.append(Move(move.tablet, move.source, move.target))
                    enter_moves(tx, [adopted[-1]], owner)
        return adopted


def _active(tx: Tx) -> set[int]:
    """Return the shards that take tablets."""
    return {shard.id for shard in tx.state.shards.values() if not shard.draining}


@contextmanager
def _keeping(errors: list[Exception]) -> Iterator[None]:
    """Keep an error for later instead of raising it."""
    try:
        yield
    except ElasticScanError as error:
        errors.append(error)
