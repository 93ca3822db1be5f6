"""Readers are kept by what they take: a scan of more files than that opens each of them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticscan.storage import SMALL_FILE_BYTES
from elasticscan.store import Store
from elasticscan.store.context import readers

ROWS_IN_FILES = True

COMMITS = 12


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of one shard, where each commit left a fragment and a run of its index."""
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=1, upkeep="off") as made:
        table = made.create_table("t", {"id": [0], "v": [0]}, "id")
        table.create_index("by_v", ["v"])
        for number in range(1, COMMITS):
            table.upsert({"id": range(number, number + 100), "v": range(100)})
        yield made


def found_again(store: Store, kind: str) -> int:
    """How many readers of the fragments, or of the runs, are those that were opened before."""
    table, context = store.table("t").definition, store.context
    state = context.table_state(table.id, context.state().versions[1])
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
def test_all_that_fit_are_kept_however_many_they_are(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """By the bytes of files that are held in memory: a few KiB here, up to 128 KiB elsewhere."""
    files = [path.stat().st_size for path in Path(store.uri).rglob("*.arrow")]
    assert max(files) <= SMALL_FILE_BYTES
    monkeypatch.setattr(readers, "READER_BYTES", 0)
    monkeypatch.setattr(readers, "COLUMN_BYTES", 0)
    for most, found in ((sum(files), COMMITS), (min(files) * (COMMITS - 1), 0)):
        monkeypatch.setattr(readers, "MOST_KEPT_BYTES", most)
        assert found_again(store, kind) == found
