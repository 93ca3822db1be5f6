"""A shard leaves the store at any call of its disk, and a later one gets its root: nothing is wrong."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import Busy, InvalidCall
from elasticscan.storage import open_disk
from elasticscan.store import Store
from elasticscan.store.moves.owners import moves_in, transition
from elasticscan.topology import Event
from tests.base.manual_clock import ManualClock
from tests.simulation.programs import fast_store
from tests.simulation.world import START
from tests.storage.faulty_disk import FaultyDisk
from tests.store.copies_of_stores import copied_store

ROWS_IN_FILES = True

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
KEYS = range(200)


class LetsIn(FaultyDisk):
    """A disk that lets someone in at one of its calls, or at the next one that holds no lock."""

    calls, at = 0, -1
    others: Callable[[], object]
    store: Store

    def __init__(self, root: Path) -> None:
        super().__init__(open_disk(str(root)))
        self.root = root

    def fail(self, name: str) -> None:
        super().fail(name)
        self.calls += 1
        if 0 <= self.at < self.calls and not self._is_held():
            self.at = -1
            self.others()

    def _is_held(self) -> bool:
        """Return whether someone here is in a transaction of the catalog, or writes the root's marker."""
        directory = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(directory)
        return bool(self.store.context.catalog.home._held)


def rows(value: int) -> pa.Table:
    return pa.table({"id": KEYS, "v": [value] * len(KEYS)}, schema=SCHEMA)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three commits at two shards, and an index."""
    place = tmp_path_factory.mktemp("leaving") / "store"
    clock = ManualClock(START)
    with Store.create(place, ["a", "c"], tablets=4, slots=16, clock=clock, upkeep="off") as made:
        table = made.create_table("t", SCHEMA, ["id"])
        table.create_index("by_v", ["v"])
        for number in range(3):
            table.upsert(rows(number))
    return place


@pytest.fixture
def opened(template: Path, tmp_path: Path) -> Iterator[Callable[[str], tuple[Store, LetsIn]]]:
    """What opens a copy of the store, of which shard c has a disk that lets someone in."""
    stores = list[Store]()

    def open_copy(name: str) -> tuple[Store, LetsIn]:
        place, clock = copied_store(template, tmp_path / name, ManualClock(START)), ManualClock(START)
        disk = LetsIn(place / "shards" / "c")
        stores.append(
            fast_store(place, clock, disks=lambda root: disk if root.endswith("c") else open_disk(root))
        )
        disk.store = stores[-1]
        return disk.store, disk

    yield open_copy
    for store in stores:
        store.close()


def renew(store: Store, collected: bool = False) -> None:
    """Remove shard c and make another one of its name, which gets its root."""
    with fast_store(store.uri, ManualClock(START)) as other:
        other.contract("c")
        other.expand(["c"])
        if collected:
            other.collect_garbage(grace_seconds=0, orphan_seconds=0, share=1.0)


def compressed_otherwise(store: Store) -> None:
    store.table("t").compact()
    store.table("t").set_compression("zstd")


def whole(store: Store) -> None:
    assert store.verify() == []


def collected_there(store: Store) -> None:
    assert {shard for shard, _ in store.collect_garbage().skipped} <= {"c"}


WORK: dict[str, tuple[Callable[[Store], object], Callable[[Store], object]]] = {
    "an index": (lambda _: None, lambda store: store.table("t").create_index("again", ["v"])),
    "a merge": (lambda _: None, lambda store: store.table("t").compact()),
    "a merge of one file": (compressed_otherwise, lambda store: store.table("t").compact()),
    "a write": (lambda _: None, lambda store: store.table("t").upsert(rows(2))),
    "a collection": (lambda _: None, collected_there),
    "a check": (lambda _: None, whole),
    "a backup": (lambda _: None, lambda store: store.backup(Path(store.uri).with_suffix(".backup"))),
}


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("what", WORK)
def test_what_is_done_at_a_shard_that_leaves_goes_on_without_it(opened: Any, what: str, every: int) -> None:
    prepare, work = WORK[what]
    at, is_over = 0, False
    while not is_over:
        store, disk = opened(f"{at}")
        prepare(store)
        table, came = store.table("t"), list[int]()

        def leave(store: Store = store, came: list[int] = came) -> None:
            renew(store, collected=what == "a backup")
            came.append(1)

        disk.calls, disk.at, disk.others = 0, at, leave
        work(store)
        is_over, disk.at = not came, -1
        assert table.scan().to_table().sort_by("id")["v"].to_pylist() == [2] * len(KEYS)
        for index in table.indexes():
            assert table.scan(index=index.name, filter="v = 2").count() == len(KEYS)
        assert store.verify() == []
        assert (3 in store.context.shard_names()) != is_over
        at += every
    assert at > every, "the shard left at least once"


def test_what_is_merged_and_collected_below_a_merge_of_one_file_is_no_damage(opened: Any) -> None:
    for at in range(1, 30, 4):
        store, disk = opened(f"{at}")
        compressed_otherwise(store)

        def collect(store: Store = store) -> None:
            with fast_store(store.uri, ManualClock(START)) as other:
                other.table("t").compact()
                other.collect_garbage(grace_seconds=0, orphan_seconds=0, share=1.0)

        disk.calls, disk.at, disk.others = 0, at, collect
        with suppress(Busy):
            store.table("t").compact()
        assert store.table("t").scan(filter="v = 2", index="none").count() == len(KEYS)


def test_a_mover_whose_target_has_gone_says_so(opened: Any) -> None:
    store, disk = opened("store")
    tablet = next(tablet.id for tablet in store.context.placement().tablets if tablet.shard == 1)

    def leave() -> None:
        with store.context.catalog.writing() as tx:  # as if no one had heard of its owner for long
            (move,) = moves_in(tx)
            transition(tx, move, move.owner, Event.FAILED)
        renew(store)

    disk.calls, disk.at, disk.others = 0, 3, leave
    with pytest.raises(InvalidCall, match=r"left the store.*plan the move again"):
        store.move(tablet, "c")
    assert store.table("t").scan().count() == len(KEYS) and store.verify() == []
