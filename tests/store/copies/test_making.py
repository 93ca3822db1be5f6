"""What a process leaves that is killed amid the making of a store: the store, or nothing in its way."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine, event

from elasticscan.base.errors import AlreadyExists, ElasticScanError, InvalidOption, StoreNotFound
from elasticscan.store import Store
from elasticscan.store.repair.rebuild import repair_store

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARDS = ["s1", "s2"]
EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"})
MANY = int(os.environ.get("ELASTICSCAN_KILLED_EVERY", "7"))  # 1 tries every point
FINISHED = 77  # the exit code of a child that nothing killed
Making = Callable[[Path, Path], Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two tables, and beside it a place of backups with an older one of fewer rows."""
    place = tmp_path_factory.mktemp("original")
    with Store.create(place / "old", SHARDS, tablets=4, slots=16) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table([range(60), ["a"] * 60], schema=SCHEMA))
        store.backup(place / "backups")
        table.create_index("by_v", ["v"])
        table.upsert(pa.table([range(40, 100), ["b"] * 60], schema=SCHEMA))
        store.create_table("u", SCHEMA, ["id"]).upsert(pa.table([[1], ["u"]], schema=SCHEMA))
        store.backup(place / "backups")
    return place


def create(_: Path, new: Path) -> None:
    Store.create(new, SHARDS, tablets=4, slots=16).close()


def restore(original: Path, new: Path) -> None:
    Store.from_backup(original / "backups", new).close()


def restore_older(original: Path, new: Path) -> None:
    names = sorted(path.stem for path in (original / "backups").glob("*.backup"))
    Store.from_backup(original / "backups", new, name=names[0]).close()


def repair(original: Path, new: Path) -> None:
    repair_store(original / "old", new)


def rows_of(store: Path) -> dict[str, list[Any]]:
    """All rows of a store that takes writes and is whole."""
    with Store.open(store) as opened:
        assert opened.verify() == []
        found = {table.name: table.scan().to_table().sort_by("id").to_pylist() for table in opened.tables()}
        probe = opened.create_table("probe", SCHEMA, ["id"])
        probe.upsert(pa.table([[1], ["p"]], schema=SCHEMA))
        assert opened.verify() == []
    return found


def killed_at(point: int, make: Making, original: Path, new: Path) -> bool:
    """True if a child that makes a store was killed at a point: a look at a file or the catalog."""
    child = os.fork()
    if not child:
        passed = 0

        def here(*_: object) -> None:
            nonlocal passed
            passed += 1
            if passed == point:
                os.kill(os.getpid(), signal.SIGKILL)

        def is_kept(name: str, arguments: tuple[Any, ...]) -> None:
            if name in EVENTS and str(arguments[0]).startswith(str(new.parent)):
                here()

        try:
            for name in ("before_cursor_execute", "commit"):
                event.listen(Engine, name, here)
            sys.addaudithook(is_kept)
            make(original, new)
            os._exit(FINISHED)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (FINISHED, -signal.SIGKILL)
    return status != FINISHED


def kills(make: Making, original: Path, place: Path, every: int) -> Iterator[Path]:
    """Places where a store was being made, when that was killed at one point after the other."""
    point = 1
    while killed_at(point, make, original, new := place / f"{point}" / "new"):
        yield new
        shutil.rmtree(new.parent, ignore_errors=True)
        point += every


@pytest.mark.parametrize(
    ("make", "every"),
    [
        (create, 11),
        (restore, 31),
        (repair, 61),
        pytest.param(create, MANY, marks=pytest.mark.long),
        pytest.param(restore, MANY, marks=pytest.mark.long),
        pytest.param(repair, MANY, marks=pytest.mark.long),
    ],
)
def test_a_store_whose_making_is_killed_is_whole_or_is_not_there_and_can_be_made_again(
    original: Path, tmp_path: Path, make: Making, every: int
) -> None:
    make(original, tmp_path / "wanted")
    wanted = rows_of(tmp_path / "wanted")
    seen = set()
    for new in kills(make, original, tmp_path, every):
        try:
            Store.open(new).close()
        except ElasticScanError as error:
            seen.add(type(error))
            make(original, new)
        else:
            seen.add(Store)
            with pytest.raises(AlreadyExists):
                make(original, new)
        assert rows_of(new) == wanted
    assert StoreNotFound in seen
    assert Store in seen or make is repair  # which gets its name last


@pytest.mark.parametrize("every", [31, pytest.param(MANY, marks=pytest.mark.long)])
def test_an_older_backup_is_restored_where_a_restore_of_a_newer_one_was_killed(
    original: Path, tmp_path: Path, every: int
) -> None:
    """Files of later commits may lie there: their numbers are not used again."""
    restore_older(original, tmp_path / "wanted")
    wanted = rows_of(tmp_path / "wanted")
    for new in kills(restore, original, tmp_path, every):
        if any((new / "shards").glob("*/elasticscan-shard")):  # beside files that are not this backup's
            with pytest.raises((AlreadyExists, InvalidOption), match=r"already holds|cut off here"):
                restore_older(original, new)
            continue
        restore_older(original, new)
        with Store.open(new) as store:
            assert store.table("t").scan().to_table().num_rows == 60
            files = {path.relative_to(new) for path in new.rglob("*.arrow")}
            store.table("t").upsert(pa.table([[1], ["later"]], schema=SCHEMA))
            store.collect_garbage(grace_seconds=0)
            assert store.verify() == []
            assert files
        assert rows_of(new)["t"] != wanted["t"]


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (restore, "elasticscan.catalog.seal_keys.SecretTx.take_incarnation"),
        (repair, "elasticscan.store.repair.rebuild.create_index"),
        (repair, "elasticscan.catalog.placement.PlacementTx.moves_to"),
    ],
)
def test_what_fails_amid_the_making_of_a_store_leaves_nothing(
    original: Path, tmp_path: Path, make: Making, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, fail)
    with pytest.raises(KeyboardInterrupt):
        make(original, tmp_path / "above" / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_root_beside_the_store_with_a_marker_of_another_is_nobodys_remains(
    original: Path, tmp_path: Path
) -> None:
    """Its catalog may lie elsewhere; within a store's directory only that store can have it."""
    root = tmp_path / "disk"
    shutil.copytree(original / "old" / "shards" / "s1", root)
    for path in root.glob("t*"):
        shutil.rmtree(path)
    for attempt in (
        lambda: Store.create(tmp_path / "new", {"s1": str(root)}),
        lambda: Store.from_backup(original / "backups", tmp_path / "new", roots={"s1": str(root)}),
    ):
        with pytest.raises(InvalidOption, match="remove this directory and try again"):
            attempt()
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize("there", ["file", "link", "database"])
def test_a_repaired_store_takes_no_place_that_is_taken(original: Path, tmp_path: Path, there: str) -> None:
    into: str | Path = tmp_path / "new"
    if there == "file":
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "note").write_text("mine")
    elif there == "link":
        (tmp_path / "else").mkdir()
        (tmp_path / "new").symlink_to(tmp_path / "else")
    else:
        into = "postgresql+psycopg://somewhere/db"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidOption, match="name a directory that is not there yet"):
        repair_store(original / "old", into)
    assert sorted(tmp_path.rglob("*")) == before
