"""What a process leaves that is killed during the making of a store: the store, or nothing in its way."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Any

import apsw
import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    ElasticScanError,
    InvalidOption,
    ShardUnavailable,
    StoreDamaged,
    StoreNotFound,
    WrongRoot,
)
from elasticscan.store import Store
from elasticscan.store.copies import backup
from elasticscan.store.repair.rebuild import repair_store
from elasticscan.store.roots import markers

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARDS = ["s1", "s2"]
EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"})
MANY = int(os.environ.get("ELASTICSCAN_KILLED_EVERY", "23"))  # 1 tries every point
FINISHED = 77  # the exit code of a child that nothing killed
Making = Callable[[Path, Path], Any]


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


def create(_: Path, new: Path) -> None:
    Store.create(new, SHARDS, tablets=4, slots=16).close()


def restore(original: Path, new: Path) -> None:
    Store.from_backup(original / "backups", new).close()


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

        def statement(*_: object) -> bool:
            here()
            return True

        def traced(connection: apsw.Connection) -> None:
            connection.exec_trace = statement

        def is_kept(name: str, arguments: tuple[Any, ...]) -> None:
            if name in EVENTS and str(arguments[0]).startswith(str(new.parent)):
                here()

        try:
            apsw.connection_hooks.append(traced)
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
        (restore, 101),
        pytest.param(create, 11, marks=pytest.mark.long),
        pytest.param(repair, 131, marks=pytest.mark.long),
        pytest.param(create, MANY, marks=pytest.mark.long),
        pytest.param(restore, MANY, marks=pytest.mark.long),
        pytest.param(repair, MANY, marks=pytest.mark.long),
    ],
)
def test_a_store_whose_making_is_killed_is_whole_or_is_none(
    original: Path, tmp_path: Path, make: Making, every: int
) -> None:
    """What is left then is in the way, and touched by nothing until a person removes it."""
    make(original, tmp_path / "wanted")
    wanted = rows_of(tmp_path / "wanted")
    seen = set()
    for new in kills(make, original, tmp_path, every):
        try:
            Store.open(new).close()
        except ElasticScanError as error:
            seen.add(type(error))
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
    assert StoreNotFound in seen
    assert seen <= {StoreNotFound, StoreDamaged, Store}


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (create, "elasticscan.store.roots.markers.Claims.claim"),
        (restore, "elasticscan.store.copies.backup.take_incarnation"),
        (restore, "elasticscan.store.copies.backup.verify_file"),
        (repair, "elasticscan.store.repair.rebuild.create_index"),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_a_store_that_fails_while_it_is_made_leaves_nothing(
    original: Path, tmp_path: Path, make: Making, where: str, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    new = tmp_path / "above" / "new"
    if there and make is not repair:
        new.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(where, fail)
    with pytest.raises(KeyboardInterrupt):
        make(original, new)
    assert sorted(tmp_path.rglob("*")) == before


@contextmanager
def amid_copying(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> Iterator[None]:
    """Let somebody else come in once, after a file was copied."""
    copy, is_first = backup._copy, [True]

    def copied(*arguments: Any) -> None:
        copy(*arguments)
        if is_first.pop() if is_first else False:
            other()

    with monkeypatch.context() as patch:
        patch.setattr(backup, "_copy", copied)
        yield


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("place", ["directory", "database"])
def test_a_restore_that_is_overtaken_by_another_takes_nothing_of_its_store(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, there: bool
) -> None:
    """Of two that make one store, one makes it, and what is written to that stays."""
    uri, roots = str(tmp_path / "new"), dict[str, str]()
    if place == "database":
        uri = f"sqlite:///{tmp_path}/catalog.sqlite"
        roots = {shard: str(tmp_path / "roots" / shard) for shard in SHARDS}
    if there:
        (tmp_path / "new").mkdir()
    made = list[dict[int, str]]()

    def overtake() -> None:
        with Store.from_backup(original / "backups", uri, roots=roots) as store:
            store.table("t").upsert(pa.table([[1_000], ["mine"]], schema=SCHEMA))
            made.append(contents(store))

    ended = list[type]()
    with amid_copying(monkeypatch, lambda: ended.append(outcome(overtake))):
        ended.append(outcome(lambda: Store.from_backup(original / "backups", uri, roots=roots).close()))
        assert ended.count(Store) == 1
    with Store.open(uri) as store:
        assert store.verify() == []
        assert contents(store) == (made[0] if made else wanted_of(original))
        store.collect_garbage(grace_seconds=0, trash_seconds=0)
        assert store.verify() == []
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


def outcome(work: Callable[[], object]) -> type:
    """`Store`, or the error with which it was refused."""
    try:
        work()
    except (AlreadyExists, InvalidOption, StoreNotFound, WrongRoot) as error:
        return type(error)
    return Store


def contents(store: Store) -> dict[int, str]:
    rows = store.table("t").scan().to_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["v"] for row in rows}


def wanted_of(original: Path) -> dict[int, str]:
    with Store.open(original / "old") as store:
        return contents(store)


def test_of_two_that_claim_one_root_at_once_one_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one looks whether it is free while the other has looked, and writes its marker."""
    honest, waiting, ended = markers.check_free, threading.Event(), list[type]()

    def slowly(*arguments: Any, **more: Any) -> bool:
        is_free = honest(*arguments, **more)
        if len(arguments) > 2:  # during a claim, not before it
            waiting.set()
            sleep(0.2)
        return is_free

    monkeypatch.setattr(markers, "check_free", slowly)

    def make(name: str) -> None:
        ended.append(outcome(lambda: Store.create(tmp_path / name, {"s": str(tmp_path / "disk")}).close()))

    first = threading.Thread(target=make, args=("one",))
    first.start()
    assert waiting.wait(20)
    make("two")
    first.join()
    assert sorted(kind.__name__ for kind in ended) == ["InvalidOption", "Store"]
    (left,) = [path for path in (tmp_path / "one", tmp_path / "two") if path.exists()]
    with Store.open(left) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(pa.table([[1], ["a"]], schema=SCHEMA))
        assert store.verify() == []


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
