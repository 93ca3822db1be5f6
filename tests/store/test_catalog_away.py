"""The catalog's connection is dropped at statements of a move, and stays so for a while."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from elasticscan.base.errors import TryAgain
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
    """

    def __init__(self, store: Store, cut_at: int, attempts: int) -> None:
        self._catalog = store.context.catalog
        self._cut_at, self._attempts = cut_at, attempts
        self.count = 0
        self.cut = False

    def _gate(self, statement: str, execute: Callable[[], Any]) -> Any:
        self.count += 1
        if not self._cut_at <= self.count <= self._cut_at + self._attempts:
            return execute()
        self.cut = True
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


def keys(store: Store) -> list[int]:
    store.context.catalog.check_whole()
    found: list[int] = sorted(store.table("t").scan(index="none").to_table()["k"].to_pylist())
    assert sorted(store.table("t").scan(index="by_v", filter="v >= 0").to_table()["k"].to_pylist()) == found
    return found


def move(store: Store) -> None:
    placed = {tablet["id"]: tablet["shard"] for tablet in store.status()["tablets"]}
    store.move(1, "b" if placed[1] == "a" else "a")


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
