"""Plans for tablets, and the placement after each change.

Plans say what to do and change nothing; changes take a placement and return the next one. Both
are functions of their arguments alone, so every process that plans from the same placement plans
the same moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from elasticscan.base.errors import InvalidOption, InvalidTopologyChange, NotFound
from elasticscan.base.limits import MAX_SLOTS
from elasticscan.topology.moves import Move
from elasticscan.topology.values import Placement, Tablet

Change = tuple[tuple[Tablet, ...], tuple[Tablet, ...]]  # old tablets, and the new ones in their place


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

    Raises:
        InvalidTopologyChange: `shards` is empty or repeats itself.
    """
    if not shards or len(set(shards)) < len(shards):
        raise InvalidTopologyChange(
            f"tablets need at least one shard to live at, each listed once: {list(shards)}",
            shards=tuple(shards),
        )
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


def split_tablet(placement: Placement, tablet_id: int, at: int | None, new_ids: tuple[int, int]) -> Placement:
    """Return the placement with tablets `[start, at)` and `[at, end)` instead of one, by default halved.

    Raises:
        NotFound: no such tablet (any more).
        InvalidTopologyChange: a half would be empty.
    """
    return change_tablets(placement, [halves(_existing(placement, tablet_id), at, new_ids)])


def halves(tablet: Tablet, at: int | None, new_ids: tuple[int, int]) -> Change:
    """Return the change of `split_tablet`, of a tablet; raises as that does."""
    tablet_id = tablet.id
    if tablet.end - tablet.start < 2:
        raise InvalidTopologyChange(
            f"tablet {tablet_id} is one slot ({tablet.start}) and slots are never split: "
            "move it to a shard of its own if it is too large",
            tablet=tablet_id,
        )
    middle = (tablet.start + tablet.end) // 2 if at is None else at
    if not tablet.start < middle < tablet.end:
        raise InvalidTopologyChange(
            f"slot {middle} does not split tablet {tablet_id}: "
            f"choose one from {tablet.start + 1} to {tablet.end - 1}",
            tablet=tablet_id,
            at=middle,
        )
    left, right = new_ids
    return (tablet,), (
        Tablet(left, tablet.start, middle, tablet.shard, tablet.epoch + 1),
        Tablet(right, middle, tablet.end, tablet.shard, tablet.epoch + 1),
    )


def join_tablets(placement: Placement, left_id: int, right_id: int, new_id: int) -> Placement:
    """Return the placement with one tablet instead of two neighbours at one shard.

    Its epoch is beyond both, so that it has grown for every slot.

    Raises:
        NotFound: one of them does not exist (any more).
        InvalidTopologyChange: they are not neighbours in this order, or at different shards.
    """
    left, right = _existing(placement, left_id), _existing(placement, right_id)
    return change_tablets(placement, [whole(left, right, new_id)])


def whole(left: Tablet, right: Tablet, new_id: int) -> Change:
    """Return the change of `join_tablets`, of two tablets; raises as that does."""
    left_id, right_id = left.id, right.id
    if left.end != right.start:
        swapped = right.end == left.start
        mend = f"join {right_id} and {left_id}, in slot order" if swapped else "only neighbours can be joined"
        raise InvalidTopologyChange(
            f"tablet {right_id} [{right.start}, {right.end}) does not begin where "
            f"tablet {left_id} [{left.start}, {left.end}) ends: {mend}",
            left=left_id,
            right=right_id,
        )
    if left.shard != right.shard:
        raise InvalidTopologyChange(
            f"tablets {left_id} and {right_id} lie at different shards: move one of them to the other first",
            left=left_id,
            right=right_id,
            shards=(left.shard, right.shard),
        )
    joined = Tablet(new_id, left.start, right.end, left.shard, max(left.epoch, right.epoch) + 1)
    return (left, right), (joined,)


def change_tablets(placement: Placement, changes: Iterable[Change]) -> Placement:
    """Return the placement after changes, each of tablets of its own. A tablet's id is never used twice."""
    gone, came = set[int](), list[Tablet]()
    for old, new in changes:
        assert not gone & {tablet.id for tablet in old}, f"tablets that change twice: {old}"
        gone.update(tablet.id for tablet in old)
        came += new
    assert not gone & {tablet.id for tablet in came}, f"tablet ids in use: {came}"
    return Placement.of([*(tablet for tablet in placement.tablets if tablet.id not in gone), *came])


def _even_counts(things: int, places: int) -> list[int]:
    """Count how many each place gets; the first ones get one more where it does not divide."""
    share, over = divmod(things, places)
    return [share + (i < over) for i in range(places)]


def _existing(placement: Placement, tablet_id: int) -> Tablet:
    tablet = placement.tablet(tablet_id)
    if tablet is None:
        raise NotFound(
            f"no tablet {tablet_id}: it may have been split or joined; `elasticscan status --tablets` lists "
            "them",
            tablet=tablet_id,
            kind="tablet",
        )
    return tablet
