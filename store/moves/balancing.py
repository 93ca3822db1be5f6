"""Splits of large tablets, joins of small ones, moves that balance bytes; each with a margin to its opposite.

Values in, steps out, as in `elasticscan.topology`, which plans by the number of tablets alone.
A split leaves halves that are far too large to be joined, and a join a tablet that is far too small to be
split. A move is planned only if the target stays below where the source was, so no move is worth undoing:

    before   source ████████████   target ███           the gap is 9
    after    source ███████        target ████████      only tablets of less than the gap move
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from elasticscan.metadata import Fragment
from elasticscan.topology import Move, Placement, Tablet, plan_balance


@dataclass(frozen=True, slots=True)
class Balance:
    """The bounds of tablets.

    Attributes:
        split_bytes: a tablet with more is cut in two, if it has two slots.
        join_bytes: neighbours at one shard with less together are joined, ...
        fewest_tablets: ... while there are more tablets than this.
        share: tablets move when the fullest shard has more than the emptiest by this share of what a shard
            has on average, ...
        bytes: ... and by at least so many bytes.
    """

    split_bytes: int = 8 << 30
    join_bytes: int = 1 << 30
    fewest_tablets: int = 64
    share: float = 0.25
    bytes: int = 256 << 20

    def __post_init__(self) -> None:
        assert 2 * self.join_bytes <= self.split_bytes, "what was joined would be split again"


def tablet_bytes(placement: Placement, fragments: Sequence[Fragment]) -> dict[int, float]:
    """Return about how many bytes each tablet has."""
    sizes = np.add.reduceat(slot_bytes(fragments, placement.slot_count), placement.starts).round(3)
    return {tablet.id: float(size) for tablet, size in zip(placement.tablets, sizes, strict=True)}


def slot_bytes(fragments: Sequence[Fragment], slot_count: int) -> npt.NDArray[np.float64]:
    """Return about how many bytes each slot has: those of each fragment, spread evenly over its slots."""
    density = np.zeros(slot_count + 1)  # what begins at each slot, less what ends
    for fragment in fragments:
        per_slot = fragment.serving_bytes / max(len(fragment.slots), 1)
        density[fragment.slots.edges[::2]] += per_slot
        density[fragment.slots.edges[1::2]] -= per_slot
    return density.cumsum()[:-1].clip(0)  # sums may be off by a little


def plan_splits(placement: Placement, sizes: Mapping[int, float], bounds: Balance) -> tuple[int, ...]:
    """Return the tablets to cut, which are too large; one of a single slot stays as it is."""
    return tuple(
        tablet.id
        for tablet in placement.tablets
        if sizes[tablet.id] > bounds.split_bytes and tablet.end - tablet.start > 1
    )


def plan_joins(
    placement: Placement, sizes: Mapping[int, float], bounds: Balance
) -> tuple[tuple[int, int], ...]:
    """Return the neighbours to join, which are small together, as long as enough tablets are left."""
    spare = len(placement.tablets) - bounds.fewest_tablets
    joins: list[tuple[int, int]] = []
    joined: Tablet | None = None
    for left, right in pairwise(placement.tablets):
        together = sizes[left.id] + sizes[right.id]
        if len(joins) >= spare:
            break
        if left is not joined and left.shard == right.shard and together < bounds.join_bytes:
            joins.append((left.id, right.id))
            joined = right
    return tuple(joins)


def plan_even(
    placement: Placement, sizes: Mapping[int, float], shards: Sequence[int], bounds: Balance
) -> tuple[Move, ...]:
    """Plan the moves after which shards are even, and each tablet is at one of them.

    They are even in bytes, as far as `plan_moves` sees to that, and within its margin in tablets: a plan by
    count stands if it leaves nothing to move by bytes. So neither of these undoes what the other one did.
    """
    by_count = plan_balance(placement, shards)
    if not plan_moves(after_moves(placement, by_count), sizes, shards, bounds):
        return by_count
    held, homes = _held(placement, sizes, shards), dict[int, Move]()
    strangers = [tablet for tablet in placement.tablets if tablet.shard not in held]
    for tablet in sorted(strangers, key=lambda tablet: (-sizes[tablet.id], tablet.id)):
        target = min(held, key=lambda shard: (held[shard], shard))
        homes[tablet.id] = Move(tablet.id, tablet.shard, target)
        held[target] += sizes[tablet.id]
    for move in plan_moves(after_moves(placement, homes.values()), sizes, shards, bounds):
        first = homes.get(move.tablet, move)
        homes[move.tablet] = Move(move.tablet, first.source, move.target)
    return tuple(homes.values())


def _held(placement: Placement, sizes: Mapping[int, float], shards: Sequence[int]) -> dict[int, float]:
    """Return the bytes of each of some shards."""
    held = dict.fromkeys(shards, 0.0)
    for tablet in placement.tablets:
        if tablet.shard in held:
            held[tablet.shard] += sizes[tablet.id]
    return held


def after_moves(placement: Placement, moves: Iterable[Move]) -> Placement:
    """Return the placement once some moves are carried out, for plans alone: epochs stay."""
    homes = {move.tablet: move.target for move in moves}
    return Placement(tuple(replace(t, shard=homes.get(t.id, t.shard)) for t in placement.tablets))


def plan_moves(
    placement: Placement, sizes: Mapping[int, float], shards: Sequence[int], bounds: Balance
) -> tuple[Move, ...]:
    """Plan the moves that balance bytes among shards that take tablets; none while all are about equal.

    Tablets at other shards, which are being emptied, are left to the process that empties them.
    """
    held = _held(placement, sizes, shards)
    if len(held) < 2:
        return ()
    margin = max(bounds.share * sum(held.values()) / len(held), bounds.bytes)
    tablets = sorted(
        (t for t in placement.tablets if t.shard in held and sizes[t.id] > 0), key=lambda t: t.id
    )
    size = np.array([sizes[tablet.id] for tablet in tablets])
    movable_at = np.array([tablet.shard for tablet in tablets])
    moves: list[Move] = []
    while True:
        fullest = max(held, key=lambda shard: (held[shard], -shard))
        emptiest = min(held, key=lambda shard: (held[shard], shard))
        gap = held[fullest] - held[emptiest]
        # Half of the gap would close it; more than that, up to all of it, still makes it smaller.
        off = np.where((movable_at == fullest) & (size < gap), abs(size - gap / 2), np.inf)
        nearest = int(off.argmin()) if tablets else 0  # the one of the lowest id
        if gap <= margin or not tablets or off[nearest] == np.inf:
            return tuple(moves)
        moves.append(Move(tablets[nearest].id, fullest, emptiest))
        movable_at[nearest] = -1  # one tablet moves once in a plan
        held[fullest] -= size[nearest]
        held[emptiest] += size[nearest]
