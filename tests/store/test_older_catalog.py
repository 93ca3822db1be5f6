"""The catalog's file is replaced, or set back, under the hands of stores that have it open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from time import sleep

import apsw
import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    CatalogOutdated,
    CatalogUnavailable,
    StoreDamaged,
    WrongRoot,
)
from elasticscan.catalog import Identity
from elasticscan.catalog.log import Log
from elasticscan.metadata import ShardDefined
from elasticscan.storage import LocalDisk
from elasticscan.store import Store
from elasticscan.store.roots.markers import read_marker
from elasticscan.topology import Shard
from tests.catalog.test_sqlite_files import copied, files_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
KEYS = range(40)
NEWEST = 7


def rows(value: int) -> pa.Table:
    return pa.table({"id": pa.array(KEYS), "v": pa.array([value] * len(KEYS))}, SCHEMA)


def through_sqlite(older: Path, database: Path) -> None:
    copied(older, database)


def as_another_file(older: Path, database: Path) -> None:
    shutil.copy(older, f"{database}.new")
    sleep(0.02)  # a reader's last look stands for a moment
    os.replace(f"{database}.new", database)
    for file in files_of(database):
        file.unlink(missing_ok=True)


def beside_the_newer_log(older: Path, database: Path) -> None:
    shutil.copy(older, f"{database}.new")
    sleep(0.02)  # a reader's last look stands for a moment
    os.replace(f"{database}.new", database)


def over_the_bytes(older: Path, database: Path) -> None:
    sleep(0.02)
    shutil.copy(older, database)
    for file in files_of(database):
        file.unlink(missing_ok=True)


def over_the_bytes_beside_the_newer_log(older: Path, database: Path) -> None:
    shutil.copy(older, database)


WAYS = (
    through_sqlite,
    as_another_file,
    beside_the_newer_log,
    over_the_bytes,
    over_the_bytes_beside_the_newer_log,
)


class Case:
    """A store whose catalog was saved before its newest commit, with handles that have seen that one."""

    def __init__(self, place: Path, checkpoint: bool = False) -> None:
        place.mkdir(exist_ok=True)
        self.place = place / "store"
        self.database = self.place / "catalog.db"
        self.older = place / "older.db"
        self.first = Store.create(self.place, ["a", "b"], tablets=4, slots=16)
        self.first.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        copied(self.database, self.older)
        self.second = Store.open(self.place)
        for store in (self.first, self.second):
            store.table("t").upsert(rows(NEWEST))
        if checkpoint:  # all of the log is in the file, where it is about to be overwritten
            with closing(apsw.Connection(str(self.database))) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for store in (self.first, self.second):
            assert values(store) == {NEWEST}

    def close(self) -> None:
        self.first.close()
        self.second.close()


USES: tuple[Callable[[Store], object], ...] = (
    lambda store: store.table("t").history(),
    lambda store: store.create_table("u", SCHEMA, ["id"]),
    lambda store: store.expand(["c"]),
    lambda store: store.collect_garbage(grace_seconds=0),
)


def values(store: Store) -> set[int]:
    return set(store.table("t").scan().to_table()["v"].to_pylist())


def get(store: Store) -> set[int]:
    return set(store.table("t").get(list(KEYS))["v"].to_pylist())


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("read", [values, get])
def test_an_older_catalog_is_never_read_by_a_store_that_has_seen_a_newer_one(
    tmp_path: Path, way: Callable[[Path, Path], None], read: Callable[[Store], set[int]], checkpoint: bool
) -> None:
    case = Case(tmp_path, checkpoint)
    way(case.older, case.database)
    for store in (case.first, case.second, case.first):
        with suppress(CatalogOutdated, StoreDamaged):
            assert read(store) == {NEWEST}
    case.close()


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_no_commit_is_lost_in_a_file_that_nobody_else_opens(
    tmp_path: Path, way: Callable[[Path, Path], None], checkpoint: bool
) -> None:
    case = Case(tmp_path, checkpoint)
    way(case.older, case.database)
    for number, store in enumerate((case.first, case.second)):
        try:
            store.table("t").upsert(rows(100 + number))
        except (CatalogOutdated, StoreDamaged):
            continue
        with Store.open(case.place) as other:
            assert values(other) == {100 + number}
    case.close()


def test_scans_and_keys_do_not_go_on_over_an_older_catalog(tmp_path: Path) -> None:
    for way in (through_sqlite, as_another_file):
        case = Case(tmp_path / way.__name__)
        pages = iter(case.first.table("t").scan(page_rows=5))
        key = next(pages).key
        assert key is not None
        way(case.older, case.database)
        for use in (
            lambda pages=pages: list(pages),
            lambda case=case, key=key: case.second.resume(key).to_table(),
            *(lambda store=case.second, use=use: use(store) for use in USES),
        ):
            with pytest.raises(CatalogOutdated, match="put the newest"):
                use()
        case.close()


def test_an_open_store_adopts_an_older_catalog(tmp_path: Path) -> None:
    case = Case(tmp_path)
    as_another_file(case.older, case.database)
    with pytest.raises(CatalogOutdated):
        values(case.first)
    lost = case.first.adopt().commits
    assert lost == (2, 4)
    assert case.second.verify() == [], "another incarnation is no older one"
    for store in (case.first, case.second):
        assert values(store) == {1}
    assert case.second.table("t").upsert(rows(9)) > lost[1]
    assert values(case.first) == {9}
    case.close()


def test_a_write_begins_again_in_the_file_that_has_taken_the_place_of_its_own(tmp_path: Path) -> None:
    case = Case(tmp_path)
    catalog = case.first.context.catalog
    look, replacements = catalog.before_writing, iter([tmp_path / "newest.db"])

    def replacing(is_small: bool) -> Callable[[Identity], None]:
        check = look(is_small)

        def inside(identity: Identity) -> None:
            check(identity)
            for newest in replacements:
                copied(case.database, newest)
                as_another_file(newest, case.database)

        return inside

    catalog.before_writing = replacing
    case.first.table("t").upsert(rows(8))
    with Store.open(case.place) as other:
        assert values(other) == values(case.first) == values(case.second) == {8}
    case.close()


def test_a_catalog_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    case = Case(tmp_path)
    sleep(0.02)
    case.database.rename(tmp_path / "away.db")
    for file in files_of(case.database):
        file.unlink()
    for use in (values, get, lambda store: store.table("t").upsert(rows(9))):
        with pytest.raises(CatalogUnavailable, match=r"no .*catalog\.db"):
            use(case.first)
    assert not case.database.exists()
    case.close()


def joined(store: Store) -> None:
    """A shard joins, and no tablet moves to it."""
    with store.context.catalog.writing() as tx:
        tx.append(ShardDefined(Shard(3, "c", "shards/c")))


@pytest.mark.parametrize(
    "work",
    [
        lambda store: store.table("t").tag("kept"),
        lambda store: store.rotate_secret(revoke=True),
        lambda store: store.table("t").set_retention("1d"),
        joined,
    ],
)
def test_a_catalog_that_lacks_one_thing_alone_is_an_older_one(
    tmp_path: Path, work: Callable[[Store], object]
) -> None:
    """Else garbage collection would take what a lost tag keeps, and a revoked secret be good again."""
    place = tmp_path / "store"
    with Store.create(place, ["a", "b"], tablets=4, slots=16) as store:
        number = store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        store.table("t").tag("before")
        copied(place / "catalog.db", tmp_path / "older.db")
        work(store)
    as_another_file(tmp_path / "older.db", place / "catalog.db")
    for use in (
        lambda store: store.collect_garbage(grace_seconds=0, share=1.0),
        lambda store: store.table("t").upsert(rows(2)),
        values,
        lambda store: store.table("t").tag("more"),
        lambda store: store.table("t").scan(snapshot="before"),  # which may name another snapshot since
        lambda store: store.table("t").get([1], snapshot="before"),
        lambda store: store.table("t").changes("before", int(number)),
    ):
        with Store.open(place) as store, pytest.raises(CatalogOutdated, match="put the newest"):
            use(store)
    with Store.open(place) as store:
        assert store.table("t").scan(snapshot=int(number)).count() == len(KEYS), "a number names one snapshot"
        store.adopt()
        store.table("t").upsert(rows(3))
        assert values(store) == {3}


MADE_SINCE: dict[str, tuple[Callable[[Store], object], Callable[[Store], object]]] = {
    "a table": (
        lambda store: store.create_table("later", SCHEMA, ["id"]),
        lambda store: store.table("later"),
    ),
    "a tag": (
        lambda store: store.table("t").tag("later"),
        lambda store: store.table("t").scan(snapshot="later"),
    ),
    "a commit": (
        lambda store: store.table("t").upsert(rows(2)),
        lambda store: store.table("t").scan(snapshot=3),
    ),
    "an index": (
        lambda store: store.table("t").create_index("later", ["v"]),
        lambda store: store.table("t").drop_index("later"),
    ),
    "a shard": (
        joined,
        lambda store: store.contract("c"),
    ),
}


@pytest.mark.parametrize("what", MADE_SINCE)
@pytest.mark.usefixtures("rows_in_files")
def test_an_older_catalog_does_not_say_that_what_was_made_since_is_not_there(
    tmp_path: Path, what: str
) -> None:
    make, ask = MADE_SINCE[what]
    place = tmp_path / "store"
    with Store.create(place, ["a", "b"], tablets=4, slots=16) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        copied(place / "catalog.db", tmp_path / "older.db")
        make(store)
    as_another_file(tmp_path / "older.db", place / "catalog.db")
    with Store.open(place) as store, pytest.raises(CatalogOutdated, match="put the newest"):
        ask(store)


def older_catalog_put_back(place: Path, owned: Path, names: list[str] | dict[str, str]) -> None:
    """A store gets another incarnation where it is, or as a copy, and then the catalog of before."""
    with Store.create(place / "store", names, tablets=4, slots=16) as made:
        made.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
    older = place / "older.db"
    copied(place / "store" / "catalog.db", older)
    if owned != place / "store":
        shutil.copytree(place / "store", owned)
    with Store.open(owned) as opened:
        opened.adopt()
        opened.table("t").upsert(rows(NEWEST))
    as_another_file(older, owned / "catalog.db")


def check_it_is_reported(store: Path) -> None:
    for read_only in (False, True):
        with Store.open(store, read_only=read_only) as opened:
            for read in (values, get, lambda it: it.table("t").scan().count(), USES[0]):
                with pytest.raises(CatalogOutdated):
                    read(opened)
    with Store.open(store) as opened:
        opened.adopt()
        assert opened.verify() == []


@pytest.mark.parametrize("roots", ["within", "elsewhere"])
def test_a_catalog_of_before_the_last_adoption_is_an_older_one(tmp_path: Path, roots: str) -> None:
    """It has another incarnation than its shards, as the original has of a copy that took them over."""
    disks = {name: str(tmp_path / "disks" / name) for name in "ab"}
    older_catalog_put_back(tmp_path, tmp_path / "store", list(disks) if roots == "within" else disks)
    check_it_is_reported(tmp_path / "store")


def test_a_catalog_of_before_a_copys_adoption_is_an_older_one(tmp_path: Path) -> None:
    older_catalog_put_back(tmp_path, tmp_path / "copy", ["a", "b"])
    check_it_is_reported(tmp_path / "copy")
    with Store.open(tmp_path / "store") as original:
        assert values(original) == {1}


@pytest.mark.usefixtures("rows_in_files")
def test_an_original_whose_shards_a_copy_took_over_is_still_read(tmp_path: Path) -> None:
    """Nothing is lost in it: its catalog lies elsewhere than the one that its shards know."""
    shards = {name: str(tmp_path / "disks" / name) for name in "ab"}
    with Store.create(tmp_path / "store", shards, tablets=4, slots=16) as made:
        made.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with Store.open(tmp_path / "copy") as copy:
        copy.adopt()
        copy.table("t").upsert(rows(NEWEST))
        assert values(copy) == {NEWEST}
    with Store.open(tmp_path / "store") as original:
        assert values(original) == {1}
        table = original.table("t")
        for write in (
            lambda: table.upsert(rows(2)),
            lambda: table.delete([1]),
            lambda: table.tag("now"),
            lambda: table.add_columns({"more": "int64"}),
            lambda: original.create_table("u", SCHEMA, ["id"]),
            original.rotate_secret,
            lambda: original.split(1),
        ):
            with pytest.raises(WrongRoot, match="another copy of the store"):
                write()
        assert values(original) == {1}


def test_a_copy_takes_no_small_commit_however_often_it_is_asked(tmp_path: Path) -> None:
    with Store.create(tmp_path / "store", ["a", "b"], tablets=4, slots=16) as made:
        made.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with Store.open(tmp_path / "copy") as copy:
        for _ in range(3):
            assert values(copy) == {1}
            with pytest.raises(WrongRoot, match="adopt"):
                copy.table("t").upsert(rows(2))
        copy.adopt()
        copy.table("t").upsert(rows(2))
        assert values(copy) == {2}


def test_a_closed_store_has_told_its_shards_of_its_last_small_commits(tmp_path: Path) -> None:
    with Store.create(tmp_path / "store", ["a", "b"], tablets=4, slots=16) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        copied(tmp_path / "store" / "catalog.db", tmp_path / "older.db")
        for value in (2, 3):
            store.table("t").upsert(rows(value))
    over_the_bytes(tmp_path / "older.db", tmp_path / "store" / "catalog.db")
    with Store.open(tmp_path / "store") as store:
        with pytest.raises(CatalogOutdated):
            store.table("t").upsert(rows(4))
        with pytest.raises(CatalogOutdated):
            store.table("t").scan()


def test_a_store_is_closed_without_asking_its_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server may be away, which would be waited for."""
    store = Store.create(tmp_path / "store", ["a", "b"], tablets=4, slots=16)
    store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
    newest = store.table("t").upsert(rows(2))
    with monkeypatch.context() as patch:
        patch.setattr(Log, "follow", lambda _: pytest.fail("the catalog is asked"))
        store.close()
    for shard in ("a", "b"):
        mark = read_marker(LocalDisk(tmp_path / "store" / "shards" / shard), "")
        assert mark is not None
        assert mark.commit == newest
