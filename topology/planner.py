"""Plans for tablets, and the tablets after each change.

All are functions of their arguments alone, so every process that plans from the same placement plans the same
moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from elasticscan.base.errors import InvalidOption, InvalidTopologyChange
from elasticscan.base.limits import MAX_SLOTS
from elasticscan.topology.moves import Move
from elasticscan.topology.values import Placement, Tablet

Change = tuple[tuple[Tablet, ...], tuple[Tablet, ...]]  # neighbours, and the new ones in their place


def initial_placement(slots: int, tablets: int, shards: Sequence[int]) -> Placement:
    """Return the placement of a new store: tablets 1, 2, ... at epoch 1, a contiguous block for each shard.

    Tablets differ by one slot at most, shards by one tablet. With fewer tablets than shards the
    last shards hold nothing yet.

    Raises:
        InvalidOption: `tablets` is not in [1, slots].
    """
    assert 1 <= slots <= MAX_SLOTS, slots
    assert shards and len(set(shards)) == len(shards), shards
    if not 1 <= tablets <= slots:
        raise InvalidOption(
            f"{tablets} tablets cannot share {slots} slots: choose 1 to {slots} tablets",
            tablets=tablets,
            slots=slots,
        )
    counts = _even_counts(tablets, len(shards))
    homes = [shard for shard, count in zip(shards, counts, strict=True) for _ in range(count)]
    bounds = [i * slots // tablets for i in range(tablets + 1)]
    return Placement.of(Tablet(i + 1, bounds[i], bounds[i + 1], homes[i], epoch=1) for i in range(tablets))


def plan_balance(placement: Placement, shards: Sequence[int]) -> tuple[Move, ...]:
    """Return the fewest moves after which the numbers of tablets at any two shards differ by at most one.

    Tablets at a shard that is not listed all leave it.

    No plan can do with fewer moves. A shard that has more than its share must lose the excess,
    and does so here to the last tablet and no further; and the shares that are one tablet larger
    go to the shards that have most, where each saves a move.

    A shard gives from the end of what it has, and a receiver takes neighbours, so slots that are
    next to each other mostly stay together.
    """
    assert shards and len(set(shards)) == len(shards), shards
    held = Counter(t.shard for t in placement.tablets)
    fullest_first = sorted(shards, key=lambda s: (-held[s], s))
    share = dict(zip(fullest_first, _even_counts(len(placement.tablets), len(shards)), strict=True))

    staying: Counter[int] = Counter()
    leaving: list[Tablet] = []
    for tablet in placement.tablets:
        if staying[tablet.shard] < share.get(tablet.shard, 0):
            staying[tablet.shard] += 1
        else:
            leaving.append(tablet)
    room = [shard for shard in sorted(shards) for _ in range(share[shard] - staying[shard])]
    return tuple(Move(t.id, t.shard, target) for t, target in zip(leaving, room, strict=True))


def split_tablet(tablet: Tablet, at: int | None, new_ids: tuple[int, int]) -> Change:
    """Return the change of one tablet into `[start, at)` and `[at, end)`, by default halved.

    Raises:
        InvalidTopologyChange: a half would be empty.
    """
    middle = (tablet.start + tablet.end) // 2 if at is None else at
    if not tablet.start < middle < tablet.end:
        raise InvalidTopologyChange(
            f"slot {middle} does not split tablet {tablet.id} [{tablet.start}, {tablet.end}): both halves "
            "need a slot; choose another slot, or move the tablet",
            tablet=tablet.id,
            at=middle,
        )
    left, right = new_ids
    return (tablet,), (
        Tablet(left, tablet.start, middle, tablet.shard, tablet.epoch + 1),
        Tablet(right, middle, tablet.end, tablet.shard, tablet.epoch + 1),
    )


def join_tablets(left: Tablet, right: Tablet, new_id: int) -> Change:
    """Return the change of two neighbours at one shard into one tablet.

    Its epoch is beyond both, so that it has grown for every slot.

    Raises:
        InvalidTopologyChange: they are not neighbours in this order, or at different shards.
    """
    if left.end != right.start or left.shard != right.shard:
        raise InvalidTopologyChange(
            f"tablets {left.id} and {right.id} are not neighbours at one shard, in slot order; `elasticscan "
            "status --tablets` lists them",
            left=left.id,
            right=right.id,
        )
    joined = Tablet(new_id, left.start, right.end, left.shard, max(left.epoch, right.epoch) + 1)
    return (left, right), (joined,)


def _even_counts(things: int, places: int) -> list[int]:
    """Count how many each place gets; the first ones get one more where it does not divide."""
    share, over = divmod(things, places)
    return [share + (i < over) for i in range(places)]
