"""Writes that check their keys. What they are for is in `tests/transcripts/write_*.txt`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import AlreadyExists, DiskFull, RowsChanged
from elasticscan.catalog.tables import DELETE_LEASE
from elasticscan.store import Store, Table
from elasticscan.store.context.lookups import KnownTable
from elasticscan.store.writing import preconditions
from elasticscan.store.writing.merging import Clauses, merge_rows
from tests.base.connections import call_at_statements
from tests.conftest import AT_SERVER

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def rows(keys: Any, v: int = 0) -> pa.Table:
    return pa.table({"id": [*keys], "v": [v] * len(keys)}, schema=SCHEMA)


@pytest.fixture
def table(store: Store) -> Table:
    """A table with the keys 0 to 99, written by commit 2."""
    table = store.create_table("t", SCHEMA, ["id"])
    assert table.upsert(rows(range(100))) == 2
    return table


def at(store: Store, point: str, happens: Callable[[], object]) -> list[str]:
    """Let something happen once, where another process could come in; returns the points that were passed."""
    passed: list[str] = []

    def checkpoint(name: str) -> None:
        passed.append(name)
        if passed.count(point) == 1 and name == point:
            happens()

    store.context.checkpoint = checkpoint
    return passed


def test_a_refused_write_names_keys_of_several_columns_and_leaves_no_file(store: Store) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32()), ("v", pa.int64())])
    table = store.create_table("pairs", schema, ["a", "b"])
    commit = table.upsert([{"a": "x", "b": 1, "v": 0}])
    large = [{"a": "x" * 200, "b": n, "v": 0} for n in range(1_000)] + [{"a": "x", "b": 1, "v": 1}]
    for refused, error in (
        (lambda: table.upsert(large, if_unchanged_since=commit - 1), RowsChanged),
        (lambda: table.insert(large), AlreadyExists),
    ):
        with pytest.raises(error, match=r"a, b = \{'a': 'x', 'b': 1\}") as caught:
            refused()
        assert caught.value.fields["keys"] == [{"a": "x", "b": 1}]
    assert [*Path(store.uri).rglob("*.arrow")] == []
    assert table.scan().count() == 1


def test_much_that_came_meanwhile_is_compared_without_the_lock(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preconditions, "SMALL_REST_ROWS", 5)
    passed = at(store, "keys compared", lambda: table.upsert(rows(range(200, 300), 1)))
    table.upsert(rows([9], 2), if_unchanged_since=2)
    assert passed.count("keys compared") == 2
    passed = at(store, "keys compared", lambda: table.overwrite(rows(range(9))))
    table.upsert(rows([900], 2), if_unchanged_since=4)
    assert passed.count("keys compared") == 2  # few rows are new, but many may be gone
    at(store, "keys compared", lambda: table.overwrite(rows(range(5))))
    with pytest.raises(RowsChanged):
        table.upsert(rows([8], 2), if_unchanged_since=6)


@pytest.mark.skipif(AT_SERVER, reason="statements of a catalog in a file")
def test_a_commit_is_reported_also_where_its_lease_cannot_be_ended(store: Store, table: Table) -> None:
    table.set_retention("0s")

    def fail(statement: str) -> None:
        if statement == DELETE_LEASE:
            raise DiskFull("no room in the catalog")

    end = call_at_statements(store.context.catalog, fail)
    numbers = [table.update({"v": "v + 1"}, where="id = 1")]
    numbers.append(table.merge(rows([2], 5), when_not_matched="ignore"))
    numbers.append(table.overwrite(rows([3], 6), where="id = 3"))
    numbers.append(table.restore(2))
    end()
    assert len(store.status()["leases"]) > 0
    assert numbers == [commit.number for commit in table.history(4)]
    assert table.scan().count() == 100


@pytest.mark.usefixtures("rows_in_files")
def test_a_merge_begins_again_where_the_changes_since_it_read_are_gone(store: Store, table: Table) -> None:
    table.set_retention("0s")
    looks: list[KnownTable] = []

    def look() -> KnownTable:
        looks.append(store.context.known_table(table._find))
        if len(looks) == 1:  # and nothing is held yet
            table.upsert(rows([4], 1))
            table.compact()
        return looks[-1]

    merge_rows(table._transaction(None, None), look, rows([4, 400], 7), Clauses(not_matched="ignore"))
    assert len(looks) > 1
    assert table.get([4, 400]).to_pylist() == [{"id": 4, "v": 7}]
