"""Splits of large tablets, joins of small ones, moves that balance bytes; each with a margin to its opposite.

Values in, steps out, as in `elasticscan.topology`.
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
from numpy.typing import NDArray

from elasticscan.metadata import Fragment
from elasticscan.topology import Move, Placement, Tablet


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


def slot_bytes(fragments: Sequence[Fragment], slot_count: int) -> NDArray[np.float64]:
    """Return about how many bytes each slot has: those of each fragment, spread evenly over its slots."""
    density = np.zeros(slot_count + 1)  # what begins at each slot, less what ends
    for fragment in fragments:
        per_slot = fragment.serving_bytes / max(len(fragment.slots), 1)
        density[fragment.slots.edges[::2]] += per_slot
        density[fragment.slots.edges[1::2]] -= per_slot
    return density.cumsum()[:-1].clip(0)  # sums may be off by a little


def tablet_bytes(placement: Placement, fragments: Sequence[Fragment]) -> dict[int, float]:
    """Return about how many bytes each tablet has."""
    sizes = np.add.reduceat(slot_bytes(fragments, placement.slot_count), placement.starts).round(3)
    return {tablet.id: float(size) for tablet, size in zip(placement.tablets, sizes, strict=True)}


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

    They are even in bytes, as far as `plan_moves` sees to that, and within its margin in tablets: the fewest
    moves that leave shards with as many tablets, give or take one, are the plan if nothing is left to move by
    bytes. So neither of these undoes what the other one did.
    """
    moved = _even_out(placement, dict.fromkeys(sizes, 1.0), shards, 0.0, 1.0)
    # By count it is all the same which one goes where: neighbours go to one shard.
    leaving = [tablet for tablet in placement.tablets if tablet.id in moved]
    homes = zip(leaving, sorted(moved.values()), strict=True)
    by_count = tuple(Move(tablet.id, tablet.shard, target) for tablet, target in homes)
    if not plan_moves(after_moves(placement, by_count), sizes, shards, bounds):
        return by_count
    return _moves(placement, _even_out(placement, sizes, shards, bounds.share, bounds.bytes))


def plan_moves(
    placement: Placement, sizes: Mapping[int, float], shards: Sequence[int], bounds: Balance
) -> tuple[Move, ...]:
    """Plan the moves that balance bytes among shards that take tablets; none while all are about equal.

    Tablets at other shards, which are being emptied, are left to the process that empties them.
    """
    if len(shards) < 2:
        return ()
    here = {tablet.id: sizes[tablet.id] for tablet in placement.tablets if tablet.shard in shards}
    return _moves(placement, _even_out(placement, here, shards, bounds.share, bounds.bytes))


def after_moves(placement: Placement, moves: Iterable[Move]) -> Placement:
    """Return the placement once some moves are carried out, for plans alone: epochs stay."""
    homes = {move.tablet: move.target for move in moves}
    return Placement(tuple(replace(t, shard=homes.get(t.id, t.shard)) for t in placement.tablets))


def _moves(placement: Placement, homes: Mapping[int, int]) -> tuple[Move, ...]:
    sources = {tablet.id: tablet.shard for tablet in placement.tablets}
    return tuple(Move(tablet, sources[tablet], target) for tablet, target in homes.items())


def _even_out(
    placement: Placement, sizes: Mapping[int, float], shards: Sequence[int], share: float, least: float
) -> dict[int, int]:
    """Return the new shards of some tablets, after which the fullest shard has hardly more than the emptiest.

    Tablets at other shards go to the emptiest ones, the largest first.

    Args:
        sizes: of the tablets that may move.
        share, least: shards may differ by this share of the average, and by so much.
    """
    assert shards and len(set(shards)) == len(shards), shards
    held, homes = dict.fromkeys(sorted(shards), 0.0), dict[int, int]()
    tablets = [tablet for tablet in reversed(placement.tablets) if tablet.id in sizes]
    for tablet in tablets:
        if tablet.shard in held:
            held[tablet.shard] += sizes[tablet.id]
    strangers = [tablet for tablet in tablets if tablet.shard not in held]
    for tablet in sorted(strangers, key=lambda tablet: -sizes[tablet.id]):
        homes[tablet.id] = min(held, key=held.__getitem__)
        held[homes[tablet.id]] += sizes[tablet.id]
    margin = max(share * sum(held.values()) / len(held), least)
    size = np.array([sizes[tablet.id] for tablet in tablets])
    at = np.array([homes.get(tablet.id, tablet.shard) for tablet in tablets])
    while True:
        # Of several that are as full, the last gives first, and the first one takes.
        fullest, emptiest = max(held, key=lambda shard: (held[shard], shard)), min(held, key=held.__getitem__)
        gap = held[fullest] - held[emptiest]
        # Half of the gap would close it; more than that, up to all of it, still makes it smaller.
        off = np.where((at == fullest) & (size > 0) & (size < gap), abs(size - gap / 2), np.inf)
        if gap <= margin or off.min(initial=np.inf) == np.inf:
            return homes
        nearest = int(off.argmin())
        homes[tablets[nearest].id], at[nearest] = emptiest, -1  # one tablet moves once in a plan
        held[fullest] -= size[nearest]
        held[emptiest] += size[nearest]
