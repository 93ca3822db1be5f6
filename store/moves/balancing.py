"""Plans that split large tablets, join small ones, and move tablets to balance bytes. Pure functions.

No plan undoes another one. The halves of a split are far too large to be joined, and a joined tablet is far
too small to be split. A move is planned only if the target then has less than the source had before, so the
opposite move is never planned:

    before   source ████████████   target ███           the gap is 9
    after    source ███████        target ████████      only tablets smaller than the gap move
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
        split_bytes: a larger tablet is split, if it has at least two slots.
        join_bytes: two neighbours at one shard that together have less are joined, ...
        fewest_tablets: ... while the store has more tablets than this.
        share: tablets move if the fullest and the emptiest shard differ by more than this share of the
            average shard, ...
        bytes: ... and by more than so many bytes.
    """

    split_bytes: int = 8 << 30
    join_bytes: int = 1 << 30
    fewest_tablets: int = 64
    share: float = 0.25
    bytes: int = 256 << 20

    def __post_init__(self) -> None:
        assert 2 * self.join_bytes <= self.split_bytes, "what was joined would be split again"


def slot_bytes(fragments: Sequence[Fragment], slot_count: int) -> NDArray[np.float64]:
    """Return an estimate of the bytes of each slot: each fragment's bytes, spread evenly over its slots."""
    density = np.zeros(slot_count + 1)  # changes from slot to slot; their running sums are the sizes
    for fragment in fragments:
        per_slot = fragment.serving_bytes / max(len(fragment.slots), 1)
        density[fragment.slots.edges[::2]] += per_slot
        density[fragment.slots.edges[1::2]] -= per_slot
    return density.cumsum()[:-1].clip(0)  # rounding may leave tiny negative sums


def tablet_bytes(placement: Placement, fragments: Sequence[Fragment]) -> dict[int, float]:
    """Return an estimate of the bytes of each tablet, by id."""
    sizes = np.add.reduceat(slot_bytes(fragments, placement.slot_count), placement.starts).round(3)
    return {tablet.id: float(size) for tablet, size in zip(placement.tablets, sizes, strict=True)}


def plan_splits(placement: Placement, sizes: Mapping[int, float], bounds: Balance) -> tuple[int, ...]:
    """Return the tablets that are too large; a tablet of one slot cannot be split."""
    return tuple(
        tablet.id
        for tablet in placement.tablets
        if sizes[tablet.id] > bounds.split_bytes and tablet.end - tablet.start > 1
    )


def plan_joins(
    placement: Placement, sizes: Mapping[int, float], bounds: Balance
) -> tuple[tuple[int, int], ...]:
    """Return pairs of small neighbours to join, while more than `fewest_tablets` are left."""
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
    """Plan moves that balance the shards, after which each tablet is at one of them.

    The plan is the fewest moves after which the shards' numbers of tablets differ by one at most, if
    `plan_moves` would not move anything afterwards. Otherwise the plan balances bytes. So this function and
    `plan_moves` never undo each other's moves.
    """
    moved = _even_out(placement, dict.fromkeys(sizes, 1.0), shards, 0.0, 1.0)
    # For the numbers it does not matter which tablet goes where, so neighbours go to the same shard.
    leaving = [tablet for tablet in placement.tablets if tablet.id in moved]
    targets = zip(leaving, sorted(moved.values()), strict=True)
    by_count = tuple(Move(tablet.id, tablet.shard, target) for tablet, target in targets)
    if not plan_moves(after_moves(placement, by_count), sizes, shards, bounds):
        return by_count
    return _moves(placement, _even_out(placement, sizes, shards, bounds.share, bounds.bytes))


def plan_moves(
    placement: Placement, sizes: Mapping[int, float], shards: Sequence[int], bounds: Balance
) -> tuple[Move, ...]:
    """Plan moves that balance bytes among the given shards; none if they differ by less than the margin.

    Other shards are draining; the process that drains them moves their tablets.
    """
    if len(shards) < 2:
        return ()
    movable = {tablet.id: sizes[tablet.id] for tablet in placement.tablets if tablet.shard in shards}
    return _moves(placement, _even_out(placement, movable, shards, bounds.share, bounds.bytes))


def after_moves(placement: Placement, moves: Iterable[Move]) -> Placement:
    """Return the placement after some moves, for planning only: epochs do not change."""
    homes = {move.tablet: move.target for move in moves}
    return Placement(tuple(replace(t, shard=homes.get(t.id, t.shard)) for t in placement.tablets))


def _moves(placement: Placement, homes: Mapping[int, int]) -> tuple[Move, ...]:
    sources = {tablet.id: tablet.shard for tablet in placement.tablets}
    return tuple(Move(tablet, sources[tablet], target) for tablet, target in homes.items())


def _even_out(
    placement: Placement, sizes: Mapping[int, float], shards: Sequence[int], share: float, least: float
) -> dict[int, int]:
    """Return new shards for some tablets, so that the shards differ by at most a margin, if that is possible.

    Tablets at shards that are not given go to the emptiest ones, the largest tablets first.

    Args:
        sizes: of the tablets that may move, by id.
        share, least: the margin is the larger of this share of the average, and `least`.
    """
    assert shards and len(set(shards)) == len(shards), shards
    load, homes = dict.fromkeys(sorted(shards), 0.0), dict[int, int]()
    tablets = [tablet for tablet in reversed(placement.tablets) if tablet.id in sizes]
    for tablet in tablets:
        if tablet.shard in load:
            load[tablet.shard] += sizes[tablet.id]
    elsewhere = [tablet for tablet in tablets if tablet.shard not in load]
    for tablet in sorted(elsewhere, key=lambda tablet: -sizes[tablet.id]):
        homes[tablet.id] = min(load, key=load.__getitem__)
        load[homes[tablet.id]] += sizes[tablet.id]
    margin = max(share * sum(load.values()) / len(load), least)
    size = np.array([sizes[tablet.id] for tablet in tablets])
    at = np.array([homes.get(tablet.id, tablet.shard) for tablet in tablets])
    while True:
        # If shards are equally full, take from the one with the highest id, and add to the lowest.
        fullest, emptiest = max(load, key=lambda shard: (load[shard], shard)), min(load, key=load.__getitem__)
        gap = load[fullest] - load[emptiest]
        # A tablet of half the gap would close it; any tablet smaller than the gap reduces it.
        distance = np.where((at == fullest) & (size > 0) & (size < gap), abs(size - gap / 2), np.inf)
        if gap <= margin or distance.min(initial=np.inf) == np.inf:
            return homes
        nearest = int(distance.argmin())
        homes[tablets[nearest].id], at[nearest] = emptiest, -1  # one tablet moves once in a plan
        load[fullest] -= size[nearest]
        load[emptiest] += size[nearest]
