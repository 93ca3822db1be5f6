"""Continuation keys come back as they were, or are refused."""

from __future__ import annotations

import base64
import string
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import ContinuationKeyError, LimitExceeded, SnapshotExpired
from elasticscan.base.limits import MAX_KEY_BYTES, MAX_KEY_CHARS
from elasticscan.protocol import Cursor
from elasticscan.protocol.cursors import Segment
from elasticscan.protocol.keys import KEY_VERSION, ContinuationKey, Sealer, pack
from elasticscan.topology import SlotSet
from tests.base.examples import examples

NOW, END = 1_000.0, 2_000
SECRET, OTHER_SECRET = bytes(range(32)), bytes(range(1, 33))
SEALER = Sealer("a store", {1: SECRET})
KEY = ContinuationKey(
    table=3,
    snapshot=17,
    base_topology=2,
    slots=SlotSet.span(0, 4_096),
    cursors=(Cursor(SlotSet.span(7, 8), b"\0\7" + bytes(8)), Cursor(SlotSet.span(8, 4_096))),
    columns=("id", "v"),
    filter="v > 3",
    page_rows=100,
    page_bytes=1 << 20,
    lease="00ff" * 4,
)


SLOT_SETS = st.sets(st.integers(0, 65_535), max_size=20).map(
    lambda slots: SlotSet.of((slot, slot + 1) for slot in slots)
)
NUMBERS = st.integers(0, (1 << 63) - 1)
TEXTS = st.text(st.characters(codec="utf-8"))
SPANS = st.tuples(st.integers(0, 60_000), st.integers(1, 5_000)).map(lambda span: (span[0], sum(span)))
SEGMENTS = st.builds(lambda commits, slots: Segment(*commits, *slots), SPANS, SPANS)
ANY_KEY = st.builds(
    ContinuationKey,
    table=NUMBERS,
    snapshot=NUMBERS,
    base_topology=NUMBERS,
    slots=SLOT_SETS,
    cursors=st.lists(st.builds(Cursor, SLOT_SETS, st.none() | st.binary()), max_size=4).map(tuple),
    columns=st.lists(TEXTS, max_size=4).map(tuple),
    filter=st.none() | TEXTS,
    page_rows=NUMBERS,
    page_bytes=NUMBERS,
    lease=st.binary(min_size=8, max_size=8).map(bytes.hex),
    index=st.none() | NUMBERS,
    descending=st.booleans(),
    merged=st.booleans(),
    segments=st.none() | st.lists(SEGMENTS, max_size=3).map(tuple),
    feed=st.booleans(),
    limit=st.none() | NUMBERS,
    by_key=st.booleans(),
    definition=NUMBERS,
    plan=st.binary(max_size=9),
)


@settings(deadline=None, max_examples=examples(200))
@given(ANY_KEY)
def test_a_key_opens_to_what_was_sealed(key: ContinuationKey) -> None:
    assert SEALER.open(SEALER.seal(key, END), NOW) == key


def test_a_key_is_text_without_quoting_never_the_same_twice_and_shows_nothing_of_its_rows() -> None:
    secret = replace(KEY, cursors=(Cursor(SlotSet.span(0, 1), b"Anna Karenina"),))
    text = SEALER.seal(secret, END)
    assert set(text) <= set(string.ascii_letters + string.digits + "-_")
    assert text != SEALER.seal(secret, END)
    assert b"Karenina" not in base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def refused(text: Any, sealer: Sealer = SEALER) -> str:
    with pytest.raises(ContinuationKeyError) as caught:
        sealer.open(text, NOW)
    assert "start a new scan" in str(caught.value)
    return str(caught.value.fields["why"])


def test_a_key_that_is_altered_cut_or_continued_anywhere_is_refused() -> None:
    text = SEALER.seal(KEY, END)
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    for at in range(len(raw)):
        for bit in (0x01, 0x80):
            altered = raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :]
            refused(base64.urlsafe_b64encode(altered).decode().rstrip("="))
    for length in range(len(text)):
        refused(text[:length])
    for other in (f"{text}A", f"{text}AA", f"{text}AAAA", text * 2, text.upper(), text.lower()):
        refused(other)


@settings(deadline=None, max_examples=examples(200))
@given(st.text() | st.binary(max_size=200).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
@example("")
@example(None)
@example(7)
@example(b"bytes")
@example("A" * (MAX_KEY_CHARS + 1))
def test_what_is_no_key_at_all_is_refused_and_never_fails_otherwise(text: Any) -> None:
    refused(text)


def test_a_key_of_another_store_or_an_unknown_secret_is_refused_alike() -> None:
    why = refused(Sealer("another store", {1: SECRET}).seal(KEY, END))
    assert why == refused(Sealer("a store", {1: OTHER_SECRET}).seal(KEY, END)), "the reasons tell them apart"
    refused(Sealer("a store", {2: SECRET}).seal(KEY, END))


def test_a_secret_can_be_replaced_while_scans_are_under_way() -> None:
    before = SEALER.seal(KEY, END)
    both = Sealer("a store", {1: SECRET, 2: OTHER_SECRET})
    assert both.open(before, NOW) == KEY
    after = both.seal(KEY, END)
    assert Sealer("a store", {2: OTHER_SECRET}).open(after, NOW) == KEY
    refused(after)  # the newer secret sealed it
    refused(before, Sealer("a store", {2: OTHER_SECRET}))  # and the older one is gone


def sealed(content: bytes, version: int = KEY_VERSION) -> str:
    """Any content, sealed as `docs/formats.md` says."""
    header, nonce = bytes([version, 0, 1]), bytes(12)
    raw = header + nonce + AESGCM(SECRET).encrypt(nonce, content, header + b"a store")
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def test_a_key_of_a_later_version_is_refused_and_says_so() -> None:
    assert SEALER.open(sealed(pack(KEY, END)), NOW) == KEY
    assert f"version {KEY_VERSION + 1}" in refused(sealed(pack(KEY, END), KEY_VERSION + 1))


def test_a_key_ends_when_its_time_is_up_and_one_that_would_never_end_ends_late() -> None:
    text = SEALER.seal(KEY, 2_000.5)
    assert SEALER.open(text, 2_000.9) == KEY
    with pytest.raises(SnapshotExpired, match="start a new scan"):
        SEALER.open(text, 2_001.0)
    assert SEALER.open(SEALER.seal(KEY, 1e300), 1e12) == KEY


def test_what_is_sealed_at_the_limits_is_accepted_and_what_would_be_refused_is_not_given_out() -> None:
    """Primary keys of the greatest length, each left half-read in a slot of its own."""
    longest = b"\xff" * MAX_KEY_BYTES
    slots = (SlotSet.span(2 * n, 2 * n + 1) for n in range(1_500))
    key = replace(
        KEY,
        slots=SlotSet.span(0, 65_536),
        cursors=tuple(Cursor(slot, n.to_bytes(2) + longest) for n, slot in enumerate(slots)),
        columns=tuple(f"a_column_with_a_long_name_{n}" for n in range(20_000)),
        filter="x" * (1 << 20),
    )
    room = MAX_KEY_CHARS * 3 // 4 - len(SEALER.seal(key, END)) * 3 // 4
    key = replace(key, filter="x" * ((1 << 20) + room))
    assert SEALER.open(text := SEALER.seal(key, END), NOW) == key
    assert len(text) == MAX_KEY_CHARS
    with pytest.raises(LimitExceeded, match="name fewer columns"):
        SEALER.seal(replace(key, filter="x" * ((1 << 20) + room + 1)), END)


def test_a_scan_of_changes_stands_in_its_first_segment_with_slots_and_ends_after_its_last() -> None:
    slots = SlotSet.span(50, 70)
    first, second, third = Segment(0, 5, 0, 100), Segment(5, 9, 0, 50), Segment(5, 9, 50, 100)
    whole = replace(KEY, slots=SlotSet.span(0, 100)).begin((first, second, third))
    key = whole.restrict_to(slots)
    assert (key.slots, key.segments, key.cursors) == (slots, whole.segments, (Cursor(slots),))
    assert key.advance((Cursor(slots, b"x"),)).cursors == (Cursor(slots, b"x"),)
    assert key.advance((), upto=3).segments == (Segment(3, 5, 0, 100), second, third)
    rest = key.advance((), upto=5)
    assert (rest.segments, rest.cursors) == ((third,), (Cursor(slots),)), "the second has none of its slots"
    assert (rest.advance((), upto=9).segments, rest.advance((), upto=9).cursors) == ((), ())
    assert KEY.restrict_to(SlotSet.span(7, 9)).cursors == (KEY.cursors[0], Cursor(SlotSet.span(8, 9)))


@pytest.mark.parametrize("content", [b"", msgpack.packb(7), msgpack.packb([7]), pack(KEY, END) + b"\0"])
def test_a_content_of_another_form_is_refused_though_it_is_sealed_rightly(content: bytes) -> None:
    refused(sealed(content))
