"""Changes compared with plain Python, which replays the commits one by one on a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.metadata import CHANGE_TYPE, COMMIT_VERSION
from elasticscan.protocol import ChangeSpan, PageRequest, PageRows
from elasticscan.storage import changes as changes_module
from elasticscan.storage import copying as copying_module
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage import merge as merge_module
from elasticscan.storage.changes import DELETE, INSERT, UPDATE_POSTIMAGE, UPDATE_PREIMAGE, read_changes
from elasticscan.storage.pages import PageSource
from tests.base.examples import examples
from tests.storage.versions import SEEDS, Key, Row, Scenario, keys_of, read_all, varying


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set limits so that slots are larger than batches, and histories longer than one read of them."""
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(merge_module, "_SPARE_ROWS", 0)
    monkeypatch.setattr(copying_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(changes_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(changes_module, "_LEAST_ROWS", 2)


# ------------------------------------------------------------------------------- the oracle


def spans(scenario: Scenario, after: int, upto: int, feed: bool) -> Iterator[ChangeSpan]:
    """The ranges to be read: every overwrite is a range of its own."""
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


def read_one(source: PageSource, request: PageRequest) -> PageRows:
    """Read a page; it has all changes of a key, even if they are more than its limit."""
    page = read_changes(source, request)
    fields = [source.table.schema.field(name) for name in request.columns]
    if request.changes is not None and request.changes.feed:
        fields.append(pa.field(CHANGE_TYPE, pa.string(), nullable=False))
    assert page.rows.schema == pa.schema([*fields, pa.field(COMMIT_VERSION, pa.int64(), nullable=False)])
    if page.rows.num_rows > request.page_rows or page.rows.nbytes > request.page_bytes:
        keys = set(source.table.primary_key)
        assert not keys <= set(request.columns) or len(set(keys_of(page.rows, source.table))) == 1
    return page


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
    """Positions come from other shards: their keys may be missing here, or unchanged."""
    scenario = Scenario(seed)
    rng, shelf = scenario.rng, scenario.shelf
    after = scenario.snapshot()
    cursors, beyond = scenario.cursors()
    rng.shuffle(shelf.fragments)
    names = scenario.columns() if columns is None else columns
    for span in spans(scenario, after, rng.randint(after, scenario.commits), feed):
        limits, of = varying(rng, least_bytes=60), {"changes": span, "whole_keys": True}
        pages = read_all(read_one, shelf.source(), cursors, span.upto, names, limits, **of)
        expected = beyond(replay(scenario, span))
        assert [event for page in pages for event in events_of(page)] == [
            (commit, kind, value if "v" in names else None) for _, _, (commit, kind, value) in expected
        ]
        assert [slot for page in pages for slot in page.slots.to_pylist()] == [slot for slot, *_ in expected]
        if columns is None:
            keys = [key for page in pages for key in keys_of(page.rows, shelf.table)]
            assert keys == [key for _, key, _ in expected]
