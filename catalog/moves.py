"""Catalog transactions: shards, the placement of tablets, and moves under way.

A move under way is a lease that ends with its owner. It is entered in the first phase of
`elasticscan.topology.moves`, goes from phase to phase by that table, and is removed with the phase that ends
it. A test proves that no other code writes these leases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from elasticscan.base.errors import AlreadyExists, InvalidTopologyChange, NotFound, NotReady
from elasticscan.base.suggestions import suggest
from elasticscan.catalog.codec import pack_value
from elasticscan.catalog.leases import ENDLESS, LogLease, find_lease, held_value, leases_of
from elasticscan.catalog.transaction import StateTx
from elasticscan.metadata import ShardDefined, TabletsChanged
from elasticscan.topology import Event, Move, Phase, Placement, Shard, Tablet

_MOVE = "move"


class PlacementTx(StateTx):
    """Reads and changes of shards, and of where tablets are."""

    # Shards

    def shards(self, removed: bool = False) -> tuple[Shard, ...]:
        """Return the store's shards; with `removed`, all there ever were: their files may be in use."""
        gone = self.state.removed_shards.values() if removed else ()
        return tuple(sorted((*self.state.shards.values(), *gone), key=lambda shard: shard.id))

    def shard_roots(self) -> dict[int, str]:
        """Return the roots of all shards there ever were."""
        return {shard.id: shard.root for shard in self.shards(removed=True)}

    def shard_named(self, name: str) -> Shard:
        matches = [shard for shard in self.shards() if shard.name == name]
        if not matches:
            names = [shard.name for shard in self.shards()]
            hint = suggest(name, names) or f"; it has {', '.join(names)}"
            raise NotFound(f"the store has no shard {name!r}{hint}", shard=name, kind="shard")
        return matches[0]

    def add_shards(self, new: Iterable[tuple[str, str]]) -> tuple[Shard, ...]:
        """Enter shards, each a name and a root.

        Raises:
            AlreadyExists: there is a shard of a name.
        """
        taken = {shard.name for shard in self.shards()}
        first, added = self.state.newest_ids["shard"] + 1, list[Shard]()
        for number, (name, root) in enumerate(new, first):
            if name in taken:
                raise AlreadyExists(
                    f"the store already has a shard {name!r}, with another root; choose another name",
                    shard=name,
                )
            taken.add(name)
            added.append(Shard(number, name, root))
        for shard in added:
            self.append(ShardDefined(shard))
        return tuple(added)

    def set_draining(self, shard: int, draining: bool) -> None:
        before = self.state.shards[shard]
        if before.draining != draining:
            self.append(ShardDefined(replace(before, draining=draining)))

    def remove_shard(self, shard: int) -> None:
        held = sum(tablet.shard == shard for tablet in self.placement().tablets)
        if held:
            raise InvalidTopologyChange(
                f"shard {shard} still holds {held} tablets; move them away first", shard=shard, tablets=held
            )
        self.append(ShardDefined(self.state.shards[shard], removed=True))

    # Placement

    def placement(self) -> Placement:
        return self.state.placement

    def tablet(self, tablet_id: int) -> Tablet:
        tablet = self.placement().tablet(tablet_id)
        if tablet is None:
            raise NotFound(
                f"the store has no tablet {tablet_id}; `elasticscan status --tablets` lists them",
                tablet=tablet_id,
                kind="tablet",
            )
        return tablet

    def replace_placement(self, before: Placement, after: Placement) -> None:
        """Append the difference between two placements: tablets that were split or joined."""
        gone, came = after.difference(before)
        epochs = {tablet.id: tablet.epoch for tablet in gone}
        assert all(t.epoch > epochs.get(t.id, -1) for t in came), "an epoch must grow with every change"
        self.append(TabletsChanged(gone, came))

    def new_tablet_ids(self, count: int) -> tuple[int, ...]:
        """Return ids that no tablet has had; they are taken once a placement with them is appended."""
        first = self.state.newest_ids["tablet"] + 1
        return tuple(range(first, first + count))


@dataclass(frozen=True, slots=True)
class OwnedMove(Move):
    """A move under way, as every process sees it; the times are in seconds since 1970."""

    owner: str = ""
    started_at: float = 0.0
    heartbeat_at: float = 0.0


class MoveTx(PlacementTx):
    """Reads and changes of moves under way."""

    def plan_move(self, move: Move, owner: str) -> None:
        """Enter a planned move; no other process may move the tablet until it ended."""
        self.plan_moves((move,), owner)

    def plan_moves(self, planned: Sequence[Move], owner: str) -> None:
        """Enter several moves as `plan_move` does, or none of them."""
        assert all(move.phase is Phase.PLANNED for move in planned), f"a move begins with a plan: {planned}"
        under_way = {move.tablet: move for move in self.moves()} if planned else {}
        for move in planned:
            if move.tablet in under_way:
                raise _busy(under_way[move.tablet])
        at = self.times.stamp
        for move in planned:
            self._put_move(OwnedMove(move.tablet, move.source, move.target, move.phase, owner, at, at))

    def give_up_moves(self, owner: str, planned: Collection[Move]) -> None:
        """Let the moves of an owner that are under way still fail."""
        tablets = {move.tablet for move in planned}
        for move in self.moves():
            if move.owner == owner and move.tablet in tablets:
                assert move.after(Event.FAILED).is_over, "a move that failed is over"
                self.writing.remove_lease(_lease_id(move.tablet))

    def move(self, tablet: int) -> OwnedMove | None:
        lease = find_lease(self, _lease_id(tablet))
        return None if lease is None else held_value(lease, OwnedMove)

    def moves(self) -> tuple[OwnedMove, ...]:
        """Return all moves under way, the oldest first."""
        found = (held_value(lease, OwnedMove) for lease in leases_of(self, _MOVE))
        return tuple(sorted(found, key=lambda move: (move.started_at, move.tablet)))

    def transition(self, move: Move, owner: str, event: Event) -> Move | None:
        """Let something happen to a move, by the table of its phases; it is forgotten when it is over.

        The caller switches the placement before it reports `SWITCHED`, in the same transaction.

        Returns:
            The move in the phase that it is in now; None, and nothing changed, when it is not this owner's.

        Raises:
            InvalidTopologyChange: that cannot happen in the phase that the catalog knows.
        """
        before = self.move(move.tablet)
        if before is None or before.owner != owner:
            return None
        after = before.after(event)
        if after.server != before.server:
            assert self.tablet(move.tablet).shard == after.server, f"{after} and the placement differ"
        if after.is_over:
            self.writing.remove_lease(_lease_id(move.tablet))
        else:
            self._put_move(replace(after, heartbeat_at=self.times.stamp))
        return after

    def heartbeat(self, owner: str) -> None:
        """Show that an owner of moves is alive."""
        for move in self.moves():
            if move.owner == owner:
                self._put_move(replace(move, heartbeat_at=self.times.stamp))

    def _put_move(self, move: OwnedMove) -> None:
        lease = LogLease(_lease_id(move.tablet), _MOVE, move.owner, pack_value(move), ENDLESS)
        self.writing.put_lease(lease)


def _lease_id(tablet: int) -> str:
    return f"{_MOVE}/{tablet}"


def _busy(move: OwnedMove) -> NotReady:
    return NotReady(
        f"tablet {move.tablet} is already being moved by {move.owner}; wait for it, or run "
        "`elasticscan move --resume` if that process is gone",
        tablet=move.tablet,
        owner=move.owner,
        kind="tablet",
    )
