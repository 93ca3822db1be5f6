"""Readers are kept by what they take: a scan of more files than that opens each of them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.storage import SMALL_FILE_BYTES
from elasticscan.store import Store
from elasticscan.store.context import lookups, readers

ROWS_IN_FILES = True

COMMITS = 12
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("text", pa.string())])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store of one shard, where each commit left a fragment and a run of its index."""
    monkeypatch.setattr(lookups, "MOST_CACHED", 4)  # of what is not counted by what it takes
    with elasticscan.create(tmp_path / "s", ["a"], tablets=1, slots=1) as made:
        made.create_table("t", SCHEMA, ["id"]).create_index("by_v", ["v"])
    with Store.open(tmp_path / "s", upkeep="off") as opened:
        for number in range(COMMITS):
            ids = range(number, number + 100)
            opened.table("t").upsert(pa.table([ids, ids, ["x" * 200] * 100], schema=SCHEMA))
        yield opened


def found_again(store: Store, kind: str) -> int:
    """How many readers of the fragments, or of the runs, are those that were opened before."""
    table, context = store.table("t").definition, store.context
    state = context.table_state(table.id, context.versions()[1])
    (index,) = context.state().indexes(table.id)
    context.readers.let_go()

    def opened() -> list[object]:
        if kind == "fragments":
            return [context.readers.opener(table)(fragment, ("v",)) for fragment in state.fragments]
        found = [(fragment.shard, run) for fragment in state.fragments for run in state.runs(fragment, index)]
        return [context.readers.open_run(table, index, *run) for run in found]

    first = opened()
    assert len(first) == COMMITS
    return sum(one is other for one, other in zip(first, opened(), strict=True))


@pytest.mark.parametrize("kind", ["fragments", "runs"])
@pytest.mark.parametrize("counted", ["readers", "files in memory"])
def test_all_that_fit_are_kept_however_many_they_are(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str, counted: str
) -> None:
    """A file held in memory has some KiB here; a small one may have 128, and there may be thousands."""
    files = [path.stat().st_size for path in Path(store.uri).rglob("*.arrow")]
    assert max(files) <= SMALL_FILE_BYTES
    in_memory = counted == "files in memory"
    monkeypatch.setattr(readers, "READER_BYTES", 0 if in_memory else 1 << 30)
    monkeypatch.setattr(readers, "COLUMN_BYTES", 0 if in_memory else readers.COLUMN_BYTES)
    monkeypatch.setattr(readers, "MOST_KEPT_BYTES", sum(files) if in_memory else (COMMITS + 1) << 30)
    assert found_again(store, kind) == COMMITS
    few = min(files) * (COMMITS - 1) if in_memory else (COMMITS - 1) << 30
    monkeypatch.setattr(readers, "MOST_KEPT_BYTES", few)
    assert found_again(store, kind) == 0
