"""Copies on the local disk: bounded, private, never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticscan.base.errors import InvalidOption
from elasticscan.storage.objects.copies import BLOCK_BYTES, BOUND, DIRECTORY, Copies, copies_here

NAME = Copies.name("a server, a bucket, a key")


def block(copies: Copies, number: int, name: str = NAME) -> bytes | None:
    room = bytearray(BLOCK_BYTES)
    return bytes(room) if copies.read_into(name, number, 0, memoryview(room)) else None


def kept(copies: Copies, number: int, name: str = NAME) -> bool:
    return copies.keep(name, number, memoryview(bytes([number % 256]) * BLOCK_BYTES))


def test_a_block_reads_as_it_was_kept_in_whole_and_in_part(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "cache", 1 << 30)
    assert block(copies, 3) is None and copies.end_of(NAME) is None
    assert kept(copies, 3)
    assert block(copies, 3) == b"\x03" * BLOCK_BYTES
    assert copies.read_into(NAME, 3, BLOCK_BYTES - 5, memoryview(bytearray(5)))
    assert not copies.read_into(NAME, 3, BLOCK_BYTES - 4, memoryview(bytearray(5)))
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


def test_what_is_used_least_goes_first(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "cache", 16 * BLOCK_BYTES)
    other = Copies.name("another")
    kept(copies, 0, other)
    for number in range(10):
        kept(copies, number)
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            os.utime(path, (1_000_000, 1_000_000))
    assert block(copies, 5) is not None  # it is used now
    for number in range(10, 40):
        kept(copies, number)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 17 * BLOCK_BYTES
    assert block(copies, 39) is not None and block(copies, 0, other) is None
    assert not (tmp_path / "cache" / other[:2] / other).exists()


def test_a_place_that_cannot_be_written_is_gone_on_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    copies = Copies(tmp_path / "file", 1 << 30)
    assert not kept(copies, 1) and block(copies, 1) is None and copies.end_of(NAME) is None
    copies.keep_end(NAME, memoryview(b"x"), 1)
    copies.forget(NAME)


def test_the_environment_says_where_and_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "here"))
    copies = copies_here()
    assert copies is not None and copies is copies_here()
    kept(copies, 1)
    assert (tmp_path / "here").is_dir()
    for off in ("off", "OFF", " "):
        monkeypatch.setenv(DIRECTORY, off)
        assert copies_here() is None
    monkeypatch.delenv(DIRECTORY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    default = copies_here()
    assert default is not None
    kept(default, 1)
    assert (tmp_path / "caches" / "elasticscan").is_dir()
    monkeypatch.setenv(BOUND, "8 GiB")
    with pytest.raises(InvalidOption, match="number of bytes"):
        copies_here()
