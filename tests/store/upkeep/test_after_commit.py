"""How much work follows a commit.

What they do is in `tests/transcripts`: `upkeep_after_commits`, `keeper*`; random programs kill keepers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticscan.store import Store
from elasticscan.store.upkeep import after_commit
from elasticscan.store.upkeep.planning import Policy

ROWS_IN_FILES = True


def test_work_beyond_the_allowance_is_left_until_it_is_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=4, slots=64) as store:
        table = store.create_table("t", {"id": range(100)}, primary_key="id")

        def depth(commits: int) -> int:
            for _ in range(commits):
                table.upsert({"id": range(100)})
            return int(store.status()["tables"][0]["upkeep"]["slot_fragments"])

        monkeypatch.setattr(after_commit, "MOST_BYTES", 0)
        assert depth(commits=15) == 16
        assert depth(commits=after_commit.RETRY_EVERY + 1) <= Policy().slot_fragments
