"""Small commits at a server: one statement each, unless something stands against it.

Two handles write, and one of them changes what the other knows of the table. A dictionary is the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticscan.base.errors import InvalidKey, NotFound, TableChanged
from elasticscan.store import Store

LONG = "x" * 70_000  # too long for a key of an index
COMMITS = 70  # more than come between two commits that are transactions all the same


@pytest.fixture
def stores(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    roots = {name: str(tmp_path / name) for name in "ab"}
    with (
        Store.create(postgres_url, roots, tablets=4, slots=16, upkeep="off") as one,
        Store.open(postgres_url, upkeep="off") as other,
    ):
        one.create_table("t", [{"k": 0, "v": "first"}], primary_key="k")
        yield one, other


def rows(store: Store) -> dict[int, str]:
    return {row["k"]: row["v"] for row in store.table("t").to_arrow(["k", "v"]).to_pylist()}


def test_each_commit_has_a_number_of_its_own_and_its_rows(stores: tuple[Store, Store]) -> None:
    expected, numbers = {0: "first"}, list[int]()
    for number in range(COMMITS):
        numbers.append(stores[number % 2].table("t").upsert([{"k": number % 9, "v": str(number)}]))
        expected[number % 9] = str(number)
    assert numbers == sorted(set(numbers))
    assert [rows(store) for store in stores] == [expected, expected]
    listed = [commit.number for commit in stores[0].table("t").history()]
    assert listed[-COMMITS:] == numbers
    stores[0].context.catalog.check_whole()


def moved(store: Store) -> None:
    placed = {tablet["id"]: tablet["shard"] for tablet in store.status()["tablets"]}
    store.move(1, "b" if placed[1] == "a" else "a")


MEANWHILE: dict[str, Callable[[Store], object]] = {
    "a tablet moves": moved,
    "a column comes": lambda store: store.table("t").add_columns({"w": "int64"}),
    "an index is made": lambda store: store.table("t").create_index("by_v", ["v"]),
    "rows are flushed": lambda store: store.table("t").compact(),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_what_changes_meanwhile_is_seen_by_the_next_commit(stores: tuple[Store, Store], what: str) -> None:
    one, other = stores
    one.table("t").upsert([{"k": 1, "v": "before"}])
    MEANWHILE[what](other)
    others = dict.fromkeys(one.table("t").schema.names)
    one.table("t").upsert([others | {"k": 1, "v": "after"}, others | {"k": 2, "v": "new"}])
    assert rows(other) == rows(one) == {0: "first", 1: "after", 2: "new"}
    one.table("t").compact()
    assert rows(other) == {0: "first", 1: "after", 2: "new"}
    assert one.verify() == []


def test_what_the_table_cannot_take_any_more_is_refused(stores: tuple[Store, Store]) -> None:
    one, other = stores
    table = one.table("t")
    table.upsert([{"k": 1, "v": "before"}])
    other.table("t").create_index("by_v", ["v"])
    with pytest.raises(InvalidKey):
        table.upsert([{"k": 1, "v": LONG}])
    assert rows(other) == {0: "first", 1: "before"}
    other.table("t").drop()
    with pytest.raises((NotFound, TableChanged)):
        table.upsert([{"k": 2, "v": "lost"}])
    other.create_table("t", [{"k": 5, "v": "another"}], primary_key="k")
    with pytest.raises(TableChanged):
        table.upsert([{"k": 2, "v": "lost"}])
    assert rows(other) == {5: "another"}
