"""What restores go back to. What they do is in `tests/transcripts/restore*.txt`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from elasticscan.base.errors import NotFound
from elasticscan.store import Store
from tests.base.manual_clock import ManualClock

ELSEWHERE = timezone(timedelta(hours=3))


@pytest.mark.parametrize(
    "past",
    [
        lambda first: first,
        lambda _: "first",
        lambda _: datetime.fromtimestamp(1_000_030, UTC),
        lambda _: datetime.fromtimestamp(1_000_030, ELSEWHERE),
    ],
    ids=["a commit", "a tag", "a time", "a time elsewhere"],
)
def test_a_time_a_tag_and_a_commit_choose_a_snapshot(
    tmp_path: Path, clock: ManualClock, past: Callable[[int], Any]
) -> None:
    with Store.create(tmp_path / "a.store", ["s1", "s2"], 4, 16, clock=clock) as store:
        table = store.create_table("t", [{"id": n, "v": 0} for n in range(10)], primary_key="id")
        first = table.tag("first").snapshot
        clock.advance(60)
        table.upsert([{"id": 3, "v": 1}, {"id": 11, "v": 1}])
        table.restore(past(first), user_metadata={"why": "a test"})
        assert table.history()[-1].user_metadata == {"restored_to": str(first), "why": "a test"}
        assert table.scan(filter="v = 0").count() == table.scan().count() == 10
        with pytest.raises(NotFound, match="was made after"):
            table.restore(datetime.fromtimestamp(900_000, UTC))
