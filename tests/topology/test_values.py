"""Placements: tiling, look-ups, and the split of a set of slots by shard."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.topology import Placement, SlotSet, Tablet
from tests.base.examples import examples

few = settings(max_examples=examples(150), deadline=None)

SLOTS = 40


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Tablets of any sizes, with ids in no order, at up to five shards."""
    cuts = sorted(draw(st.sets(st.integers(1, SLOTS - 1), max_size=10)))
    bounds = [0, *cuts, SLOTS]
    ids = draw(st.permutations(range(1, len(bounds))))
    return Placement.of(
        Tablet(ids[i], bounds[i], bounds[i + 1], draw(st.integers(1, 5)), draw(st.integers(1, 9)))
        for i in range(len(bounds) - 1)
    )


slot_sets = st.lists(st.tuples(st.integers(0, SLOTS), st.integers(0, SLOTS)), max_size=6).map(SlotSet.of)


@few
@given(placements(), slot_sets)
def test_splitting_by_shard_puts_every_slot_into_exactly_one_part(
    placement: Placement, slots: SlotSet
) -> None:
    parts = placement.split_by_shard(slots)
    assert sum(len(part) for part in parts.values()) == len(slots)
    together = SlotSet.of(pair for part in parts.values() for pair in part)
    assert together == slots
    for shard, part in parts.items():
        assert part
        assert part <= placement.at(shard)


@few
@given(placements())
def test_every_look_up_tells_the_same_story(placement: Placement) -> None:
    for slot in range(SLOTS):
        tablet = placement.tablet_of(slot)
        assert tablet.start <= slot < tablet.end
        assert slot in tablet.slots
        assert placement.tablet(tablet.id) == tablet
        assert [s for s in placement.shards if slot in placement.at(s)] == [tablet.shard]
    assert placement.slot_count == SLOTS
    assert not placement.at(99)
    assert placement.tablet(99) is None


@few
@given(placements(), st.randoms(use_true_random=False))
def test_placements_with_the_same_tablets_are_equal_values(placement: Placement, random: object) -> None:
    shuffled = list(placement.tablets)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for same in (Placement.of(shuffled), pickle.loads(pickle.dumps(placement))):
        assert same == placement
        assert hash(same) == hash(placement)
        assert same.at(1) == placement.at(1)
        assert not same.changed_since(placement, SlotSet.span(0, SLOTS))


FIRST = Tablet(1, 0, 4, 1, 1)
PLACED = Placement((FIRST,))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: Placement((Tablet(1, 1, 4, 1, 1),)),
        *(
            partial(Placement, (FIRST, Tablet(2, start, end, 1, 1)))
            for start, end in ((5, 8), (3, 8), (4, 4))
        ),
        lambda: Placement((FIRST, Tablet(1, 4, 8, 1, 1))),
        lambda: PLACED.tablet_of(-1),
        lambda: PLACED.tablet_of(4),
        lambda: PLACED.split_by_shard(SlotSet.span(2, 5)),
        lambda: PLACED.changed_since(Placement((Tablet(1, 0, 8, 1, 1),)), SlotSet.span(0, 4)),
        lambda: Placement(()).split_by_shard(SlotSet.span(0, 1)),
    ],
)
def test_tablets_that_do_not_tile_and_slots_beyond_the_end_are_our_mistake(
    mistake: Callable[[], object],
) -> None:
    with pytest.raises(AssertionError):
        mistake()


def test_the_empty_placement_holds_nothing_and_answers_all_the_same() -> None:
    empty = Placement(())
    assert (empty.slot_count, empty.shards, empty.at(1), empty.tablet(1)) == (0, (), SlotSet(), None)
    assert empty.split_by_shard(SlotSet()) == {}
