"""The placement of a new store, and the tablets after a split and a join."""

from __future__ import annotations

from collections.abc import Sequence

from elasticscan.base.errors import InvalidCall, InvalidOption
from elasticscan.base.limits import MAX_SLOTS
from elasticscan.topology.values import Placement, Tablet

Change = tuple[tuple[Tablet, ...], tuple[Tablet, ...]]  # neighbouring tablets, and their replacement


def initial_placement(slots: int, tablets: int, shards: Sequence[int]) -> Placement:
    """Return the placement of a new store: tablets 1, 2, ... at epoch 1, a contiguous block for each shard.

    Tablets differ by at most one slot, shards by at most one tablet. If there are fewer tablets than
    shards, the last shards are empty. Raises `InvalidOption` unless `tablets` is in [1, slots].
    """
    assert 1 <= slots <= MAX_SLOTS, slots
    assert shards and len(set(shards)) == len(shards), shards
    if not 1 <= tablets <= slots:
        raise InvalidOption(
            f"{tablets} tablets cannot share {slots} slots: choose 1 to {slots} tablets",
            tablets=tablets,
            slots=slots,
        )
    share, over = divmod(tablets, len(shards))
    homes = [shard for number, shard in enumerate(shards) for _ in range(share + (number < over))]
    bounds = [i * slots // tablets for i in range(tablets + 1)]
    return Placement.of(Tablet(i + 1, bounds[i], bounds[i + 1], homes[i], epoch=1) for i in range(tablets))


def split_tablet(tablet: Tablet, at: int | None, new_ids: tuple[int, int]) -> Change:
    """Return the change of one tablet into `[start, at)` and `[at, end)`; by default, two halves."""
    middle = (tablet.start + tablet.end) // 2 if at is None else at
    if not tablet.start < middle < tablet.end:
        raise InvalidCall(
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
    """Return the change of two neighbours at one shard, in slot order, into one tablet.

    Its epoch is higher than both, so the epoch of every slot grows.
    """
    if left.end != right.start or left.shard != right.shard:
        raise InvalidCall(
            f"tablets {left.id} and {right.id} are not neighbours at one shard, in slot order; `elasticscan "
            "status --tablets` lists them",
            left=left.id,
            right=right.id,
        )
    joined = Tablet(new_id, left.start, right.end, left.shard, max(left.epoch, right.epoch) + 1)
    return (left, right), (joined,)
