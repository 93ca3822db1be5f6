"""Processes that share a log in SQLite: killed at random, forked, and waiting for one another."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from elasticscan.base.errors import CatalogUnavailable
from elasticscan.catalog.appending import Append
from elasticscan.catalog.entries import GENESIS, check_chain
from elasticscan.catalog.log import Log
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.metadata import (
    AddedFragment,
    FileChanges,
    RowsCommitted,
    StagedFragment,
    StoreCreated,
    TableDefined,
    TableInfo,
)
from elasticscan.topology import Shard, SlotSet, Tablet
from tests.catalog.logs import append as append_to
from tests.catalog.logs import begin
from tests.processes.test_forks import ended_well, forked
from tests.seeds import seeds

# Python 3.12 and newer warn of forks alongside threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SCHEMA = pa.schema([("key", pa.int64())])
WRITERS, ACKNOWLEDGED = 4, 60


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    home = SqliteHome.create(tmp_path / "log.db")
    created = StoreCreated("s", 8, "murmur3", 60.0, (Shard(1, "a", "/a"),), (Tablet(1, 0, 8, 1, 1),))
    log = begin(home, created)
    append_to(log, Append(TableDefined(TableInfo(1, "t", SCHEMA, ("key",), ("key",), None, 0, 0), 0)))
    yield log
    home.close()


def append(log: Log, writer: int, step: int) -> int:
    record = RowsCommitted(1, f"{writer}.{step}", 1, 1, 100, slots=SlotSet.span(0, 8))
    if step % 3:
        return append_to(log, Append(record, os.urandom(100)))
    file = StagedFragment(1, f"{writer}.{step}", SlotSet.span(0, 8), 1, 1, True, 0, False, 1, 1)
    files = FileChanges((AddedFragment(file),))
    return append_to(log, Append(RowsCommitted(1, f"{writer}.{step}", 1, 1, 1, files=files)))


def write_for_ever(path: Path, writer: int, acknowledge: int) -> None:
    log, step = Log(SqliteHome(path)), 0
    while True:
        number = append(log, writer, step)
        os.write(acknowledge, f"{writer} {step} {number}\n".encode())
        if step % 20 == writer:
            log.write_checkpoint()
        step += 1


@pytest.mark.parametrize("seed", seeds(4, short=1))
def test_what_killed_writers_were_told_is_in_the_log_and_others_get_their_turn(log: Log, seed: int) -> None:
    draw, path = Random(seed), log.home.path
    log.home.close()
    reading, writing = os.pipe()
    started = iter(range(1_000))

    def start() -> int:
        writer = next(started)
        return forked(lambda: write_for_ever(path, writer, writing))

    given, text, children = (
        list[tuple[str, str, int]](),
        os.fdopen(reading),
        [start() for _ in range(WRITERS)],
    )
    try:
        for _ in range(4):
            for _ in range(draw.randrange(10, ACKNOWLEDGED)):
                writer, step, number = text.readline().split()
                given.append((writer, step, int(number)))
            one = children.pop(draw.randrange(WRITERS))
            os.kill(one, signal.SIGKILL)
            os.waitpid(one, 0)
            children.append(start())
            assert append(log, 1_000, len(given))  # while the others never pause
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(writing)
    given += [(w, s, int(n)) for w, s, n in (line.split() for line in text)]
    text.close()
    entries = log.entries(0, 1 << 60)
    check_chain(GENESIS, entries)
    assert [entry.number for entry in entries] == list(range(len(entries)))
    log = Log(SqliteHome(path))
    state = log.follow()
    assert state.number == len(entries) - 1
    there = {commit.number for commit in state.tables[1].memory}
    there |= {fragment.min_commit for fragment in state.tables[1].fragments.by_id().values()}
    assert {number for _, _, number in given} <= there
    assert len({number for _, _, number in given}) == len(given), "each number was given once"
    assert there >= {entry.number for entry in entries if entry.row.kind == "RowsCommitted"}
    assert log.rows_of(1, state.tables[1].memory).keys() == {c.number for c in state.tables[1].memory}
    log.check_whole()
    log.home.close()


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
    assert append(other, 1, 1) == 2  # while the child lives
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
        append(impatient, 1, 1)
    ends.set()
    thread.join()
    for step in range(3):
        append(log, 1, step)
    append(impatient, 1, 1)
    impatient.home.close()
