"""How much work follows a commit. What it does is in `tests/transcripts/upkeep_after_commits.txt`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.limits import BEAT_SECONDS, SILENT_SECONDS
from elasticscan.store import Store
from elasticscan.store.moves.owners import machine
from elasticscan.store.moves.under_way import enter_moves, transition
from elasticscan.store.upkeep import after_commit
from elasticscan.store.upkeep.planning import Policy
from elasticscan.topology import Event, Move
from tests.base.manual_clock import ManualClock

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
START = 4_000_000_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(
        tmp_path / "store", ["s1", "s2"], tablets=4, slots=64, retention_seconds=60, clock=clock
    ) as store:
        store.create_table("t", SCHEMA, ["id"])
        yield store


def write(store: Store, ids: range, value: int) -> None:
    store.table("t").upsert(pa.table({"id": ids, "v": [value] * len(ids)}, schema=SCHEMA))


def depth(store: Store) -> int:
    found: int = store.status()["tables"][0]["upkeep"]["slot_fragments"]
    return found


def test_work_beyond_the_allowance_is_left_until_it_is_overdue(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_commit, "COMMIT_BYTES", 0)
    monkeypatch.setattr(after_commit, "COMMIT_SHARE", 0)
    monkeypatch.setattr(store.context.upkeep, "_allowance", 0)
    for number in range(16):
        write(store, range(100), number)
    assert depth(store) == 16
    for number in range(after_commit.RETRY_EVERY + 1):
        write(store, range(100), number)
    assert depth(store) <= Policy().slot_fragments


@pytest.mark.parametrize("by", ["a writer", "a keeper", "a resumption"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_move_whose_process_died_is_taken_over_and_status_says_from_when(
    store: Store, clock: ManualClock, elsewhere: bool, by: str
) -> None:
    def maintain() -> None:
        if by == "a writer":
            for number in range(after_commit.LOOK_EVERY):
                write(store, range(5), number)
        else:
            store.keep() if by == "a keeper" else store.resume_moves()

    write(store, range(50), 0)
    move, owner = Move(1, 1, 2), f"{'elsewhere' if elsewhere else machine()}:{2**22 + 1}:1:x"
    with store.context.catalog.writing() as tx:
        enter_moves(tx, [move], owner)
        transition(tx, move, owner, Event.START_COPY)
    began = clock.now()
    if elsewhere:
        clock.advance(BEAT_SECONDS)
        maintain()
        (seen,) = store.status()["moves"]
        assert (seen["phase"], seen["silent_since"], seen["taken_over_from"]) == ("copying", None, None)
        clock.advance(2 * BEAT_SECONDS)
    (seen,) = store.status()["moves"]
    silence = (seen["silent_since"], seen["taken_over_from"])
    assert silence == (began, began + SILENT_SECONDS if elsewhere else clock.now())
    clock.advance(SILENT_SECONDS - 3 * BEAT_SECONDS + 1 if elsewhere else 0)
    maintain()
    status = store.status()
    assert (status["moves"], status["tablets"][0]["shard"], status["upkeep"]["problem"]) == ([], "s2", None)
    assert store.table("t").scan().count() == 50
