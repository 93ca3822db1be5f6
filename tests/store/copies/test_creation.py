"""What a process leaves that is killed during the making of a store: the store, or nothing in its way."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    ElasticScanError,
    InvalidOption,
    NotFound,
    ShardMismatch,
    ShardUnavailable,
    StoreDamaged,
)
from elasticscan.storage import LocalDisk
from elasticscan.store import Store, repair_store
from elasticscan.store.roots import markers

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARDS = ["s1", "s2"]
EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"})
MANY = int(os.environ.get("ELASTICSCAN_KILLED_EVERY", "23"))  # 1 tries every point
FINISHED, STOPPED = 77, 78  # exit codes of a child whose point was not reached, or that was stopped there
Making = Callable[..., Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two tables, and alongside it a backup of it."""
    place = tmp_path_factory.mktemp("original")
    with Store.create(place / "old", SHARDS, tablets=4, slots=16) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table([range(60), ["a"] * 60], schema=SCHEMA))
        table.create_index("by_v", ["v"])
        table.upsert(pa.table([range(40, 100), ["b"] * 60], schema=SCHEMA))
        store.create_table("u", SCHEMA, ["id"]).upsert(pa.table([[1], ["u"]], schema=SCHEMA))
        store.backup(place / "backups")
    return place


def create(_: Path, new: Path | str, roots: Mapping[str, str] | Sequence[str] = SHARDS, **how: Any) -> None:
    Store.create(new, roots, tablets=4, slots=16, **how).close()


def restore(original: Path, new: Path | str, roots: Mapping[str, str] = {}, **how: Any) -> None:
    Store.from_backup(original / "backups", new, roots, **how).close()


def repair(original: Path, new: Path, **how: Any) -> None:
    repair_store(original / "old", new, **how)


def rows_of(store: Path | str) -> dict[str, list[Any]]:
    """All rows of a store that takes writes and is whole."""
    with Store.open(store) as opened:
        assert opened.verify() == []
        found = {table.name: table.scan().to_table().sort_by("id").to_pylist() for table in opened.tables()}
        opened.create_table("probe", SCHEMA, ["id"]).upsert(pa.table([[1], ["p"]], schema=SCHEMA))
        opened.table("probe").drop()
        assert opened.verify() == []
    return found


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise KeyboardInterrupt


def stopped_at(point: int, stop: Callable[[], None], make: Making, original: Path, new: Path) -> bool:
    """True if a child that makes a store was stopped at a point: a look at a file or the catalog."""
    child = os.fork()
    if not child:
        passed = 0

        def here(*_: object) -> bool:
            nonlocal passed
            passed += 1
            if passed == point:
                stop()
            return True

        def traced(connection: apsw.Connection) -> None:
            connection.exec_trace = here

        def is_kept(name: str, arguments: tuple[Any, ...]) -> None:
            if name in EVENTS and str(arguments[0]).startswith(str(new.parent)):
                here()

        try:
            apsw.connection_hooks.append(traced)
            sys.addaudithook(is_kept)
            make(original, new)
            os._exit(FINISHED if passed < point else STOPPED)
        except KeyboardInterrupt:
            os._exit(STOPPED)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (FINISHED, STOPPED, -signal.SIGKILL)
    return status != FINISHED


def stops(make: Making, original: Path, place: Path, every: int, stop: Callable[[], None]) -> Iterator[Path]:
    """Places where a store was being made, when that was stopped at one point after the other."""
    point = 1
    while stopped_at(point, stop, make, original, new := place / f"{point}" / "new"):
        yield new
        shutil.rmtree(new.parent, ignore_errors=True)
        point += every


@pytest.mark.parametrize(
    ("make", "stop", "every"),
    [
        (restore, kill, 101),
        (restore, fail, 83),
        (create, fail, 31),
        (repair, fail, 151),
        *(
            pytest.param(make, stop, MANY, marks=pytest.mark.long)
            for make in (create, restore, repair)
            for stop in (kill, fail)
        ),
    ],
)
def test_a_store_whose_making_is_stopped_is_whole_or_is_none(
    original: Path, tmp_path: Path, make: Making, stop: Callable[[], None], every: int
) -> None:
    """What a killed process leaves is in the way, and touched by nothing until a person removes it.

    What fails, or is interrupted, leaves no file.
    """
    make(original, tmp_path / "wanted")
    wanted = rows_of(tmp_path / "wanted")
    seen = set[type]()
    for new in stops(make, original, tmp_path, every, stop):
        try:
            Store.open(new).close()
        except ElasticScanError as error:
            seen.add(type(error))
            assert stop is kill or not any(path.is_file() for path in new.parent.rglob("*"))
            with suppress(ElasticScanError):
                make(original, new)
                assert rows_of(new) == wanted
            shutil.rmtree(new, ignore_errors=True)
            make(original, new)
        else:
            seen.add(Store)
            with pytest.raises((AlreadyExists, InvalidOption)):
                make(original, new)
        assert rows_of(new) == wanted
    assert NotFound in seen
    assert seen <= {NotFound, StoreDamaged, Store}


@pytest.mark.parametrize("is_emptied", [True, False])
def test_no_store_is_made_where_commits_of_one_wait_for_its_catalog(tmp_path: Path, is_emptied: bool) -> None:
    """As after a kill, with all shards elsewhere: SQLite would drop what waits next to a new catalog."""
    alive, killed = tmp_path / "alive", tmp_path / "killed"
    with Store.create(alive, {"s": str(tmp_path / "root")}) as store:
        store.create_table("t", pa.schema([("id", pa.int64())]), ["id"]).upsert([{"id": 1}])
        shutil.copytree(alive, killed)
    catalog = killed / "catalog.db"
    saved = catalog.read_bytes()
    if is_emptied:
        catalog.write_bytes(b"")
    else:
        catalog.unlink()
    for refused in (Store.open, lambda uri: Store.create(uri, {"s": str(tmp_path / "other")})):
        with pytest.raises(NotFound, match="holds parts of a store"):
            refused(killed)
    catalog.write_bytes(saved)
    with Store.open(killed) as store:
        assert store.table("t").scan().count() == 1


class Meanwhile(LocalDisk):
    """A disk that lets someone else come in before it makes some file."""

    def __init__(self, where: str, ends: str, other: Callable[[], object]) -> None:
        super().__init__(Path(where))
        self._ends, self._other = ends, other

    def create(self, path: str) -> Any:
        if path.endswith(self._ends):
            self._other()
        return super().create(path)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("place", ["directory", "database"])
def test_a_restore_that_is_overtaken_by_another_takes_nothing_of_its_store(
    original: Path, tmp_path: Path, place: str, there: bool
) -> None:
    """Of two that make one store, one makes it, and what is written to that stays."""
    uri, roots = str(tmp_path / "new"), dict[str, str]()
    if place == "database":
        uri = f"sqlite:///{tmp_path}/catalog.sqlite"
        roots = {shard: str(tmp_path / "roots" / shard) for shard in SHARDS}
    if there:
        (tmp_path / "new").mkdir()
    ended, mine = list[type](), {"id": 1_000, "v": "mine"}

    def overtake() -> None:
        with Store.from_backup(original / "backups", uri, roots=roots) as store:
            store.table("t").upsert([mine])

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
            ended.append(Store)
        except (AlreadyExists, InvalidOption, NotFound, ShardMismatch) as error:
            ended.append(type(error))

    def disk_of(where: str) -> LocalDisk:
        return Meanwhile(where, ".arrow", lambda: None if ended else attempt(overtake))

    attempt(lambda: restore(original, uri, roots, disks=disk_of))
    assert len(ended) == 2 and ended.count(Store) == 1
    wanted = rows_of(original / "old")["t"] + [mine] * (ended[0] is Store)
    with Store.open(uri) as store:
        store.collect_garbage(grace_seconds=0, orphan_seconds=0)
    assert rows_of(uri)["t"] == wanted
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


def test_a_root_that_is_being_claimed_for_long_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "_LOCK_SECONDS", 0.1)
    (tmp_path / "disk").mkdir()
    held = os.open(tmp_path / "disk", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(ShardUnavailable, match="another process has held"):
        Store.create(tmp_path / "new", {"s": str(tmp_path / "disk")})
    os.close(held)
    Store.create(tmp_path / "new", {"s": str(tmp_path / "disk")}).close()
