"""What may befall the roots of a store and its catalog, and what must come of it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    CatalogOutdated,
    CatalogUnavailable,
    ContinuationKeyError,
    InvalidOption,
    ShardUnavailable,
    WriteConflict,
    WrongRoot,
)
from elasticscan.catalog import Catalog
from elasticscan.storage import LocalDisk, read_manifest
from elasticscan.store import Action, Store, publish, repair_store, stage
from elasticscan.store.roots.location import MARKER
from elasticscan.store.roots.markers import read_marker
from tests.base.manual_clock import ManualClock

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
ROWS = 400


def rows(start: int = 0, count: int = ROWS, value: int = 0) -> pa.Table:
    return pa.table({"id": range(start, start + count), "v": [value] * count})


def made(uri: Path | str, shards: Any = ("a", "b"), **options: Any) -> Store:
    store = Store.create(
        uri, list(shards) if isinstance(shards, tuple) else shards, tablets=4, slots=16, **options
    )
    store.create_table("t", SCHEMA, ["id"])
    store.table("t").upsert(rows())
    return store


def count(store: Store, snapshot: int | None = None) -> int:
    return int(store.table("t").scan(snapshot=snapshot).to_table().num_rows)


def root(store: Store, name: str) -> Path:
    return Path(store.uri) / "shards" / name


def files(where: Path) -> set[str]:
    return {
        path.relative_to(where).as_posix() for path in where.rglob("*.arrow*") if "trash" not in path.parts
    }


def everything_alive(store: Store) -> set[Path]:
    with store.context.catalog.reading() as tx:
        known = tx.state.fragments()
        runs = [(f.shard, run.path) for f in known for run in tx.state.runs(f.table) if run.fragment == f.id]
    names = store.context.shard_names()
    return {root(store, names[shard]) / path for shard, path in [*((f.shard, f.path) for f in known), *runs]}


def staged(store: Store, start: int = 10_000) -> Any:
    return stage(store.context, store.table("t").definition, rows(start).to_batches())


@contextmanager
def away(where: Path, instead: Path | None = None) -> Iterator[None]:
    """A disk that is not mounted: an empty directory is in its place, or another disk."""
    hidden = where.with_name(where.name + ".away")
    where.rename(hidden)
    shutil.copytree(instead, where) if instead else where.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(where)
        hidden.rename(where)


def swap(one: Path, two: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    two.rename(one)
    between.rename(two)


def changes(store: Store) -> dict[str, Callable[[], Any]]:
    """Everything that writes or deletes at shards `a` and `b`."""
    (at_a, *_), (at_b, *_) = (
        [tablet["id"] for tablet in store.status()["tablets"] if tablet["shard"] == name] for name in "ab"
    )
    return {
        "write": lambda: store.table("t").upsert(rows(5_000)),
        "delete": lambda: store.table("t").delete(pa.table({"id": range(ROWS)})),
        "overwrite": lambda: store.table("t").overwrite(rows(5_000)),
        "move there": lambda: store.move(at_b, "a"),
        "move away": lambda: store.move(at_a, "b"),
        "compact": store.compact,
        "index": lambda: store.table("t").create_index("by_v", ["v"]),
        "contract": lambda: store.contract("a"),
    }


def catalog_changes(store: Store) -> dict[str, Callable[[], Any]]:
    """What changes the catalog alone, and touches no shard."""
    tablet = store.status()["tablets"][0]["id"]
    return {
        "create table": lambda: store.create_table("other", SCHEMA, ["id"]),
        "drop table": lambda: store.table("t").drop(),
        "add columns": lambda: store.table("t").add_columns([pa.field("more", pa.int64())]),
        "rename a column": lambda: (
            store.table("t").rename_column("more", "most"),
            store.table("t").rename_column("most", "more"),
        ),
        "drop columns": lambda: (
            store.table("t").add_columns([pa.field("gone", pa.int64())]),
            store.table("t").drop_columns(["gone"]),
        ),
        "retention": lambda: store.table("t").set_retention("1s"),
        "split": lambda: store.split(tablet),
        "join": lambda: store.join(tablet, tablet + 1),
    }


def newest_looks(store: Store) -> dict[str, Callable[[], Any]]:
    """What takes the newest commit, or the newest until a time, for the answer."""
    return {
        "scan": lambda: store.table("t").scan(),
        "scan at a time": lambda: store.table("t").scan(snapshot=datetime.now(UTC)),
        "get at a time": lambda: store.table("t").get([1], snapshot=datetime.now(UTC)),
        "tag": lambda: store.table("t").tag("now", datetime.now(UTC)),
        "changes": lambda: store.table("t").changes(1),
        "changes until a time": lambda: store.table("t").changes(1, datetime.now(UTC)),
        "commits": lambda: store.table("t").history(),
    }


# ---------------------------------------------------------------- roots and catalogs that are in doubt


@contextmanager
def older_catalog(store: Store, work: Callable[[], Any]) -> Iterator[Store]:
    """The store as it is when, after some work, a copy of the catalog from before is put back."""
    directory = Path(store.uri)
    saved, newest = directory / "saved.db", directory / "newest.db"
    _copy_catalog(directory / "catalog.db", saved)
    work()
    _copy_catalog(directory / "catalog.db", newest)
    store.close()
    _put_catalog(directory, saved)
    with Store.open(directory) as opened:
        yield opened


def _copy_catalog(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as two:
        one.backup(two)


def _put_catalog(directory: Path, source: Path) -> None:
    """Into the same file, as `cp` does it."""
    for rest in ("-wal", "-shm"):
        (directory / f"catalog.db{rest}").unlink(missing_ok=True)
    with (directory / "catalog.db").open("r+b") as file:
        file.write(source.read_bytes())
        file.truncate()


@contextmanager
def unmounted(place: Path) -> Iterator[Store]:
    with made(place / "store") as store:
        with away(root(store, "a")):
            yield store
            assert files(root(store, "a")) == set(), "something was written below the mount point"
        assert count(store) == ROWS
        assert store.verify() == []


@contextmanager
def swapped(place: Path) -> Iterator[Store]:
    with made(place / "store") as store:
        alive, newest = everything_alive(store), markers_of(store)
        swap(root(store, "a"), root(store, "b"))
        assert len(store.verify()) >= 2
        store.table("t").tag("kept")  # which is of the catalog alone, and noted at the roots
        yield store
        swap(root(store, "a"), root(store, "b"))
        assert markers_of(store) == newest
        assert all(path.exists() for path in alive)
        assert count(store) == ROWS


def markers_of(store: Store) -> dict[str, bytes]:
    return {name: (root(store, name) / MARKER).read_bytes() for name in "ab"}


@contextmanager
def older(place: Path) -> Iterator[Store]:
    first = made(place / "store")
    with older_catalog(first, lambda: [first.table("t").upsert(rows(ROWS)), first.compact()]) as store:
        yield store
        assert store.context.catalog.versions()[1] == 2, "its numbers would hide that it is older"


def copied(place: Path) -> AbstractContextManager[Store]:
    made(place / "one").close()
    shutil.copytree(place / "one", place / "two")
    return Store.open(place / "two")


def copied_alone(place: Path) -> AbstractContextManager[Store]:
    made(place / "one", {name: str(place / "disks" / name) for name in "ab"}).close()
    shutil.copytree(place / "one", place / "two")
    return Store.open(place / "two")


@contextmanager
def named_twice(place: Path, link: Callable[[Path, Path], object]) -> Iterator[Store]:
    with made(place / "one") as one:
        one.table("t").upsert(rows())
    shutil.copytree(place / "one" / "shards", place / "two" / "shards")
    link(place / "one" / "catalog.db", place / "two" / "catalog.db")
    with Store.open(place / "two") as store:
        with pytest.raises(WrongRoot):
            store.adopt()
        yield store
    (place / "two" / "catalog.db").unlink()
    with Store.open(place / "one") as one:
        assert one.table("t").upsert(rows()) == 4


def collection(store: Store) -> dict[str, Callable[[], Any]]:
    return {"gc": lambda: store.collect_garbage(grace_seconds=0, share=1.0, trash_seconds=0)}


# How a store comes into doubt, the error of what changes it, and what that is besides `changes`.
DOUBTS: dict[str, tuple[Any, type[Exception], str, tuple[Any, ...]]] = {
    "unmounted": (unmounted, ShardUnavailable, "not mounted", ()),
    "swapped": (swapped, WrongRoot, r"should be shard '[ab]'.* but it is shard '[ab]'", (collection,)),
    "older": (older, CatalogOutdated, "adopt", (collection, catalog_changes, newest_looks)),
    "copied": (copied, WrongRoot, "adopt", (collection, catalog_changes)),
    "copied alone": (copied_alone, WrongRoot, "adopt", (collection, catalog_changes)),
    "linked": (partial(named_twice, link=os.link), WrongRoot, "real copy", (collection,)),
    "symbolic": (
        partial(named_twice, link=lambda of, at: at.symlink_to(of)),
        WrongRoot,
        "real copy",
        (collection,),
    ),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_nothing_is_changed_where_a_root_or_a_catalog_is_in_doubt(tmp_path: Path, doubt: str) -> None:
    put, error, message, also = DOUBTS[doubt]
    with put(tmp_path) as store:
        before = files(tmp_path)
        calls = changes(store)
        for more in also:
            calls |= more(store)
        for name, call in calls.items():
            with pytest.raises(error, match=message):
                call()
            assert doubt == "unmounted" or files(tmp_path) == before, name
        if doubt not in ("unmounted", "swapped"):
            assert count(store, snapshot=2) == ROWS


def test_what_touches_mounted_shards_alone_goes_on_while_another_is_unmounted(tmp_path: Path) -> None:
    with made(tmp_path / "store") as store:
        table, written = store.table("t"), set[int]()
        with away(root(store, "b")):
            for key in range(1_000, 1_016):
                with suppress(ShardUnavailable):
                    table.upsert(rows(key, 1))
                    written.add(key)
            with pytest.raises(ShardUnavailable, match="not mounted"):
                table.upsert(rows(1_000, 16))
            table.tag("kept")
            table.set_retention("2d")
            store.create_table("other", SCHEMA, ["id"]).drop()
            assert files(root(store, "b")) == set()
        assert 0 < len(written) < 16, "keys lie at both"
        found = set(table.scan(filter="id >= 1000").to_table()["id"].to_pylist())
        assert found == written and count(store) == ROWS + len(written)
        assert store.verify() == []


def test_a_disk_that_is_unmounted_before_the_commit_is_noticed(tmp_path: Path) -> None:
    with made(tmp_path / "store") as store:
        prepared = staged(store)
        with away(root(store, "a"), instead=root(store, "b")):
            (root(store, "a") / MARKER).unlink()
            # Even if the files themselves were there:
            shutil.copytree(tmp_path / "store/shards/a.away/t1", root(store, "a") / "t1", dirs_exist_ok=True)
            with pytest.raises(ShardUnavailable, match="not mounted"):
                publish(store.context, store.table("t").definition, prepared)
        publish(store.context, store.table("t").definition, staged(store))
        assert count(store) == 2 * ROWS


def test_a_root_by_a_second_name_that_no_text_tells_is_found_by_its_marker(tmp_path: Path) -> None:
    """As of a bind mount: the second directory shows the files of the first."""
    disk, other = tmp_path / "disk", tmp_path / "other"
    with made(tmp_path / "store", {"a": str(disk), "b": str(tmp_path / "b")}) as store:
        shutil.copytree(disk, other)
        with pytest.raises(InvalidOption, match="by another name"):
            store.expand({"c": str(other)})
        shutil.rmtree(tmp_path / "b")
        shutil.copytree(disk, tmp_path / "b")
        with pytest.raises(WrongRoot):
            store.table("t").upsert(rows(5_000))
        with pytest.raises(WrongRoot):
            store.collect_garbage(grace_seconds=0)


def test_an_older_catalog_is_adopted(tmp_path: Path) -> None:
    first = made(tmp_path / "store")
    key = next(iter(first.table("t").scan(page_rows=50))).key
    assert key is not None
    with older_catalog(first, lambda: first.table("t").upsert(rows(ROWS))) as store:
        assert "ES_CATALOG_OUTDATED" in store.status()["outdated"]
        assert store.table("t").changes(1, upto=2).to_table().num_rows == ROWS
        assert store.adopt().commits == (2, 3)
        assert store.table("t").upsert(rows(9_000)) > 4, "the number of a lost commit is not used again"
        with pytest.raises(ContinuationKeyError):
            store.resume(key)
        found = store.collect_garbage(grace_seconds=0)
        assert found.count(Action.TRASH) > 0, "what the lost commit wrote"
        assert found.count(Action.DELETE) == 0
        assert count(store) == 2 * ROWS
        assert store.verify() == []


@pytest.mark.parametrize("doubt", ["copied", "copied alone"])
def test_a_copy_is_adopted(tmp_path: Path, doubt: str) -> None:
    put = DOUBTS[doubt][0]
    with put(tmp_path) as two, Store.open(tmp_path / "one") as one, Store.open(tmp_path / "two") as long_open:
        key = next(iter(one.table("t").scan(page_rows=50))).key
        assert key is not None
        assert sum(page.rows.num_rows for page in two.resume(key)) > 0, "equal until then"
        two.adopt()
        two.table("t").upsert(rows(ROWS, value=1))
        for copy in (two, long_open):
            with pytest.raises(ContinuationKeyError):
                copy.resume(key)
        mine = next(iter(two.table("t").scan(page_rows=50))).key
        assert mine is not None
        with pytest.raises(ContinuationKeyError):
            one.resume(mine)
        two.collect_garbage(grace_seconds=0)
        assert two.verify() == []
        assert count(two) == 2 * ROWS
        assert count(one) == ROWS
        if doubt == "copied":
            one.table("t").upsert(rows(ROWS))
            assert one.verify() == []
        else:
            with pytest.raises(WrongRoot, match="another copy"):
                one.table("t").upsert(rows(5_000))


def test_changes_of_the_catalog_alone_leave_marks_as_well(tmp_path: Path) -> None:
    first = made(tmp_path / "store")
    tablets = first.status()["tablets"]
    works: list[Callable[[], Any]] = [
        *(
            work
            for name, work in catalog_changes(first).items()
            if name not in ("join", "retention", "drop table")
        ),
    ]
    assert len(tablets) == 4
    for work in works:
        work()
        for shard in (1, 2):
            mark = read_marker(first.context.disk_of(shard), "")
            assert mark is not None
            assert (mark.layout, mark.commit) == first.context.catalog.versions()
    late = older_catalog(first, lambda: first.create_table("late", SCHEMA, ["id"]))
    with late as store, pytest.raises(CatalogOutdated):
        store.table("t").upsert(rows(ROWS).append_column("more", pa.nulls(ROWS, pa.int64())))


def test_a_file_that_is_newer_than_the_catalog_stops_the_collection(tmp_path: Path) -> None:
    """Also where no marker tells it."""
    first = made(tmp_path / "store")

    def work() -> None:
        markers = {name: (root(first, name) / MARKER).read_bytes() for name in "ab"}
        for start in (1, 2, 3):
            first.table("t").upsert(rows(start * ROWS))
        for name in "ab":
            (root(first, name) / MARKER).write_bytes(markers[name])

    with older_catalog(first, work) as store:
        before = files(tmp_path)
        with pytest.raises(CatalogOutdated, match="knows commit"):
            store.collect_garbage(grace_seconds=0, share=1.0)
        assert "ES_CATALOG_OUTDATED" in str(store.collect_garbage(grace_seconds=0, dry_run=True).refused)
        assert files(tmp_path) == before


def test_what_the_newest_catalog_refers_to_comes_back_from_the_trash(tmp_path: Path) -> None:
    first = made(tmp_path / "store")
    with older_catalog(first, lambda: first.table("t").upsert(rows(ROWS))) as store:
        store.adopt()
        assert store.collect_garbage(grace_seconds=0).count(Action.TRASH) > 0
        store.close()
        _put_catalog(tmp_path / "store", tmp_path / "store" / "newest.db")
    with Store.open(tmp_path / "store") as store:
        store.adopt()
        assert store.collect_garbage(grace_seconds=0, trash_seconds=0).count(Action.RESTORE) > 0
        assert count(store) == 2 * ROWS
        assert store.verify() == []


def test_a_store_that_is_moved_stays_what_it_is(tmp_path: Path) -> None:
    with made(tmp_path / "one") as one:
        key = next(iter(one.table("t").scan(page_rows=50))).key
        before = one.context.incarnation()
    (tmp_path / "one").rename(tmp_path / "elsewhere")
    with Store.open(tmp_path / "elsewhere") as store:
        store.table("t").upsert(rows(ROWS))
        assert store.context.incarnation() == before
        assert key is not None
        assert sum(page.rows.num_rows for page in store.resume(key)) > 0


# ------------------------------------------------------------------------------------ garbage collection


def test_a_file_that_somebody_renamed_is_not_garbage(tmp_path: Path) -> None:
    with made(tmp_path) as store:
        original = sorted(everything_alive(store))[0]
        renamed = original.with_name("f" * 32 + ".arrow")
        original.rename(renamed)
        found = store.collect_garbage(grace_seconds=0, share=1.0, trash_seconds=0)
        assert renamed.exists(), found.decisions


def test_a_file_that_another_store_wrote_is_not_garbage(tmp_path: Path) -> None:
    with made(tmp_path / "one") as one, made(tmp_path / "two") as two:
        mine = files(root(one, "a"))
        for other in (root(two, "a"), root(one, "b")):  # as after a restore to the wrong tmp_path
            shutil.copytree(other / "t1", root(one, "a") / "t1", dirs_exist_ok=True)
        before = files(root(one, "a"))
        found = one.collect_garbage(grace_seconds=0, share=1.0)
        assert files(root(one, "a")) == before
        kept = {decision.path: decision.reason for decision in found.decisions}
        assert kept.keys() == before - mine
        assert all("not this shard's to remove" in reason for reason in kept.values())


def test_what_was_never_committed_stays_in_the_trash_for_a_while(tmp_path: Path) -> None:
    with made(tmp_path / "store") as store:
        prepared = staged(store)
        assert store.collect_garbage().removed == 0, "younger than the grace period"
        found = store.collect_garbage(grace_seconds=0)
        assert found.count(Action.TRASH) == found.removed == len(prepared)
        trashed = list((tmp_path / "store").glob("shards/*/trash/*/t1/*.arrow"))
        assert {path.name for path in trashed} == {Path(f.path).name for f in prepared}
        with pytest.raises(WriteConflict):
            publish(store.context, store.table("t").definition, prepared)
        assert store.collect_garbage(grace_seconds=0).count(Action.EMPTY) == 0
        for path in trashed:  # as if it had been trashed long ago
            stamp = path.parents[1]
            old = stamp.with_name(str(int(stamp.name) - 8 * 86_400))
            if stamp.exists():
                stamp.rename(old)
        assert store.collect_garbage(grace_seconds=0).count(Action.EMPTY) == len(prepared)
        assert list((tmp_path / "store").glob("shards/*/trash/*/t1/*.arrow")) == []
        assert count(store) == ROWS


class Watched(LocalDisk):
    """A disk that tells when a file is about to leave its place."""

    def __init__(self, where: str, leaving: Callable[[str], None]) -> None:
        super().__init__(Path(where))
        self.leaving = leaving

    def delete(self, path: str) -> None:
        self.leaving(path)
        super().delete(path)

    def rename(self, path: str, to: str) -> None:
        self.leaving(path)
        super().rename(path, to)


def test_a_file_that_is_about_to_be_moved_cannot_be_committed(tmp_path: Path) -> None:
    tried: list[str] = []

    def commit(path: str) -> None:
        if not tried:
            tried.append(path)
            with Store.open(tmp_path / "store") as other, pytest.raises(WriteConflict, match="try again"):
                publish(other.context, other.table("t").definition, prepared)

    with made(tmp_path / "store", disks=lambda where: Watched(where, commit)) as store:
        prepared = staged(store)
        assert store.collect_garbage(grace_seconds=0).count(Action.TRASH) == len(prepared)
        assert tried
        assert count(store) == ROWS
        assert store.table("t").upsert(rows(ROWS)) > 3


def test_files_leave_while_nobody_holds_the_write_lock(tmp_path: Path) -> None:
    left: list[str] = []

    def leaving(path: str) -> None:
        left.append(path)
        if len(left) % 100 == 1:
            where = tmp_path / "store" / "catalog.db"
            with closing(Catalog(where, ManualClock(), "")) as other:
                other._home._wait = 0.2  # type: ignore[attr-defined]
                with other.writing() as tx:
                    tx.observe_time()

    with made(tmp_path / "store", disks=lambda where: Watched(where, leaving)) as store:
        (one, *_) = sorted((root(store, "a") / "t1").glob("*.arrow"))
        for number in range(1_200):
            (root(store, "a") / "t1" / f"{number:032x}.arrow").write_bytes(b"torn")
            os.link(one, root(store, "b") / "t1" / f"{number:032x}.arrow")
        store.table("t").overwrite(rows())
        store.table("t").drop()
        try:
            found = store.collect_garbage(grace_seconds=0, share=1.0)
        except CatalogUnavailable as error:
            raise AssertionError("the lock was held while files were removed") from error
        assert found.count(Action.TRASH) == 2_400
        assert found.count(Action.DELETE) >= 2
        assert len(left) == found.removed


def test_too_much_at_once_is_refused_unless_it_is_asked_for(tmp_path: Path) -> None:
    with made(tmp_path / "store") as store:
        for number in range(30):
            (root(store, "a") / "t1" / f"{number:032x}.arrow").write_bytes(b"torn")
        before = files(tmp_path)
        with pytest.raises(CatalogOutdated, match="30 of the 31 files"):
            store.collect_garbage(grace_seconds=0)
        assert files(tmp_path) == before
        assert store.collect_garbage(grace_seconds=0, share=1.0).count(Action.TRASH) == 30


def test_a_clock_that_is_ahead_makes_no_staged_file_old(tmp_path: Path) -> None:
    with made(tmp_path / "store") as store:
        prepared = staged(store)
        ahead = ManualClock(store.context.clock.now() + 30 * 86_400)
        with Store.open(tmp_path / "store", clock=ahead) as other:
            assert other.collect_garbage().removed == 0
        publish(store.context, store.table("t").definition, prepared)
        assert count(store) == 2 * ROWS


# ----------------------------------------------------------------------------- clocks that are wrong


def test_a_writer_behind_and_a_compactor_ahead_take_no_snapshot_away(tmp_path: Path) -> None:
    clock, month = ManualClock(1e9), 30 * 86_400
    with made(tmp_path / "store", clock=clock) as store:
        clock.advance(86_400)
        at = store.status()["snapshot"]
        with Store.open(tmp_path / "store", clock=ManualClock(clock.now() - month)) as behind:
            behind.table("t").delete(pa.table({"id": [1]}))
        with Store.open(tmp_path / "store", clock=ManualClock(clock.now() + month)) as ahead:
            ahead.compact()
        store.table("t").upsert(rows(1, 1))
        store.compact()
        assert count(store, snapshot=at) == ROWS


def test_a_collection_that_dies_leaves_no_deleted_rows_to_a_repair(tmp_path: Path) -> None:
    """A file that a merge replaced would count again where only a merge of that merge is left."""
    old, delete_file, gone = tmp_path / "old", LocalDisk.delete, list[str]()

    def delete_some(disk: LocalDisk, path: str) -> None:
        if len(gone) == 7:
            raise KeyboardInterrupt
        left = [source for source in read_manifest(disk, path).replaces if (disk.root / source).exists()]
        assert not left, f"{path} goes before {left}, which it replaced"
        gone.append(path)
        delete_file(disk, path)

    with made(old, ("a",), clock=ManualClock(1e9), upkeep="off") as store:
        table = store.table("t")
        table.set_retention("0s")
        for generation in range(6):
            table.delete(list(range(10 * generation, 10 * generation + 10)))
            table.compact()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalDisk, "delete", delete_some)
            with pytest.raises(KeyboardInterrupt):
                store.collect_garbage(grace_seconds=0)
    shutil.copytree(old / "shards", tmp_path / "left" / "shards")
    repair_store(tmp_path / "left", tmp_path / "new")
    with Store.open(tmp_path / "new") as store:
        assert count(store) == ROWS - 60


def test_what_another_store_keeps_in_a_trash_stays_there(tmp_path: Path) -> None:
    with (
        made(tmp_path / "one") as one,
        made(tmp_path / "other", {"x": str(tmp_path / "x")}) as other,
    ):
        (root(one, "a") / "trash").mkdir(exist_ok=True)
        (tmp_path / "x").rename(root(one, "a") / "trash" / "5")
        (tmp_path / "x").symlink_to(root(one, "a") / "trash" / "5")
        one.collect_garbage(grace_seconds=0, trash_seconds=0)
        assert other.verify() == []
        assert count(other) == ROWS
