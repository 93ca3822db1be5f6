"""The catalog's connection is dropped at each statement of an operation, and before or after each commit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from elasticscan.base.errors import CatalogUnavailable, CommitUnknown, TryAgain
from elasticscan.store import Store
from elasticscan.store.moves import owners
from tests.base.connections import gate_statements
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
MOST_STATEMENTS = 400
# All statements of all operations take minutes, so every fifth is cut unless all are asked for.
STEP = 1 if os.environ.get("ELASTICSCAN_EVERY_STATEMENT") else 5


class Line:
    """The way to the catalog: it is cut at the n-th statement, and stays so for a while.

    Args:
        store: whose catalog is meant.
        cut_at: the statement (counted from 1) that gets no answer.
        attempts: how many more are refused.
        carried_out: whether a commit that gets no answer is carried out.
    """

    def __init__(self, store: Store, cut_at: int, attempts: int = 0, carried_out: bool = False) -> None:
        self._catalog = store.context.catalog
        self._cut_at, self._attempts, self._carried_out = cut_at, attempts, carried_out
        self.count = 0
        self.cut = False

    def _gate(self, statement: str, execute: Callable[[], Any]) -> Any:
        self.count += 1
        if not self._cut_at <= self.count <= self._cut_at + self._attempts:
            return execute()
        self.cut = True
        if statement == "COMMIT" and self._carried_out:
            execute()
        raise apsw.ProtocolError("the connection was lost")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        end = gate_statements(self._catalog, self._gate)
        try:
            yield
        finally:
            end()


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"k": list(range(first, last)), "v": list(range(last - first))}, schema=SCHEMA)


def made(place: Path) -> Store:
    store = Store.create(place, ["a", "b"], tablets=2, slots=8, clock=ManualClock(1e9))
    store.create_table("t", SCHEMA, ["k"])
    store.table("t").upsert(rows(0, 20))
    store.table("t").create_index("by_v", ["v"])
    store.table("t").upsert(rows(10, 30))
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with made(tmp_path / "s") as store:
        yield store


def keys(store: Store) -> list[int]:
    store.context.catalog.check_whole()
    found: list[int] = sorted(store.table("t").scan(index="none").to_table()["k"].to_pylist())
    assert sorted(store.table("t").scan(index="by_v", filter="v >= 0").to_table()["k"].to_pylist()) == found
    return found


def write(store: Store) -> None:
    store.table("t").upsert(rows(100, 105), txn=("job", 1))


def move(store: Store) -> None:
    placed = {tablet["id"]: tablet["shard"] for tablet in store.status()["tablets"]}
    store.move(1, "b" if placed[1] == "a" else "a")


def compact(store: Store) -> None:
    store.compact()


def collect(store: Store) -> None:
    store.collect_garbage(grace_seconds=0)


@pytest.mark.long
@pytest.mark.parametrize("carried_out", [False, True], ids=["lost", "answer lost"])
@pytest.mark.parametrize("operation", [write, move, compact, collect])
def test_a_connection_that_is_dropped_at_any_statement_leaves_nothing_half_done(
    store: Store, operation: Callable[[Store], None], carried_out: bool
) -> None:
    expected = {*range(30), *(range(100, 105) if operation is write else ())}
    done = False
    for cut_at in range(1 + carried_out, MOST_STATEMENTS, STEP):
        line = Line(store, cut_at, carried_out=carried_out)
        with line.watched(), contextlib.suppress(TryAgain):
            operation(store)
        found = set(keys(store))
        assert found in (expected, expected & set(range(30))), "all of it or nothing"
        if not line.cut:
            done = True
            break
        if operation is move:
            move(store)  # whoever comes next may do so
    assert done, "every statement was cut once"
    operation(store)
    assert set(keys(store)) == expected
    assert store.status()["moves"] == []


@pytest.mark.parametrize("attempts", [0, 12])
def test_of_a_commit_whose_answer_was_lost_it_is_found_out_whether_it_is_there(
    store: Store, attempts: int
) -> None:
    """Where the log cannot be asked for that either, the error says so."""
    unknown = []
    for carried_out in (True, False):
        for cut_at in range(1, MOST_STATEMENTS):
            before = len(store.table("t").history())
            line = Line(store, cut_at, attempts, carried_out)
            try:
                with line.watched():
                    store.table("t").upsert(rows(0, 3))
            except CommitUnknown as error:
                unknown.append((len(store.table("t").history()) - before, str(error)))
            except CatalogUnavailable:
                assert len(store.table("t").history()) == before, "what is raised as not done was not done"
            else:
                assert len(store.table("t").history()) == before + 1, "what is acknowledged is there, once"
            if not line.cut:
                break
    assert bool(unknown) == bool(attempts)
    assert {more for more, _ in unknown} == ({0, 1} if attempts else set())
    assert all("history()" in text and "txn=" in text for _, text in unknown)


@pytest.mark.long
def test_a_move_that_could_not_be_undone_is_taken_up_by_whoever_comes_next(tmp_path: Path) -> None:
    """In the very process whose move it was: ownership is by what runs, not by what lives."""
    for attempts in (3, 40):
        failed, running_before = 0, set(owners._RUNNING)
        with made(tmp_path / str(attempts)) as store:
            for cut_at in range(1, MOST_STATEMENTS, 2 * STEP):
                line = Line(store, cut_at, attempts)
                try:
                    with line.watched():
                        move(store)
                except TryAgain:
                    failed += 1
                    if attempts == 3:
                        assert store.status()["moves"] == [], "undoing was tried again until it could be done"
                if not line.cut:
                    break
                store.resume_moves()
                assert store.status()["moves"] == []
                move(store)
            assert failed > 1
            assert keys(store) == list(range(30))
            assert running_before >= owners._RUNNING
            store.contract("b")
            assert keys(store) == list(range(30))
