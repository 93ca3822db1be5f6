"""What may befall a store: kinds of damage, each chosen in detail by a random generator.

Bytes on the disk are changed under the store; what a disk does while it is used is done by `FaultyDisk`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from elasticscan.storage import read_manifest
from elasticscan.storage.disk import LocalDisk
from elasticscan.storage.sealed_file import SEGMENT_BYTES
from tests.storage.faulty_disk import FaultyDisk
from tests.store.damage_model import Model, files_below, root_of

Disks = dict[str, FaultyDisk]
FileKey = tuple[str, str]  # (name of the shard's root, path)
When = Literal["before", "while open", "any"]
CATALOG = "catalog.db"


@dataclass(slots=True)
class Damage:
    """Damage that was done.

    Attributes:
        what: for people.
        files: those that were removed or changed by it.
        heal: makes all as it was, where that can be.
    """

    what: str
    files: frozenset[FileKey] = frozenset()
    heal: Callable[[], None] | None = field(default=None, repr=False)


Inflict = Callable[[Path, Model, Disks, random.Random], Damage]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of damage.

    Attributes:
        when: before the store is opened, while pages of scans are held, or either.
        lasting: whether what was damaged stays so, so that `verify` has to find it.
        writes_first: whether something is written before, into the programs' faulty disks.
        without, often: operations that say nothing after this damage, and those that say most.
        catalog: whether the catalog is damaged, so that no file at all may be removed.
    """

    name: str
    inflict: Inflict
    when: When = "any"
    lasting: bool = True
    writes_first: bool = False
    without: frozenset[str] = frozenset()
    often: frozenset[str] = frozenset()
    catalog: bool = False


KINDS: dict[str, Kind] = {}


def kind(
    when: When = "any",
    lasting: bool = True,
    writes_first: bool = False,
    without: tuple[str, ...] = (),
    often: tuple[str, ...] = (),
    catalog: bool = False,
) -> Callable[[Inflict], Inflict]:
    def enter(inflict: Inflict) -> Inflict:
        name = inflict.__name__
        KINDS[name] = Kind(
            name, inflict, when, lasting, writes_first, frozenset(without), frozenset(often), catalog
        )
        return inflict

    return enter


# ----------------------------------------------------------------------------------- files on the disk


def _some_file(place: Path, model: Model, rng: random.Random) -> tuple[FileKey, Path]:
    """A file that the catalog refers to, large ones as often as all others."""
    there = files_below(place)
    live = [(key, path) for key, path in there.items() if key in model.live]
    large = [(key, path) for key, path in live if path.stat().st_size > 2 * SEGMENT_BYTES]
    return rng.choice(large if large and rng.random() < 0.5 else live)


def _some_place(size: int, rng: random.Random) -> int:
    """A byte of a file: anywhere, or near its end, where the footer is."""
    return rng.randrange(size) if rng.random() < 0.6 else max(0, size - 1 - rng.randrange(3_000))


@kind()
def flipped_bit(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    key, path = _some_file(place, model, rng)
    content = bytearray(path.read_bytes())
    at, bit = _some_place(len(content), rng), rng.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return Damage(f"bit {bit} of byte {at} of {key}, which has {len(content)}", frozenset({key}))


def _flip(path: Path, at: int, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


@kind()
def footer_bit(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    """In what Arrow looks at first, behind the manifest."""
    key, path = _some_file(place, model, rng)
    content = path.read_bytes()
    footer = int.from_bytes(content[-10:-6], "little")
    at = len(content) - 1 - rng.randrange(footer + 10)
    _flip(path, at, rng)
    return Damage(f"a bit of byte {at} of {key}, in its footer", frozenset({key}))


@kind(when="before", often=("repair",), catalog=True)
def swapped_columns_below_a_repair(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    """The footer is sound for Arrow; two columns of one type have swapped names, and no catalog knows."""
    key, path = rng.choice([one for one in _fragments(place, model) if not one[0][1].startswith("t1/")])
    content = bytearray(path.read_bytes())
    # A flatbuffer's string: its length, its bytes, a zero.
    k, v = (content.rfind(b"\1\0\0\0" + name + b"\0") + 4 for name in (b"k", b"v"))
    assert min(k, v) > 3, "the footer names both"
    content[k], content[v] = content[v], content[k]
    path.write_bytes(content)
    (place / CATALOG).write_bytes(b"")
    return Damage(f"the names of two columns at bytes {k} and {v} of {key}", frozenset({key}))


def _fragments(place: Path, model: Model) -> list[tuple[FileKey, Path]]:
    return [
        (key, path)
        for key, path in files_below(place).items()
        if key in model.live and read_manifest(LocalDisk(root_of(place, key[0])), key[1]).kind == "fragment"
    ]


@kind(often=("scan",))
def wrong_value(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    """Among the values of a fragment of many segments."""
    found = _fragments(place, model)
    large = [(key, path) for key, path in found if path.stat().st_size > 2 * SEGMENT_BYTES]
    key, path = rng.choice(large)
    at = rng.randrange(path.stat().st_size * 9 // 10)
    _flip(path, at, rng)
    return Damage(f"a bit of byte {at} of {key}", frozenset({key}))


@kind(often=("compact", "move"))
def damage_that_is_copied(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    return wrong_value(place, model, disks, rng)


@kind()
def wrong_byte(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    key, path = _some_file(place, model, rng)
    content = bytearray(path.read_bytes())
    at = _some_place(len(content), rng)
    content[at] = (content[at] + rng.randrange(1, 256)) % 256
    path.write_bytes(content)
    return Damage(f"byte {at} of {key}, which has {len(content)}", frozenset({key}))


@kind()
def zeroed_block(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    key, path = _some_file(place, model, rng)
    content = bytearray(path.read_bytes())
    start = _some_place(len(content), rng) // 512 * 512
    end = min(start + rng.choice([512, 4_096, 65_536]), len(content))
    content[start:end] = bytes(end - start)
    path.write_bytes(content)
    return Damage(f"zeros in [{start}, {end}) of {key}", frozenset({key}))


@kind()
def cut_file(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    key, path = _some_file(place, model, rng)
    length = rng.choice([0, 1, rng.randrange(path.stat().st_size), path.stat().st_size - 1])
    with path.open("r+b") as file:
        file.truncate(length)
    return Damage(f"{key} was cut to {length} bytes", frozenset({key}))


@kind()
def longer_file(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    key, path = _some_file(place, model, rng)
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.choice([1, 512])))
    return Damage(f"{key} was made longer", frozenset({key}))


@kind()
def missing_file(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    key, path = _some_file(place, model, rng)
    path.unlink()
    return Damage(f"{key} was removed", frozenset({key}))


@kind()
def swapped_files(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    (one, at), (other, to) = _some_file(place, model, rng), _some_file(place, model, rng)
    if one != other:
        mine, theirs = at.read_bytes(), to.read_bytes()
        at.write_bytes(theirs)
        to.write_bytes(mine)
    return Damage(f"{one} and {other} were swapped", frozenset({one, other}))


@kind()
def another_files_content(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    """Of the same length, as after a block was written to the wrong place."""
    (one, at), (_, other) = _some_file(place, model, rng), _some_file(place, model, rng)
    content = other.read_bytes()
    length = at.stat().st_size
    at.write_bytes((content * (length // len(content) + 1))[:length])
    return Damage(f"{one} has another file's content", frozenset({one}))


@kind()
def misplaced_block(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    """Two segments of a file changed places: every byte is one of ours."""
    key, path = _some_file(place, model, rng)
    content = path.read_bytes()
    step = SEGMENT_BYTES if len(content) > 2 * SEGMENT_BYTES else 512
    first, second = (rng.randrange(len(content) // step) * step for _ in range(2))
    swapped = bytearray(content)
    swapped[first : first + step] = content[second : second + step]
    swapped[second : second + step] = content[first : first + step]
    path.write_bytes(swapped[: len(content)])
    return Damage(f"blocks at {first} and {second} of {key} changed places", frozenset({key}))


@kind()
def directory_in_its_place(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    key, path = _some_file(place, model, rng)
    path.unlink()
    path.mkdir()
    return Damage(f"{key} is a directory", frozenset({key}))


# --------------------------------------------------------------------------------------- whole roots


@kind()
def root_gone(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    name = rng.choice(["s1", "s2"])
    root, away = root_of(place, name), Path(f"{place}.away")
    root.rename(away)

    def heal() -> None:
        if root.exists():
            shutil.rmtree(root)
        away.rename(root)

    return Damage(f"{name} is gone", _all_of(model, name), heal)


@kind()
def root_empty(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    """As when a disk is not mounted: what is written goes into the directory below."""
    name = rng.choice(["s1", "s2"])
    root, away = root_of(place, name), Path(f"{place}.away")
    root.rename(away)
    root.mkdir()
    return Damage(f"{name} is empty", _all_of(model, name))


def _all_of(model: Model, name: str) -> frozenset[FileKey]:
    return frozenset(key for key in model.live if key[0] == name)


# ------------------------------------------------------------------------------ disks that misbehave


def _some_disk(disks: Disks, rng: random.Random) -> tuple[str, FaultyDisk]:
    return rng.choice(sorted(disks.items()))


@kind(lasting=False)
def one_failing_call(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    name, disk = _some_disk(disks, rng)
    operation = rng.choice(["create", "write", "finish", "open", "read_at", "delete", "list", "rename"])
    disk.raise_at_call[operation] = rng.randint(1, 12)
    return Damage(f"{name} fails: {disk.raise_at_call}", heal=disk.raise_at_call.clear)


@kind(lasting=False)
def failing_disk(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    name, disk = _some_disk(disks, rng)
    operations = ["create", "write", "finish", "open", "read_at", "delete", "list", "rename"]
    disk.raise_always = set(rng.sample(operations, rng.choice([1, 1, 3, 8])))
    return Damage(f"{name} fails always: {sorted(disk.raise_always)}", heal=disk.raise_always.clear)


@kind()
def bits_read_wrong(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    (name, path), file = _some_file(place, model, rng)
    disks[name].flips[path] = {8 * _some_place(file.stat().st_size, rng) + rng.randrange(8)}
    return Damage(f"{name}/{path} is read with a wrong bit", heal=disks[name].flips.clear)


@kind(lasting=False)
def bits_read_wrong_once(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    for _ in range(rng.choice([1, 20])):
        (name, path), file = _some_file(place, model, rng)
        bits = disks[name].flips_once.setdefault(path, set())
        bits.add(8 * _some_place(file.stat().st_size, rng) + rng.randrange(8))

    def heal() -> None:
        for disk in disks.values():
            disk.flips_once.clear()

    return Damage("some files are read wrong once", heal=heal)


@kind()
def stale_file(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    """Another file's content is read, whole or in part."""
    (name, path), file = _some_file(place, model, rng)
    content = _some_file(place, model, rng)[1].read_bytes()
    length = file.stat().st_size
    disks[name].stale[path] = rng.choice([content, content[:length].ljust(length, b"\0")])
    return Damage(f"{name}/{path} is read as another file", heal=disks[name].stale.clear)


@kind(lasting=False)
def mount_vanishes(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    name, disk = _some_disk(disks, rng)
    disk.vanished = rng.choice(["gone", "empty"])
    what = f"{name} vanishes: {disk.vanished}"

    def heal() -> None:
        disk.vanished = None

    # What is written into the directory below is not there when the mount comes back.
    return Damage(what, heal=heal if disk.vanished == "gone" else None)


@kind(when="while open", writes_first=True)
def power_cut(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    """Of what was written since the store was opened, files are lost that were acknowledged."""
    name, disk = _some_disk(disks, rng)
    return Damage(f"{name} lost {disk.cut_power(rng.choice(['gone', 'zeros', 'short']))}")


@kind(when="before")
def torn_writes(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    name, disk = _some_disk(disks, rng)
    disk.tear_after = rng.choice([0, 100, 3_000])
    return Damage(f"{name} keeps {disk.tear_after} bytes of each file")


# ------------------------------------------------------------------------------------ the catalog

# A connection that was open before goes on with the pages that it remembers.
_NO_REPLACING = ("compact", "move")


@kind(without=_NO_REPLACING, catalog=True)
def catalog_bit(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    path = _catalog_file(place, rng)
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 10])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    _write_in_place(path, content)
    return Damage(f"bits of {path.name}")


@kind(without=_NO_REPLACING, catalog=True)
def catalog_page(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    path = _catalog_file(place, rng)
    content = bytearray(path.read_bytes())
    pages = range(0, len(content), 4_096)
    at, other = rng.choice(pages), rng.choice(pages)
    content[at : at + 4_096] = rng.choice([bytes(4_096), content[other : other + 4_096]])
    _write_in_place(path, content)
    return Damage(f"page at {at} of {path.name}")


@kind(when="before", without=_NO_REPLACING, catalog=True)
def catalog_cut(place: Path, model: Model, disks: Disks, rng: random.Random) -> Damage:
    path = place / CATALOG
    length = rng.choice([0, 100, 4_096, rng.randrange(path.stat().st_size)])
    _write_in_place(path, bytearray(path.read_bytes()[:length]))
    return Damage(f"{path.name} was cut to {length}")


def _catalog_file(place: Path, rng: random.Random) -> Path:
    found = [p for p in (place / CATALOG, place / f"{CATALOG}-wal") if p.exists() and p.stat().st_size]
    return rng.choice(found)


def _write_in_place(path: Path, content: bytearray) -> None:
    """A process may have it open: the same file, not another one under its name."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate(len(content))
