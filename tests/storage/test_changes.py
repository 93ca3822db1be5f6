"""Changes against plain Python, which replays the commits one by one on a dictionary."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import FragmentDamaged
from elasticscan.base.key_encoding import encode_row
from elasticscan.metadata import CHANGE_TYPE, COMMIT_VERSION, Bounds, Fragment
from elasticscan.protocol import ChangeSpan, Cursor, Cursors, PageRows
from elasticscan.storage import changes as changes_module
from elasticscan.storage import copying as copying_module
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage import merge as merge_module
from elasticscan.storage.changes import DELETE, INSERT, UPDATE_POSTIMAGE, UPDATE_PREIMAGE, read_changes
from elasticscan.storage.copying import Destination, Keep
from elasticscan.storage.disk import LocalDisk
from elasticscan.storage.fragment import FragmentReader
from elasticscan.storage.fragment_writer import FragmentTarget, write_fragment
from elasticscan.storage.pages import PageSource, cursors_of, pieces_of
from elasticscan.storage.view import View
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import (
    KEY_KINDS,
    ORIGIN,
    Key,
    Limits,
    Scenario,
    Shelf,
    Version,
    addresses,
    copy_all,
    keys_of,
    request_of,
    table_of,
    visible,
)

PLENTY = (1 << 20, 1 << 30)
SEEDS = st.integers(0, 1 << 32)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are larger than batches, and histories longer than what is taken of them at once."""
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(copying_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(changes_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(changes_module, "_LEAST_ROWS", 2)


# ------------------------------------------------------------------------------- the oracle


@dataclass(frozen=True)
class Event:
    """A row that a page of changes is to hold; `kind` is None where nobody asked for it."""

    slot: int
    key: Key
    commit: int
    kind: str | None
    value: str | None


@dataclass(frozen=True)
class Past:
    """Versions of rows, and which commits were overwrites."""

    versions: Sequence[Version]
    overwrites: Sequence[int]

    def floor(self, snapshot: int) -> int:
        return max((commit for commit in self.overwrites if commit <= snapshot), default=0)

    def state(self, snapshot: int) -> dict[Key, str]:
        return visible(self.versions, self.floor(snapshot), snapshot)

    def spans(self, after: int, upto: int, feed: bool) -> list[ChangeSpan]:
        """A range as it has to be asked for: every overwrite alone."""
        found, at = [], after
        for commit in [c for c in self.overwrites if after < c <= upto]:
            if at < commit - 1:
                found.append(ChangeSpan(at, commit - 1, self.floor(at), overwrite=False, feed=feed))
            found.append(ChangeSpan(commit - 1, commit, self.floor(commit - 1), overwrite=True, feed=feed))
            at = commit
        if at < upto:
            found.append(ChangeSpan(at, upto, self.floor(at), overwrite=False, feed=feed))
        return found

    def new_rows(self, after: int, upto: int) -> list[Event]:
        rows = [v for v in self.versions if after < v.commit <= upto and v.value is not None]
        return in_order([Event(v.slot, v.key, v.commit, None, v.value) for v in rows])

    def feed(self, after: int, upto: int) -> list[Event]:
        """Commit after commit on a dictionary."""
        events: list[Event] = []
        state: dict[Key, tuple[int, str]] = {}
        last = max((v.commit for v in self.versions), default=0)
        for commit in range(1, max([last, *self.overwrites]) + 1):
            written = {v.key: v for v in self.versions if v.commit == commit}
            message: list[Event] = []
            if commit in self.overwrites:
                for key in [key for key in state if key not in written]:
                    slot, value = state.pop(key)
                    message.append(Event(slot, key, commit, DELETE, value))
            for key, version in written.items():
                before = state.pop(key, None)
                if version.value is not None:
                    state[key] = (version.slot, version.value)
                    if before is None:
                        message.append(Event(version.slot, key, commit, INSERT, version.value))
                    else:
                        message.append(Event(version.slot, key, commit, UPDATE_PREIMAGE, before[1]))
                        message.append(Event(version.slot, key, commit, UPDATE_POSTIMAGE, version.value))
                elif before is not None:
                    message.append(Event(version.slot, key, commit, DELETE, before[1]))
            events += message if after < commit <= upto else []
        return in_order(events)


def in_order(events: Sequence[Event]) -> list[Event]:
    """By slot, key and commit; of one commit as they are."""
    return sorted(events, key=lambda e: (e.slot, e.key, e.commit))


# ------------------------------------------------------------------------------- reading


def check_page(page: PageRows, shelf: Shelf, columns: Sequence[str], limit: Limits, feed: bool) -> None:
    fields = [shelf.table.schema.field(name) for name in columns]
    kind = [pa.field(CHANGE_TYPE, pa.string(), nullable=False)] if feed else []
    assert page.rows.schema == pa.schema(
        [*fields, *kind, pa.field(COMMIT_VERSION, pa.int64(), nullable=False)]
    )
    page.rows.validate(full=True)
    assert page.rows.num_rows == len(page.slots)
    # Either rows or the end: no page without rows can be followed by another, so none loops.
    assert page.rows.num_rows or not page.after
    too_large = page.rows.num_rows > limit[0] or page.rows.nbytes > limit[1]
    if too_large and set(shelf.table.primary_key) <= set(columns):
        assert len(set(keys_of(page.rows, shelf.table))) == 1


def read_all(
    shelf: Shelf,
    source: PageSource,
    cursors: Cursors,
    changes: ChangeSpan,
    columns: Sequence[str],
    limits: Iterator[Limits],
) -> list[PageRows]:
    """Page after page, each from the cursors of the one before it, as if by another process."""
    pages: list[PageRows] = []
    while cursors:
        limit = next(limits)
        page = read_changes(source, request_of(cursors, changes.upto, columns, limit, changes=changes))
        check_page(page, shelf, columns, limit, changes.feed)
        pages.append(page)
        cursors = page.after
        assert set(cursors) == set(cursors_of(pieces_of(cursors)))
    return pages


def events_of(page: PageRows, shelf: Shelf) -> list[Event]:
    rows = page.rows
    feed = CHANGE_TYPE in rows.schema.names
    kinds = rows.column(CHANGE_TYPE).to_pylist() if feed else [None] * rows.num_rows
    return [
        Event(*event)
        for event in zip(
            page.slots.to_pylist(),
            keys_of(rows, shelf.table),
            rows.column(COMMIT_VERSION).to_pylist(),
            kinds,
            rows.column("v").to_pylist(),
            strict=True,
        )
    ]


def varying(rng: random.Random) -> Iterator[Limits]:
    while True:
        yield rng.choice((1, 2, 3, 5, 9, 100)), rng.choice((1, 60, 200, 600, 1 << 20))


class RandomFragments:
    """A table of some commits, perhaps compacted, which serves snapshots from `horizon` on."""

    def __init__(self, seed: int) -> None:
        self.scenario = Scenario(seed)
        self.rng, self.shelf = self.scenario.rng, self.scenario.shelf
        self.commits = self.scenario.commits
        self.past = Past(self.shelf.versions(), self.scenario.overwrites)
        self.columns = [*self.shelf.table.primary_key, "v"]
        self.horizon = 0
        self.fragments: list[Fragment] = list(self.shelf.fragments)
        if self.rng.random() < 0.6:
            self._compact()
        self.rng.shuffle(self.fragments)
        self.source = PageSource(self.shelf.table, View(self.fragments), self.shelf.source().open)

    def _compact(self) -> None:
        """The fragments up to a commit become one, as long as none lies astride of it."""
        upto = self.rng.randint(0, self.commits)
        old = [f for f in self.fragments if f.max_commit <= upto]
        if not all(f.max_commit <= upto or f.min_commit > upto for f in self.fragments):
            old, upto = self.fragments, self.commits
        self.horizon = self.rng.randint(0, upto)
        copied = copy_all(
            PageSource(self.shelf.table, View(old), self.shelf.source().open),
            SlotSet.span(0, self.shelf.slot_count),
            Bounds(self.past.floor(self.horizon), upto),
            Keep(self.horizon, drop_tombstones=self.rng.random() < 0.7),
            Destination(self.shelf.disk, 1, ORIGIN),
        )
        self.fragments = [f for f in self.fragments if f not in old]
        if copied is not None:
            staged, bounds = copied.staged, (copied.min_commit, copied.max_commit)
            self.fragments.append(self.shelf.register(staged, 1000, *bounds, []))

    def span(self) -> tuple[int, int]:
        after = self.rng.randint(self.horizon, self.commits)
        return after, self.rng.randint(after, self.commits)

    def pages(self, changes: ChangeSpan, cursors: Cursors | None = None) -> list[PageRows]:
        cursors = self.shelf.everything() if cursors is None else cursors
        return read_all(self.shelf, self.source, cursors, changes, self.columns, varying(self.rng))

    def read(self, after: int, upto: int, feed: bool) -> list[Event]:
        """All events of a range, of every key in the order of commits."""
        found: list[Event] = []
        for changes in self.past.spans(after, upto, feed):
            pages = [events_of(page, self.shelf) for page in self.pages(changes)]
            for page, following in pairwise(list(filter(None, pages))):
                assert (page[-1].slot, page[-1].key) < (following[0].slot, following[0].key)
            events = [event for page in pages for event in page]
            assert events == in_order(events)
            found += events
        return in_order(found)


# ------------------------------------------------------------------------------- properties


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_a_feed_tells_what_a_replay_of_the_commits_does(seed: int) -> None:
    drawn = RandomFragments(seed)
    after, upto = drawn.span()
    assert drawn.read(after, upto, feed=True) == drawn.past.feed(after, upto)


@settings(max_examples=examples(100), deadline=None)
@given(SEEDS, st.booleans())
def test_any_pieces_give_the_changes_beyond_their_positions(seed: int, feed: bool) -> None:
    """Positions come from other shards: their keys need not be here, nor have changed."""
    drawn = RandomFragments(seed)
    rng, scenario, slot_count = drawn.rng, drawn.scenario, drawn.shelf.slot_count
    kinds = [drawn.shelf.table.schema.field(name).type for name in drawn.shelf.table.primary_key]
    cursors: list[Cursor] = []
    asked: dict[int, Key | None] = {}
    at = 0
    while at < slot_count:
        end = rng.randint(at + 1, slot_count)
        if rng.random() < 0.4:
            key = scenario.kind.make(rng, rng.randint(0, 30))
            encoded = encode_row([pa.array([part], kind) for part, kind in zip(key, kinds, strict=True)], 0)
            cursors.append(Cursor(SlotSet.span(at, at + 1), at.to_bytes(2, "big") + encoded))
            asked[at], at = key, at + 1
        elif rng.random() < 0.8:
            cursors.append(Cursor(SlotSet.span(at, end)))
            asked.update(dict.fromkeys(range(at, end)))
            at = end
        else:
            at = end
    rng.shuffle(cursors)
    after, upto = drawn.span()
    found: list[Event] = []
    for changes in drawn.past.spans(after, upto, feed):
        found += [e for page in drawn.pages(changes, tuple(cursors)) for e in events_of(page, drawn.shelf)]
    expected = drawn.past.feed(after, upto) if feed else drawn.past.new_rows(after, upto)
    assert in_order(found) == [
        event
        for event in expected
        if event.slot in asked and ((beyond := asked[event.slot]) is None or event.key > beyond)
    ]


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS, st.booleans(), st.lists(st.sampled_from(("v", "n")), unique=True))
@example(66, False, [])  # nothing but new rows, and none of their columns
@example(105049252, True, [])  # rows from before the range, and none of their columns
def test_columns_come_as_asked_for_without_the_key(seed: int, feed: bool, columns: list[str]) -> None:
    drawn = RandomFragments(seed)
    drawn.columns = columns
    after, upto = drawn.span()
    found = [p.rows for changes in drawn.past.spans(after, upto, feed) for p in drawn.pages(changes)]
    expected = drawn.past.feed(after, upto) if feed else drawn.past.new_rows(after, upto)
    commits = [commit for rows in found for commit in rows.column(COMMIT_VERSION).to_pylist()]
    assert sorted(commits) == sorted(event.commit for event in expected)
    if "v" in columns:
        values = [value for rows in found for value in rows.column("v").to_pylist()]
        assert sorted(values) == sorted(event.value or "" for event in expected)


# ------------------------------------------------------------------------------- cases with names


def shelf_of(slot_count: int, disk: Any = None) -> Shelf:
    return Shelf(table_of(KEY_KINDS["int"]), slot_count, disk or MemoryDisk())


def written(shelf: Shelf, keys: Sequence[int], commit: int = 1, value: str | None = "v") -> list[Version]:
    return [Version((key,), commit, value, shelf.slot_of((key,))) for key in keys]


def span(after: int, upto: int, floor: int = 0, overwrite: bool = False, feed: bool = True) -> ChangeSpan:
    return ChangeSpan(after, upto, floor, overwrite, feed)


def page_of(shelf: Shelf, changes: ChangeSpan, limits: Limits = PLENTY, **source: Any) -> PageRows:
    request = request_of(shelf.everything(), changes.upto, ["k", "v"], limits, changes=changes)
    return read_changes(replace(shelf.source(), **source), request)


def short(page: PageRows) -> list[tuple[Any, ...]]:
    names = [name for name in ("k", CHANGE_TYPE, "v", COMMIT_VERSION) if name in page.rows.schema.names]
    return list(zip(*(page.rows.column(name).to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("feed", [True, False])
def test_older_fragments_are_opened_only_by_a_feed(feed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 100)
    shelf = shelf_of(1)
    old = shelf.add(written(shelf, range(5_000)))
    shelf.add(written(shelf, [10, 6_000], 2, "new"))
    shelf.add(written(shelf, [20], 3, None))
    opened: list[int] = []
    source = shelf.source()

    def watching(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        opened.append(fragment.id)
        return source.open(fragment, columns)

    page = page_of(shelf, span(1, 3, feed=feed), open=watching)
    assert page.rows.num_rows == (4 if feed else 2)
    assert page.scanned == 3
    assert (old.id in opened) is feed


def test_of_a_compacted_fragment_only_versions_in_the_range_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (fragment_module, changes_module):
        monkeypatch.setattr(module, "BATCH_ROWS", 1_000)
    shelf = shelf_of(64)
    shelf.add([*written(shelf, range(5_000)), *written(shelf, [10, 4_000], 2, "new")])
    taken: list[int] = []
    original = merge_module.sort_codes

    def counted(column: pa.Array) -> Any:
        taken.append(len(column))
        return original(column)

    monkeypatch.setattr(merge_module, "sort_codes", counted)
    page = page_of(shelf, span(1, 2, feed=False))
    assert sorted(short(page)) == [(10, "new", 2), (4_000, "new", 2)]
    assert sum(taken) < 20


def test_new_rows_of_a_clean_fragment_are_slices_of_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (fragment_module, changes_module):
        monkeypatch.setattr(module, "BATCH_ROWS", 1_000)
    shelf = shelf_of(1, LocalDisk(tmp_path))
    shelf.add(written(shelf, range(100)))
    fragment = shelf.add(written(shelf, range(50, 3_050), 2))
    source = shelf.source()
    limits = repeat((1_000, 1 << 30))
    changes = span(1, 2, feed=False)
    pages = read_all(shelf, source, shelf.everything(), changes, ["k", "v"], limits)
    assert sum(page.rows.num_rows for page in pages) == 3_000
    known = addresses(source.open(fragment, ("k", "v")))
    for page in pages:
        assert set(page.rows.column(COMMIT_VERSION).to_pylist()) == {2}
        for column in page.rows.columns[:-1]:
            for buffer in column.buffers():
                assert buffer is None or buffer.address in known


def test_a_null_in_a_key_is_damage_and_not_a_change() -> None:
    shelf = shelf_of(1)
    fragment = shelf.add(written(shelf, [1, 2, 3]))
    shelf.add(written(shelf, [2], 2))
    (rows,) = FragmentReader(shelf.disk, fragment.path, ["k", "v"], fragment.seal)
    nullable = pa.schema([field.with_nullable(True) for field in rows.schema], metadata=rows.schema.metadata)
    keys = pa.array([1, None, 3], pa.int64())
    nulls = pa.RecordBatch.from_arrays([keys, *rows.columns[1:]], schema=nullable)
    target = FragmentTarget(shelf.disk, 1, shelf.table, nullable, ORIGIN)
    staged = write_fragment(target, fragment.slots, [nulls])
    damaged = replace(fragment, path=staged.path, bytes=staged.bytes, tail=staged.tail, digest=staged.digest)
    view = View([damaged, shelf.fragments[1]])
    with pytest.raises(FragmentDamaged):
        page_of(shelf, span(0, 2), view=view)
