"""Rows by their primary keys: forms and bounds of keys, and what happens while they are looked up.

Which rows they are, whatever moves meanwhile, is a matter of tests/store/test_index_oracle.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.base.errors import LimitExceeded, SchemaMismatch
from elasticscan.store import Store, Table
from elasticscan.store.reading import rows_by_key
from tests.base.connections import call_at_statements

TRIPS = pa.schema([("id", pa.int32()), ("day", pa.string()), ("km", pa.float64())])


def rows(ids: range, km: float = 0.5) -> pa.Table:
    days = ["mon", "tue", "wed"]
    return pa.table([list(ids), [days[i % 3] for i in ids], [i * km for i in ids]], schema=TRIPS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with elasticscan.create(tmp_path / "a.store", ["s1", "s2"], tablets=4, slots=16) as made:
        for name, primary_key in (("trips", ["id"]), ("legs", ["id", "day"])):
            made.create_table(name, TRIPS, primary_key, shard_key=["id"]).upsert(rows(range(100)))
        yield made


@pytest.fixture
def trips(store: Store) -> Table:
    return store.table("trips")


def test_keys_are_those_of_a_scan_and_of_several_columns(store: Store, trips: Table) -> None:
    assert trips.get(trips.scan(["id"], "km > 48.5")).num_rows == 2
    legs = store.table("legs")
    assert legs.get([(4, "tue"), (4, "mon"), (3, "mon")], ["id"]).column("id").to_pylist() == [4, 3]
    keys = pa.table({"day": ["mon", "tue"], "id": pa.array([3, 4], pa.int32())})
    assert legs.get(keys, ["km"]).column("km").to_pylist() == [1.5, 2.0]


def test_a_range_is_read_as_it_is_asked_for_and_bounded(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_by_key, "MAX_KEYS", 200_000)
    assert trips.get(range(98, 200_098)).num_rows == 2
    assert trips.get(range(99, 96, -2), ["id"]).column("id").to_pylist() == [99, 97]
    with pytest.raises(LimitExceeded, match="at most 200,000 keys at once"):
        trips.get(range(10**30))  # it is not made first
    endless = pa.RecordBatchReader.from_batches(
        pa.schema([("id", pa.int32())]), (pa.record_batch({"id": pa.array([1], pa.int32())}) for _ in count())
    )
    monkeypatch.setattr(rows_by_key, "MAX_KEYS", 10)
    with pytest.raises(LimitExceeded):
        trips.get(endless)
    with pytest.raises(SchemaMismatch, match=r"column .* is of type .*1099511627776"):
        trips.get(range(1 << 40, 1 << 41))


def test_a_range_of_keys_is_deleted_in_parts(trips: Table) -> None:
    trips.delete(range(5, 150_000))
    commit = trips.delete(range(0))
    assert trips.scan().count() == 5 and commit > 0


def test_a_warm_read_looks_at_the_catalog_twice(store: Store, trips: Table) -> None:
    trips.get([1])
    statements = list[str]()
    call_at_statements(store.context.catalog, statements.append)
    trips.get([1])
    for asked in ([5], [1000], range(100)):
        statements.clear()
        trips.get(asked)
        assert len([each for each in statements if each.startswith("SELECT")]) == 2


def test_the_newest_snapshot_may_expire_while_it_is_read(store: Store, trips: Table) -> None:
    trips.set_retention("0s")
    commits = list[int]()

    def others(reached: str) -> None:
        if reached == "page asked for" and not commits:
            commits.append(trips.upsert(rows(range(100), km=9.0)))
            trips.compact()
            for tablet in store.context.placement().tablets:  # so that it is read again
                store.move(tablet.id, "s1" if tablet.shard == 2 else "s2")

    store.context.sync_point = others
    assert trips.get([2], ["km"]).column("km").to_pylist() == [18.0]
    assert commits
