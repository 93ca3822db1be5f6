"""Writes that check: rows unchanged since they were read, keys that are not there, while others write."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    DiskFull,
    InvalidOption,
    InvalidTopologyChange,
    NotFound,
    RowsChanged,
    SnapshotExpired,
)
from elasticscan.catalog import Tx
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.store import Store, Table
from elasticscan.store.context.leases import is_kept, lease_end
from elasticscan.store.writing import preconditions
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
START = 1_000_000.0


def rows(keys: Any, v: int = 0) -> pa.Table:
    keys = list(keys)
    return pa.table({"id": keys, "v": [v] * len(keys)}, schema=SCHEMA)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=4, slots=16, clock=clock) as made:
        yield made


@pytest.fixture
def table(store: Store) -> Table:
    """A table with the keys 0 to 99, written by commit 2."""
    table = store.create_table("t", SCHEMA, ["id"])
    assert table.upsert(rows(range(100))) == 2
    return table


def values(table: Table) -> dict[int, int]:
    read = table.scan().to_table()
    return dict(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True))


def files(store: Store) -> int:
    return len([*Path(str(store.uri)).rglob("*.arrow")])


def at(store: Store, point: str, happens: Callable[[], object]) -> list[str]:
    """Let something happen once, where another process could come in; returns the points that were passed."""
    passed: list[str] = []

    def checkpoint(name: str) -> None:
        passed.append(name)
        if passed.count(point) == 1 and name == point:
            happens()

    store.context.checkpoint = checkpoint
    return passed


# ------------------------------------------------------------------------------ if_unchanged_since


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.upsert(rows([7], 1)),
        lambda t: t.delete([7]),
        lambda t: t.overwrite(rows([7], 1)),
        lambda t: t.overwrite(rows([8], 1)),
        lambda t: t.overwrite(rows([])),
    ],
    ids=["upsert", "delete", "overwrite with it", "overwrite without it", "overwrite with nothing"],
)
@pytest.mark.parametrize("write", ["upsert", "delete"])
def test_a_key_that_was_changed_since_refuses_the_write(
    store: Store, table: Table, change: Callable[[Table], int], write: str
) -> None:
    newest, before = change(table), values(table)
    left = files(store)
    data = rows([7, 500], 2) if write == "upsert" else [7, 500]
    with pytest.raises(RowsChanged, match=r"after commit 2, .* id = 7, .* commit 3") as caught:
        getattr(table, write)(data, if_unchanged_since=2)
    assert caught.value.fields == {"table": "t", "keys": [{"id": 7}], "newest": newest, "since": 2}
    assert values(table) == before
    assert files(store) == left
    table.upsert(rows([7], 3), if_unchanged_since=newest)
    assert values(table)[7] == 3


def test_a_key_of_several_columns_is_named_as_it_is(store: Store) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32()), ("v", pa.int64())])
    table = store.create_table("pairs", schema, ["a", "b"])
    commit = table.upsert([{"a": "x", "b": 1, "v": 0}])
    with pytest.raises(RowsChanged, match=r"a, b = \{'a': 'x', 'b': 1\}"):
        table.delete([("x", 1)], if_unchanged_since=commit - 1)


def test_what_happens_between_staging_and_the_commit_counts(store: Store, table: Table) -> None:
    for point in ("rows staged", "keys compared"):
        since = table.upsert(rows([1], 0))
        at(store, point, lambda: table.upsert(rows([7], 1)))
        with pytest.raises(RowsChanged):
            table.upsert(rows([7], 2), if_unchanged_since=since)
        at(store, point, lambda: table.upsert(rows([8], 1)))
        table.upsert(rows([9], 2), if_unchanged_since=since)
    assert values(table)[7] == 1


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


def test_a_commit_that_is_not_there_yet_or_any_more_is_refused(
    store: Store, table: Table, clock: ManualClock
) -> None:
    with pytest.raises(NotFound, match="the newest is 2"):
        table.upsert(rows([1]), if_unchanged_since=3)
    for wrong in (-1, "2", 1.5, True):
        with pytest.raises((InvalidOption, TypeError)):
            table.delete([1], if_unchanged_since=wrong)  # type: ignore[arg-type]
    with pytest.raises(RowsChanged):
        table.upsert(rows([1]), if_unchanged_since=0)  # from before the table was made
    table.upsert(rows([1], 1))
    table.set_retention("0s")
    clock.advance(10.0)
    table.upsert(rows([2], 1))
    table.compact()
    with pytest.raises(SnapshotExpired, match="after commit 2 are no longer kept"):
        table.upsert(rows([90]), if_unchanged_since=2)


def test_a_commit_is_reported_also_where_its_lease_cannot_be_ended(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.set_retention("0s")

    def fail(tx: Tx, kind: type, lease: str) -> None:
        if lease_end(tx, lease):  # one that is taken ends itself first
            raise DiskFull("no room in the catalog")

    with monkeypatch.context() as patch:
        patch.setattr(Tx, "remove_lease", fail)
        numbers = [table.update({"v": "v + 1"}, where="id = 1")]
        numbers.append(table.merge(rows([2], 5), when_not_matched="ignore"))
        numbers.append(table.overwrite(rows([3], 6), where="id = 3"))
        numbers.append(table.restore(2))
    assert numbers == [commit.number for commit in table.history(4)]
    assert table.scan().count() == 100


def test_changes_that_go_just_before_they_are_held_are_no_longer_kept(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.set_retention("0s")
    others = iter([lambda: (table.upsert(rows([1], 1)), table.compact())])

    def let_go(*arguments: Any) -> bool:
        kept = is_kept(*arguments)
        for merge in others:
            merge()
        return kept

    monkeypatch.setattr(preconditions, "is_kept", let_go)
    with pytest.raises(SnapshotExpired):
        table.upsert(rows([2], 1), if_unchanged_since=2)
    others = iter([lambda: (table.upsert(rows([3], 1)), table.compact())])
    table.merge(rows([4], 7), when_not_matched="ignore")  # it relies on no commit that the caller knows
    assert [row["v"] for row in table.get([3, 4]).to_pylist()] == [1, 7]


def test_what_a_check_needs_stays_while_it_runs(store: Store, table: Table, clock: ManualClock) -> None:
    table.set_retention("0s")

    def forget() -> None:
        clock.advance(10.0)
        table.delete([7])
        table.compact()

    for point in ("rows staged", "keys compared"):
        since = table.upsert(rows([7], 1))
        at(store, point, forget)
        with pytest.raises(RowsChanged):
            table.upsert(rows([7], 2), if_unchanged_since=since)
        store.context.checkpoint = lambda _: None
    assert store.status()["leases"] == []


def test_a_write_that_was_done_is_not_checked_again(store: Store, table: Table, clock: ManualClock) -> None:
    first = table.upsert(rows([7], 1), ("app", 1), if_unchanged_since=2)
    assert table.upsert(rows([7], 1), ("app", 1), if_unchanged_since=2) == first
    table.set_retention("0s")
    clock.advance(10.0)
    table.upsert(rows([8], 1))
    table.compact()
    assert table.upsert(rows([7], 1), ("app", 1), if_unchanged_since=2) == first
    inserted = table.insert(rows([700], 1), ("app", 2))
    assert table.insert(rows([700], 1), ("app", 2)) == inserted
    at(store, "rows staged", lambda: table.insert(rows([800], 1), ("app", 3)))
    assert table.insert(rows([800], 1), ("app", 3)) == inserted + 1


# ---------------------------------------------------------------------------------------- insert


def test_insert_refuses_keys_that_are_there(store: Store, table: Table) -> None:
    left = files(store)
    with pytest.raises(AlreadyExists, match="such as id = 99, and nothing was written") as caught:
        table.insert(rows([99, 100, 101]))
    assert caught.value.fields == {"table": "t", "keys": [{"id": 99}], "newest": 2}
    assert files(store) == left
    table.insert(rows([100, 101], 5))
    table.delete([100])
    table.insert(rows([100], 6))
    assert {key: v for key, v in values(table).items() if key > 99} == {100: 6, 101: 5}
    table.overwrite(rows([1]))
    table.insert(rows(range(2, 100), 7))
    assert values(table) == {1: 0, **dict.fromkeys(range(2, 100), 7)}


def test_a_key_that_comes_while_rows_are_inserted_is_noticed(store: Store, table: Table) -> None:
    for key, point in enumerate(("rows staged", "keys compared"), 200):
        at(store, point, lambda key=key: table.upsert(rows([key], 1)))  # type: ignore[misc]
        with pytest.raises(AlreadyExists):
            table.insert(rows([key], 2))
        at(store, point, lambda: table.delete([7]))
        table.upsert(rows([7], 2))
        assert values(table)[key] == 1


def test_a_key_that_goes_while_rows_are_inserted_is_free(store: Store, table: Table) -> None:
    at(store, "rows staged", lambda: table.delete([7]))
    table.insert(rows([7], 2))
    assert values(table)[7] == 2


def test_insert_does_not_need_what_was_merged_away_meanwhile(
    store: Store, table: Table, clock: ManualClock
) -> None:
    table.set_retention("0s")

    def forget() -> None:
        table.upsert(rows([300], 1))
        table.delete([300])
        clock.advance(10.0)
        table.upsert(rows([301], 1))
        table.compact()

    at(store, "keys compared", forget)
    table.insert(rows([300, 302], 2))
    at(store, "keys compared", forget)
    with pytest.raises(AlreadyExists, match="301"):
        table.insert(rows([301], 2))


# ------------------------------------------------------------------------- many at the same time


@pytest.mark.long
def test_counters_never_lose_an_update_beside_moves_and_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four programs with Stores of their own read, add and write; two others insert; one moves and merges."""
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    place = tmp_path / "counters.store"
    with Store.create(place, ["s1", "s2"], tablets=4, slots=16) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(range(6)))
        added: Counter[int] = Counter()
        inserted: list[int] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def adder(seed: int) -> None:
            rng = random.Random(seed)
            with Store.open(place) as mine:
                counters = mine.table("t")
                for _ in range(8):
                    keys = rng.sample(range(6), 2)
                    while True:
                        scan = counters.scan(filter=f"id IN ({keys[0]}, {keys[1]})")
                        read = scan.to_table()
                        plus = [{"id": r["id"], "v": r["v"] + 1} for r in read.to_pylist()]
                        try:
                            counters.upsert(plus, if_unchanged_since=scan.snapshot)
                            break
                        except RowsChanged:
                            continue
                    added.update(keys)

        def inserter(seed: int) -> None:
            rng = random.Random(seed)
            with Store.open(place) as mine:
                for _ in range(8):
                    key = rng.randint(100, 106)
                    try:
                        mine.table("t").insert(rows([key], seed))
                        inserted.append(key)
                    except AlreadyExists:
                        assert mine.table("t").scan(filter=f"id = {key}").count() == 1

        def upkeep() -> None:
            rng = random.Random(0)
            with Store.open(place) as mine:
                while not done.is_set():
                    with suppress(InvalidTopologyChange):  # it is there already
                        mine.move(rng.randint(1, 4), rng.choice(("s1", "s2")))
                    mine.table("t").compact()

        def guarded(work: Callable[..., None], *arguments: int) -> threading.Thread:
            def run() -> None:
                try:
                    work(*arguments)
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        caretaker = guarded(upkeep)
        threads = [guarded(adder, seed) for seed in range(4)] + [guarded(inserter, seed) for seed in (8, 9)]
        for thread in threads:
            thread.join()
        done.set()
        caretaker.join()
        assert errors == []
        read = values(table)
    assert {key: v for key, v in read.items() if key < 100} == dict(added)
    assert sorted(key for key in read if key >= 100) == sorted(inserted)
