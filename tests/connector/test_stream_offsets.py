"""Offsets of streams, without a store: written, checked, and what lies between two of them."""

from __future__ import annotations

import json
from collections import Counter
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import ContinuationKeyError
from elasticscan.connector.streams.offsets import (
    InChanges,
    InSnapshot,
    Offset,
    OffsetFormat,
    Position,
    between,
    cut_slots,
    segments,
)
from elasticscan.protocol import Macs
from tests.base.examples import examples

SLOTS = 4
NUMBERS = st.integers(0, 2**63 - 1)
PLACES = st.integers(0, SLOTS - 1)
POSITIONS = st.builds(Position, st.booleans(), NUMBERS, PLACES)
BEGINNINGS = st.builds(Position, st.booleans(), NUMBERS)
OFFSETS = st.builds(Offset, NUMBERS, POSITIONS, st.none() | BEGINNINGS)
FORMAT = OffsetFormat("st0re", Macs({1: b"a" * 32}))
ANYTHING = (
    st.integers(-3, 2**70)
    | st.text(max_size=20)
    | st.none()
    | st.booleans()
    | st.floats()
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
NESTED: Any = reduce(lambda inner, _: {"a": inner}, range(5_000), 1)
NO_OFFSETS: list[Any] = [10**5_000, float("nan"), b"x", [], {}, {1: 2}, NESTED, object(), "{}"]


def carried(offset: Offset) -> Offset:
    """As it comes out of Spark's checkpoint."""
    text = json.dumps(FORMAT.write(offset))
    assert len(text) < 400
    return FORMAT.read(json.loads(text))


@given(OFFSETS, st.data())
@settings(deadline=None, max_examples=examples(200))
def test_an_offset_survives_json_and_whatever_is_altered_is_refused(
    offset: Offset, data: st.DataObject
) -> None:
    assert carried(offset) == offset
    written = FORMAT.write(offset)
    name = data.draw(st.sampled_from([*written, "more"]))
    altered = written | {name: data.draw(ANYTHING | st.sampled_from(NO_OFFSETS))}
    if data.draw(st.booleans()) and name != "more":
        del altered[name]
    found, right = altered.get(name), written.get(name)
    if type(found) is not type(right) or found != right:
        with pytest.raises(ContinuationKeyError):
            FORMAT.read(altered)


def test_an_offset_has_the_documented_fields_and_says_what_is_wrong_with_another() -> None:
    plain = {"v": 1, "store": "st0re", "table": 7}
    found = FORMAT.write(Offset(7, InSnapshot(5, 3)))
    assert found == plain | {"at": 5, "slot": 3, "mac": found["mac"]}
    found = FORMAT.write(Offset(7, InChanges(9), InChanges(4)))
    assert found == plain | {"commit": 9, "slot": 0, "since": {"commit": 4}, "mac": found["mac"]}
    assert len(found["mac"]) == 16
    for altered, message in (
        ({"v": 2}, "this release reads"),
        ({"store": "x"}, "'x'"),
        ({"commit": 5}, "altered"),
    ):
        with pytest.raises(ContinuationKeyError, match=message):
            FORMAT.read(found | altered)
    for other in NO_OFFSETS:
        with pytest.raises(ContinuationKeyError):
            FORMAT.read(other)


# What lies between two offsets


COMMITS = st.lists(st.sampled_from(["wanted", "wanted", "unwanted", "other"]), max_size=8)


@given(st.data(), COMMITS, st.booleans())
@settings(deadline=None, max_examples=examples(400))
def test_a_stream_reads_every_slot_of_its_snapshot_and_of_each_wanted_commit_once(
    data: st.DataObject, commits: list[str], from_snapshot: bool
) -> None:
    """The commits after number 5, in micro-batches that end anywhere, and repetitions of the first.

    Wanted commits have changes; unwanted ones have, too, and must not be read; others are of other tables.
    """
    kinds = dict(enumerate(commits, start=6))
    wanted = [number for number, kind in kinds.items() if kind == "wanted"]
    known = [(number, kind == "wanted") for number, kind in kinds.items() if kind != "other"]
    begun = InSnapshot(5) if from_snapshot else InChanges(5)
    offset, batches = Offset(7, begun, begun), list[tuple[Offset, Offset]]()

    def rows_of(start: Offset, end: Offset) -> list[tuple[int, int]]:
        """(commit, slot) of all that a micro-batch reads; of the snapshot, with commit 5."""
        first, last = between(carried(start), carried(end))
        if not first.in_changes:
            assert first.commit == last.commit == 5
            return [(5, slot) for slot in range(first.slot, SLOTS if last.in_changes else last.slot)]
        return [
            (number, slot)
            for part in segments(known, first, last, SLOTS)
            for number in range(part.after + 1, part.upto + 1)
            if number in dict(known)
            for slot in range(part.start, part.end)
        ]

    # A position stands inside of a commit only where there is a wanted one.
    changes = [
        InChanges(n, k) for n in range(5, 5 + len(kinds)) for k in range(SLOTS) if not k or n + 1 in wanted
    ]
    changes.append(InChanges(5 + len(kinds)))
    while offset.position != changes[-1]:
        position = offset.position
        if not position.in_changes:
            slot = data.draw(st.integers(position.slot + 1, SLOTS))
            position = InSnapshot(5, slot) if slot < SLOTS else changes[0]
        else:
            later = [place for place in changes if place > position]
            position = data.draw(st.sampled_from(later))
        following = Offset(7, position, offset.since if offset.is_initial else None)
        batches.append((offset, following))
        offset = following

    read = Counter(row for batch in batches for row in rows_of(*batch))
    snapshot = [5] if from_snapshot else []
    assert read == Counter((number, slot) for number in [*snapshot, *wanted] for slot in range(SLOTS))
    for at, (start, end) in enumerate(batches):
        if not at:  # it is repeated with an initial offset that was made anew
            again = Position(begun.in_changes, 9)
            assert rows_of(Offset(7, again, again), end) == rows_of(start, end)
        for earlier, _ in batches[: at + 1]:  # nothing goes back
            if end.position != earlier.position:
                with pytest.raises(ContinuationKeyError):
                    between(Offset(7, end.position), Offset(7, earlier.position))


def test_commits_are_read_in_as_few_ranges_as_slots_and_unwanted_commits_allow() -> None:
    for unwanted, ranges in (([], [(1, 9)]), ([4, 7], [(1, 3), (4, 5), (8, 9)])):
        known = [(number, number not in unwanted) for number in sorted([2, 3, 5, 9, *unwanted])]
        found = segments(known, InChanges(1), InChanges(9), SLOTS)
        assert [(part.after, part.upto) for part in found] == ranges


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (InSnapshot(5, 1), InSnapshot(8, 3)),
        (InSnapshot(5, 1), InChanges(8)),
        (InSnapshot(5, 3), InSnapshot(5, 1)),
        (InSnapshot(5, 1), InChanges(5, 1)),  # the snapshot ends with itself
        (InChanges(5), InSnapshot(5, 1)),
    ],
)
def test_a_batch_stays_in_its_snapshot_and_goes_forward(start: Position, end: Position) -> None:
    with pytest.raises(ContinuationKeyError):
        between(Offset(7, start), Offset(7, end))


def test_a_batch_that_did_not_begin_where_its_end_says_is_refused() -> None:
    end = Offset(7, InChanges(6, 2), InChanges(3))
    with pytest.raises(ContinuationKeyError):
        between(Offset(7, InChanges(9)), end)
    assert between(end, end) == (end.position, end.position)  # nothing was written since


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 12), st.data())
@settings(deadline=None, max_examples=examples(300))
def test_a_cut_holds_what_it_may_and_always_gets_on(
    counts: list[int], most: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(counts) - 1))
    end = cut_slots(np.array(counts, dtype=np.int64), start, most)
    part, rest = counts[start:end], counts[end:]
    assert start < end <= len(counts)
    assert sum(part) <= most or len([count for count in part if count]) == 1  # a slot that is larger
    assert sum(rest) or end == len(counts)  # no part without rows is left over
    assert not rest or sum(part) + rest[0] > most or not sum(part)
    assert sum(part) or not any(counts[start:])
