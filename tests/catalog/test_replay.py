"""The state as of the head: what is folded counts towards the next checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from elasticscan.catalog.appending import Append
from elasticscan.catalog.log import Log
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.metadata import TimeObserved
from tests.base.manual_clock import ManualClock
from tests.catalog.logs import append
from tests.catalog.small_store import make

RECORDS = 200  # more than a checkpoint is written after


class QueuedHome(SqliteHome):
    """A log whose lock comes after others have used it."""

    others: Callable[[], object] = staticmethod(lambda: None)

    @contextmanager
    def writing(self, at_once: bool = False) -> Iterator[Self]:
        self.others()
        with super().writing(at_once) as home:
            yield home


def test_a_writer_counts_what_others_append_while_it_waits_for_its_turn(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    make(file, ManualClock(1_000.0)).close()
    waiting, other = QueuedHome(file), Log(SqliteHome(file))
    log = Log(waiting)
    append(log, Append(TimeObserved()))
    assert not log.checkpoint_if_long()

    waiting.others = lambda: [append(other, Append(TimeObserved())) for _ in range(RECORDS)]
    append(log, Append(TimeObserved()))
    waiting.others = lambda: None
    assert log.checkpoint_if_long()
    assert not log.checkpoint_if_long()
