"""Rows by their primary keys: which, in what order, and what is reported of keys that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.base.errors import LimitExceeded, SchemaMismatch
from elasticscan.catalog import Catalog, Interrupted
from elasticscan.catalog.log import Log
from elasticscan.store import Store, Table
from elasticscan.store.reading import rows_by_key

TRIPS = pa.schema([("id", pa.int32()), ("day", pa.string()), ("km", pa.float64())])


class Place:
    """A store into which a test lets others at each checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.others: Callable[[str], None] = lambda _: None
        elasticscan.create(directory / "a.store", ["s1", "s2"], tablets=4, slots=16).close()
        self.store = Store.open(directory / "a.store", checkpoint=self._let_in)

    def _let_in(self, point: str) -> None:
        self.others(point)

    def trips(self, primary_key: list[str]) -> Table:
        table = self.store.create_table("trips", TRIPS, primary_key, shard_key=["id"])
        table.upsert(rows(range(100)))
        return table


def rows(ids: range, km: float = 0.5) -> pa.Table:
    days = ["mon", "tue", "wed"]
    return pa.table([list(ids), [days[i % 3] for i in ids], [i * km for i in ids]], schema=TRIPS)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def trips(place: Place) -> Table:
    return place.trips(["id"])


def test_no_keys_and_none_that_are_there_give_no_rows_with_all_columns(trips: Table) -> None:
    for keys in ([], [1000], pa.table({"id": pa.array([], pa.int32())})):
        got = trips.get(keys, ["day"])
        assert (got.num_rows, got.schema) == (0, pa.schema([TRIPS.field("day")]))
    assert trips.get([1000], ["day"], keep_missing=True).to_pydict() == {"day": [None]}


def test_a_scan_gives_keys(trips: Table) -> None:
    assert trips.get(trips.scan(["id"], "km > 48.5")).num_rows == 2


def test_keys_of_several_columns(place: Place) -> None:
    legs = place.trips(["id", "day"])
    assert legs.get([(4, "tue"), (4, "mon"), (3, "mon")], ["id"]).column("id").to_pylist() == [4, 3]
    keys = pa.table({"day": ["mon", "tue"], "id": pa.array([3, 4], pa.int32())})
    assert legs.get(keys, ["km"]).column("km").to_pylist() == [1.5, 2.0]


@pytest.mark.parametrize("most", [1, 7, 100])
def test_many_keys_are_asked_for_in_parts(trips: Table, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(rows_by_key, "MOST_KEYS", most)
    asked = [n % 130 for n in range(0, 400, 3)]
    expected = [n for n in asked if n < 100]
    got = trips.get(asked)
    assert got.to_pydict() == rows(range(100)).take(expected).to_pydict()
    kept = trips.get(asked, ["km", "id"], keep_missing=True)
    assert kept.column("id").to_pylist() == [n if n < 100 else None for n in asked]
    assert kept.column("km").to_pylist() == [n * 0.5 if n < 100 else None for n in asked]


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
    with pytest.raises(SchemaMismatch, match="does not hold 1099511627776 of row 0"):
        trips.get(range(1 << 40, 1 << 41))


def test_a_range_of_keys_is_deleted_in_parts(trips: Table) -> None:
    trips.delete(range(5, 150_000))
    assert trips.scan().count() == 5
    commit = trips.delete(range(0))
    assert trips.scan().count() == 5 and commit > 0


def test_columns_of_the_key_alone_say_which_keys_are_there(place: Place, trips: Table) -> None:
    trips.delete([7, 99])
    trips.upsert(rows(range(4, 8)))
    trips.delete([5])
    for asked in (range(4, 9), range(-20, 110)):
        assert trips.get(asked, ["id"]).column("id").to_pylist() == [
            n for n in asked if 0 <= n < 99 and n != 5
        ]


def test_a_warm_read_looks_at_the_catalog_twice(
    place: Place, trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, follow = list[int](), Log.follow
    monkeypatch.setattr(Log, "follow", lambda self: looks.append(1) or follow(self))
    trips.get([1])
    for asked in ([5], [1000], range(100)):
        looks.clear()
        trips.get(asked)
        assert len(looks) == 2


def test_columns_that_came_after_a_row_are_null(trips: Table) -> None:
    trips.add_columns([pa.field("by", pa.string())])
    assert trips.get([3, 7], ["by", "id"]).to_pydict() == {"by": [None, None], "id": [3, 7]}
    assert trips.get([3]).to_pylist() == [{"id": 3, "day": "mon", "km": 1.5, "by": None}]


def test_keys_of_a_stream_are_taken_once_where_the_catalog_is_interrupted(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips.tag("then")
    interrupted, reading = list[int](), Catalog.reading

    def lost_once(catalog: Catalog) -> Any:
        if not interrupted:
            interrupted.append(1)
            raise Interrupted("the connection was lost")
        return reading(catalog)

    keys = pa.table({"id": pa.array([3, 7], pa.int32())}).to_reader()
    monkeypatch.setattr(Catalog, "reading", lost_once)
    assert trips.get(keys, ["id"], snapshot="then").column("id").to_pylist() == [3, 7]
    assert interrupted


@pytest.mark.parametrize("point", ["page asked for", "page looked up", "page read"])
def test_a_row_that_moves_while_it_is_read_is_neither_missed_nor_doubled(
    place: Place, trips: Table, point: str
) -> None:
    moves = 0

    def others(reached: str) -> None:
        nonlocal moves
        if reached == point and moves < 6:
            moves += 1
            tablet = place.store.context.placement().tablets[moves % 4]
            place.store.move(tablet.id, "s1" if tablet.shard == 2 else "s2")

    place.others = others
    got = trips.get(range(100), ["id"])
    assert moves >= 2 and got.column("id").to_pylist() == list(range(100))


def test_the_newest_snapshot_may_expire_while_it_is_read(place: Place, trips: Table) -> None:
    trips.set_retention("0s")
    commits = 0

    def others(reached: str) -> None:
        nonlocal commits
        if reached == "page asked for" and not commits:
            commits += 1
            trips.upsert(rows(range(100), km=9.0))
            trips.compact()
            for tablet in place.store.context.placement().tablets:  # so that it is read again
                place.store.move(tablet.id, "s1" if tablet.shard == 2 else "s2")

    place.others = others
    assert trips.get([2], ["km"]).column("km").to_pylist() == [18.0]
    assert commits == 1
