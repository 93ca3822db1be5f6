"""Pages against plain Python: every visible row once, in order, within the limits, from any cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.key_encoding import encode_row
from elasticscan.protocol import Cursor, Cursors, PageRows
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.disk import LocalDisk
from elasticscan.storage.fragment import FragmentReader
from elasticscan.storage.pages import Piece, cursors_of, pieces_of, read_page
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import (
    KEY_KINDS,
    Key,
    Limits,
    Scenario,
    Shelf,
    Version,
    addresses,
    read_all,
    request_of,
    table_of,
    together,
    varying,
)

PLENTY = (1 << 20, 1 << 30)
SEEDS = st.integers(0, 1 << 32)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are larger than batches, so that pages end in all kinds of places."""
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)


def encoded(key: Key, scenario: Scenario) -> bytes:
    kinds = [scenario.shelf.table.schema.field(name).type for name in scenario.shelf.table.primary_key]
    return encode_row([pa.array([value], kind) for value, kind in zip(key, kinds, strict=True)], 0)


def check_against_oracle(scenario: Scenario, snapshot: int, limits: Iterator[Limits]) -> None:
    shelf = scenario.shelf
    source, columns = shelf.source(floor=scenario.floor(snapshot)), [*shelf.table.primary_key, "v"]
    pages = read_all(read_page, source, shelf.everything(), snapshot, columns, limits)
    rows = together(pages, shelf)
    expected = scenario.visible(snapshot)
    assert {key: value for _, key, value in rows} == expected
    assert [(slot, key) for slot, key, _ in rows] == sorted((scenario.slots[key], key) for key in expected)


@settings(max_examples=examples(180), deadline=None)
@given(SEEDS)
def test_pages_of_any_limits_hold_each_visible_row_once_and_in_order(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragment_module, "BATCH_ROWS", 1 + seed % 8)
        scenario = Scenario(seed)
        check_against_oracle(scenario, scenario.rng.randint(0, scenario.commits), varying(scenario.rng))


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS)
def test_any_cursors_give_the_rows_beyond_their_positions(seed: int) -> None:
    """Positions come from other shards: their keys need not be here, nor be visible."""
    scenario = Scenario(seed)
    rng, shelf, snapshot = scenario.rng, scenario.shelf, scenario.commits
    cursors: list[Cursor] = []
    asked: list[tuple[SlotSet, int, Key | None]] = []
    left = list(range(shelf.slot_count))
    while left:
        size = rng.randint(1, len(left))
        rng.shuffle(left)
        slots, left = SlotSet.of((at, at + 1) for at in left[:size]), left[size:]
        if rng.random() < 0.3:
            cursors.append(Cursor(slots))
            asked.append((slots, -1, None))
        elif rng.random() < 0.9:
            at, key = rng.randrange(shelf.slot_count), scenario.kind.make(rng, rng.randint(0, 30))
            cursors.append(Cursor(slots, at.to_bytes(2, "big") + encoded(key, scenario)))
            asked.append((slots, at, key))
    source, columns = shelf.source(floor=scenario.floor(snapshot)), [*shelf.table.primary_key, "v"]
    pages = read_all(read_page, source, tuple(cursors), snapshot, columns, varying(rng))
    expected = {
        (scenario.slots[key], key, value)
        for key, value in scenario.visible(snapshot).items()
        for slots, at, beyond in asked
        if (slot := scenario.slots[key]) in slots and (beyond is None or (slot, key) > (at, beyond))
    }
    rows = together(pages, shelf)
    assert len(rows) == len(expected)
    assert set(rows) == expected


# ------------------------------------------------------------------------------- cases with names


def shelf_of(slot_count: int, disk: Any = None, kind: str = "int") -> Shelf:
    return Shelf(table_of(KEY_KINDS[kind]), slot_count, disk or MemoryDisk())


def written(shelf: Shelf, keys: Sequence[int], commit: int = 1, value: str | None = "v") -> list[Version]:
    return [Version((key,), commit, value, shelf.slot_of((key,))) for key in keys]


def page_of(shelf: Shelf, limits: Limits, snapshot: int = 99, cursors: Cursors | None = None) -> PageRows:
    request = request_of(cursors or shelf.everything(), snapshot, ["k", "v"], limits)
    return read_page(shelf.source(), request)


@pytest.mark.parametrize("fragments", [1, 2])
def test_a_row_beyond_the_byte_limit_comes_alone(fragments: int) -> None:
    shelf = shelf_of(2)
    for part in range(fragments):
        shelf.add(written(shelf, range(part, 9, fragments), part + 1, "x" * 1_000))
    pages = read_all(read_page, shelf.source(), shelf.everything(), 9, ["k", "v"], repeat((100, 10)))
    assert [page.rows.num_rows for page in pages] == [1] * 9
    assert sorted(key for _, (key,), _ in together(pages, shelf)) == list(range(9))


def test_what_lies_between_the_slots_that_are_asked_for_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, asked = shelf_of(64), SlotSet.of([(0, 1), (2, 5), (6, 7), (30, 31), (63, 64)])
    shelf.add(written(shelf, range(600)))
    touched = set[int]()
    read = FragmentReader.batch
    monkeypatch.setattr(FragmentReader, "batch", lambda self, at: touched.add(at) or read(self, at))
    page = read_page(shelf.source(), request_of((Cursor(asked),), 9, ["k", "v"], PLENTY))
    assert page.rows.num_rows == page.scanned == sum(shelf.slot_of((key,)) in asked for key in range(600))
    assert len(touched) < 60, "of 150"


def test_the_last_slot_of_the_largest_store_is_read_and_resumed() -> None:
    shelf = shelf_of(1 << 16)
    last = (1 << 16) - 1
    rows = [Version((key,), 1, "v", last - (key < 5)) for key in range(15)]
    shelf.add(rows)
    pages = read_all(read_page, shelf.source(), shelf.everything(), 1, ["k", "v"], repeat((2, 1 << 30)))
    assert [key for _, (key,), _ in together(pages, shelf)] == list(range(15))


def test_pages_of_a_clean_fragment_are_slices_of_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 1_000)
    shelf = shelf_of(8, LocalDisk(tmp_path))
    fragment = shelf.add(written(shelf, range(3_000)))
    source = shelf.source()
    pages = read_all(read_page, source, shelf.everything(), 1, ["k", "v"], repeat((1_000, 1 << 30)))
    assert sum(page.rows.num_rows for page in pages) == 3_000
    known = addresses(source.open(fragment, ("k", "v")))
    for page in pages:
        for column in (*page.rows.columns, page.slots):
            for buffer in column.buffers():
                assert buffer is None or buffer.address in known


def test_a_page_of_a_clean_fragment_ends_between_slots_where_that_costs_less_than_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 200)
    shelf = shelf_of(16)
    shelf.add(written(shelf, range(400)))
    page = page_of(shelf, (100, 1 << 30))
    assert 50 <= page.rows.num_rows <= 100
    assert [cursor.position for cursor in page.after] == [None]


cursor_pieces = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 4), st.none() | st.binary(max_size=3)), max_size=6
)


@given(cursor_pieces)
def test_pieces_and_cursors_say_the_same(drawn: list[tuple[int, int, bytes | None]]) -> None:
    taken, pieces = SlotSet(), []
    for start, length, key in drawn:
        piece = Piece(start, start + 1 if key is not None else start + length, key)
        span = SlotSet.span(piece.start, piece.end)
        if not taken & span:
            taken |= span
            pieces.append(piece)
    again = pieces_of(cursors_of(pieces))
    assert {piece for piece in again if piece.key is not None} == {p for p in pieces if p.key is not None}
    assert SlotSet.of((p.start, p.end) for p in again if p.key is None) == SlotSet.of(
        (p.start, p.end) for p in pieces if p.key is None
    )


@pytest.mark.parametrize("kind", ["int", "string"])
@pytest.mark.parametrize("others", [0, 1])
def test_pages_without_the_columns_of_the_key_end_where_those_with_them_do(kind: str, others: int) -> None:
    """Slots are larger than pages, so most positions are keys, which the pages themselves do not have."""
    shelf = shelf_of(4, kind=kind)
    keys = [(f"{n:03}" if kind == "string" else n,) for n in range(90)]
    shelf.add([Version(key, 1, f"value {key}", shelf.slot_of(key)) for key in keys])
    if others:
        shelf.add([Version(key, 2, f"newer {key}", shelf.slot_of(key)) for key in keys[::20]])
    asked = (Cursor(SlotSet.span(0, 2)), Cursor(SlotSet.span(3, 4)))
    inside = 0
    for rows in (1, 2, 3, 5, 7, 30, 100):
        alone, whole = (
            list(read_all(read_page, shelf.source(), asked, 9, names, repeat((rows, 1 << 30))))
            for names in (["v"], ["k", "v"])
        )
        assert [page.after for page in alone] == [page.after for page in whole]
        assert [page.rows["v"] for page in alone] == [page.rows["v"] for page in whole]
        inside += sum(cursor.position is not None for page in alone for cursor in page.after)
    assert inside > 50


def test_the_columns_of_the_key_are_read_only_where_a_page_ends_inside_of_a_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf, read = shelf_of(4), set[str]()
    shelf.add(written(shelf, range(90)))
    batch = FragmentReader.batch
    monkeypatch.setattr(
        FragmentReader, "batch", lambda self, at: read.update(self.columns) or batch(self, at)
    )
    request = request_of(shelf.everything(), 9, ["v"], PLENTY)
    assert read_page(shelf.source(), request).rows.num_rows == 90
    assert "k" not in read
    assert read_page(shelf.source(), request_of(shelf.everything(), 9, ["v"], (1, 1 << 30))).after
    assert "k" in read
