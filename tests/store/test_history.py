"""What a table's history tells of its commits, and what their writers say of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.base.errors import InvalidOption, LimitExceeded, StoreDamaged
from elasticscan.store import Store, Table
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(*ids: int, v: str = "a") -> pa.Table:
    return pa.table([list(ids), [v] * len(ids)], schema=SCHEMA)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with elasticscan.Store.create(tmp_path / "a.store", ["s1", "s2"], 4, 16, clock=clock) as made:
        yield made


@pytest.fixture
def table(store: Store) -> Table:
    return store.create_table("t", SCHEMA, ["id"])


@pytest.mark.usefixtures("rows_in_files")
def test_each_commit_is_reported_with_its_time_its_size_and_what_its_writer_said(
    table: Table, clock: ManualClock
) -> None:
    table.upsert(rows(1, 2, 3), user_metadata={"job": "nightly", "by": "ann"})
    clock.advance(60)
    table.delete([1], user_metadata={"job": "purge"})
    table.overwrite(rows(7), user_metadata={"note": "é = 1"})
    made = table.history()
    assert [commit.kind for commit in made] == ["create", "write", "delete", "overwrite"]
    assert [commit.rows for commit in made] == [0, 3, 1, 1]
    assert [dict(commit.user_metadata) for commit in made] == [
        {},
        {"job": "nightly", "by": "ann"},
        {"job": "purge"},
        {"note": "é = 1"},
    ]
    assert made[0].bytes == 0 < min(commit.bytes for commit in made[1:])
    assert made[1].bytes > made[2].bytes
    assert made[2].created_at - made[1].created_at == pytest.approx(60, abs=0.001)


@pytest.mark.usefixtures("rows_in_files")
def test_the_bytes_of_a_commit_are_those_of_its_files(store: Store, table: Table) -> None:
    number = table.upsert(rows(*range(100)))
    with store.context.catalog.reading() as tx:
        size = sum(fragment.bytes for fragment in tx.state.fragments())
    assert next(c.bytes for c in table.history() if c.number == number) == size


def test_a_limit_gives_the_newest_commits(store: Store, table: Table) -> None:
    other = store.create_table("other", SCHEMA, ["id"])
    for number in range(5):
        table.upsert(rows(number))
        other.upsert(rows(number))
    everything = table.history()
    for limit in range(8):
        assert table.history(limit) == everything[max(6 - limit, 0) :]
    with pytest.raises(InvalidOption, match="limit"):
        table.history(-1)


def test_a_commit_that_a_damaged_catalog_hides_is_missed(store: Store, table: Table) -> None:
    for number in range(5):
        table.upsert(rows(number))
    with store.context.catalog.writing() as tx:
        tx.execute("DELETE FROM log WHERE number = 4")
    with pytest.raises(StoreDamaged):
        table.history(5)


def test_a_write_that_was_done_before_keeps_what_was_said_first(table: Table) -> None:
    first = table.upsert(rows(1), ("job", 1), user_metadata={"try": "1"})
    assert table.upsert(rows(1), ("job", 1), user_metadata={"try": "2"}) == first
    assert table.history()[-1].user_metadata == {"try": "1"}


def test_what_is_said_is_bounded(table: Table) -> None:
    table.upsert(rows(1), user_metadata={"k": "x" * (4_096 - len('{"k": ""}'))})
    with pytest.raises(LimitExceeded, match=r"4,097 bytes"):
        table.upsert(rows(1), user_metadata={"k": "x" * (4_097 - len('{"k": ""}'))})
