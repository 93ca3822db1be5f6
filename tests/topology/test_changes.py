"""Moves, splits and joins as values: what they require, and what a scan can notice of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import InvalidTopologyChange, TabletNotFound, WriteConflict
from elasticscan.topology import (
    Placement,
    SlotSet,
    Tablet,
    initial_placement,
    join_tablets,
    move_tablet,
    split_tablet,
)

few = settings(max_examples=150, deadline=None)

SLOTS = 24


@dataclass(frozen=True)
class Look:
    """A placement, and for each slot how many changes it has been through, counted without epochs."""

    placement: Placement
    changes: tuple[int, ...]

    def then(self, placement: Placement, touched: list[Tablet]) -> Look:
        slots = {s for t in touched for s in range(t.start, t.end)}
        return Look(placement, tuple(n + (s in slots) for s, n in enumerate(self.changes)))


@st.composite
def histories(draw: st.DrawFn) -> list[Look]:
    """Any changes, one after the other, each of which can be carried out."""
    ids = count(100)
    looks = [Look(initial_placement(SLOTS, draw(st.integers(1, 6)), [1, 2, 3]), (0,) * SLOTS)]
    for _ in range(draw(st.integers(0, 12))):
        now = looks[-1].placement
        tablet = draw(st.sampled_from(now.tablets))
        neighbours = [(a, b) for a, b in pairwise(now.tablets) if a.shard == b.shard]
        kind = draw(st.sampled_from(["move", "split", "join"]))
        if kind == "move":
            target = draw(st.sampled_from([s for s in (1, 2, 3, 4) if s != tablet.shard]))
            after = move_tablet(now, tablet.id, target, tablet.epoch)
            touched = [tablet]
        elif kind == "split" and tablet.end - tablet.start > 1:
            at = draw(st.none() | st.integers(tablet.start + 1, tablet.end - 1))
            after = split_tablet(now, tablet.id, at, (next(ids), next(ids)))
            touched = [tablet]
        elif kind == "join" and neighbours:
            touched = list(draw(st.sampled_from(neighbours)))
            after = join_tablets(now, touched[0].id, touched[1].id, next(ids))
        else:
            continue
        looks.append(looks[-1].then(after, touched))
    return looks


@few
@given(histories())
def test_the_epoch_of_a_slot_grows_with_each_of_its_changes_and_never_otherwise(looks: list[Look]) -> None:
    for before, after in pairwise(looks):
        for slot in range(SLOTS):
            then, now = before.placement.tablet_of(slot), after.placement.tablet_of(slot)
            if after.changes[slot] > before.changes[slot]:
                assert now.epoch > then.epoch
            else:
                assert now == then


@few
@given(histories(), st.data())
def test_changed_since_tells_exactly_the_slots_to_which_something_happened(
    looks: list[Look], data: st.DataObject
) -> None:
    i = data.draw(st.integers(0, len(looks) - 1))
    earlier, later = looks[i], looks[data.draw(st.integers(i, len(looks) - 1))]
    asked = SlotSet.of(
        data.draw(st.lists(st.tuples(st.integers(0, SLOTS), st.integers(0, SLOTS)), max_size=4))
    )
    changed = later.placement.changed_since(earlier.placement, asked)
    expected = SlotSet.of(
        (s, s + 1) for s in range(SLOTS) if s in asked and later.changes[s] != earlier.changes[s]
    )
    assert changed == expected


@few
@given(histories())
def test_tablets_tile_the_same_slots_whatever_happens(looks: list[Look]) -> None:
    for look in looks:
        assert look.placement.slot_count == SLOTS
        assert sum(len(look.placement.at(s)) for s in look.placement.shards) == SLOTS


def test_a_tablet_that_returns_is_known_to_have_been_away() -> None:
    at_home = initial_placement(8, 2, [1, 2])
    back = move_tablet(move_tablet(at_home, 1, 2, expected_epoch=1), 1, 1, expected_epoch=2)
    assert back.tablet(1) == Tablet(1, 0, 4, shard=1, epoch=3)
    assert back.changed_since(at_home, SlotSet.span(2, 6)) == SlotSet.span(2, 4)


def test_a_split_and_a_join_leave_the_bounds_as_they_were_but_not_the_epoch() -> None:
    before = initial_placement(8, 2, [1])
    after = join_tablets(split_tablet(before, 2, None, (3, 4)), 3, 4, 5)
    assert after.tablets == (before.tablets[0], Tablet(5, 4, 8, shard=1, epoch=3))


def test_a_split_is_in_the_middle_unless_told_otherwise() -> None:
    placement = initial_placement(9, 1, [1])
    assert [t.start for t in split_tablet(placement, 1, None, (2, 3)).tablets] == [0, 4]
    assert [t.start for t in split_tablet(placement, 1, 8, (2, 3)).tablets] == [0, 8]


def test_a_join_goes_beyond_the_epochs_of_both() -> None:
    placement = Placement((Tablet(1, 0, 4, 1, epoch=7), Tablet(2, 4, 8, 1, epoch=2)))
    assert join_tablets(placement, 1, 2, 3).tablets == (Tablet(3, 0, 8, 1, epoch=8),)


def test_a_tablet_that_does_not_exist_is_not_found() -> None:
    placement = initial_placement(8, 2, [1])
    changes: list[Callable[[], Placement]] = [
        lambda: move_tablet(placement, 9, 2, 1),
        lambda: split_tablet(placement, 9, None, (3, 4)),
        lambda: join_tablets(placement, 1, 9, 3),
        lambda: join_tablets(placement, 9, 2, 3),
    ]
    for change in changes:
        with pytest.raises(TabletNotFound, match="tablet 9"):
            change()


@pytest.mark.parametrize("expected_epoch", [0, 2])
def test_a_move_decided_on_another_epoch_conflicts(expected_epoch: int) -> None:
    with pytest.raises(WriteConflict, match="look at the placement again") as caught:
        move_tablet(initial_placement(8, 2, [1, 2]), 1, 2, expected_epoch)
    assert caught.value.fields == {"tablet": 1, "epoch": 1, "expected_epoch": expected_epoch}


def test_a_tablet_cannot_move_to_where_it_is() -> None:
    with pytest.raises(InvalidTopologyChange, match="at shard 1 already"):
        move_tablet(initial_placement(8, 2, [1, 2]), 1, 1, 1)


def test_one_slot_cannot_be_split() -> None:
    with pytest.raises(InvalidTopologyChange, match="slots are never split"):
        split_tablet(initial_placement(2, 2, [1]), 1, None, (3, 4))


@pytest.mark.parametrize("at", [-1, 0, 3, 4, 8, 9])
def test_a_split_leaves_no_half_empty(at: int) -> None:
    with pytest.raises(InvalidTopologyChange, match="choose one from 1 to 2"):
        split_tablet(Placement((Tablet(1, 0, 3, 1, 1), Tablet(2, 3, 8, 1, 1))), 1, at, (3, 4))


def test_only_neighbours_at_one_shard_join_and_the_message_says_what_to_do() -> None:
    placement = initial_placement(8, 4, [1, 2])
    for left, right, mend in (
        (2, 3, "move one of them to the other first"),
        (2, 1, "join 1 and 2, in slot order"),
        (1, 3, "only neighbours"),
        (1, 1, "only neighbours"),
    ):
        with pytest.raises(InvalidTopologyChange, match=mend):
            join_tablets(placement, left, right, 9)


def test_an_id_that_is_in_use_is_our_mistake() -> None:
    placement = initial_placement(8, 2, [1])
    changes: list[Callable[[], Placement]] = [
        lambda: split_tablet(placement, 1, None, (1, 3)),
        lambda: split_tablet(placement, 1, None, (3, 2)),
        lambda: split_tablet(placement, 1, None, (3, 3)),
        lambda: join_tablets(placement, 1, 2, 2),
    ]
    for change in changes:
        with pytest.raises(AssertionError):
            change()
