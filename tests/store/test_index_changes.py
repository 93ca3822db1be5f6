"""Indexes and tables that change below scans; what damage leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import DiskFull, FragmentDamaged, NotFound, NotReady, TableChanged
from elasticscan.storage import open_disk
from elasticscan.store import Scan, Store
from tests.base.manual_clock import ManualClock
from tests.simulation.world import START
from tests.storage.faulty_disk import FaultyDisk

ROWS_IN_FILES = True

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
COUNT = 300
PAGES: dict[str, dict[str, Any]] = {
    "index": {"index": "by_k"},
    "one order": {"index": "by_k", "order_by": "k"},
    "one order, descending": {"index": "by_k", "order_by": ["k DESC", "id DESC"]},
    "direct": {"index": "none"},
}

Row = tuple[int, int | None, int]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two shards, several fragments at each, one index by `k`."""
    with Store.create(tmp_path / "store", ["a", "b"], tablets=8, slots=32, clock=ManualClock(START)) as made:
        filled(made)
        made.table("t").create_index("by_k", ["k"])
        yield made


def filled(made: Store, name: str = "t") -> None:
    made.create_table(name, SCHEMA, ["id"])
    made.table(name).upsert(table_of(range(COUNT)))
    made.table(name).upsert(table_of(range(0, COUNT, 3), value=1))
    made.table(name).delete(pa.table({"id": pa.array(range(0, COUNT, 10), pa.int64())}))


def table_of(ids: Any, value: int = 0) -> pa.Table:
    ids = list(ids)
    keys = [None if i % 11 == 0 else (i + value) % 9 for i in ids]
    return pa.table({"id": ids, "k": keys, "v": [value] * len(ids)}, schema=SCHEMA)


def rows_of(rows: pa.RecordBatch | pa.Table) -> list[Row]:
    return list(zip(*(rows[name].to_pylist() for name in ("id", "k", "v")), strict=True))


def read(scan: Scan) -> list[Row]:
    return rows_of(scan.to_table())


def in_order(row: Row) -> tuple[bool, int, int]:
    return (row[1] is not None, row[1] or 0, row[0])


def everything(made: Store) -> list[Row]:
    return sorted(read(made.table("t").scan(index="none")), key=in_order)


def files_of(made: Store) -> set[tuple[str, str]]:
    """(shard, path) of every file of a table that lies on the disks."""
    return {
        (shard["name"], f"{path.parent.name}/{path.name}")
        for shard in made.status()["shards"]
        for path in Path(made.uri, "shards", shard["name"]).glob("t*/*.arrow")
    }


def known_files(made: Store) -> set[tuple[str, str]]:
    names = made.context.shard_names()
    with made.context.catalog.reading() as tx:
        return {(names[shard], path) for shard, path in tx.state.known_paths() if shard in names}


def runs_of(made: Store, index: str = "by_k") -> list[Path]:
    with made.context.catalog.reading() as tx:
        wanted = tx.state.index_named(tx.state.table_named("t").id, index)
        shard_of = {fragment.id: fragment.shard for fragment in tx.state.fragments()}
        runs = [run for run in tx.state.runs(wanted.table) if run.index == wanted.id]
    names = made.context.shard_names()
    return [Path(made.uri, "shards", names[shard_of[run.fragment]], run.path) for run in runs]


def check_index(made: Store, index: str = "by_k") -> None:
    """Every row, and no other, is found through the index, in its order, each fragment's entries once."""
    assert read(made.table("t").scan(index=index, order_by="k")) == everything(made)
    with made.context.catalog.reading() as tx:
        wanted = tx.state.index_named(tx.state.table_named("t").id, index)
        runs = [run for run in tx.state.runs(wanted.table) if run.index == wanted.id]
        for fragment in tx.state.fragments(table=wanted.table):
            entries = sum(run.rows for run in runs if run.fragment == fragment.id)
            assert entries == fragment.rows - fragment.tombstones


# ------------------------------------------------------------------------ dropped below a scan


@pytest.mark.parametrize("again", [False, True], ids=["dropped", "dropped and made again"])
@pytest.mark.parametrize(
    ("what", "path"), [*(("table", path) for path in PAGES), *(("index", path) for path in list(PAGES)[:-1])]
)
def test_an_index_or_a_table_that_is_dropped_between_two_pages_ends_the_scan(
    store: Store, what: str, path: str, again: bool
) -> None:
    """One of the same name, with the same content, is another one all the same."""
    table = store.table("t")
    scan = table.scan(page_rows=10, **PAGES[path])
    key = next(scan).key or ""
    if what == "table":
        table.drop()
    else:
        table.drop_index("by_k")
    if again:
        if what == "table":
            filled(store)
        store.table("t").create_index("by_k", ["k"])
        check_index(store)
    for read_on in (lambda: list(scan), lambda: store.resume(key)):
        with pytest.raises(TableChanged):
            read_on()
    if what == "index" and not again:
        with pytest.raises(NotFound):
            table.scan(index="by_k")
        assert table.scan(filter="k = 3").explain()["access"] == "direct"
    assert store.verify() == []
    store.collect_garbage(grace_seconds=0)
    assert files_of(store) == known_files(store)


# ------------------------------------------------------------------------------ damage, full disks


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def overwrite_footer(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-200] + b"\xff" * 190 + content[-10:])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [Path.unlink, cut, overwrite_footer, empty])
@pytest.mark.parametrize("remedy", ["drop and create", "compact"])
def test_a_damaged_run_is_reported_of_and_healed_by_building_it_again(
    store: Store, harm: Callable[[Path], object], remedy: str
) -> None:
    expected = everything(store)
    victim = runs_of(store)[0]
    harm(victim)
    with Store.open(store.uri, clock=ManualClock(START)) as opened:
        assert [victim.name in str(found) for found in opened.verify()] == [True]
        with pytest.raises(FragmentDamaged, match="index 'by_k', which can be dropped and made again"):
            read(opened.table("t").scan(index="by_k"))
        with pytest.raises(FragmentDamaged):
            read(opened.table("t").scan(index="by_k", order_by="k DESC"))
        assert everything(opened) == expected, "the rows themselves are not touched"
        if remedy == "compact":
            opened.compact()
        else:
            opened.table("t").drop_index("by_k")
            opened.table("t").create_index("by_k", ["k"])
        assert opened.verify() == []
        check_index(opened)
        opened.collect_garbage(grace_seconds=0)
        assert files_of(opened) == known_files(opened)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[Store, dict[str, FaultyDisk]]]:
    """A store on disks that can be full, and these disks by the names of their shards."""
    disks: dict[str, FaultyDisk] = {}

    def disk_at(root: str) -> FaultyDisk:
        return disks.setdefault(Path(root).name, FaultyDisk(open_disk(root)))

    clock = ManualClock(START)
    Store.create(tmp_path / "store", ["a", "b"], tablets=8, slots=32, clock=clock).close()
    with Store.open(tmp_path / "store", clock=clock, disks=disk_at) as made:
        filled(made)
        yield made, disks


@pytest.mark.parametrize("room", [0, 200, 2_000])
def test_a_disk_that_is_full_while_an_index_is_built_shows_nothing_of_it(
    full: tuple[Store, dict[str, FaultyDisk]], room: int
) -> None:
    made, disks = full
    expected = everything(made)
    disks["a"].full_after = disks["a"].written + room
    with pytest.raises(DiskFull):
        made.table("t").create_index("by_k", ["k"])
    assert [index.ready for index in made.table("t").indexes()] == [False]
    with pytest.raises(NotReady):
        made.table("t").scan(index="by_k")
    assert made.table("t").scan(filter="k = 1").explain()["access"] == "direct"
    assert everything(made) == expected
    assert files_of(made) == known_files(made), "what was half written is removed"
    disks["a"].full_after = None
    made.table("t").create_index("by_k", ["k"])
    check_index(made)
