"""Offsets of streams: written, checked, and what lies between two of them."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import ContinuationKeyError
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.options import parse_options
from elasticscan.connector.streams.offsets import (
    InChanges,
    InSnapshot,
    Offset,
    OffsetFormat,
    Position,
    SnapshotPart,
    between,
    cut_slots,
    segments,
)
from elasticscan.connector.streams.reader import ElasticScanStreamReader
from elasticscan.protocol import Macs, Segment
from elasticscan.store import Store
from tests.base.examples import examples
from tests.connector.conftest import SCHEMA

SLOTS = 64
SECRETS = {1: b"a" * 32}
NUMBERS = st.integers(0, 2**63 - 1)
PLACES = st.integers(0, SLOTS - 1)
POSITIONS: st.SearchStrategy[Position] = st.builds(InSnapshot, NUMBERS, PLACES) | st.builds(
    InChanges, NUMBERS, PLACES
)
BEGINNINGS: st.SearchStrategy[Position] = st.builds(InSnapshot, NUMBERS) | st.builds(InChanges, NUMBERS)
OFFSETS = st.builds(Offset, NUMBERS, POSITIONS, st.none() | BEGINNINGS)


def form(
    store: str = "st0re", secrets: dict[int, bytes] | None = None, use: str = "stream offset"
) -> OffsetFormat:
    macs = Macs(secrets or SECRETS, use)
    return OffsetFormat(store, macs.of, macs.verify)


def at(position: Position, since: Position | None = None) -> Offset:
    return Offset(7, position, since)


# ------------------------------------------------------------------------ written and read


@given(OFFSETS)
@settings(deadline=None)
def test_an_offset_survives_json(offset: Offset) -> None:
    text = json.dumps(form().write(offset))
    assert len(text) < 400
    assert form().read(json.loads(text)) == offset


def test_an_offset_has_the_documented_fields() -> None:
    found = form().write(at(InSnapshot(5, 3)))
    assert {k: v for k, v in found.items() if k != "mac"} == {
        "v": 1,
        "store": "st0re",
        "table": 7,
        "at": 5,
        "slot": 3,
    }
    found = form().write(at(InChanges(9), InChanges(4)))
    assert (found["commit"], found["slot"], found["since"]) == (9, 0, {"commit": 4})
    assert len(found["mac"]) == 16


@given(OFFSETS, st.data())
@settings(deadline=None, max_examples=examples(200))
def test_whatever_is_altered_is_refused(offset: Offset, data: st.DataObject) -> None:
    written = form().write(offset)
    name = data.draw(st.sampled_from([*written, "more"]))
    changed: Any = data.draw(
        st.integers(-3, 2**70)
        | st.text(max_size=20)
        | st.none()
        | st.booleans()
        | st.floats()
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
    )
    if data.draw(st.booleans()) and name != "more":
        altered = {key: value for key, value in written.items() if key != name}
    else:
        altered = written | {name: changed}
    if json.dumps(altered, sort_keys=True) != json.dumps(written, sort_keys=True):
        with pytest.raises(ContinuationKeyError):
            form().read(altered)


def test_errors_say_what_is_wrong() -> None:
    written = form().write(at(InChanges(4)))
    for altered, message in (
        (written | {"v": 2}, "version 2"),
        (written | {"store": "other"}, "'other'"),
        (written | {"commit": 5}, "altered"),
    ):
        with pytest.raises(ContinuationKeyError, match=message):
            form().read(altered)


# ------------------------------------------------------------------------ between offsets


def test_between_two_offsets_of_a_stream_lies_what_the_later_has_more() -> None:
    slots = 4
    snapshot: list[Position] = [InSnapshot(5, slot) for slot in range(slots)]
    changes = [InChanges(commit, slot) for commit in (5, 6, 7) for slot in range(slots)]
    places = [*snapshot, *changes]
    for (before, first), (after, last) in product(enumerate(places), repeat=2):
        ends_beyond_its_snapshot = before < slots < after
        if before > after or ends_beyond_its_snapshot:
            with pytest.raises(ContinuationKeyError):
                between(at(first), at(last), slots)
        elif isinstance(first, InSnapshot):
            assert between(at(first), at(last), slots) == SnapshotPart(5, before, after)
        else:
            assert between(at(first), at(last), slots) == (first, last)


def test_a_lost_snapshot_may_be_left_for_a_newer_one_where_losses_are_allowed() -> None:
    first = at(InSnapshot(5, 9))
    assert between(first, at(InSnapshot(8, 20)), SLOTS, True) == SnapshotPart(8, 9, 20)
    assert between(first, at(InChanges(8)), SLOTS, True) == SnapshotPart(8, 9, SLOTS)
    for last, may_jump in ((InSnapshot(4, 20), True), (InSnapshot(8, 20), False), (InSnapshot(8, 8), True)):
        with pytest.raises(ContinuationKeyError):
            between(first, at(last), SLOTS, may_jump)


def test_the_first_batch_is_the_same_when_its_initial_offset_was_made_anew() -> None:
    begun = InSnapshot(5)
    for end, found in (
        (InSnapshot(5, 9), SnapshotPart(5, 0, 9)),
        (InChanges(5), SnapshotPart(5, 0, SLOTS)),
    ):
        again = InSnapshot(8)
        assert between(at(again, again), at(end, begun), SLOTS) == found
    again, changes = InChanges(9), (InChanges(3), InChanges(6, 2))
    assert between(at(again, again), at(changes[1], changes[0]), SLOTS) == changes
    same = changes[1]  # nothing was written since
    assert between(at(InChanges(6), InChanges(6)), at(InChanges(6), InChanges(3)), SLOTS) == (
        InChanges(3),
        InChanges(6),
    )
    assert between(at(same, changes[0]), at(same, changes[0]), SLOTS) == (same, same)
    with pytest.raises(ContinuationKeyError):  # not at its beginning
        between(at(again), at(changes[1], changes[0]), SLOTS)


# ------------------------------------------------------------------------ commits and slots


def test_commits_are_read_in_as_few_ranges_as_slots_and_unwanted_commits_allow() -> None:
    assert segments([2, 3, 5, 9], [], InChanges(1), InChanges(9), SLOTS) == [Segment(1, 9, 0, SLOTS)]
    assert segments([2, 3, 5, 9], [4, 7], InChanges(1), InChanges(9), SLOTS) == [
        Segment(1, 3, 0, SLOTS),
        Segment(4, 5, 0, SLOTS),
        Segment(8, 9, 0, SLOTS),
    ]


@given(st.sets(st.integers(1, 12)), st.sets(st.integers(1, 12)), st.data())
@settings(deadline=None, max_examples=examples(200))
def test_ranges_cover_every_wanted_change_once_and_nothing_unwanted(
    wanted: set[int], others: set[int], data: st.DataObject
) -> None:
    slots = 4
    passed = others - wanted
    # A position stands inside of a commit only where there is one.
    places = [InChanges(n, k) for n in range(12) for k in range(slots) if not k or n + 1 in wanted]
    first, last = sorted(
        data.draw(st.lists(st.sampled_from(places), min_size=2, max_size=2)), key=lambda p: p.order
    )
    expected = {
        (n, k) for n in wanted for k in range(slots) if first.order <= (n - 1, k) and (n - 1, k) < last.order
    }
    found = segments(sorted(wanted), sorted(passed), first, last, slots)
    message = [
        (n, k)
        for part in found
        for n in range(part.after + 1, part.upto + 1)
        if n in wanted | passed
        for k in range(part.start, part.end)
    ]
    assert len(message) == len(set(message))
    assert set(message) == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 12), st.data())
@settings(deadline=None, max_examples=examples(300))
def test_a_cut_holds_what_it_may_and_always_gets_on(
    counts: list[int], most: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(counts) - 1))
    end = cut_slots(np.array(counts, dtype=np.int64), start, most)
    part, rest = counts[start:end], counts[end:]
    assert start < end <= len(counts)
    filled = [count for count in part if count]
    assert sum(part) <= most or len(filled) == 1  # one slot is read even if it is larger
    assert sum(rest) or end == len(counts)  # no part without rows is left over
    assert not rest or sum(part) + rest[0] > most or not sum(part)
    if any(counts[start:]):
        assert sum(part)


def nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = {"a": found}
    return found


def test_a_reader_refuses_offsets_of_any_other_form(store: Store) -> None:
    options = parse_options({"store": store.uri, "table": "t"})
    reader = ElasticScanStreamReader(options, spark_schema(SCHEMA))
    good = reader.initialOffset()
    values: list[Any] = [None, True, -1, 1.5, 10**5_000, float("nan"), "x", b"x", [], {}, {1: 2}]
    values += [nested(5_000), object()]
    others: list[Any] = [*values, json.dumps(good), [good]]
    others += [{**good, name: value} for name in [*good, "more"] for value in values]
    for other in others:
        if other == good:
            continue
        for start, end in ((other, good), (good, other)):
            with pytest.raises(ContinuationKeyError):
                reader.partitions(start, end)
