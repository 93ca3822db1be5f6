"""Backups: whole, incremental, verified, and stores made of them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.base.errors import (
    AlreadyExists,
    CatalogOutdated,
    ContinuationKeyError,
    FragmentDamaged,
    InvalidOption,
    ShardUnavailable,
    StoreDamaged,
    StoreNotFound,
    WrongRoot,
)
from elasticscan.store import Store, Table
from elasticscan.store.copies import backup
from tests.base.manual_clock import ManualClock
from tests.store.test_scenarios import suspended_move, tablets_at

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(ids: range, v: str) -> pa.Table:
    return pa.table([list(ids), [v] * len(ids)], schema=SCHEMA)


def contents(table: Table, snapshot: int | str | None = None) -> list[dict[str, Any]]:
    return table.scan(snapshot=snapshot).to_table().sort_by("id").to_pylist()


def everything(store: Store) -> Any:
    """What is to be seen of a store from outside, at every snapshot of every table."""
    return {
        table.name: (
            table.schema,
            table.history(),
            table.tags(),
            [(index.name, index.ready) for index in table.indexes()],
            [contents(table, commit.number) for commit in table.history()],
        )
        for table in store.tables()
    }


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with elasticscan.create(tmp_path / "a.store", ["s1", "s2"], tablets=4, slots=16) as made:
        table = made.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(range(500), "a"), user_metadata={"job": "first"})
        table.create_index("by_v", ["v"])
        table.tag("first")
        table.delete(list(range(100)))
        made.create_table("empty", SCHEMA, ["id"])
        yield made


def test_a_store_that_is_made_of_a_backup_is_the_one_that_was_backed_up(store: Store, tmp_path: Path) -> None:
    key = next(iter(store.table("t").scan(page_rows=10))).key
    made = store.backup(tmp_path / "b")
    before = everything(store)
    store.table("t").overwrite(rows(range(3), "z"))
    assert (made.copied, made.removed) == (made.files, 0)
    with Store.from_backup(tmp_path / "b", tmp_path / "new.store") as other:
        assert everything(other) == before
        assert other.verify() == []
        assert other.table("t").scan(filter="v = 'a'", index="by_v").count() == 400
        with pytest.raises(ContinuationKeyError):
            other.resume(key)
        other.table("t").upsert(rows(range(2), "b"))
        other.expand(["s3"])
        other.compact()
        assert len(contents(other.table("t"))) == 402
        assert other.collect_garbage(grace_seconds=0).refused is None
        assert other.verify() == []
    assert len(contents(store.table("t"))) == 3
    assert store.verify() == []


@pytest.mark.usefixtures("rows_in_files")
def test_only_what_came_since_is_copied(store: Store, tmp_path: Path) -> None:
    first = store.backup(tmp_path / "b")
    before = everything(store)
    again = store.backup(tmp_path / "b")
    assert (again.copied, again.copied_bytes, again.files) == (0, 0, first.files)
    store.table("t").upsert(rows(range(50), "b"))
    after = everything(store)
    third = store.backup(tmp_path / "b")
    assert 0 < third.copied < third.files
    for name, expected in ((first.name, before), (None, after)):
        with Store.from_backup(tmp_path / "b", tmp_path / f"{name}.store", name=name) as other:
            assert everything(other) == expected
            assert other.verify() == []


@pytest.mark.usefixtures("rows_in_files")
def test_older_backups_are_dropped_with_what_only_they_need(store: Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "b")
    store.table("t").upsert(rows(range(50), "b"))
    store.table("t").set_retention("0s")
    store.table("t").drop_tag("first")
    store.table("t").compact()
    last = store.backup(tmp_path / "b", keep=1)
    files = list((tmp_path / "b").rglob("*.arrow"))
    assert (last.removed, len(files) > last.files) == (0, True), "young copies may be of another backup"
    for path in files:
        os.utime(path, (0, 0))
    last = store.backup(tmp_path / "b", keep=1)
    assert last.removed == len(files) - last.files
    assert len(list((tmp_path / "b").glob("*.backup"))) == 1
    with Store.from_backup(tmp_path / "b", tmp_path / "new.store") as other:
        assert contents(other.table("t")) == contents(store.table("t"))
        assert other.verify() == []


@pytest.mark.usefixtures("rows_in_files")
def test_files_that_are_merged_away_meanwhile_do_no_harm(store: Store, tmp_path: Path) -> None:
    steps = 0

    def meanwhile(step: str) -> None:
        nonlocal steps
        if step == "backup begun" and not steps:
            steps += 1
            table = store.table("t")
            table.upsert(rows(range(50), "b"))
            table.compact()
            store.collect_garbage(grace_seconds=0, trash_seconds=0)

    with Store.open(store.uri, checkpoint=meanwhile) as other:
        other.backup(tmp_path / "b")
    assert steps == 1
    with Store.from_backup(tmp_path / "b", tmp_path / "new.store") as other:
        assert contents(other.table("t")) == contents(store.table("t"))
        assert contents(other.table("t"), "first") == contents(store.table("t"), "first")
        assert other.verify() == []


@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.usefixtures("rows_in_files")
def test_two_backups_to_one_place_at_a_time_are_both_whole(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """One that drops older ones takes neither what the other found there nor what it copied."""
    before, steps = everything(store), []
    copy = backup._copy

    def meanwhile(*_: object) -> None:
        if not steps:
            steps.append(when)
            table = store.table("t")
            table.set_retention("0s")
            table.drop_tag("first")
            table.upsert(rows(range(50), "b"))
            table.compact()
            store.backup(tmp_path / "b", keep=1)

    def copy_and_wait(*args: Any) -> None:
        copy(*args)
        meanwhile()

    if when == "before":
        store.backup(tmp_path / "b")
    else:
        monkeypatch.setattr(backup, "_copy", copy_and_wait)
    with Store.open(store.uri, checkpoint=meanwhile if when == "before" else lambda _: None) as other:
        made = other.backup(tmp_path / "b")
    assert steps == [when]
    with Store.from_backup(tmp_path / "b", tmp_path / "new.store", name=made.name) as restored:
        assert restored.verify() == []
        if when == "between":
            assert everything(restored) == before
    with Store.from_backup(tmp_path / "b", tmp_path / "newest.store") as restored:
        assert contents(restored.table("t")) == contents(store.table("t"))


@pytest.mark.parametrize("damage", ["cut", "footer"])
@pytest.mark.usefixtures("rows_in_files")
def test_a_copy_that_is_not_what_was_copied_is_made_again(store: Store, tmp_path: Path, damage: str) -> None:
    store.backup(tmp_path / "b")
    copy = next((tmp_path / "b").rglob("*.arrow"))
    if damage == "cut":
        copy.write_bytes(copy.read_bytes()[:-1])
    else:
        flip(copy, -20)
    assert store.backup(tmp_path / "b").copied == 1
    Store.from_backup(tmp_path / "b", tmp_path / "new.store").close()


@pytest.mark.usefixtures("rows_in_files")
def test_a_backup_that_was_interrupted_does_not_count_and_is_gone_on_with(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = 0

    def fail(*_: object) -> None:
        nonlocal copied
        copied += 1
        if copied == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("elasticscan.store.copies.backup.verify_file", fail)
        with pytest.raises(KeyboardInterrupt):
            store.backup(tmp_path / "b")
    with pytest.raises(StoreNotFound, match="there are none"):
        Store.from_backup(tmp_path / "b", tmp_path / "new.store")
    assert not (tmp_path / "new.store").exists()
    made = store.backup(tmp_path / "b")
    assert made.copied < made.files
    Store.from_backup(tmp_path / "b", tmp_path / "new.store").close()


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.usefixtures("rows_in_files")
def test_a_damaged_store_gets_no_new_backup(store: Store, tmp_path: Path) -> None:
    fragment = next((tmp_path / "a.store").rglob("*.arrow"))
    flip(fragment, 100)
    with pytest.raises(FragmentDamaged):
        store.backup(tmp_path / "b")
    assert not list((tmp_path / "b").glob("*.backup"))
    assert not list((tmp_path / "b").rglob(fragment.name))


@pytest.mark.parametrize("pattern", ["*.backup", "**/*.arrow"])
@pytest.mark.usefixtures("rows_in_files")
def test_a_damaged_backup_makes_no_store(store: Store, tmp_path: Path, pattern: str) -> None:
    store.backup(tmp_path / "b")
    flip(sorted((tmp_path / "b").glob(pattern))[-1], 100)
    with pytest.raises((FragmentDamaged, StoreDamaged)):
        Store.from_backup(tmp_path / "b", tmp_path / "new.store", {"s2": str(tmp_path / "other")})
    assert not (tmp_path / "new.store").exists()
    assert not list((tmp_path / "other").rglob("*.arrow"))
    assert store.verify() == []


def test_shards_go_where_they_are_reported_and_never_where_the_original_lies(tmp_path: Path) -> None:
    roots = {name: str(tmp_path / name) for name in ("s1", "s2")}
    with Store.create(f"sqlite:///{tmp_path}/catalog.db", roots, tablets=4, slots=16) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(range(100), "a"))
        store.contract("s2")
        store.expand({"s2": str(tmp_path / "again")})
        store.backup(tmp_path / "b")
        with Store.from_backup(tmp_path / "b", tmp_path / "new.store", {"s1": str(tmp_path / "n1")}) as other:
            places = {shard["name"]: shard["root"] for shard in other.status()["shards"]}
            assert places == {"s1": str(tmp_path / "n1"), "s2": "shards/s2"}
            other.table("t").upsert(rows(range(5), "b"))
            other.expand(["s3"])
            assert other.verify() == []
        store.table("t").upsert(rows(range(5), "c"))
        assert store.verify() == []
        with pytest.raises(InvalidOption, match="no shard 's9'"):
            Store.from_backup(tmp_path / "b", tmp_path / "x.store", {"s9": str(tmp_path / "n9")})
        in_a_shard, in_a_store = tmp_path / "s1" / "n", tmp_path / "new.store" / "n"
        for taken in (tmp_path / "s1", tmp_path / "n1", in_a_shard, in_a_store):
            with pytest.raises(InvalidOption):
                Store.from_backup(tmp_path / "b", tmp_path / "x.store", {"s1": str(taken)})
        with pytest.raises(AlreadyExists):
            Store.from_backup(tmp_path / "b", tmp_path / "new.store")
        with pytest.raises(InvalidOption, match="lies within"):
            Store.from_backup(tmp_path / "b", tmp_path / "new.store" / "copy")
        assert not (tmp_path / "x.store").exists()


@pytest.mark.usefixtures("rows_in_files")
def test_what_is_no_copy_in_a_place_of_backups_is_never_deleted(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "b"
    first = store.backup(place).name
    fragment = f"t1/{'0' * 32}.arrow"
    kept = [place / "7" / fragment, place / "7" / "elasticscan-shard", place / "notes" / "a.txt"]
    kept += [place / "x.store" / name for name in ("catalog.db", f"shards/s1/{fragment}")]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"alive")
        os.utime(path, (0, 0))
    left = [place / "t1" / f"{'1' * 32}.arrow.unfinished", place / f"{first}.backup.unfinished"]
    for keep in (None, 1):
        for path in left:
            path.write_bytes(b"of a backup that was killed")
        store.backup(place, keep=keep)
        assert all(path.exists() for path in left)  # they might be of one that is being made
        for path in left:
            os.utime(path, (0, 0))
        assert store.backup(place, keep=keep).removed >= len(left)
        assert not any(path.exists() for path in left)
    assert [path.read_bytes() for path in kept] == [b"alive"] * len(kept)


def test_no_store_and_no_shard_is_made_within_a_place_of_backups_a_store_or_a_shard(
    store: Store, tmp_path: Path
) -> None:
    """They would go with it: backups once deleted whatever lay in their place."""
    with elasticscan.create(tmp_path / "o.store", {"s1": str(tmp_path / "o1")}):
        elasticscan.create(tmp_path / "p.store", ["s1"]).close()
        store.backup(tmp_path / "b")
        inside = "b", "b/1", "b/deep/er", "o1/x", "p.store/x", "p.store/shards/s1/x"
        for root in [str(tmp_path / place) for place in inside] + [f"file://{tmp_path}/b/1"]:
            with pytest.raises(InvalidOption, match=r"lies within|holds backups"):
                elasticscan.create(tmp_path / "n.store", {"s1": root})
            with pytest.raises(InvalidOption, match=r"lies within|holds backups"):
                store.expand({"s9": root})
            with pytest.raises(InvalidOption, match=r"lies within|overlaps|holds backups"):
                Store.from_backup(tmp_path / "b", tmp_path / "n.store", {"s1": root})
        for directory in ("b/n.store", "o1/n.store"):
            with pytest.raises(InvalidOption, match="lies within"):
                elasticscan.create(tmp_path / directory, ["s1"])
            with pytest.raises(InvalidOption, match="lies within"):
                Store.from_backup(tmp_path / "b", tmp_path / directory)
        assert not (tmp_path / "n.store").exists()
        assert not (tmp_path / "b" / "n.store").exists()
        store.expand(["s9"])  # in its own directory
        assert store.backup(tmp_path / "b", keep=1).removed == 0


@pytest.mark.parametrize("mounted", ["nothing", "another's"])
@pytest.mark.usefixtures("rows_in_files")
def test_a_backup_says_which_disk_is_not_mounted(store: Store, tmp_path: Path, mounted: str) -> None:
    root = tmp_path / "a.store" / "shards" / "s1"
    root.rename(tmp_path / "away")
    root.mkdir()
    if mounted == "another's":
        (root / "elasticscan-shard").write_bytes((root.parent / "s2" / "elasticscan-shard").read_bytes())
    with pytest.raises(ShardUnavailable if mounted == "nothing" else WrongRoot, match="mount"):
        store.backup(tmp_path / "b")


def test_a_place_that_is_something_else_is_refused(store: Store, tmp_path: Path) -> None:
    with elasticscan.create(tmp_path / "other.store", ["s1"], tablets=1, slots=4) as other:
        other.backup(tmp_path / "of another store")
    (tmp_path / "with files").mkdir()
    (tmp_path / "with files" / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    shard = "a.store/shards/s1"
    for place in ("of another store", "with files", shard, "a.store", "a.store/backups", f"{shard}/b"):
        with pytest.raises(InvalidOption):
            store.backup(tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unknown_backup_tells_which_there_are(store: Store, tmp_path: Path) -> None:
    made = store.backup(tmp_path / "b")
    with pytest.raises(StoreNotFound, match=made.name):
        Store.from_backup(tmp_path / "b", tmp_path / "new.store", name="yesterday")
    with pytest.raises(StoreNotFound):
        Store.from_backup(tmp_path / "nothing", tmp_path / "new.store")
    assert not (tmp_path / "nothing").exists()
    for keep in (0, -1, "2"):
        with pytest.raises((InvalidOption, TypeError)):
            store.backup(tmp_path / "b", keep=keep)  # type: ignore[arg-type]


def test_a_store_that_can_only_be_read_is_backed_up(store: Store, tmp_path: Path) -> None:
    with Store.open(store.uri, read_only=True) as other:
        other.backup(tmp_path / "b")
    Store.from_backup(tmp_path / "b", tmp_path / "new.store").close()


@pytest.mark.parametrize("phase", ["copying", "copied", "caught_up", "switching", "target_serves"])
def test_a_move_that_was_under_way_ends_in_the_new_store_by_itself(
    store: Store, tmp_path: Path, phase: str
) -> None:
    before, steps = contents(store.table("t")), []

    def meanwhile(step: str) -> None:
        if step == phase and not steps:
            steps.append(step)
            store.backup(tmp_path / "b")

    suspended_move(store, tablets_at(store, "s1")[0], "s2", meanwhile)
    assert steps == [phase]
    with Store.from_backup(tmp_path / "b", tmp_path / "new.store") as other:
        assert contents(other.table("t")) == before
        other.resume_moves()
        other.contract("s1")
        assert contents(other.table("t")) == before
        assert other.status()["moves"] == []
        assert other.verify() == []


def test_a_merge_that_was_under_way_is_nobodys_in_the_new_store(store: Store, tmp_path: Path) -> None:
    with store.context.catalog.writing() as tx:
        tx.enter_step("merge 1 1", "a keeper that is alive")
    store.backup(tmp_path / "b")
    with Store.from_backup(tmp_path / "b", tmp_path / "new.store") as other:
        assert other.status()["upkeep"]["running"] == []


def test_an_older_catalog_makes_no_backup_and_drops_none(store: Store, tmp_path: Path) -> None:
    old = tmp_path / "old"
    store.close()
    shutil.copytree(tmp_path / "a.store", old)
    with Store.open(tmp_path / "a.store") as newer:
        newer.table("t").upsert(rows(range(900, 910), "new"))
        made = newer.backup(tmp_path / "place")
    for part in ("catalog.db", "catalog.db-wal"):
        (tmp_path / "a.store" / part).unlink(missing_ok=True)
    shutil.copy(old / "catalog.db", tmp_path / "a.store" / "catalog.db")
    with Store.open(tmp_path / "a.store") as outdated, pytest.raises(CatalogOutdated):
        outdated.backup(tmp_path / "place", keep=1)
    assert [path.stem for path in (tmp_path / "place").glob("*.backup")] == [made.name]


def test_the_newest_backup_is_the_one_that_was_made_last_whatever_a_clock_said(
    store: Store, tmp_path: Path
) -> None:
    store.close()
    with Store.open(tmp_path / "a.store", clock=ManualClock(time.time() + 10 * 86_400)) as ahead:
        ahead.backup(tmp_path / "place")
    with Store.open(tmp_path / "a.store") as later:
        later.table("t").upsert(rows(range(900, 910), "new"))
        newest = contents(later.table("t"))
        made = later.backup(tmp_path / "place", keep=1)
    assert [path.stem for path in (tmp_path / "place").glob("*.backup")] == [made.name]
    with Store.from_backup(tmp_path / "place", tmp_path / "n") as restored:
        assert contents(restored.table("t")) == newest


def test_a_backup_is_restored_where_a_restore_was_killed_amid_its_catalog(
    store: Store, tmp_path: Path
) -> None:
    """During its catalog: that has no tables yet, and the files are there without markers."""
    place, before = tmp_path / "new.store", everything(store)
    store.backup(tmp_path / "b")
    for shard in ("s1", "s2"):
        (place / "shards" / shard / "t1").mkdir(parents=True)
        (place / "shards" / shard / "t1" / "half.arrow").write_bytes(b"half")
    with closing(sqlite3.connect(place / "catalog.db")) as catalog:
        catalog.execute("PRAGMA journal_mode=WAL")
    place.chmod(0o700)
    (place / "catalog.db").chmod(0o600)
    with pytest.raises(StoreNotFound):
        elasticscan.open(place)
    with Store.from_backup(tmp_path / "b", place) as made:
        assert everything(made) == before
        made.table("t").upsert(rows(range(3), "z"))
        assert made.verify() == []


def test_a_torn_list_keeps_older_backups_and_is_reported_beside_the_new_one(
    store: Store, tmp_path: Path
) -> None:
    """Nobody knows which files it needs."""
    for _ in range(3):
        store.table("t").upsert(rows(range(3), "z"))
        torn = tmp_path / "b" / f"{store.backup(tmp_path / 'b').name}.backup"
    torn.write_bytes(torn.read_bytes()[:-9])
    with pytest.raises(StoreDamaged, match=f"was made.*{torn.name}.*remove that file") as message:
        store.backup(tmp_path / "b", keep=2)
    assert len(list((tmp_path / "b").glob("*.backup"))) == 4
    with Store.from_backup(tmp_path / "b", tmp_path / "n") as restored:
        assert everything(restored) == everything(store)
    torn.unlink()
    store.backup(tmp_path / "b", keep=2)
    assert len(list((tmp_path / "b").glob("*.backup"))) == 2
    assert message.value.fields["what"] == torn.name
