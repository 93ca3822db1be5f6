"""Roots and catalogs that are not what they seem; garbage collection that needs proof."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticscan.base.errors import InvalidOption, ShardUnavailable, WrongRoot
from elasticscan.storage import Disk
from elasticscan.store import Store, adoption
from elasticscan.store.copies.backup import BACKUP_FILE
from elasticscan.store.roots.location import MARKER, check_apart, path_or_uri, place_of
from elasticscan.store.roots.markers import Marker
from elasticscan.store.upkeep.garbage import Action
from tests.store.test_root_scenarios import count, made, root, rows, staged

ROWS_IN_FILES = True


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("s3://bucket/x", "s3://key:secret@bucket/x"),
        ("s3a://bucket/x", "s3://bucket/x/"),
        ("s3://Bucket//x/./y/..", "S3://bucket/x"),
        ("s3://bucket/a%20b", "s3://bucket/a b"),
        ("file:///data/../data/x", "/data/x/"),
        ("file:///a%20b", "/a b"),
    ],
)
def test_one_place_by_two_texts(one: str, two: str) -> None:
    assert place_of(one) == place_of(two)
    with pytest.raises(InvalidOption, match="overlaps"):
        check_apart([("a", one), ("b", two)])


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("s3://bucket/x", "s3://bucket/xy"),
        ("s3://bucket/x", "gs://bucket/x"),
        ("s3://bucket/x?endpoint_override=one", "s3://bucket/x?endpoint_override=two"),
        ("/bucket/x", "s3://bucket/x"),
        ("/data/x", "/data/xy"),
    ],
)
def test_two_places(one: str, two: str) -> None:
    check_apart([("a", one), ("b", two)])


def test_a_file_uri_with_one_slash_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of("file:/data/x") == place_of("/data/x")
    with made(tmp_path / "store", {"a": f"file:{tmp_path}/disk"}) as store:
        with pytest.raises(InvalidOption, match="overlaps"):
            store.expand({"b": str(tmp_path / "disk")})
        for wrong in ("file:disk2", "s3:/bucket/x"):
            with pytest.raises(InvalidOption, match="slashes"):
                store.expand({"b": wrong})
            with pytest.raises(InvalidOption, match="slashes"):
                Store.open(wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "store"]


@pytest.mark.parametrize("spelled", ["file://{}", "FILE://{}", "file://localhost{}", "file:{}"])
def test_stores_and_backups_by_a_file_uri_lie_where_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    """However it is spelled, and not in directories of those names within the current one."""
    elsewhere, place = tmp_path / "elsewhere", tmp_path / "a place"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    uri = spelled.format(f"{tmp_path}/a%20place")
    with made(f"{uri}/store") as store:
        assert store.uri == str(place / "store")
        with pytest.raises(InvalidOption, match="overlaps"):
            store.backup(f"{uri}/store/shards/a")
        store.backup(f"{uri}/backups")
        assert (place / "backups" / BACKUP_FILE).is_file()
    with Store.from_backup(f"{uri}/backups", f"{uri}/new") as new:
        assert count(new) == len(rows())
    assert sorted(path.name for path in place.iterdir()) == ["backups", "new", "store"]
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    "uri",
    [
        "file://data/store",
        "file://~/store",
        "file://",
        "file://localhost",
        "file://{}/what?x",
        "file://{}/no#1",
    ],
)
def test_a_file_uri_that_names_no_directory_of_this_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    uri = uri.format(tmp_path / "elsewhere")
    with made(tmp_path / "store", {"a": str(tmp_path / "a")}) as store:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        for use in (
            lambda: Store.create(uri, ["a"]),
            lambda: Store.open(uri),
            lambda: store.backup(uri),
            lambda: store.expand({"b": uri}),
        ):
            with pytest.raises(InvalidOption, match="names no directory of this machine"):
                use()
    assert not list((tmp_path / "elsewhere").iterdir())


TOO_LONG = "/x" * 3_000


@pytest.mark.parametrize("how", ["too long", "zero byte"])
def test_a_place_that_cannot_be_looked_into_is_refused(tmp_path: Path, how: str) -> None:
    """By whatever uses one: of what lies there nobody can tell whose it is."""
    with made(tmp_path / "store") as store:
        store.backup(tmp_path / "backups")
        wrong = {"too long": TOO_LONG, "zero byte": "file:///a%00b"}[how]
        new = tmp_path / "new"
        for use in (
            lambda: store.backup(wrong),
            lambda: store.expand({"c": wrong}),
            lambda: Store.create(new, {"a": wrong}),
            lambda: Store.from_backup(wrong, new),
            lambda: Store.from_backup(tmp_path / "backups", new, {"a": wrong}),
        ):
            with pytest.raises((InvalidOption, ShardUnavailable)) as message:
                use()
            assert len(str(message.value)) < 20_000
        assert not new.exists()
        assert len(store.status()["shards"]) == 2


def test_a_home_is_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with made("~/store", {"a": "~/disk"}) as store:
        assert store.uri == str(tmp_path / "store")
        assert (tmp_path / "disk" / MARKER).is_file()
    assert not (tmp_path / "~").exists()
    with pytest.raises(InvalidOption, match="not known here"):
        path_or_uri("~nobody_of_this_name/x")


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 40, b'{"version": 1} 00000000\n'])
def test_a_damaged_marker_proves_nothing(tmp_path: Path, content: bytes) -> None:
    with made(tmp_path / "store") as store:
        (root(store, "a") / MARKER).write_bytes(content)
        with pytest.raises((WrongRoot, ShardUnavailable)):
            store.table("t").upsert(rows())
        (root(store, "a") / MARKER).unlink()
        with pytest.raises(ShardUnavailable):
            store.table("t").upsert(rows())
        store.adopt()
        assert store.table("t").upsert(rows()) >= 3


def test_adopting_needs_the_files_where_there_is_no_marker(tmp_path: Path) -> None:
    with made(tmp_path / "store") as store:
        root(store, "a").rename(tmp_path / "away")
        root(store, "a").mkdir()
        with pytest.raises(ShardUnavailable, match="lacks"):
            store.adopt()
        assert list(root(store, "a").iterdir()) == []


@pytest.mark.parametrize("marked", [1, 2])
def test_an_adoption_that_was_cut_off_is_done_again(
    tmp_path: Path, marked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its roots are of an incarnation that no catalog knows."""
    write, left = adoption.write_marker, [marked]

    def cut(disk: Disk, marker: Marker) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        write(disk, marker)

    def cut_before_the_commit(*_: object) -> None:
        raise KeyboardInterrupt

    with made(tmp_path / "store") as store:
        before = count(store)
        monkeypatch.setattr(adoption, "write_marker", cut)
        monkeypatch.setattr(adoption, "take_incarnation", cut_before_the_commit)
        with pytest.raises(KeyboardInterrupt):
            store.adopt()
        monkeypatch.undo()
        with pytest.raises(WrongRoot, match="another copy of the store"):
            store.table("t").upsert(rows())
        assert count(store) == before
        assert store.adopt().missing == ()
        store.table("t").upsert(rows())
        assert store.verify() == []


def test_adopting_does_not_take_what_is_another_shards(tmp_path: Path) -> None:
    with made(tmp_path / "store") as store:
        (root(store, "a") / MARKER).write_bytes((root(store, "b") / MARKER).read_bytes())
        with pytest.raises(WrongRoot):
            store.adopt()


def test_a_dry_run_writes_nothing_at_all(tmp_path: Path) -> None:
    """Neither at a root nor in the catalog."""

    def everything() -> dict[str, tuple[int, bytes]]:
        found = {str(path): path for path in (tmp_path / "store").rglob("*")}
        return {
            name: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for name, path in found.items()
        }

    with made(tmp_path / "store") as store:
        prepared = staged(store)
        store.compact()
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (1e9, 1e9) if path.is_file() else None)
    before = everything()
    with Store.open(tmp_path / "store") as store:
        found = store.collect_garbage(grace_seconds=3_600, dry_run=True, share=1.0)
    assert {fragment.path for fragment in prepared} <= {
        decision.path for decision in found.decisions if decision.action is Action.TRASH
    }
    assert everything() == before
