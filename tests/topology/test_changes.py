"""Placements and their changes: what these require, what a scan can notice of them, the phases of moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement, count, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import InvalidCall, InvalidOption
from elasticscan.topology import (
    Event,
    Move,
    Phase,
    Placement,
    SlotSet,
    Tablet,
    initial_placement,
    join_tablets,
    split_tablet,
)
from tests.base.examples import examples
from tests.topology.moved import move_tablet

few = settings(max_examples=examples(150), deadline=None)

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
            after = move_tablet(now, tablet.id, target)
            touched = [tablet]
        elif kind == "split" and tablet.end - tablet.start > 1:
            at = draw(st.none() | st.integers(tablet.start + 1, tablet.end - 1))
            after = now.replaced(*split_tablet(tablet, at, (next(ids), next(ids))))
            touched = [tablet]
        elif kind == "join" and neighbours:
            touched = list(draw(st.sampled_from(neighbours)))
            after = now.replaced(*join_tablets(*touched, next(ids)))
        else:
            continue
        looks.append(looks[-1].then(after, touched))
    return looks


@few
@given(histories())
def test_tablets_tile_and_the_epoch_of_a_slot_grows_with_its_changes_and_never_else(
    looks: list[Look],
) -> None:
    for look in looks:
        assert look.placement.slot_count == SLOTS
        assert sum(len(look.placement.at(s)) for s in look.placement.shards) == SLOTS
    for before, after in pairwise(looks):
        for slot in range(SLOTS):
            then, now = before.placement.tablet_of(slot), after.placement.tablet_of(slot)
            if after.changes[slot] > before.changes[slot]:
                assert now.epoch > then.epoch
            else:
                assert now == then
    for before, after in combinations_with_replacement(looks, 2):
        changed = {slot for slot in range(SLOTS) if after.changes[slot] > before.changes[slot]}
        found = after.placement.changed_since(before.placement, SlotSet.span(3, 17))
        assert {slot for slot in range(SLOTS) if slot in found} == changed & {*range(3, 17)}


def test_a_split_is_in_the_middle_unless_reported_otherwise() -> None:
    (tablet,) = initial_placement(9, 1, [1]).tablets
    assert [t.start for t in split_tablet(tablet, None, (2, 3))[1]] == [0, 4]
    assert [t.start for t in split_tablet(tablet, 8, (2, 3))[1]] == [0, 8]


FIRST, SECOND, THIRD, _ = initial_placement(8, 4, [1, 2]).tablets  # of two slots, two at each shard
TINY = Tablet(1, 0, 1, 1, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda: split_tablet(TINY, None, (3, 4)),
        *(partial(split_tablet, SECOND, at, (5, 6)) for at in (-1, 0, 2, 4, 5, 9)),
        *(partial(join_tablets, *pair, 9) for pair in [(SECOND, THIRD), (SECOND, FIRST), (FIRST, THIRD)]),
        lambda: join_tablets(FIRST, FIRST, 9),
    ],
)
def test_a_change_that_cannot_be_is_refused(change: Callable[[], object]) -> None:
    with pytest.raises(InvalidCall):
        change()


# One row per phase, one column per event; a dot is a refusal.
TABLE = """
                start_copy  copied     switched       failed
planned         copying     .          .              undone
copying         .           caught_up  .              undone
caught_up       .           .          target_serves  undone
target_serves   .           .          .              .
undone          .           .          .              .
"""


HEAD, *ROWS = TABLE.strip().splitlines()
EXPECTED = {
    (Phase(phase), Event(event)): after
    for phase, *cells in map(str.split, ROWS)
    for event, after in zip(HEAD.split(), cells, strict=True)
}


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, Event)))
def test_every_pair_does_what_the_table_says(phase: Phase, event: Event) -> None:
    after, move = EXPECTED[phase, event], Move(7, source=1, target=2, phase=phase)
    assert move.server == (2 if phase == Phase.TARGET_SERVES else 1)
    if after != ".":
        assert move.after(event) == Move(7, 1, 2, Phase(after))
        return
    with pytest.raises(AssertionError, match=f"{phase} cannot take {event}"):
        move.after(event)


# The placement of a new store


@few
@given(st.integers(1, 300), st.data())
def test_a_new_store_is_even_and_contiguous(slots: int, data: st.DataObject) -> None:
    tablets = data.draw(st.integers(1, min(slots, 40)))
    shards = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=9, unique=True))
    placement = initial_placement(slots, tablets, shards)
    sizes = [t.end - t.start for t in placement.tablets]
    assert placement.slot_count == slots
    assert [t.id for t in placement.tablets] == list(range(1, tablets + 1))
    assert {t.epoch for t in placement.tablets} == {1}
    assert max(sizes) - min(sizes) <= 1
    counts = Counter(t.shard for t in placement.tablets)
    assert max(counts[shard] for shard in shards) - min(counts[shard] for shard in shards) <= 1
    assert all(len(placement.at(s).ranges) <= 1 for s in shards)


@pytest.mark.parametrize(
    ("slots", "tablets", "shards", "error"),
    [
        (4, 5, [1], InvalidOption),
        (4, 0, [1], InvalidOption),
        (4, -1, [1], InvalidOption),
        (0, 1, [1], AssertionError),
        (65_537, 1, [1], AssertionError),
        (4, 1, [], AssertionError),
        (4, 1, [1, 1], AssertionError),
    ],
)
def test_a_store_that_cannot_be_is_refused(
    slots: int, tablets: int, shards: list[int], error: type[Exception]
) -> None:
    with pytest.raises(error):
        initial_placement(slots, tablets, shards)


def test_the_largest_store_and_the_smallest_can_be_and_some_shards_hold_nothing() -> None:
    assert len(initial_placement(65_536, 65_536, [1, 2]).tablets) == 65_536
    assert initial_placement(1, 1, [1]).tablets == (Tablet(1, 0, 1, 1, 1),)
    assert initial_placement(8, 2, [5, 3, 4]).shards == (3, 5)
