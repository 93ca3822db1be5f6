"""Copies on the local disk: bounded, private, never in the way."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from elasticscan.base.errors import InvalidOption
from elasticscan.storage.objects.copies import (
    BLOCK_BYTES,
    BOUND,
    DIRECTORY,
    EXTENT_BYTES,
    MEMORY,
    Copies,
    Memory,
    copies_here,
    name_of,
)

NAME = name_of("a bucket", "a key")


def block(copies: Copies, number: int, name: str = NAME) -> bytes | None:
    room = bytearray(BLOCK_BYTES)
    came = copies.read_into(name, number * BLOCK_BYTES, memoryview(room))
    assert came in (0, BLOCK_BYTES)
    return bytes(room) if came else None


def kept(copies: Copies | Memory, number: int, name: str = NAME) -> bool:
    """Keep a block; returns whether that was on the disk."""
    copies.keep(name, number * BLOCK_BYTES, memoryview(bytes([number % 256]) * BLOCK_BYTES))
    remembered = MEMORY.read_into(name, number * BLOCK_BYTES, memoryview(bytearray(1)))
    MEMORY.forget(name)
    return not remembered


def test_a_block_reads_as_it_was_kept_in_whole_and_in_part(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "cache", 1 << 30)
    assert block(copies, 3) is None and copies.end_of(NAME) is None
    assert kept(copies, 3)
    assert block(copies, 3) == b"\x03" * BLOCK_BYTES
    assert copies.read_into(NAME, 4 * BLOCK_BYTES - 5, memoryview(bytearray(9))) == 5
    assert copies.read_into(NAME, 3 * BLOCK_BYTES - 1, memoryview(bytearray(9))) == 0
    copies.keep_end(NAME, memoryview(b"the end"), 700)
    end = copies.end_of(NAME)
    assert end is not None and (end[0].to_pybytes(), end[1]) == (b"the end", 700)
    assert Copies(tmp_path / "cache", 1 << 30).end_of(NAME) is not None
    copies.forget(NAME)
    assert block(copies, 3) is None and copies.end_of(NAME) is None


@pytest.mark.parametrize("content", [b"", b"1234567", b"\x05" + bytes(7), b"\x01" + bytes(7) + b"longer"])
def test_an_end_that_was_cut_is_none(tmp_path: Path, content: bytes) -> None:
    copies = Copies(tmp_path / "cache", 1 << 30)
    copies.keep_end(NAME, memoryview(b"the end"), 700)
    (file,) = (tmp_path / "cache").rglob("end")
    file.write_bytes(content)
    assert copies.end_of(NAME) is None


def test_nobody_else_may_look_in(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "cache", 1 << 30)
    kept(copies, 1)
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    assert not kept(Copies(tmp_path / "open", 1 << 30), 1)
    assert list((tmp_path / "open").iterdir()) == []


def room_taken(place: Path) -> int:
    return sum(512 * path.stat().st_blocks for path in place.rglob("*") if path.is_file())


def test_what_is_used_least_goes_first(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    copies, names = Copies(cache, 16 * BLOCK_BYTES), [name_of("bucket", str(number)) for number in range(60)]
    for name in names[:12]:
        kept(copies, 300, name)
    for number, name in enumerate(names[:12]):
        for path in (cache / name[:2] / name).iterdir():
            os.utime(path, (1_000_000 + number,) * 2)
    assert block(copies, 300, names[5]) is not None  # it is used now
    for name in names[12:20]:
        kept(copies, 300, name)
    assert block(copies, 300, names[0]) is None and block(copies, 300, names[5]) is not None
    for name in names[20:]:
        kept(copies, 300, name)
    assert room_taken(cache) <= 20 * BLOCK_BYTES
    assert block(copies, 300, names[-1]) is not None and block(copies, 300, names[5]) is None
    assert not (cache / names[0][:2] / names[0]).exists()


def test_a_read_goes_over_files_up_to_the_first_block_that_is_not_there(tmp_path: Path) -> None:
    copies, edge = Copies(tmp_path / "cache", 1 << 30), EXTENT_BYTES // BLOCK_BYTES
    for number in range(edge - 2, edge + 2):
        kept(copies, number)
    begin, room = (edge - 2) * BLOCK_BYTES + 7, memoryview(bytearray(6 * BLOCK_BYTES))
    assert copies.read_into(NAME, begin, room) == 4 * BLOCK_BYTES - 7
    assert room[2 * BLOCK_BYTES - 8] == (edge - 1) % 256 and room[2 * BLOCK_BYTES - 7] == edge % 256
    assert room_taken(tmp_path / "cache") <= 6 * BLOCK_BYTES  # holes take none


def test_damage_in_one_place_costs_no_other(tmp_path: Path) -> None:
    copies, edge = Copies(tmp_path / "cache", 1 << 30), EXTENT_BYTES // BLOCK_BYTES
    for number in (0, edge, 2 * edge):
        kept(copies, number)
    copies.keep_end(NAME, memoryview(b"the end"), 700)
    assert copies.forget(NAME, EXTENT_BYTES + 5, EXTENT_BYTES + 6)
    assert block(copies, 0) and block(copies, edge) is None and block(copies, 2 * edge)
    assert copies.end_of(NAME) is not None and copies.forget(NAME, EXTENT_BYTES, 2 * EXTENT_BYTES)
    assert copies.forget(NAME) and block(copies, 0) is None and copies.end_of(NAME) is None


def test_what_is_missing_is_reported_without_the_edges_that_are_there(tmp_path: Path) -> None:
    copies, edge = Copies(tmp_path / "cache", 1 << 30), EXTENT_BYTES // BLOCK_BYTES
    begin, end = (edge - 4) * BLOCK_BYTES, (edge + 4) * BLOCK_BYTES - 100
    assert copies.missing(NAME, begin, end) == (begin, end)
    for number in (edge - 4, edge - 3, edge - 1, edge + 1, edge + 2):
        kept(copies, number)
    assert copies.missing(NAME, begin, end) == (begin + 2 * BLOCK_BYTES, end)
    kept(copies, edge + 3)
    assert copies.missing(NAME, begin, end) == (begin + 2 * BLOCK_BYTES, begin + 5 * BLOCK_BYTES)
    kept(copies, edge - 2), kept(copies, edge)
    low, high = copies.missing(NAME, begin, end)
    assert low >= high


def test_a_cache_that_is_removed_or_cannot_be_is_gone_on_without(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "cache", 1 << 30)
    assert kept(copies, 1)
    shutil.rmtree(tmp_path / "cache")
    assert block(copies, 1) is None and copies.end_of(NAME) is None
    assert kept(copies, 1) and block(copies, 1) is not None
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_bytes(b"")
    assert not kept(copies, 1) and block(copies, 1) is None


def test_the_environment_says_where_and_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "here"))
    copies = copies_here()
    assert copies is copies_here()
    kept(copies, 1)
    assert (tmp_path / "here").is_dir()
    for off in ("off", "OFF", " "):
        monkeypatch.setenv(DIRECTORY, off)
        assert copies_here() is MEMORY
    monkeypatch.delenv(DIRECTORY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    kept(copies_here(), 1)
    assert (tmp_path / "caches" / "elasticscan").is_dir()
    monkeypatch.setenv(BOUND, "8 GiB")
    with pytest.raises(InvalidOption, match="number of bytes"):
        copies_here()
