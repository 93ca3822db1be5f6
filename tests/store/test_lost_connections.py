"""The catalog's connection is lost at any statement of an operation: it begins again, and is done once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from elasticscan.base.errors import TryAgain
from elasticscan.catalog import Interrupted
from elasticscan.store import Store, Table
from elasticscan.store.moves import owners
from tests.base.connections import gate_statements

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
MOST_STATEMENTS = 2_000
# All statements of all operations take minutes, so some of each are cut unless all are asked for.
ALL = bool(os.environ.get("ELASTICSCAN_EVERY_STATEMENT"))
MOST_CUTS = MOST_STATEMENTS if ALL else 8


def rows(ids: range, v: int = 0) -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids)}, schema=SCHEMA)


def made(place: Path) -> Store:
    store = Store.create(place, ["s1", "s2"], tablets=4, slots=16, retention_seconds=0)
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(rows(range(20)))
    table.tag("first")
    table.upsert(rows(range(10), 1))
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with made(tmp_path / "s") as store:
        yield store


class Line:
    """The way to the catalog, which is cut at some statements."""

    def __init__(self, store: Store, error: Exception) -> None:
        self.count = self.cuts = 0
        self._store, self._error, self._at = store, error, range(0)

    @contextmanager
    def cut(self, at: int, more: int = 0) -> Iterator[None]:
        """Let the statement of a number, from now on and from 1, get no answer, and so many more."""
        self.count, self.cuts, self._at = 0, 0, range(at, at + more + 1)
        end = gate_statements(self._store.context.catalog, self._gate)
        try:
            yield
        finally:
            end()

    def _gate(self, _: str, execute: Callable[[], Any]) -> Any:
        self.count += 1
        if self.count not in self._at:
            return execute()
        self.cuts += 1
        raise self._error


def move(store: Store) -> None:
    placed = {tablet["id"]: tablet["shard"] for tablet in store.status()["tablets"]}
    store.move(1, "s2" if placed[1] == "s1" else "s1")


# Each of them leaves the store as it was, or as it would after one that was done before.
WORKS: dict[str, Callable[[Store, Table], Any]] = {
    "unchanged": lambda _, t: t.upsert(rows(range(2), 2), if_unchanged_since=t.history()[-1].number).rows,
    "insert": lambda _, t: (t.insert(rows(range(50, 52))).rows, t.delete([50, 51]).rows),
    "update": lambda _, t: t.update({"v": "v + 1"}, "id < 3").rows,
    "merge": lambda _, t: t.merge(rows(range(3)), when_not_matched="ignore").rows,
    "overwrite": lambda _, t: t.overwrite(rows(range(3), 2), where="id < 3").rows,
    "delete": lambda _, t: t.delete(where="id = 999").rows,
    "restore": lambda _, t: t.restore("first") > 0,
    "scan": lambda _, t: t.scan(filter="v = 0", page_rows=3).count(),
    "changes": lambda _, t: t.changes("first", page_rows=3).count() > 0,
    "get": lambda _, t: t.get(rows(range(5)).select(["id"]).to_reader(), snapshot="first").num_rows,
    "aggregate": lambda _, t: t.aggregate("sum(id)").to_pylist(),
    "index": lambda _, t: (t.create_index("by_v", ["v"]).ready, t.drop_index("by_v")),
    "columns": lambda _, t: t.add_columns({"more": "int8"}).names,
    "compact": lambda _, t: t.compact() >= 0,
    "move": lambda s, _: move(s),
    "keep": lambda s, _: s.keep() and 0,
    "verify": lambda s, _: s.verify(),
    "backup": lambda s, _: s.backup(f"{s.uri}-{time.monotonic_ns()}") and 0,
    "garbage": lambda s, _: s.collect_garbage(grace_seconds=0, orphan_seconds=0).skipped,
}


@pytest.mark.parametrize("work", WORKS)
def test_an_operation_goes_on_wherever_its_connection_is_lost(store: Store, work: str) -> None:
    table, line = store.table("t"), Line(store, Interrupted("the connection was lost"))
    WORKS[work](store, table)
    with line.cut(0):
        expected = WORKS[work](store, table)
    for at in range(1, line.count + 1, max(1, line.count // MOST_CUTS)):
        with line.cut(at):
            assert WORKS[work](store, table) == expected
        assert line.cuts
    assert store.verify() == []


@pytest.mark.long
def test_a_move_that_could_not_be_undone_is_taken_up_by_whoever_comes_next(tmp_path: Path) -> None:
    """In the very process whose move it was: ownership is by what runs, not by what lives."""
    for more in (3, 40):
        failed, running_before = 0, set(owners._RUNNING)
        with made(tmp_path / str(more)) as store:
            line = Line(store, apsw.ProtocolError("the connection was lost"))
            for at in range(1, MOST_STATEMENTS, 1 if ALL else 17):
                try:
                    with line.cut(at, more):
                        move(store)
                except TryAgain:
                    failed += 1
                    if more == 3:
                        assert store.status()["moves"] == [], "undoing was tried again until it could be done"
                if not line.cuts:
                    break
                store.resume_moves()
                assert store.status()["moves"] == []
                move(store)
            assert failed > 1
            assert running_before >= owners._RUNNING
            store.contract("s2")
            assert store.table("t").scan().count() == 20
            assert store.verify() == []
