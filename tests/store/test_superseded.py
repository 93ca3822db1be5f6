"""History apart from the newest rows: merges and moves of random fragments against plain Python.

Every snapshot that is kept, every range of changes and every index must tell what they reported before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage import (
    Apart,
    Copied,
    Destination,
    Disk,
    Keep,
    PageSource,
    View,
    copy_slots,
    read_page,
)
from elasticscan.storage import copying as copying_module
from elasticscan.storage import fragment as fragment_module
from elasticscan.store.upkeep.compaction import keep_for, worth_merging
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.indexed import Indexed
from tests.storage.indexes.test_pages import check_against_oracle, varying
from tests.storage.test_changes import Past, RandomFragments
from tests.storage.versions import ORIGIN, Key, keys_of, request_of

SEEDS = st.integers(0, 1 << 32)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(copying_module, "BATCH_ROWS", 4)


class Life:
    """Fragments of a shard while some of them are merged, and some of their slots move.

    `oldest` is the oldest snapshot that is kept.
    """

    def __init__(self, rng: random.Random, source: PageSource, disk: Disk, slot_count: int) -> None:
        self.rng, self.source, self.slot_count = rng, source, slot_count
        self.to = Destination(disk, 1, ORIGIN)
        self.fragments: list[Fragment] = []
        self.oldest = self._ids = 0

    def merge(self, upto: int, overwrites: Sequence[int]) -> None:
        horizon = self.rng.choice((self.oldest, self.rng.randint(self.oldest, upto)))
        chosen = self.rng.sample(self.fragments, self.rng.randint(0, len(self.fragments)))
        bounds = Bounds(newest_of(overwrites, horizon), upto, since=horizon)
        chosen = list(worth_merging(chosen, bounds, newest_of(overwrites, upto)))
        if not chosen:
            return
        others = [fragment for fragment in self.fragments if fragment not in chosen]
        keep = keep_for(chosen, others, (), horizon, newest_of(overwrites, upto))
        slots = SlotSet.of(r for fragment in chosen for r in fragment.slots)
        self.oldest = horizon
        self.fragments = others
        self._enter(copy_slots(replace(self.source, view=View(chosen)), slots, bounds, keep, self.to))

    def move(self, upto: int, overwrites: Sequence[int]) -> None:
        """Give all that some slots have to fragments of their own, in two rounds."""
        start = self.rng.randrange(self.slot_count)
        slots = SlotSet.span(start, self.rng.randint(start + 1, self.slot_count))
        source = replace(self.source, view=View(self.fragments))
        rounds = sorted({self.rng.randint(1, upto), upto}) if upto else []
        copies, done = list[Copied](), 0
        for end in rounds:
            keep = Keep(apart=Apart(newest_of(overwrites, end), complete=not done))
            copies += copy_slots(source, slots, Bounds(done + 1, end, since=self.oldest), keep, self.to)
            done = end
        left = [replace(fragment, slots=fragment.slots - slots) for fragment in self.fragments]
        self.fragments = [fragment for fragment in left if fragment.slots]
        self._enter(copies)

    def _enter(self, copies: Sequence[Copied]) -> None:
        for copied in copies:
            self._ids += 1
            fragment = copied.as_fragment(10_000 + self._ids, self.source.table)
            assert fragment.superseded_at is not None or fragment.unique
            self.fragments.append(fragment)

    def step(self, upto: int, overwrites: Sequence[int]) -> None:
        for _ in range(self.rng.choice((0, 1, 1, 2, 3))):
            self.rng.choice((self.merge, self.merge, self.merge, self.move))(upto, overwrites)
            self.rng.shuffle(self.fragments)


def newest_of(overwrites: Sequence[int], snapshot: int) -> int:
    return max((commit for commit in overwrites if commit <= snapshot), default=0)


class LivelyFragments(RandomFragments):
    """Commits of a table with merges and moves between them."""

    def __init__(self, seed: int) -> None:
        self.life: Life | None = None
        super().__init__(seed)
        if self.life is None:
            self._compact()

    def _compact(self) -> None:
        shelf, waiting = self.shelf, list(self.fragments)
        self.past = Past(shelf.versions(), self.scenario.overwrites)
        self.life = life = Life(self.rng, shelf.source(), shelf.disk, shelf.slot_count)
        for upto in range(1, self.commits + 1):
            if any(f.min_commit <= upto < f.max_commit for f in waiting):
                continue  # nothing is committed in part
            life.fragments += [f for f in waiting if f.max_commit <= upto]
            waiting = [f for f in waiting if f.max_commit > upto]
            life.step(upto, self.past.overwrites)
        self.fragments, self.horizon = life.fragments, life.oldest
        self.source = PageSource(shelf.table, View(self.fragments), shelf.source().open)

    def rows_at(self, snapshot: int) -> dict[Key, str]:
        source = replace(self.source, floor=self.past.floor(snapshot))
        cursors, rows, limits = self.shelf.everything(), list[tuple[Key, str]](), varying(self.rng)
        while cursors:
            page = read_page(source, request_of(cursors, snapshot, self.columns, next(limits)))
            cursors = page.after
            rows += zip(keys_of(page.rows, self.shelf.table), page.rows.column("v").to_pylist(), strict=True)
        assert len(dict(rows)) == len(rows)
        return dict(rows)


class LivelyIndexed(Indexed):
    """Commits of a table with an index, with merges and moves between them."""

    life: Life | None = None

    def _compact(self, commit: int) -> None:
        if self.life is None:
            self.life = Life(self.rng, self.rows(), self.disk, self.slot_count)
        life = self.life
        life.fragments = self.fragments
        life.step(commit, self.overwrites)
        self.fragments, self.oldest = life.fragments, life.oldest


@settings(max_examples=examples(100), deadline=None)
@given(SEEDS)
def test_every_snapshot_that_is_kept_stays_as_it_was(seed: int) -> None:
    made = LivelyFragments(seed)
    for snapshot in range(made.horizon, made.commits + 1):
        assert made.rows_at(snapshot) == made.past.state(snapshot)


@pytest.mark.long
@settings(max_examples=examples(120), deadline=None)
@given(SEEDS)
def test_changes_of_all_that_is_kept_stay_as_they_were(seed: int) -> None:
    made = LivelyFragments(seed)
    for after in range(made.horizon, made.commits + 1):
        assert made.read(after, made.commits, feed=True) == made.past.feed(after, made.commits)
        assert made.read(after, made.commits, feed=False) == made.past.new_rows(after, made.commits)


@pytest.mark.long
@settings(max_examples=examples(100), deadline=None)
@given(SEEDS)
def test_index_scans_give_what_they_gave(seed: int) -> None:
    indexed = LivelyIndexed(seed)
    check_against_oracle(indexed, varying(indexed.rng))
