"""Processes that share a log in SQLite: forked, and waiting for one another; others are killed elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticscan.base.errors import CatalogUnavailable
from elasticscan.catalog.appending import Append
from elasticscan.catalog.log import Log
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.metadata import StoreCreated, TimeObserved
from elasticscan.topology import Tablet
from tests.catalog.logs import append as append_to
from tests.catalog.logs import begin
from tests.processes.test_forks import ended_well, forked

# Python 3.12 and newer warn of forks alongside threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    home = SqliteHome.create(tmp_path / "log.db")
    yield begin(home, StoreCreated("s", 8, "murmur3", 60.0, (), (Tablet(1, 0, 8, 1, 1),)))
    home.close()


def append(log: Log) -> int:
    return append_to(log, Append(TimeObserved()))


def hold(log: Log, ends: threading.Event) -> threading.Thread:
    """A thread that is in a transaction until an event comes."""
    holds = threading.Event()

    def transact() -> None:
        with log.home.writing():
            holds.set()
            ends.wait()

    thread = threading.Thread(target=transact)
    thread.start()
    holds.wait()
    return thread


def in_a_fork_during_a_transaction(log: Log, work: Callable[[], None]) -> int:
    ends = threading.Event()
    thread = hold(log, ends)
    child = forked(work)
    ends.set()
    thread.join()
    return child


def test_a_child_that_was_forked_during_a_transaction_keeps_no_writer_from_its_turn(log: Log) -> None:
    reading, writing = os.pipe()
    child = in_a_fork_during_a_transaction(log, lambda: os.read(reading, 1) and None)
    other = Log(SqliteHome(log.home.path, wait_seconds=2))
    assert append(other) == 1  # while the child lives
    os.write(writing, b"x")
    assert ended_well(child)
    other.home.close()
    os.close(reading)
    os.close(writing)


def test_a_writer_whose_wait_ended_leaves_the_lock_to_others(log: Log) -> None:
    ends = threading.Event()
    thread = hold(log, ends)
    impatient = Log(SqliteHome(log.home.path, wait_seconds=0.05))
    with pytest.raises(CatalogUnavailable):
        append(impatient)
    ends.set()
    thread.join()
    for _ in range(3):
        append(log)
    append(impatient)
    impatient.home.close()
