"""Steps that move, split and join tablets, and add and remove shards."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from elasticscan.base.errors import InvalidCall, TryAgain
from elasticscan.store.moves.mover import Mover
from elasticscan.store.moves.owners import enter_moves, move_of, new_owner
from elasticscan.topology import Move, Tablet
from tests.simulation.world import DEAD_OWNER, World, step

POINTS = ("copying", "copied", "caught_up", "switching", "target_serves")


class MoverStoppedError(Exception):
    """Raised in a mover to make its move fail, or its process seem dead."""


def _tablets(world: World) -> list[Tablet]:
    """The tablets that no live mover is moving."""
    moving = {plan.tablet for plan in world.under_way}
    return [t for t in world.store.context.placement().tablets if t.id not in moving]


def _some_move(world: World) -> tuple[Tablet, int, str] | None:
    names = world.store.context.shard_names()
    moves = [(t, *shard) for t in _tablets(world) for shard in names.items() if shard[0] != t.shard]
    return world.random.choice(moves) if moves else None


@step
def move(world: World) -> None:
    chosen = _some_move(world)
    if chosen is not None:
        world.store.move(chosen[0].id, chosen[2])


@step
def move_and_return(world: World) -> None:
    chosen = _some_move(world)
    if chosen is None:
        return
    tablet, _, name = chosen
    home = world.store.context.shard_names()[tablet.shard]
    world.store.move(tablet.id, name)
    world.let_others_in()
    found = world.store.context.placement().tablet(tablet.id)
    if found is not None and found in _tablets(world):
        names = world.store.context.shard_names()
        if home in names.values() and names[found.shard] != home:
            world.store.move(tablet.id, home)


@step
def suspended_move(world: World) -> None:
    """Move a tablet, with steps of others at each point; the move may fail, or its process may die."""
    chosen = _some_move(world)
    if chosen is None:
        return
    tablet, target, _ = chosen
    plan = Move(tablet.id, tablet.shard, target)
    fate = world.random.choice(["arrives", "arrives", "fails", "dies"])
    stop_at = world.random.choice(POINTS)
    world.say(f"tablet {tablet.id} to {target}, {fate} at {stop_at}")

    def sync_point(point: str) -> None:
        world.writers_wait = point == "switching"
        try:
            world.let_others_in(noise=0.7)
        finally:
            world.writers_wait = False
        if fate != "arrives" and point == stop_at:
            raise MoverStoppedError

    owner = DEAD_OWNER if fate == "dies" else new_owner()
    with world.store.context.catalog.writing() as tx:
        if move_of(tx, tablet.id) is not None:
            return  # left by a dead process; the step `resume_moves` finishes it
        enter_moves(tx, [plan], owner)
    carrier = Mover(world.store.context, owner, plan, sync_point)
    if fate == "dies":
        carrier._undo = lambda: False  # type: ignore[method-assign]
    world.under_way += [] if fate == "dies" else [plan]
    collections = world.collections
    try:
        carrier.carry_out()
    except MoverStoppedError:
        pass
    except InvalidCall:
        pass  # the tablet or the target changed, or the move was taken over
    except TryAgain:
        assert world.collections > collections, "a move was refused for no reason"
    finally:
        if fate != "dies":
            world.under_way.remove(plan)


@step
def resume_moves(world: World) -> None:
    world.store.resume_moves()


@step
def split(world: World) -> None:
    tablets = [tablet for tablet in _tablets(world) if len(tablet.slots) > 1]
    if tablets:
        world.store.split(world.random.choice(tablets).id)


@step
def join(world: World) -> None:
    pairs = [(a, b) for a, b in pairwise(_tablets(world)) if a.end == b.start and a.shard == b.shard]
    if pairs:
        left, right = world.random.choice(pairs)
        world.store.join(left.id, right.id)


@step
def expand(world: World) -> None:
    context = world.store.context
    taken = set(context.shard_names().values())
    if len(taken) >= 5:
        return
    world.new_shards += 1
    # Names of removed shards are used again; their ids never are.
    free = next(name for name in ("s1", "s2", "s3", "s4", "s5", "s6") if name not in taken)
    if context.location.directory is not None:
        world.store.expand([free])
    else:  # a place for it, as the catalog is not in a directory of the store's own
        other = Path(context.roots.root(min(context.shard_names())).place)
        world.store.expand({free: str(other.with_name(f"{free}-{world.new_shards}"))})


@step
def contract(world: World) -> None:
    busy = {shard for plan in world.under_way for shard in (plan.source, plan.target)}
    names = world.store.context.shard_names()
    free = [shard for shard in names if shard not in busy]
    if len(names) > 1 and free:
        world.store.contract(names[world.random.choice(free)])
