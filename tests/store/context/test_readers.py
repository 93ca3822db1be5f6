"""Readers are kept by what they take: a scan of more files than that opens each of them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticscan.storage import SMALL_FILE_BYTES
from elasticscan.store import Store
from elasticscan.store.context import readers

ROWS_IN_FILES = True

COMMITS = 12


def test_all_that_fit_are_kept_however_many_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bytes of files that are held in memory: a few KiB here, up to 128 KiB elsewhere."""
    monkeypatch.setattr(readers, "READER_BYTES", 0)
    monkeypatch.setattr(readers, "COLUMN_BYTES", 0)
    with Store.create(tmp_path / "s", ["a"], tablets=1, slots=1, upkeep="off") as store:
        table = store.create_table("t", {"id": [0], "v": [0]}, "id")
        table.create_index("by_v", ["v"])
        for number in range(1, COMMITS):
            table.upsert({"id": range(number, number + 100), "v": range(100)})
        context, of = store.context, table.definition
        state, (index,) = context.table_state(of.id), context.state().indexes(of.id)
        runs = [(fragment.shard, run) for fragment in state.fragments for run in state.runs(fragment, index)]
        files = [path.stat().st_size for path in Path(store.uri).rglob("*.arrow")]
        assert max(files) <= SMALL_FILE_BYTES and len(files) == 2 * COMMITS
        for most, found in ((sum(files), COMMITS), (min(files) * (COMMITS - 1), 0)):
            monkeypatch.setattr(readers, "MOST_KEPT_BYTES", most)
            context.readers.release()
            open_fragment = context.readers.opener(of)
            for opened in (
                [[open_fragment(fragment, ("v",)) for fragment in state.fragments] for _ in range(2)],
                [[context.readers.open_run(of, index, *run) for run in runs] for _ in range(2)],
            ):
                assert sum(one is other for one, other in zip(*opened, strict=True)) == found
