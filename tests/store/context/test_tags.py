"""Tags: their number. Their names, and what they keep, are in `tests/transcripts`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import LimitExceeded
from elasticscan.store import Store
from elasticscan.store.context import tags


def test_tags_are_bounded_and_a_status_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "MAX_TAGS", 2)
    with Store.create(tmp_path / "a.store", ["s1", "s2"], tablets=4, slots=16) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        made = [table.tag(name) for name in ("a", "b")]
        assert table.tag("a", made[0].snapshot) == made[0]
        with pytest.raises(LimitExceeded, match="2 tags"):
            table.tag("c")
        (status,) = store.status()["tables"]
        assert status["tags"] == [
            {"name": tag.name, "snapshot": tag.snapshot, "created_at": tag.created_at} for tag in made
        ]
