"""What may befall the roots of a store and its catalog, and what must come of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import sleep, time
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base import limits
from elasticscan.base.errors import (
    Busy,
    ContinuationKeyError,
    InvalidOption,
    ShardMismatch,
    ShardUnavailable,
    TableChanged,
)
from elasticscan.metadata import ShardDefined
from elasticscan.storage import LocalDisk, read_manifest
from elasticscan.store import Store, publish, repair_store, stage
from elasticscan.store.roots.location import MARKER
from elasticscan.topology import Shard
from tests.base.manual_clock import ManualClock
from tests.catalog.test_sqlite_files import copied as copied_database
from tests.catalog.test_sqlite_files import files_of
from tests.simulation.damage import live_files

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
ROWS = 400


def rows(start: int = 0, count: int = ROWS, value: int = 0) -> pa.Table:
    return pa.table({"id": range(start, start + count), "v": [value] * count})


def made(uri: Path | str, shards: Any = ("a", "b"), **options: Any) -> Store:
    options = {"tablets": 4, "slots": 16} | options
    store = Store.create(uri, list(shards) if isinstance(shards, tuple) else shards, **options)
    store.create_table("t", SCHEMA, ["id"])
    store.table("t").upsert(rows())
    return store


def count(store: Store, snapshot: int | None = None) -> int:
    return int(store.table("t").scan(snapshot=snapshot).to_table().num_rows)


def root(store: Store, name: str) -> Path:
    return Path(store.uri) / "shards" / name


def files(where: Path) -> set[str]:
    return {path.relative_to(where).as_posix() for path in where.rglob("*.arrow*")}


def everything_alive(store: Store) -> set[Path]:
    return {root(store, name) / path for name, path in live_files(store)}


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

    def at(name: str) -> int:
        return int(next(tablet["id"] for tablet in store.status()["tablets"] if tablet["shard"] == name))

    return {
        "write": lambda: store.table("t").upsert(rows(5_000)),
        "delete": lambda: store.table("t").delete(pa.table({"id": range(ROWS)})),
        "overwrite": lambda: store.table("t").overwrite(rows(5_000)),
        "move there": lambda: store.move(at("b"), "a"),
        "move away": lambda: store.move(at("a"), "b"),
        "compact": store.compact,
        "index": lambda: store.table("t").create_index("by_v", ["v"]),
        "contract": lambda: store.contract("a"),
    }


def catalog_changes(store: Store) -> dict[str, Callable[[], Any]]:
    """What changes the catalog alone, and touches no shard."""
    return {
        "create table": lambda: store.create_table("other", SCHEMA, ["id"]),
        "drop table": lambda: store.table("t").drop(),
        "add columns": lambda: store.table("t").add_columns([pa.field("more", pa.int64())]),
        "rename a column": lambda: store.table("t").rename_column("v", "w"),
        "drop columns": lambda: store.table("t").drop_columns(["v"]),
        "retention": lambda: store.table("t").set_retention("1s"),
        "tag": lambda: store.table("t").tag("now"),
        "rotate secret": store.rotate_secret,
        "split": lambda: store.split(1),
        "join": lambda: store.join(1, 2),
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
        "scan by a tag": lambda: store.table("t").scan(snapshot="before"),  # which may name another one since
        "get by a tag": lambda: store.table("t").get([1], snapshot="before"),
        "changes since a tag": lambda: store.table("t").changes("before", 2),
    }


# ---------------------------------------------------------------- roots and catalogs that are in doubt


@contextmanager
def older_catalog(store: Store, work: Callable[[], Any]) -> Iterator[Store]:
    """The store as it is when, after some work, a copy of the catalog from before is put back."""
    directory = Path(store.uri)
    saved, newest = directory / "saved.db", directory / "newest.db"
    copied_database(directory / "catalog.db", saved)
    work()
    copied_database(directory / "catalog.db", newest)
    store.close()
    put_back(saved, directory / "catalog.db")
    with Store.open(directory) as opened:
        yield opened


def put_back(older: Path, database: Path, over: bool = True, keeps_log: bool = False) -> None:
    """Put a copy of a catalog in its place: over the same file, as `cp` does, or as another file."""
    sleep(0.02)  # a reader's last look stands for a moment
    if over:
        shutil.copy(older, database)
    else:
        shutil.copy(older, f"{database}.new")
        Path(f"{database}.new").replace(database)
    for file in () if keeps_log else files_of(database):
        file.unlink(missing_ok=True)


@contextmanager
def unmounted(place: Path) -> Iterator[Store]:
    with made(place / "store") as store:
        with away(root(store, "a")):
            yield store
            with pytest.raises(ShardUnavailable, match="lacks"):
                store.adopt()
            assert [*root(store, "a").iterdir()] == [], "something was written below the mount point"
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
        with pytest.raises(ShardMismatch):
            store.adopt()
        swap(root(store, "a"), root(store, "b"))
        assert markers_of(store) == newest
        assert all(path.exists() for path in alive)
        assert count(store) == ROWS


@contextmanager
def aliased(place: Path) -> Iterator[Store]:
    """A root by a second name that no text tells, as of a bind mount: it shows the files of the first."""
    with made(place / "store", on_disks(place)) as store:
        for name in ("b", "c"):
            shutil.rmtree(place / "disks" / name, ignore_errors=True)
            shutil.copytree(place / "disks" / "a", place / "disks" / name)
        with pytest.raises(InvalidOption, match="a directory of its own"):
            store.expand({"c": str(place / "disks" / "c")})
        yield store


def markers_of(store: Store) -> dict[str, bytes]:
    return {name: (root(store, name) / MARKER).read_bytes() for name in "ab"}


@contextmanager
def marked(place: Path, content: bytes | None) -> Iterator[Store]:
    """A root without a marker, or with one that proves nothing; its files are there."""
    with made(place / "store") as store:
        marker = root(store, "a") / MARKER
        marker.unlink() if content is None else marker.write_bytes(content)
        yield store
        marker.unlink(missing_ok=True)
        store.adopt()
        assert store.table("t").upsert(rows()) >= 3
        assert store.verify() == []


@contextmanager
def half_adopted(place: Path) -> Iterator[Store]:
    """A store whose adoption was cut off: one of its roots is of an incarnation that no catalog knows."""
    with made(place / "store") as store:
        marker = store.context.roots.root(1).marker()
        assert marker is not None
        store.context.roots.root(1).write_marker(replace(marker, incarnation="0" * 32))
        yield store
        store.adopt()
        store.table("t").upsert(rows())
        assert store.verify() == []


@contextmanager
def set_back(place: Path) -> Iterator[Store]:
    """An older catalog is put back below a store that has seen the newest."""
    with made(place / "store") as store:
        store.table("t").tag("before")
        copied_database(place / "store" / "catalog.db", place / "older.db")
        store.table("t").upsert(rows(ROWS))
        pages = iter(store.table("t").scan(page_rows=50))
        key = str(next(pages).key)
        put_back(place / "older.db", place / "store" / "catalog.db", over=False)
        yield store
        for use in (lambda: list(pages), lambda: store.resume(key).to_table()):
            with pytest.raises(ShardMismatch, match="put the newest"):
                use()
        lost = store.adopt().commits
        assert (lost, store.verify(), count(store)) == ((2, 4), [], ROWS)
        assert store.table("t").upsert(rows(ROWS)) > lost[1]


@contextmanager
def older(place: Path) -> Iterator[Store]:
    """A catalog that lacks some of all that there is. Nothing of that is said to be missing.

    Else garbage collection would take what a lost tag keeps, and a revoked secret be good again.
    """
    first = made(place / "store")
    table = first.table("t")
    table.tag("before")

    def work() -> None:
        table.upsert(rows(ROWS))
        table.compact()
        table.tag("later")
        table.create_index("later", ["v"])
        table.set_retention("1d")
        first.create_table("later", SCHEMA, ["id"])
        first.rotate_secret(revoke=True)
        with first.context.catalog.writing() as tx:  # it joins, and no tablet moves to it
            tx.append(ShardDefined(Shard(3, "c", "shards/c")))

    with older_catalog(first, work) as store:
        yield store
        assert store.context.state().commit == 2, "its numbers would hide that it is older"


def on_disks(place: Path) -> dict[str, str]:
    return {name: str(place / "disks" / name) for name in "ab"}


@contextmanager
def adopted_since(place: Path, where: str) -> Iterator[Store]:
    """A catalog of before an adoption, of another incarnation than its shards."""
    first = made(place / "store", on_disks(place) if where == "elsewhere" else ("a", "b"))
    first.table("t").tag("before")
    if where == "of a copy":
        first.close()
        shutil.copytree(place / "store", place / "copy")
        first = Store.open(place / "copy")
    with older_catalog(first, lambda: (first.adopt(), first.table("t").upsert(rows(ROWS)))) as store:
        yield store
        with Store.open(store.uri, read_only=True) as reader, pytest.raises(ShardMismatch):
            count(reader)
    with Store.open(store.uri) as store:
        store.adopt()
        assert store.verify() == []


@contextmanager
def copied(place: Path, alone: bool = False) -> Iterator[Store]:
    """A copy, `alone` or with its shards, which is adopted then; the original goes on if it has its own."""
    made(place / "one", on_disks(place) if alone else ("a", "b")).close()
    shutil.copytree(place / "one", place / "two")
    with Store.open(place / "two") as two, Store.open(place / "two") as long_open:
        yield two
        key = str(next(two.table("t").scan(page_rows=50)).key)
        two.adopt()
        two.table("t").upsert(rows(ROWS, value=1))
        for copy in (two, long_open):
            with pytest.raises(ContinuationKeyError):
                copy.resume(key)
        two.collect_garbage(grace_seconds=0)
        assert (two.verify(), count(two)) == ([], 2 * ROWS)
        original = place / "one"
        with Store.open(original if alone else original.rename(place / "moved")) as one:  # which is no copy
            assert one.resume(key).count() > 0
            if not alone:
                one.table("t").upsert(rows(ROWS))
                assert one.verify() == []


@contextmanager
def taken_over(place: Path) -> Iterator[Store]:
    """An original whose shards a copy took over. Nothing is lost in it, and it is read."""
    with copied(place, alone=True):
        pass
    with Store.open(place / "one") as one:
        yield one
        assert count(one) == ROWS


@contextmanager
def replaced(place: Path) -> Iterator[Store]:
    """A store that was deleted and made again at the same place."""
    made(place / "store").close()
    with Store.open(place / "store") as store:
        key = str(next(store.table("t").scan(page_rows=1)).key)
        shutil.rmtree(place / "store")
        made(place / "store").close()
        store.context.catalog.home.close()  # connections are opened again
        yield store
        with pytest.raises(TableChanged):
            store.resume(key)
    with Store.open(place / "store") as store:
        assert (count(store), store.verify()) == (ROWS, [])


@contextmanager
def named_twice(place: Path, link: Callable[[Path, Path], object]) -> Iterator[Store]:
    with made(place / "one") as one:
        one.table("t").upsert(rows())
    shutil.copytree(place / "one" / "shards", place / "two" / "shards")
    link(place / "one" / "catalog.db", place / "two" / "catalog.db")
    with Store.open(place / "two") as store:
        with pytest.raises(ShardMismatch):
            store.adopt()
        yield store
    (place / "two" / "catalog.db").unlink()
    with Store.open(place / "one") as one:
        assert one.table("t").upsert(rows()) == 4


def backup(store: Store) -> dict[str, Callable[[], Any]]:
    return {"back up": lambda: store.backup(Path(store.uri).with_name("backup"))}


def collection(store: Store) -> dict[str, Callable[[], Any]]:
    return {"gc": lambda: store.collect_garbage(grace_seconds=0, share=1.0, orphan_seconds=0)}


NOT_MARKED = {"none": None, "empty": b"", "zeros": b"\0" * 40, "wrong": b'{"version": 1} 00000000\n'}
EVERYTHING = (collection, catalog_changes, newest_looks)
NO_MARKER = (ShardMismatch, ShardUnavailable)
# How a store comes into doubt, the error of what changes it, and what that is besides `changes`.
DOUBTS: dict[str, tuple[Any, Any, str | None, tuple[Any, ...]]] = {
    **{
        f"marked: {name}": (partial(marked, content=content), NO_MARKER, MARKER, ())
        for name, content in NOT_MARKED.items()
    },
    "half adopted": (half_adopted, ShardMismatch, "is a copy of", (catalog_changes,)),
    "set back": (set_back, ShardMismatch, "put the newest", EVERYTHING),
    "older": (older, ShardMismatch, "put the newest", (backup, *EVERYTHING)),
    **{
        f"adopted {where}": (partial(adopted_since, where=where), ShardMismatch, None, EVERYTHING)
        for where in ("within", "elsewhere", "of a copy")
    },
    "unmounted": (unmounted, ShardUnavailable, "not mounted", (backup,)),
    "swapped": (
        swapped,
        ShardMismatch,
        r"should be shard '[ab]'.* but it is shard '[ab]'",
        (backup, collection),
    ),
    "aliased": (aliased, ShardMismatch, "no two shards", (collection,)),
    "copied": (copied, ShardMismatch, "adopt", (collection, catalog_changes)),
    "copied, small": (copied, ShardMismatch, "adopt", (collection, catalog_changes)),
    "copied alone": (partial(copied, alone=True), ShardMismatch, "adopt", (collection, catalog_changes)),
    "taken over": (taken_over, ShardMismatch, "is a copy of", (collection, catalog_changes)),
    "linked": (partial(named_twice, link=os.link), ShardMismatch, "real copy", (collection,)),
    "symbolic": (partial(named_twice, link=os.symlink), ShardMismatch, "real copy", (collection,)),
    "replaced": (replaced, TableChanged, "open it again", EVERYTHING),
}


ONE_DISK = {"unmounted": "store/shards/a", "marked": "store/shards/a", "aliased": "disks/b"}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_nothing_is_changed_where_a_root_or_a_catalog_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doubt: str
) -> None:
    put, error, message, also = DOUBTS[doubt]
    if doubt.endswith("small"):  # rows lie in the log
        monkeypatch.setattr(limits, "INLINE_BYTES", 1 << 16)
    # What is done at the other shard alone, or before, is done where only one disk is in doubt.
    looked_at = tmp_path / ONE_DISK.get(doubt.partition(":")[0], "")
    with put(tmp_path) as store:
        before = files(looked_at)
        calls = changes(store)
        for more in also:
            calls |= more(store)
        for name, call in [*calls.items()] * (1 + doubt.endswith("small")):
            with pytest.raises(error, match=message):
                call()
            assert files(looked_at) == before, name
        if doubt not in ("unmounted", "swapped", "aliased", "replaced", "set back"):
            assert count(store, snapshot=2) == ROWS


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


def test_what_an_older_catalog_does_not_know_stays_and_comes_back_with_the_newest(tmp_path: Path) -> None:
    first = made(tmp_path / "store")
    with older_catalog(first, lambda: first.table("t").upsert(rows(ROWS))) as store:
        assert "ES_SHARD_MISMATCH" in store.status()["outdated"]
        assert store.table("t").changes(1, upto=2).to_table().num_rows == ROWS
        assert store.adopt().commits == (2, 3)
        found = store.collect_garbage(grace_seconds=0)
        assert found.decisions and not found.removed
        assert (count(store), store.verify()) == (ROWS, [])
    put_back(tmp_path / "store" / "newest.db", tmp_path / "store" / "catalog.db")
    with Store.open(tmp_path / "store") as store:
        store.adopt()
        assert not store.collect_garbage(grace_seconds=0, orphan_seconds=0).removed
        assert (count(store), store.verify()) == (2 * ROWS, [])
        assert store.table("t").upsert(rows(9_000)) > 4, "the number of a lost commit is not used again"


def test_changes_of_the_catalog_alone_leave_marks_as_well(tmp_path: Path) -> None:
    first = made(tmp_path / "store")
    works = catalog_changes(first)
    for last in ("join", "retention", "drop table", "drop columns"):
        works.pop(last)
    for work in works.values():
        work()
        for shard in (1, 2):
            mark = first.context.roots.root(shard).marker()
            assert mark is not None
            assert (mark.layout, mark.commit) == first.context.catalog.newest().state.versions
    late = older_catalog(first, lambda: first.create_table("late", SCHEMA, ["id"]))
    with late as store, pytest.raises(ShardMismatch):
        store.table("t").delete([1])


class Watched(LocalDisk):
    """A disk that tells when a file is about to leave its place."""

    def __init__(self, where: str, leaving: Callable[[str], None]) -> None:
        super().__init__(Path(where))
        self.leaving = leaving

    def delete(self, path: str) -> None:
        self.leaving(path)
        super().delete(path)


def test_a_file_that_is_about_to_be_deleted_cannot_be_committed(tmp_path: Path) -> None:
    """And the writer does not wait for the lock: none is held while files leave."""
    tried: list[str] = []

    def commit(path: str) -> None:
        if not tried:
            tried.append(path)
            with Store.open(tmp_path / "store") as other, pytest.raises(Busy, match="try again"):
                publish(other.context, other.table("t").definition, prepared)

    with made(tmp_path / "store", disks=lambda where: Watched(where, commit)) as store:
        prepared = staged(store)
        assert store.collect_garbage(grace_seconds=0, orphan_seconds=0).removed == len(prepared)
        assert tried
        assert count(store) == ROWS
        assert store.table("t").upsert(rows(ROWS)) > 3


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
    old, gone = tmp_path / "old", list[str]()
    disk = LocalDisk(old / "shards" / "a")

    def leaving(path: str) -> None:
        if len(gone) == 7:
            raise KeyboardInterrupt
        left = [source for source in read_manifest(disk, path).replaces if (disk.root / source).exists()]
        assert not left, f"{path} goes before {left}, which it replaced"
        gone.append(path)

    disks = {"disks": lambda where: Watched(where, leaving)}
    with made(old, ("a",), clock=ManualClock(1e9), upkeep="off", **disks) as store:
        table = store.table("t")
        table.set_retention("0s")
        for generation in range(6):
            table.delete(list(range(10 * generation, 10 * generation + 10)))
            table.compact()
        with pytest.raises(KeyboardInterrupt):
            store.collect_garbage(grace_seconds=0)
    shutil.copytree(old / "shards", tmp_path / "left" / "shards")
    repair_store(tmp_path / "left", tmp_path / "new")
    with Store.open(tmp_path / "new") as store:
        assert count(store) == ROWS - 60


def renamed(store: Store) -> set[Path]:
    original = sorted(everything_alive(store))[0]
    return {original.rename(original.with_name("f" * 32 + ".arrow"))}


def another_s(store: Store) -> set[Path]:
    """As after a restore to the wrong place: files of another store, and of another shard."""
    with made(Path(store.uri).with_name("two")) as two:
        for other in (root(two, "a"), root(store, "b")):
            shutil.copytree(other / "t1", root(store, "a") / "t1", dirs_exist_ok=True)
    return set((root(store, "a") / "t1").iterdir())


def torn(store: Store) -> set[Path]:
    for number in range(30):
        (root(store, "a") / "t1" / f"{number:032x}.arrow").write_bytes(b"torn")
    return everything_alive(store)


def newer(store: Store) -> set[Path]:
    """What a newer catalog knows, which was lost; no marker tells it."""
    directory, markers = Path(store.uri), markers_of(store)
    copied_database(directory / "catalog.db", directory / "saved.db")
    for start in (1, 2, 3):
        store.table("t").upsert(rows(start * ROWS))
    kept = everything_alive(store)
    for name, content in markers.items():
        (root(store, name) / MARKER).write_bytes(content)
    store.close()
    put_back(directory / "saved.db", directory / "catalog.db")
    return kept


ALL_AT_ONCE: dict[str, Any] = {"grace_seconds": 0, "share": 1.0, "orphan_seconds": 0}
# What lies at a root, of which some files must stay; how it is collected, and how much of it goes, or why
# that is refused.
LITTER: dict[str, tuple[Callable[[Store], set[Path]], dict[str, Any], int | str]] = {
    "a file that someone renamed": (renamed, ALL_AT_ONCE, 0),
    "another's files": (another_s, ALL_AT_ONCE, 0),
    "files of a newer catalog": (newer, ALL_AT_ONCE, "knows commit"),
    "too much at once": (torn, {"grace_seconds": 0, "orphan_seconds": 0}, "not know 30 files"),
    "too much, and asked for": (torn, ALL_AT_ONCE, 30),
    "orphans of now": (torn, {"grace_seconds": 0, "share": 1.0}, 0),
    "what is young, by the disk's clock alone": (lambda store: everything_alive(store) | torn(store), {}, 0),
}


def contents(place: Path) -> dict[str, tuple[int, bytes]]:
    found = (path for path in place.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


@pytest.mark.parametrize("litter", LITTER)
def test_only_what_this_store_left_behind_is_garbage(tmp_path: Path, litter: str) -> None:
    """And a dry run writes nothing at all, neither at a root nor in the catalog."""
    put, how, gone = LITTER[litter]
    with made(tmp_path / "store") as store:
        kept = put(store)
    before = contents(tmp_path / "store")
    clock = ManualClock(time() + 30 * 86_400) if "clock" in litter else None  # it is ahead
    with Store.open(tmp_path / "store", clock) as store:
        planned = store.collect_garbage(**how, dry_run=True)
    assert contents(tmp_path / "store") == before
    with Store.open(tmp_path / "store", clock) as store:
        if isinstance(gone, str):
            assert "ES_SHARD_MISMATCH" in str(planned.refused)
            with pytest.raises(ShardMismatch, match=gone):
                store.collect_garbage(**how)
            kept |= set((root(store, "a") / "t1").iterdir())
        else:
            assert planned.removed == gone
            assert store.collect_garbage(**how).removed == gone
    assert [path for path in kept if not path.exists()] == []
