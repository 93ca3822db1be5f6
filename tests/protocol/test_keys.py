"""Continuation keys come back as they were, or are refused."""

from __future__ import annotations

import base64
import string
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import ContinuationKeyError, LimitExceeded, SnapshotExpired
from elasticscan.base.limits import MAX_KEY_BYTES, MAX_KEY_CHARS
from elasticscan.protocol import Cursor, keys
from elasticscan.protocol.keys import KEY_VERSION, ContinuationKey, Sealer, pack, unpack
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


@st.composite
def slot_sets(draw: st.DrawFn) -> SlotSet:
    return SlotSet.of((slot, slot + 1) for slot in draw(st.sets(st.integers(0, 65_535), max_size=20)))


NUMBERS = st.integers(0, (1 << 63) - 1)
ANY_KEY = st.builds(
    ContinuationKey,
    table=NUMBERS,
    snapshot=NUMBERS,
    base_topology=NUMBERS,
    slots=slot_sets(),
    cursors=st.lists(st.builds(Cursor, slot_sets(), st.none() | st.binary()), max_size=4).map(tuple),
    columns=st.lists(st.text(st.characters(codec="utf-8")), max_size=4).map(tuple),
    filter=st.none() | st.text(st.characters(codec="utf-8")),
    page_rows=NUMBERS,
    page_bytes=NUMBERS,
    lease=st.binary(min_size=8, max_size=8).map(bytes.hex),
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


def test_a_key_of_64_tablets_is_small() -> None:
    ranges = [(start, start + 64) for start in range(0, 4_096, 128)]
    half = SlotSet.of(ranges)
    key = replace(KEY, cursors=(Cursor(SlotSet.span(64, 65), bytes(10)), Cursor(half)))
    assert len(SEALER.seal(key, END)) <= 512


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
    for more in ("A", "AA", "AAAA", text):
        refused(text + more)


@pytest.mark.parametrize("text", ["", " ", "é", "a b", "!", None, 7, b"bytes", "A" * (MAX_KEY_CHARS + 1)])
def test_what_is_no_key_at_all_is_refused(text: Any) -> None:
    refused(text)


@settings(deadline=None, max_examples=examples(200))
@given(st.text() | st.binary(max_size=200).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_any_text_is_refused_and_never_fails_otherwise(text: str) -> None:
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


def test_a_key_of_a_later_version_is_refused_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(keys, "KEY_VERSION", KEY_VERSION + 1)
        text = SEALER.seal(KEY, END)
        assert SEALER.open(text, NOW) == KEY
    assert f"version {KEY_VERSION + 1}" in refused(text)


def test_a_key_ends_when_its_time_is_up() -> None:
    text = SEALER.seal(KEY, 2_000.5)
    assert SEALER.open(text, 2_000.9) == KEY
    with pytest.raises(SnapshotExpired, match="start a new scan"):
        SEALER.open(text, 2_001.0)


def test_what_would_never_end_ends_late() -> None:
    assert SEALER.open(SEALER.seal(KEY, 1e300), 1e12) == KEY


@settings(deadline=None, max_examples=examples(15))
@given(
    cursors=st.integers(1, 1_500),
    columns=st.integers(1, 20_000),
    filter_chars=st.integers(0, 1 << 20),
    position=st.sampled_from([b"\0", b"\xff", b"key"]),
)
def test_what_is_sealed_at_the_limits_is_accepted(
    cursors: int, columns: int, filter_chars: int, position: bytes
) -> None:
    """Primary keys of the greatest length, each left half-read in a slot of its own."""
    longest = (position * MAX_KEY_BYTES)[:MAX_KEY_BYTES]
    slots = (SlotSet.span(2 * n, 2 * n + 1) for n in range(cursors))
    key = replace(
        KEY,
        slots=SlotSet.span(0, 65_536),
        cursors=tuple(Cursor(slot, n.to_bytes(2) + longest) for n, slot in enumerate(slots)),
        columns=tuple(f"a_column_with_a_long_name_{n}" for n in range(columns)),
        filter="x" * filter_chars,
    )
    assert SEALER.open(SEALER.seal(key, END), NOW) == key


def test_a_key_that_would_be_refused_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    length = len(SEALER.seal(KEY, END))
    monkeypatch.setattr(keys, "MAX_KEY_CHARS", length)
    assert SEALER.open(SEALER.seal(KEY, END), NOW) == KEY
    longer = replace(KEY, columns=(*KEY.columns, "w" * 8))
    with pytest.raises(LimitExceeded, match="name fewer columns"):
        SEALER.seal(longer, END)


# Even a content that was sealed with the right secret is not trusted.


def sealed(content: bytes) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "pack", lambda *_: content)
        return SEALER.seal(KEY, END)


FIELDS: list[Any] = msgpack.unpackb(pack(KEY, END))


def with_field(at: int, value: Any) -> bytes:
    return bytes(msgpack.packb([*FIELDS[:at], value, *FIELDS[at + 1 :]]))


NESTED = b"\x91" * 2_000 + b"\x90"
BOMBS: dict[str, bytes] = {
    "nothing": b"",
    "no list": msgpack.packb(7),
    "a map": msgpack.packb({"table": 1}),
    "too few fields": msgpack.packb(FIELDS[:-1]),
    "too many fields": msgpack.packb([*FIELDS, 1]),
    "bytes after the end": pack(KEY, END) + b"\0",
    "an array that promises four billion items": b"\xdd\xff\xff\xff\xff",
    "a map that promises four billion items": b"\xdf\xff\xff\xff\xff",
    "a binary that promises four gigabytes": b"\xc6\xff\xff\xff\xff",
    "a string that promises four gigabytes": b"\xdb\xff\xff\xff\xff",
    "an extension type": msgpack.packb(msgpack.ExtType(1, b"x")),
    "a timestamp": msgpack.packb(msgpack.Timestamp(1)),
    "deep nesting": NESTED,
    "deep nesting in a field": b"\x9e" + NESTED + pack(KEY, END)[4:],
    "a time that is text": with_field(0, "never"),
    "a time that is a fraction": with_field(0, 2_000.5),
    "a table that is text": with_field(1, "3"),
    "a table that is true": with_field(1, True),
    "a table that is a fraction": with_field(1, 3.5),
    "a snapshot below zero": with_field(2, -1),
    "slots that are no list": with_field(4, 5),
    "slots with half a range": with_field(4, [0, 1, 2]),
    "slots below zero": with_field(4, [-4, 2]),
    "slots that are text": with_field(4, ["0", "1"]),
    "cursors that are no list": with_field(5, 5),
    "a cursor without a position": with_field(5, [[[0, 1]]]),
    "a position that is text": with_field(5, [[[0, 1], "x"]]),
    "a position that is a number": with_field(5, [[[0, 1], 5]]),
    "columns that are no list": with_field(6, 5),
    "a column that is a number": with_field(6, ["id", 5]),
    "a filter that is a list": with_field(7, ["v > 3"]),
    "a lease that is a number": with_field(10, 1 << 30),
    "a lease that is nothing": with_field(10, None),
    "text that is not UTF-8": b"\x9e" + b"\xa2\xff\xfe" + pack(KEY, END)[4:],
}


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS.keys())
def test_a_content_of_another_form_is_refused_though_it_is_sealed_rightly(content: bytes) -> None:
    refused(sealed(content))


@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_a_content_with_any_bytes_altered_opens_to_a_key_or_is_refused(data: st.DataObject) -> None:
    content = bytearray(pack(KEY, END))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        opened = unpack(bytes(content))
    except ContinuationKeyError:
        return
    assert unpack(pack(*opened)) == opened


@pytest.mark.parametrize("alter", [bytes.upper, bytes.lower], ids=["upper", "lower"])
def test_text_in_another_case_is_another_key(alter: Callable[[bytes], bytes]) -> None:
    refused(alter(SEALER.seal(KEY, END).encode()).decode())
