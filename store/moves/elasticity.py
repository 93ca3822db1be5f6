"""Expand, contract, move, split, join: plans made and carried out while readers and writers go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count

from elasticscan.base.concurrency import completed
from elasticscan.base.errors import ElasticScanError, InvalidTopologyChange, NotReady, TryAgain
from elasticscan.base.limits import DRAIN_WAIT_SECONDS, PARALLEL_MOVES
from elasticscan.catalog import Tx, retry_interrupted
from elasticscan.store.context import Context
from elasticscan.store.moves.balancing import Balance, plan_even, tablet_bytes
from elasticscan.store.moves.mover import Mover, when_possible
from elasticscan.store.moves.owners import beating, owner_is_gone, owning
from elasticscan.store.roots import Claims
from elasticscan.topology import (
    Change,
    Event,
    Move,
    Placement,
    Topology,
    change_tablets,
    halves,
    join_tablets,
    split_tablet,
    whole,
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

    @retry_interrupted
    def expand(self, new: Sequence[tuple[str, str]]) -> Topology:
        """Add shards (name, root) and move the fewest tablets that balance.

        A shard that is there already stays, and one that is being emptied is kept: so an expansion that
        failed can be called again, and a contraction called off. The newest topology as it is where nothing
        was to be done.

        Raises:
            AlreadyExists: there is a shard of the name, with another root.
        """
        return self._balance(new, f"expanded by {', '.join(name for name, _ in new)}")

    @retry_interrupted
    def rebalance(self) -> Topology:
        """Move the fewest tablets that balance; the newest topology as it is where none has to move."""
        return self._balance((), "rebalanced")

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
            if not changes and tx.is_topology_published():
                return tx.newest_topology()
        return self._publish(reason)

    @retry_interrupted
    def contract(self, name: str) -> Topology:
        """Move everything off a shard, then remove it. Waits for moves to it that are under way."""
        with self._context.catalog.writing() as tx:
            shard = tx.shard_named(name)
            if not any(s.id != shard.id and not s.draining for s in tx.shards()):
                raise InvalidTopologyChange(
                    f"{name!r} is the last shard that takes tablets; expand the store first", shard=name
                )
            tx.set_draining(shard.id, True)
        self._drain(shard.id)
        return self._publish(f"contracted by {name}")

    @retry_interrupted
    def move(self, tablet_id: int, target_name: str) -> Topology:
        """Move one tablet."""
        with owning() as owner:
            with self._context.catalog.writing() as tx:
                tablet = tx.tablet(tablet_id)
                target = tx.shard_named(target_name)
                if target.draining:
                    raise InvalidTopologyChange(
                        f"shard {target_name!r} is being emptied and takes no tablets; choose another",
                        shard=target_name,
                    )
                if tablet.shard == target.id:
                    raise InvalidTopologyChange(
                        f"tablet {tablet_id} is at shard {target_name!r} already", tablet=tablet_id
                    )
                self._forget_dead(tx, tablet_id)
                move = Move(tablet_id, tablet.shard, target.id)
                tx.plan_move(move, owner)
            with beating(self._context.catalog, owner):
                Mover(self._context, owner, self._bytes_per_second).carry_out(move)
        return self._publish(f"tablet {tablet_id} moved to {target_name}")

    @retry_interrupted
    def split(self, tablet_id: int, at: int | None = None) -> Topology:
        """Cut a tablet in two, in the middle or before slot `at`; copies nothing."""
        with self._context.catalog.writing() as tx:
            self._check_not_moving(tx, tablet_id)
            before = tx.placement()
            left, right = tx.new_tablet_ids(2)
            after = split_tablet(before, tablet_id, at, (left, right))
            placed = self._replace(tx, before, after, f"tablet {tablet_id} split into {left} and {right}")
        return self._noted(placed)

    @retry_interrupted
    def join(self, left: int, right: int) -> Topology:
        """Make two neighbouring tablets at one shard one; copies nothing."""
        with self._context.catalog.writing() as tx:
            for tablet_id in (left, right):
                self._check_not_moving(tx, tablet_id)
            before = tx.placement()
            (joined,) = tx.new_tablet_ids(1)
            after = join_tablets(before, left, right, joined)
            placed = self._replace(tx, before, after, f"tablets {left} and {right} joined into {joined}")
        return self._noted(placed)

    @retry_interrupted
    def change(self, splits: Sequence[int], joins: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Cut tablets in the middle, and make neighbours one, all in one transaction; copies nothing.

        Changes that became impossible meanwhile are skipped. Returns how many were cut, and joined.
        """
        with self._context.catalog.writing() as tx:
            for move in tx.moves():
                self._forget_dead(tx, move.tablet)
            moving = {move.tablet for move in tx.moves()}
            before = tx.placement()
            there = {tablet.id: tablet for tablet in before.tablets if tablet.id not in moving}
            ids, changes = count(tx.new_tablet_ids(2 * len(splits) + len(joins))[0]), list[Change]()
            for tablet in splits:
                with suppress(InvalidTopologyChange, KeyError):
                    changes.append(halves(there[tablet], None, (next(ids), next(ids))))
            cut = len(changes)
            for left, right in joins:
                with suppress(InvalidTopologyChange, KeyError):
                    changes.append(whole(there[left], there[right], next(ids)))
            if not changes:
                return 0, 0
            reason = f"{cut} tablets split, {len(changes) - cut} pairs of neighbours joined"
            placed = self._replace(tx, before, change_tablets(before, changes), reason)
        self._noted(placed)
        return cut, len(changes) - cut

    @retry_interrupted
    def resume(self) -> int:
        """Finish what processes that died left behind; returns how many tablets were to move.

        Each of their moves is undone (the source goes on serving), planned again and carried out;
        shards that were being emptied are emptied and removed. All is tried; the first error is raised at the
        end, so that a shard that is away keeps no other one waiting.
        """
        errors, emptied = list[Exception](), 0
        with owning() as owner:
            with self._context.catalog.writing() as tx:
                plans = self._adopt_dead(tx, owner)
                draining = [shard.id for shard in tx.shards() if shard.draining]
                holding = tx.placement().shards
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
            published = tx.is_topology_published()
        if emptied or not published:
            self._publish("interrupted moves resumed")
        if errors:
            raise errors[0]
        return moved

    def _add_or_take_back(self, tx: Tx, claims: Claims, new: Sequence[tuple[str, str]]) -> int:
        """Return how many shards were not there already."""
        there = {shard.name: shard for shard in tx.shards()}
        known = {(shard.name, shard.root): shard for shard in there.values()}
        back = {known[shard].id for shard in new if shard in known and known[shard].draining}
        for draining in back:
            tx.set_draining(draining, False)
        added = tx.add_shards(shard for shard in dict.fromkeys(new) if shard not in known)
        taken = [shard.id for shard in there.values()]
        for shard in added:
            self._context.claim(claims, shard, taken)
            taken.append(shard.id)
        return len(back) + len(added)

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
            info = next((s for s in tx.shards() if s.id == shard), None)
            if info is None:
                return None  # another process removed it
            if not info.draining:
                raise InvalidTopologyChange(
                    f"shard {info.name!r} was taken back by an expansion while it was being emptied; it "
                    "stays, and nothing is lost",
                    shard=info.name,
                )
            coming = [m for m in tx.moves() if shard in (m.source, m.target)]
            if not tx.placement().at(shard) and not coming:
                tx.remove_shard(shard)
                return None
            return self._plan(tx, owner, only_from=shard)

    def _plan(self, tx: Tx, owner: str, only_from: int | None = None) -> list[Move]:
        """Plan on the placement as it will be after the moves under way; enter our part."""
        adopted = self._adopt_dead(tx, owner)
        moving = {move.tablet: move.target for move in tx.moves()}
        after = Placement(tuple(replace(t, shard=moving.get(t.id, t.shard)) for t in tx.placement().tablets))
        active = [shard.id for shard in tx.shards() if not shard.draining]
        even = plan_even(after, tablet_bytes(after, tx.fragments()), active, Balance())
        plans = [p for p in even if p.tablet not in moving and only_from in (None, p.source)]
        tx.plan_moves(plans, owner)
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
                    except (InvalidTopologyChange, TryAgain) as error:
                        # Another process changed the tablet or its target: the next plan knows of that.
                        if not tolerate:
                            errors.append(error)
                    except Exception as error:
                        errors.append(error)
                    self._on_progress(done, len(plans))
        finally:
            # Those that did not begin end, too. If the catalog stays away, they are left to the next process.
            when_possible(self._context, lambda tx: tx.give_up_moves(owner, plans))
        if errors:
            raise errors[0]

    @retry_interrupted
    def _publish(self, reason: str) -> Topology:
        with self._context.catalog.writing() as tx:
            last, placement = self._context.newest_topology(tx), tx.placement()
            topology = tx.append_topology(reason, True, placement, last)
        self._context.upkeep.after_moves()
        return self._noted(topology)

    def _replace(self, tx: Tx, before: Placement, after: Placement, reason: str) -> Topology:
        """Replace the placement, and return its topology."""
        last = self._context.newest_topology(tx)
        tx.replace_placement(before, after)
        return tx.append_topology(reason, True, after, last)

    def _noted(self, topology: Topology) -> Topology:
        """Return the committed topology and cache it."""
        self._context.note_topology(topology)
        return topology

    def _adopt_dead(self, tx: Tx, owner: str) -> list[Move]:
        """Make the moves of processes that died ours, where they still make sense."""
        active = {shard.id for shard in tx.shards() if not shard.draining}
        adopted = []
        for move in tx.moves():
            if owner_is_gone(move, tx.times.expiry):
                tx.transition(move, move.owner, Event.OWNER_DIED)  # the source goes on serving
                if tx.tablet(move.tablet).shard == move.source and move.target in active:
                    adopted.append(Move(move.tablet, move.source, move.target))
                    tx.plan_move(adopted[-1], owner)
        return adopted

    def _forget_dead(self, tx: Tx, tablet_id: int) -> None:
        """End the move of a tablet whose mover died, because something else is to happen to it."""
        move = tx.move(tablet_id)
        if move is not None and owner_is_gone(move, tx.times.expiry):
            tx.transition(move, move.owner, Event.OWNER_DIED)

    def _check_not_moving(self, tx: Tx, tablet_id: int) -> None:
        """Raise unless a tablet is there, and stays where it is."""
        self._forget_dead(tx, tablet_id)
        if tx.move(tx.tablet(tablet_id).id) is not None:
            raise NotReady(
                f"tablet {tablet_id} is being moved; try again when it has arrived",
                tablet=tablet_id,
                kind="tablet",
            )


@contextmanager
def _keeping(errors: list[Exception]) -> Iterator[None]:
    """Keep an error for later instead of raising it."""
    try:
        yield
    except ElasticScanError as error:
        errors.append(error)
