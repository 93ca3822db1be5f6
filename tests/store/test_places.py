"""Places of stores, shards and backups: by several texts, taken by others, and texts that name none."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    InvalidOption,
    NotFound,
    ShardUnavailable,
    StoreDamaged,
)
from elasticscan.store import Store, repair_store
from elasticscan.store.copies.backup import BACKUP_FILE
from elasticscan.store.roots.location import MARKER, Location

ROWS_IN_FILES = True

ROWS = pa.table({"id": range(60)})


@pytest.mark.parametrize("spelled", ["file://{}", "FILE://{}", "file://localhost{}", "file:{}", "~"])
def test_stores_shards_and_backups_lie_where_their_texts_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    """And not in directories of those names within the current one."""
    elsewhere, place = tmp_path / "elsewhere", tmp_path / "a place"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(place))
    uri = spelled.format(f"{tmp_path}/a%20place")
    with Store.create(f"{uri}/store", {"a": f"{uri}/disk"}, tablets=2, slots=8) as store:
        assert store.uri == str(place / "store")
        assert (place / "disk" / MARKER).is_file()
        store.create_table("t", ROWS, "id")
        store.backup(f"{uri}/backups")
        assert (place / "backups" / BACKUP_FILE).is_file()
    with Store.from_backup(f"{uri}/backups", f"{uri}/new") as new:
        assert new.table("t").scan().count() == 60
    assert sorted(path.name for path in place.iterdir()) == ["backups", "disk", "new", "store"]
    assert not list(elsewhere.iterdir())


# Places that are taken


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores, shards of theirs elsewhere, a backup, and what is left of others."""
    world = tmp_path_factory.mktemp("places")
    for name, disk in (("one.store", "disk"), ("two.store", "x")):
        roots = {"a": str(world / disk), "b": f"{world / name}/shards/b"}
        with Store.create(world / name, roots, 4, 8) as it:
            it.create_table("t", ROWS, "id")
            it.backup(world / f"backup of {name}")
    (world / "link").symlink_to(world / "disk")
    (world / "loop").symlink_to(world / "loop")
    (world / "with notes").mkdir()
    (world / "with notes" / "notes.txt").write_text("mine")
    shutil.copytree(world / "x", world / "without marker")
    (world / "without marker" / MARKER).unlink()
    (world / "marker alone").mkdir()
    shutil.copy(world / "x" / MARKER, world / "marker alone")
    for name in ("lost", "empty", "text", "database"):
        shutil.copytree(world / "x", world / f"{name}.store" / "shards" / "a")
    for name, rest in (("files", "t1"), ("marker", MARKER)):
        lost = world / f"lost.store without {name}"
        shutil.copytree(world / "lost.store", lost)
        left = lost / "shards" / "a" / rest
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    (world / "empty.store" / "catalog.db").write_bytes(b"")
    (world / "text.store" / "catalog.db").write_bytes(b"text")
    with closing(sqlite3.connect(world / "database.store" / "catalog.db")) as database:
        database.execute("CREATE TABLE mine (n)")
    return world


Use = Callable[[Path, Store, str], object]
STORES: dict[str, Use] = {
    "create": lambda world, one, place: Store.create(place, ["s"]),
    "restore": lambda world, one, place: Store.from_backup(world / "backup of one.store", place),
}
REPAIR: dict[str, Use] = {"repair": lambda world, one, place: repair_store(world / "one.store", place)}
SHARDS: dict[str, Use] = {
    "create a shard": lambda world, one, place: Store.create(world / "new", {"s": place}),
    "create a shard of a database": lambda world, one, place: Store.create(
        f"sqlite:///{world}/new.db", {"n": f"{world}/new", "s": place}
    ),
    "expand": lambda world, one, place: one.expand({"s": place}),
    "restore a shard": lambda world, one, place: Store.from_backup(
        world / "backup of one.store", world / "new", {"a": place}
    ),
}
BACKUP: dict[str, Use] = {"back up": lambda world, one, place: one.backup(place)}
OPEN: dict[str, Use] = {"open": lambda world, one, place: Store.open(place)}
ALL = STORES | REPAIR | SHARDS | BACKUP

TAKEN: dict[str, dict[str, Use]] = {
    # a shard's, by whatever name
    **dict.fromkeys(
        ["disk", "disk/", "x/../disk", "link", "file://{}/disk", "file:{}/disk", "one.store/shards/b"],
        SHARDS | BACKUP | REPAIR,
    ),
    # within a shard's
    **dict.fromkeys(["disk/below", "one.store/shards/b/below", "x/below"], ALL),
    # another store's
    **dict.fromkeys(["x", "two.store/shards/b"], SHARDS | BACKUP | REPAIR),
    "one.store": STORES | BACKUP | REPAIR | {"expand": SHARDS["expand"]},
    "two.store": STORES | BACKUP | REPAIR,
    ".": {"expand": SHARDS["expand"]},
    # what may be the only copy of something
    "marker alone": SHARDS | BACKUP,
    "without marker": REPAIR | SHARDS | BACKUP,
    "with notes": REPAIR | BACKUP,
    "backup of two.store": REPAIR | BACKUP,
    "database.store": STORES | REPAIR | BACKUP,
    **dict.fromkeys(["lost.store", "empty.store", "text.store"], OPEN | STORES | REPAIR | BACKUP),
    **dict.fromkeys(["lost.store without files", "lost.store without marker"], OPEN),
    # none at all
    "loop": STORES | REPAIR,
    "/x" * 3_000: STORES | SHARDS | BACKUP,
    **dict.fromkeys(["file:///a%00b", "file://data/store", "file://", "file:disk2", "s3:/bucket/x"], ALL),
    **dict.fromkeys(["file://{}/what?x", "file://{}/no#1", "file://localhost", "file://~/store"], ALL),
}
REFUSED = (InvalidOption, AlreadyExists, NotFound, StoreDamaged, ShardUnavailable)


def everything(world: Path) -> dict[str, bytes | None]:
    found = (path for path in world.rglob("*") if path.name not in ("catalog.db-wal", "catalog.db-shm"))
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


@pytest.fixture
def one(world: Path) -> Iterator[Store]:
    with Store.open(world / "one.store") as store:
        yield store


@pytest.mark.parametrize(
    ("place", "use"), [pytest.param(p, u, id=f"{p[:30]}: {u}") for p, uses in TAKEN.items() for u in uses]
)
def test_a_place_that_is_taken_or_none_is_refused_and_nothing_is_changed(
    world: Path, one: Store, monkeypatch: pytest.MonkeyPatch, place: str, use: str
) -> None:
    monkeypatch.chdir(world)
    before = everything(world)
    with pytest.raises(REFUSED) as refused:
        (ALL | OPEN)[use](world, one, place.format(world))
    assert use != "open" or "repair" in str(refused.value)
    assert len(str(refused.value)) < 20_000
    assert everything(world) == before


def test_directories_that_another_process_makes_stay_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, exists = tmp_path / "shared", Path.exists
    (shared / "empty").mkdir(parents=True)
    # As if the other process made the directory just after it was found to be missing.
    monkeypatch.setattr(Path, "exists", lambda path: path != shared and exists(path))
    with pytest.raises(RuntimeError), Location.of(shared / "store").with_directories():
        raise RuntimeError
    assert [path.name for path in shared.iterdir()] == ["empty"]
