"""Index runs that are damaged, and disks that are full while an index is built.

Indexes and tables that are dropped below scans are a matter of transcripts and of random programs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import Busy, DiskFull, FragmentDamaged
from elasticscan.storage import open_disk
from elasticscan.store import Store
from tests.simulation.oracle import Row, rows_of
from tests.storage.faulty_disk import FaultyDisk

ROWS_IN_FILES = True

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
COUNT = 300


def filled(place: Path) -> Path:
    """Make a store of two shards, with several fragments at each."""
    with Store.create(place, ["a", "b"], tablets=8, slots=32) as made:
        table = made.create_table("t", SCHEMA, ["id"])
        table.upsert(table_of(range(COUNT)))
        table.upsert(table_of(range(0, COUNT, 3), value=1))
        table.delete(range(0, COUNT, 10))
    return place


def table_of(ids: range, value: int = 0) -> pa.Table:
    keys = [None if i % 11 == 0 else (i + value) % 9 for i in ids]
    return pa.table({"id": ids, "k": keys, "v": [value] * len(ids)}, schema=SCHEMA)


def everything(store: Store) -> list[Row]:
    """All rows in the order of `k`, without an index."""
    rows = store.table("t").scan(index="none").to_table()
    return list(rows_of(rows.sort_by([("k", "ascending"), ("id", "ascending")])))


def in_order(store: Store) -> list[Row]:
    """All rows by the index, nulls last as in Arrow's sort."""
    rows = rows_of(store.table("t").scan(index="by_k", order_by="k").to_table())
    return [row for row in rows if row[1] is not None] + [row for row in rows if row[1] is None]


def check_files(store: Store) -> None:
    """The files on the disks are those that the catalog knows."""
    names = store.context.shard_names()
    tx = store.context.catalog.newest()
    known = {(names[shard], path) for shard, path in tx.state.known_paths()}
    roots = {name: Path(store.uri, "shards", name) for name in names.values()}
    assert known == {
        (name, f"{path.relative_to(root)}")
        for name, root in roots.items()
        for path in root.glob("t*/*.arrow")
    }


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def overwrite_footer(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-200] + b"\xff" * 190 + content[-10:])


@pytest.mark.parametrize("harm", [Path.unlink, cut, overwrite_footer, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("remedy", ["drop and create", "compact"])
def test_a_damaged_run_is_reported_of_and_healed_by_building_it_again(
    tmp_path: Path, harm: Callable[[Path], object], remedy: str
) -> None:
    with Store.open(filled(tmp_path / "store")) as store:
        store.table("t").create_index("by_k", ["k"])
        expected = everything(store)
        tx = store.context.catalog.newest()
        run = tx.state.runs(1)[0]
        shard = next(each.shard for each in tx.state.fragments() if each.id == run.fragment)
        victim = Path(store.uri, "shards", store.context.shard_names()[shard], run.path)
        harm(victim)
    with Store.open(tmp_path / "store") as store:
        assert [victim.name in str(found) for found in store.verify()] == [True]
        for order_by in (None, "k DESC"):
            with pytest.raises(FragmentDamaged, match="index 'by_k', which can be dropped and made again"):
                store.table("t").scan(index="by_k", order_by=order_by).to_table()
        assert everything(store) == expected, "the rows themselves are not touched"
        if remedy == "compact":
            store.compact()
        else:
            store.table("t").drop_index("by_k")
            store.table("t").create_index("by_k", ["k"])
        assert store.verify() == [] and in_order(store) == expected
        store.collect_garbage(grace_seconds=0, orphan_seconds=0)
        check_files(store)


@pytest.mark.parametrize("room", [0, 200, 2_000])
def test_a_disk_that_is_full_while_an_index_is_built_shows_nothing_of_it(tmp_path: Path, room: int) -> None:
    disks: dict[str, FaultyDisk] = {}

    def disk_at(root: str) -> FaultyDisk:
        return disks.setdefault(Path(root).name, FaultyDisk(open_disk(root)))

    with Store.open(filled(tmp_path / "store"), disks=disk_at) as store:
        table, expected = store.table("t"), everything(store)
        disks["a"].full_after = disks["a"].written + room
        with pytest.raises(DiskFull):
            table.create_index("by_k", ["k"])
        assert [index.ready for index in table.indexes()] == [False]
        with pytest.raises(Busy):
            table.scan(index="by_k")
        assert table.scan(filter="k = 1").explain()["access"] == "direct"
        assert everything(store) == expected
        check_files(store)  # what was half written is removed
        disks["a"].full_after = None
        table.create_index("by_k", ["k"])
        assert in_order(store) == expected
