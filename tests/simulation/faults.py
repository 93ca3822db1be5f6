"""Faults of stores as steps, with details that are drawn.

A fault is a function of a world, registered by `@fault`, that damages the files, the disks or the catalog and
returns the damage. After it each step ends with right rows or a typed error, and no file that the catalog
refers to may be removed. After a fault that returns None everything must be exact.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import apsw
import pytest

from elasticscan.base.errors import ShardMismatch
from elasticscan.storage import read_manifest
from elasticscan.storage.disk import LocalDisk
from elasticscan.storage.sealed_file import SEGMENT_BYTES
from tests.base.connections import gate_statements
from tests.simulation.reading import closed
from tests.simulation.world import STEPS, World
from tests.storage.faulty_disk import FaultyDisk

FileKey = tuple[str, str]  # (name of the shard's root, path)
Found = tuple[FileKey, Path]
Inflict = Callable[[World], "Damage | None"]
CATALOG = "catalog.db"
CALLS = ["create", "write", "finish", "open", "read_at", "delete", "list"]


@dataclass(slots=True)
class Damage:
    """Damage that was done.

    Attributes:
        what: a description.
        files: the removed or changed files.
        heal: undoes the damage, if that is possible.
    """

    what: str
    files: frozenset[FileKey] = frozenset()
    heal: Callable[[], object] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault.

    Attributes:
        when: before the store is opened, while it is open, or either; or after its processes were killed,
            with the files of the catalog at that moment.
        lasting: whether the damage stays, so that `verify` has to find it.
        writes: the largest number of writes just before.
        unflushed: whether disks acknowledge writes without flushing them.
        without, often: steps that find nothing after this fault, and steps that find most.
        catalog: whether the catalog is damaged, so that commits may be lost.
    """

    name: str
    inflict: Inflict
    when: Literal["before", "while open", "any", "killed"] = "any"
    lasting: bool = True
    writes: int = 0
    unflushed: bool = False
    without: tuple[str, ...] = ()
    often: tuple[str, ...] = ()
    catalog: bool = False


FAULTS: dict[str, Fault] = {}


def fault(**options: Any) -> Callable[[Inflict], Inflict]:
    def enter(inflict: Inflict) -> Inflict:
        known = FAULTS[inflict.__name__] = Fault(inflict.__name__, inflict, **options)
        STEPS[known.name] = lambda world: _befall(world, known)
        return inflict

    return enter


def _befall(world: World, known: Fault) -> None:
    """Inflict a fault on a store that is closed, or open."""
    is_closed = known.when in ("before", "killed") or (known.when == "any" and world.random.random() < 0.5)
    files, acknowledged = catalog_files(world.place), max(table.newest for table in world.tables.values())
    with closed(world) if is_closed else nullcontext():
        if known.when == "killed":
            put_catalog(world.place, files)
        damage = known.inflict(world)
        if damage is not None:
            world.say(damage.what)
            world.damage, world.fault = damage, known
    if known.when == "killed" and world.newest_commit() < acknowledged:
        _check_refused(world)


def _check_refused(world: World) -> None:
    """Check that the store is refused, because its roots know of later commits; nothing is written."""
    for table in world.tables.values():
        handle, some = world.store.table(table.name), table.keys([*table.before(table.newest)][:1])
        with pytest.raises(ShardMismatch):
            handle.history()
        with pytest.raises(ShardMismatch):
            handle.delete(some)


# Files on the disk


def some_file(world: World) -> Found:
    """A file that the catalog refers to, large ones as often as all others."""
    live = [(key, path) for key, path in files_below(world.place).items() if key in world.live]
    large = _large(live)
    return world.random.choice(large if large and world.random.random() < 0.5 else live)


def _large(files: list[Found]) -> list[Found]:
    return [(key, path) for key, path in files if path.stat().st_size > 2 * SEGMENT_BYTES]


def _fragments(world: World) -> list[Found]:
    return [
        (key, path)
        for key, path in files_below(world.place).items()
        if key in world.live
        and read_manifest(LocalDisk(world.place / "shards" / key[0]), key[1]).kind == "fragment"
    ]


def some_large_fragment(world: World) -> Found:
    return world.random.choice(_large(_fragments(world)))


def files_below(place: Path) -> dict[FileKey, Path]:
    """Every file of a store's shards, by size, because names are random: a seed chooses the same file."""
    files = [path for path in (place / "shards").rglob("*") if path.is_file()]
    found = {}
    for path in sorted(files, key=lambda path: (path.stat().st_size, path)):
        root, *parts = path.relative_to(place / "shards").parts
        found[root, "/".join(parts)] = path
    return found


Edit = Callable[[bytearray, random.Random], object]


def edit(of: Callable[[World], Found] = some_file, **options: Any) -> Callable[[Edit], Edit]:
    """A fault that changes the content of a file; the function returns where."""

    def enter(change: Edit) -> Edit:
        def inflict(world: World) -> Damage:
            return _edited(world, of(world), change)

        inflict.__name__ = change.__name__
        fault(**options)(inflict)
        return change

    return enter


def _edited(world: World, file: Found, change: Edit) -> Damage:
    key, path = file
    content = bytearray(path.read_bytes())
    at = change(content, world.random)
    path.write_bytes(content)
    return Damage(f"at {at} of {key}", frozenset({key}))


def _some_place(content: bytearray, rng: random.Random) -> int:
    """A byte of a file: anywhere, or near its end, where the footer is."""
    size = len(content)
    return rng.randrange(size) if rng.random() < 0.6 else max(0, size - 1 - rng.randrange(3_000))


def _flip(content: bytearray, at: int, rng: random.Random) -> int:
    content[at] ^= 1 << rng.randrange(8)
    return at


@edit()
def flipped_bit(content: bytearray, rng: random.Random) -> object:
    return _flip(content, _some_place(content, rng), rng)


@edit()
def footer_bit(content: bytearray, rng: random.Random) -> object:
    """Flip a bit in Arrow's footer, behind the manifest."""
    footer = int.from_bytes(content[-10:-6], "little")
    return _flip(content, len(content) - 1 - rng.randrange(footer + 10), rng)


@edit(of=some_large_fragment, often=("scan_all",))
def wrong_value(content: bytearray, rng: random.Random) -> object:
    """Among the values of a fragment of many segments."""
    return _flip(content, rng.randrange(len(content) * 9 // 10), rng)


@edit(of=some_large_fragment, often=("compact", "move"))
def damage_that_is_copied(content: bytearray, rng: random.Random) -> object:
    return wrong_value(content, rng)


@edit()
def cut_file(content: bytearray, rng: random.Random) -> object:
    del content[rng.choice([0, 1, rng.randrange(len(content)), len(content) - 1]) :]
    return len(content)


@edit()
def longer_file(content: bytearray, rng: random.Random) -> object:
    content += rng.randbytes(rng.choice([1, 512]))
    return len(content)


@edit()
def misplaced_block(content: bytearray, rng: random.Random) -> object:
    """Exchange two segments of a file: every byte is one of ours."""
    step = SEGMENT_BYTES if len(content) > 2 * SEGMENT_BYTES else 512
    first, second = (rng.randrange(len(content) // step) * step for _ in range(2))
    one, other = content[first : first + step], content[second : second + step]
    content[first : first + step], content[second : second + step] = other, one
    return first, second


@fault(when="before", often=("repair",), catalog=True)
def swapped_columns_below_a_repair(world: World) -> Damage:
    """The footer is sound for Arrow; two columns of one type have swapped names, and no catalog knows."""

    def swap(content: bytearray, _: random.Random) -> object:
        # A flatbuffer's string: its length, its bytes, a zero.
        k, v = (content.rfind(b"\1\0\0\0" + name + b"\0") + 4 for name in (b"k", b"v"))
        assert min(k, v) > 3, "the footer names both"
        content[k], content[v] = content[v], content[k]
        return k, v

    of_two = [one for one in _fragments(world) if not one[0][1].startswith("t1/")]
    damage = _edited(world, world.random.choice(of_two), swap)
    (world.place / CATALOG).write_bytes(b"")
    return damage


@fault()
def missing_file(world: World) -> Damage:
    key, path = some_file(world)
    path.unlink()
    return Damage(f"{key} was removed", frozenset({key}))


@fault()
def directory_in_its_place(world: World) -> Damage:
    key, path = some_file(world)
    path.unlink()
    path.mkdir()
    return Damage(f"{key} is a directory", frozenset({key}))


@fault()
def swapped_files(world: World) -> Damage:
    (one, at), (other, to) = some_file(world), some_file(world)
    if one != other:
        mine, theirs = at.read_bytes(), to.read_bytes()
        at.write_bytes(theirs)
        to.write_bytes(mine)
    return Damage(f"{one} and {other} were swapped", frozenset({one, other}))


# Whole roots


def _root_away(world: World, what: str) -> tuple[Damage, Path]:
    name = world.random.choice(["s1", "s2"])
    root, away = world.place / "shards" / name, Path(f"{world.place}.away")
    root.rename(away)

    def heal() -> None:
        if root.exists():
            shutil.rmtree(root)
        away.rename(root)

    return Damage(f"{name} is {what}", frozenset(key for key in world.live if key[0] == name), heal), root


@fault()
def root_gone(world: World) -> Damage:
    return _root_away(world, "gone")[0]


@fault()
def root_empty(world: World) -> Damage:
    """Empty a root, as if a disk is not mounted: writes go into the directory below."""
    damage, root = _root_away(world, "empty")
    root.mkdir()
    damage.heal = None
    return damage


# Disks that misbehave


def _some_disk(world: World) -> tuple[str, FaultyDisk]:
    return world.random.choice(sorted(world.disks.items()))


@fault(lasting=False)
def one_failing_call(world: World) -> Damage:
    name, disk = _some_disk(world)
    disk.raise_at_call[world.random.choice(CALLS)] = world.random.randint(1, 12)
    return Damage(f"{name} fails: {disk.raise_at_call}", heal=disk.raise_at_call.clear)


@fault(lasting=False)
def failing_disk(world: World) -> Damage:
    name, disk = _some_disk(world)
    disk.raise_always = set(world.random.sample(CALLS, world.random.choice([1, 1, 3, 8])))
    return Damage(f"{name} fails always: {sorted(disk.raise_always)}", heal=disk.raise_always.clear)


@fault(lasting=False, often=("write", "compact", "move"))
def read_only_disk(world: World) -> Damage:
    """Refuse writes, as a file system that is mounted read-only after an error; reads work."""
    name, disk = _some_disk(world)
    disk.raise_always = {"create", "write", "finish", "delete", "rename"}
    return Damage(f"{name} takes no writes", heal=disk.raise_always.clear)


@fault(lasting=False, often=("write", "compact", "move"))
def full_disk(world: World) -> Damage:
    """Fill the disk, now or after some more bytes."""
    name, disk = _some_disk(world)
    disk.full_after = disk.written + world.random.choice([0, 3_000, 100_000])
    return Damage(f"{name} is full", heal=lambda: setattr(disk, "full_after", None))


@fault()
def bits_read_wrong(world: World) -> Damage:
    (name, path), file = some_file(world)
    content = bytearray(file.read_bytes())
    flips = world.disks[name].flips
    flips[path] = {8 * _some_place(content, world.random) + world.random.randrange(8)}
    return Damage(f"{name}/{path} is read with a wrong bit", heal=flips.clear)


@fault(lasting=False)
def bits_read_wrong_once(world: World) -> Damage:
    for _ in range(world.random.choice([1, 20])):
        (name, path), file = some_file(world)
        bits = world.disks[name].flips_once.setdefault(path, set())
        content = bytearray(file.read_bytes())
        bits.add(8 * _some_place(content, world.random) + world.random.randrange(8))
    return Damage(
        "bits are read wrong once", heal=lambda: [d.flips_once.clear() for d in world.disks.values()]
    )


@fault()
def stale_file(world: World) -> Damage:
    """Return another file's content for reads, completely or in part."""
    (name, path), file = some_file(world)
    content, length = some_file(world)[1].read_bytes(), file.stat().st_size
    stale = world.disks[name].stale
    stale[path] = world.random.choice([content, content[:length].ljust(length, b"\0")])
    return Damage(f"{name}/{path} is read as another file", heal=stale.clear)


@fault(lasting=False)
def mount_vanishes(world: World) -> Damage:
    name, disk = _some_disk(world)
    disk.vanished = world.random.choice(["gone", "empty"])
    # Files written into the directory below are not visible when the mount comes back.
    heal = (lambda: setattr(disk, "vanished", None)) if disk.vanished == "gone" else None
    return Damage(f"{name} vanishes: {disk.vanished}", heal=heal)


@fault(when="while open", writes=3, unflushed=True)
def power_cut(world: World) -> Damage:
    """Lose acknowledged files that were written since the store was opened."""
    name, disk = _some_disk(world)
    return Damage(f"{name} lost {disk.cut_power(world.random.choice(['gone', 'zeros', 'short']))}")


@fault(when="before")
def torn_writes(world: World) -> Damage:
    name, disk = _some_disk(world)
    disk.tear_after = world.random.choice([0, 100, 3_000])
    return Damage(f"{name} keeps {disk.tear_after} bytes of each file")


@fault()
def clock_jumps(world: World) -> None:
    """Move the clock: leases and retention may end; nothing else may change."""
    world.clock.advance(world.random.choice([3_600, 2 * 86_400, 30 * 86_400]))


@fault(when="while open", lasting=False, often=("write", "move", "compact"))
def lost_connections(world: World) -> Damage:
    """Lose connections: some statements on the catalog get no answer, before or after they were executed."""
    first, rng = world.random.randint(1, 60), world.random
    done, count = rng.random() < 0.5, rng.choice([1, 3, 40])
    left = range(first, first + (1 if done else count))
    numbers = itertools.count()

    def gate(_: str, execute: Callable[[], Any]) -> Any:
        is_lost = next(numbers) in left
        answer = execute() if done or not is_lost else None
        if is_lost:
            raise apsw.ProtocolError("the connection was lost")
        return answer

    ends = [gate_statements(store.context.catalog, gate) for store in world.stores]
    what = f"statements {left} are lost {'behind' if done else 'before'} the catalog"
    return Damage(what, heal=lambda: [end() for end in ends])


# The catalog. A connection that was open before may still use cached pages.

_NO_REPLACING = ("compact", "move")


@fault(without=_NO_REPLACING, catalog=True)
def catalog_bit(world: World) -> Damage:
    path = _catalog_file(world)
    content = bytearray(path.read_bytes())
    for _ in range(world.random.choice([1, 1, 2, 10])):
        _flip(content, world.random.randrange(len(content)), world.random)
    _write_in_place(path, content)
    return Damage(f"bits of {path.name}")


@fault(without=_NO_REPLACING, catalog=True)
def catalog_page(world: World) -> Damage:
    path = _catalog_file(world)
    content = bytearray(path.read_bytes())
    pages = range(0, len(content), 4_096)
    at, other = world.random.choice(pages), world.random.choice(pages)
    content[at : at + 4_096] = world.random.choice([bytes(4_096), content[other : other + 4_096]])
    _write_in_place(path, content)
    return Damage(f"page at {at} of {path.name}")


@fault(when="before", without=_NO_REPLACING, catalog=True)
def catalog_cut(world: World) -> Damage:
    path = world.place / CATALOG
    length = world.random.choice([0, 100, 4_096, world.random.randrange(path.stat().st_size)])
    _write_in_place(path, path.read_bytes()[:length])
    return Damage(f"{path.name} was cut to {length}")


# Its files when both processes were killed: the database, its log (-wal) and the log's index (-shm).


def catalog_files(place: Path) -> dict[str, bytes]:
    """The files of a catalog, by the suffixes of their names."""
    files = {end: place / f"{CATALOG}{end}" for end in ("", "-wal", "-shm")}
    return {end: path.read_bytes() for end, path in files.items() if path.exists()}


def put_catalog(place: Path, files: Mapping[str, bytes]) -> None:
    """Replace the catalog's files. The database's own file is overwritten, or it would count as a copy."""
    _write_in_place(place / CATALOG, files[""])
    for end in ("-wal", "-shm"):
        path = place / f"{CATALOG}{end}"
        path.unlink(missing_ok=True)
        if end in files:
            path.write_bytes(files[end])


@fault(when="killed", writes=3)
def killed(world: World) -> None:
    """Kill both processes: all acknowledged commits exist, whatever the log's index (shared memory) has."""
    index = world.place / f"{CATALOG}-shm"
    if index.exists():
        content, noise = index.read_bytes(), world.random.randbytes(32_768)
        index.write_bytes(world.random.choice([content, b"", bytes(32_768), noise]))


@fault(when="killed", writes=3, without=_NO_REPLACING, catalog=True)
def torn_log(world: World) -> Damage:
    """Cut the log, leave allocated blocks unwritten, flip bits, or remove the log."""
    path, rng = world.place / f"{CATALOG}-wal", world.random
    if not path.exists() or rng.random() < 0.2:
        path.unlink(missing_ok=True)
        return Damage("the log is gone")
    content = bytearray(path.read_bytes())
    at = rng.choice([rng.randrange(len(content)), 32 + 4_120 * rng.randrange(len(content) // 4_120)])
    how = rng.choice(["cut", "zeros", "bit"])
    if how == "cut":
        del content[at:]
    elif how == "zeros":
        content[at : at + 4_096] = bytes(len(content[at : at + 4_096]))
    else:
        _flip(content, min(at, len(content) - 1), rng)
    path.write_bytes(content)
    return Damage(f"the log has {how} at {at}")


@fault(when="killed", writes=3, without=_NO_REPLACING, catalog=True)
def older_copy(world: World) -> Damage:
    put_catalog(world.place, world.older_catalog)
    return Damage("an older copy of the catalog was put back")


def _catalog_file(world: World) -> Path:
    paths = (world.place / CATALOG, world.place / f"{CATALOG}-wal")
    return world.random.choice([path for path in paths if path.exists() and path.stat().st_size])


def _write_in_place(path: Path, content: bytes | bytearray) -> None:
    """Overwrite the file itself, not another file under its name: a process may have it open."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate(len(content))
