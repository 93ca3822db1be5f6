"""Changes against plain Python, which replays the commits one by one on a dictionary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import FragmentDamaged
from elasticscan.metadata import CHANGE_TYPE, COMMIT_VERSION
from elasticscan.protocol import ChangeSpan, Cursors, PageRows
from elasticscan.storage import changes as changes_module
from elasticscan.storage import copying as copying_module
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.changes import DELETE, INSERT, UPDATE_POSTIMAGE, UPDATE_PREIMAGE, read_changes
from elasticscan.storage.fragment import FragmentReader
from elasticscan.storage.fragment_writer import FragmentTarget, write_fragment
from elasticscan.storage.pages import PageSource, cursors_of, pieces_of
from tests.base.examples import examples
from tests.storage.versions import (
    ORIGIN,
    PLENTY,
    Key,
    Limits,
    Row,
    Scenario,
    Shelf,
    keys_of,
    request_of,
    shelf_of,
    varying,
)

SEEDS = st.integers(0, 1 << 32)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are larger than batches, and histories longer than what is taken of them at once."""
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(copying_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(changes_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(changes_module, "_LEAST_ROWS", 2)


# ------------------------------------------------------------------------------- the oracle


def spans(scenario: Scenario, after: int, upto: int, feed: bool) -> Iterator[ChangeSpan]:
    """A range as it has to be asked for: every overwrite alone."""
    alone = [commit for commit in scenario.overwrites if after < commit <= upto]
    edges = sorted({after, upto, *alone, *(commit - 1 for commit in alone)})
    for begin, end in pairwise(edges):
        yield ChangeSpan(begin, end, scenario.floor(begin), overwrite=end in alone, feed=feed)


def replay(scenario: Scenario, span: ChangeSpan) -> list[Row]:
    """(slot, key, (commit, kind, value)) of each event of a range, commit after commit on a dictionary.

    Without a feed these are the rows that were written, of no kind.
    """
    events: list[Row] = []
    state: dict[Key, str] = {}
    for commit in range(1, span.upto + 1):
        written = {v.key: v.value for v in scenario.shelf.versions() if v.commit == commit}
        message: list[tuple[Key, str | None, str]] = []
        if commit in scenario.overwrites:
            message += [(key, DELETE, state.pop(key)) for key in list(state) if key not in written]
        for key, value in written.items():
            before = state.pop(key, None)
            if value is not None:
                state[key] = value
                if before is not None:
                    message.append((key, UPDATE_PREIMAGE, before))
                message.append((key, INSERT if before is None else UPDATE_POSTIMAGE, value))
            elif before is not None:
                message.append((key, DELETE, before))
        if not span.feed:
            message = [(key, None, value) for key, value in written.items() if value is not None]
        if commit > span.after:
            events += [(scenario.slots[key], key, (commit, kind, value)) for key, kind, value in message]
    return sorted(events, key=lambda event: (*event[:2], event[2][0]))


# ------------------------------------------------------------------------------- reading


def read_all(
    shelf: Shelf,
    source: PageSource,
    cursors: Cursors,
    changes: ChangeSpan,
    columns: Sequence[str],
    limits: Iterator[Limits],
) -> list[PageRows]:
    """Page after page, each from the cursors of the one before it, as if by another process."""
    fields = [shelf.table.schema.field(name) for name in columns]
    fields += [pa.field(CHANGE_TYPE, pa.string(), nullable=False)] if changes.feed else []
    fields += [pa.field(COMMIT_VERSION, pa.int64(), nullable=False)]
    pages: list[PageRows] = []
    while cursors:
        limit = next(limits)
        page = read_changes(source, request_of(cursors, changes.upto, columns, limit, changes=changes))
        assert page.rows.schema == pa.schema(fields)
        page.rows.validate(full=True)
        assert page.rows.num_rows == len(page.slots)
        # Either rows or the end: no page without rows can be followed by another, so none loops.
        assert page.rows.num_rows or not page.after
        too_large = page.rows.num_rows > limit[0] or page.rows.nbytes > limit[1]
        if set(shelf.table.primary_key) <= set(columns):
            keys = keys_of(page.rows, shelf.table)
            assert not too_large or len(set(keys)) == 1
            if pages and keys:
                assert keys[0] != keys_of(pages[-1].rows, shelf.table)[-1], "a key is on one page"
        pages.append(page)
        cursors = page.after
        assert set(cursors) == set(cursors_of(pieces_of(cursors)))
    return pages


def events_of(page: PageRows) -> list[tuple[Any, ...]]:
    rows = page.rows
    names = rows.schema.names
    kinds = rows.column(CHANGE_TYPE).to_pylist() if CHANGE_TYPE in names else [None] * rows.num_rows
    values = rows.column("v").to_pylist() if "v" in names else [None] * rows.num_rows
    return list(zip(rows.column(COMMIT_VERSION).to_pylist(), kinds, values, strict=True))


@settings(max_examples=examples(250), deadline=None)
@given(SEEDS, st.booleans(), st.sampled_from([None, None, ["v"], ["n", "v"], ["n"], []]))
def test_changes_of_any_slots_are_what_a_replay_of_the_commits_tells(
    seed: int, feed: bool, columns: list[str] | None
) -> None:
    """Positions come from other shards: their keys need not be here, nor have changed."""
    scenario = Scenario(seed)
    rng, shelf = scenario.rng, scenario.shelf
    after = scenario.snapshot()
    cursors, beyond = scenario.cursors()
    rng.shuffle(shelf.fragments)
    names = scenario.columns() if columns is None else columns
    for span in spans(scenario, after, rng.randint(after, scenario.commits), feed):
        pages = read_all(shelf, shelf.source(), cursors, span, names, varying(rng, least_bytes=60))
        expected = beyond(replay(scenario, span))
        assert [event for page in pages for event in events_of(page)] == [
            (commit, kind, value if "v" in names else None) for _, _, (commit, kind, value) in expected
        ]
        assert [slot for page in pages for slot in page.slots.to_pylist()] == [slot for slot, *_ in expected]
        if columns is None:
            keys = [key for page in pages for key in keys_of(page.rows, shelf.table)]
            assert keys == [key for _, key, _ in expected]


def test_a_null_in_a_key_is_damage_and_not_a_change() -> None:
    shelf = shelf_of([(key, 1, "v") for key in (1, 2, 3)], [(2, 2, "v")])
    fragment = shelf.fragments[0]
    (rows,) = FragmentReader(shelf.disk, fragment.path, ["k", "v"], fragment.seal)
    nullable = pa.schema([field.with_nullable(True) for field in rows.schema], metadata=rows.schema.metadata)
    keys = pa.array([1, None, 3], pa.int64())
    nulls = pa.RecordBatch.from_arrays([keys, *rows.columns[1:]], schema=nullable)
    target = FragmentTarget(shelf.disk, 1, shelf.table, nullable, ORIGIN)
    staged = write_fragment(target, fragment.slots, [nulls])
    file = {name: getattr(staged, name) for name in ("path", "bytes", "tail", "digest")}
    source = shelf.source([replace(fragment, **file), shelf.fragments[1]])
    changes = ChangeSpan(0, 2, 0, overwrite=False, feed=True)
    with pytest.raises(FragmentDamaged):
        read_changes(source, request_of(shelf.everything(), 2, ["k", "v"], PLENTY, changes=changes))
