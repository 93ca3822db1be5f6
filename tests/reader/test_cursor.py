"""Properties of the cursor rule and the proof of coverage, for any cursors, placements and honest answers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import CoverageBroken
from elasticscan.protocol import Cursor, Cursors, merge, restrict, slots_of
from elasticscan.reader.coverage import Coverage
from elasticscan.reader.cursor import accept_page, plan_read
from elasticscan.topology import Placement, SlotSet, Tablet
from tests.base.examples import examples

SLOTS = 16
POSITIONS = st.none() | st.binary(max_size=2)

checked = settings(deadline=None, max_examples=examples(200))


@st.composite
def slot_sets(draw: st.DrawFn) -> SlotSet:
    return SlotSet.of((slot, slot + 1) for slot in draw(st.sets(st.integers(0, SLOTS - 1))))


@st.composite
def cursor_sets(draw: st.DrawFn) -> Cursors:
    """Cursors over disjoint slots; some slots may be in none."""
    pending = draw(st.dictionaries(st.integers(0, SLOTS - 1), POSITIONS, max_size=SLOTS))
    return merge(Cursor(SlotSet.span(slot, slot + 1), position) for slot, position in pending.items())


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    bounds = sorted({0, SLOTS} | draw(st.sets(st.integers(1, SLOTS - 1), max_size=5)))
    return Placement.of(
        Tablet(number, start, end, draw(st.integers(1, 4)), draw(st.integers(1, 3)))
        for number, (start, end) in enumerate(pairwise(bounds), 1)
    )


@checked
@given(cursor_sets(), placements(), slot_sets())
def test_a_read_asks_one_shard_for_all_that_lives_there_but_what_was_refused(
    cursors: Cursors, placement: Placement, refused: SlotSet
) -> None:
    read = plan_read(cursors, placement, refused)
    cursors = restrict(cursors, slots_of(cursors) - refused)
    if read is None:
        assert not cursors
        return
    assert read.slots == slots_of(cursors) & placement.at(read.shard)
    assert read.slots
    assert restrict(cursors, read.slots) == read.cursors
    assert read.placement is placement
    if any(c.position is not None for c in cursors):
        assert any(c.position is not None for c in read.cursors), "half-read slots come first"


@pytest.mark.parametrize(
    ("before", "after", "mistake"),
    [
        (Cursor(SlotSet.span(0, 2)), Cursor(SlotSet.span(0, 3), b"k"), "not requested"),
        (Cursor(SlotSet.span(0, 2), b"b"), Cursor(SlotSet.span(0, 1)), "went back"),
        (Cursor(SlotSet.span(0, 2), b"b"), Cursor(SlotSet.span(0, 1), b"a"), "went back"),
    ],
)
def test_an_answer_that_was_not_asked_for_or_goes_back_is_a_mistake_of_ours(
    before: Cursor, after: Cursor, mistake: str
) -> None:
    placement = Placement.of([Tablet(1, 0, SLOTS, 1, 1)])
    read = plan_read((before,), placement)
    assert read is not None
    with pytest.raises(AssertionError, match=mistake):
        accept_page((before,), read, (after,), placement)


@checked
@given(st.lists(slot_sets(), max_size=5), slot_sets())
def test_a_scan_is_covered_once_all_its_slots_were_finished_once(
    portions: list[SlotSet], pending: SlotSet
) -> None:
    coverage = Coverage(SlotSet.span(0, SLOTS), pending)
    for portion in [*portions, SlotSet.span(SLOTS, SLOTS + 1)]:
        if portion <= pending:
            coverage.finish(portion)
            pending -= portion
        else:
            with pytest.raises(CoverageBroken, match="twice or never"):
                coverage.finish(portion)
    if pending:
        with pytest.raises(CoverageBroken) as caught:
            coverage.prove()
        assert caught.value.fields["slots"] == str(pending)
    coverage.finish(pending)
    coverage.prove()
