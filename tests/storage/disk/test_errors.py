"""Each error of a disk says what is so and what to do next."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from elasticscan.base.errors import (
    DiskFull,
    ElasticScanError,
    FragmentDamaged,
    FragmentMissing,
    OutOfResources,
    ShardUnavailable,
    TryAgain,
    WriteConflict,
)
from elasticscan.storage.disk.errors import disk_error

CASES = [
    (errno.ENOSPC, DiskFull, "free some space"),
    (errno.EDQUOT, DiskFull, "free some space"),
    (errno.EFBIG, DiskFull, "free some space"),
    (errno.EMFILE, OutOfResources, "ulimit -n"),
    (errno.ENFILE, OutOfResources, "ulimit -n"),
    (errno.ENOMEM, OutOfResources, "memory"),
    (errno.EAGAIN, OutOfResources, "memory"),
    (errno.EACCES, ShardUnavailable, "Permission denied; check its device, mount and permissions"),
    (errno.EROFS, ShardUnavailable, "Read-only file system"),
    (errno.EIO, ShardUnavailable, "Input/output error"),
    (errno.ENOTCONN, ShardUnavailable, "not connected"),
]


@pytest.mark.parametrize(("number", "kind", "said"), CASES, ids=[errno.errorcode[case[0]] for case in CASES])
@pytest.mark.parametrize("writing", [False, True])
def test_each_error_of_a_disk_has_its_own_kind_and_text(
    tmp_path: Path, number: int, kind: type[ElasticScanError], said: str, writing: bool
) -> None:
    message = disk_error(OSError(number, os.strerror(number)), str(tmp_path), "t1/a.arrow", writing)
    assert type(message) is kind
    assert said in str(message)
    assert kind is OutOfResources or "t1/a.arrow" in str(message)
    assert isinstance(message, FragmentDamaged) or "restore" not in str(message)


def test_every_number_of_the_operating_system_is_typed(tmp_path: Path) -> None:
    for number in errno.errorcode:
        for writing in (False, True):
            for path in ("t1/a.arrow", None):
                message = disk_error(OSError(number, os.strerror(number)), str(tmp_path), path, writing)
                assert isinstance(message, ElasticScanError)
                assert str(message).startswith("[ES_")


def test_a_missing_file_is_reported_from_a_missing_root(tmp_path: Path) -> None:
    nothing = FileNotFoundError(errno.ENOENT, "No such file or directory")
    assert type(disk_error(nothing, str(tmp_path), "t1/a.arrow", False)) is FragmentMissing
    gone = disk_error(nothing, str(tmp_path / "gone"), "t1/a.arrow", False)
    assert type(gone) is ShardUnavailable
    assert "mount or restore" in str(gone)
    assert type(disk_error(nothing, str(tmp_path), None, False)) is ShardUnavailable


def test_a_file_that_vanishes_while_it_is_written_asks_to_try_again(tmp_path: Path) -> None:
    message = disk_error(
        FileNotFoundError(errno.ENOENT, "gone"), str(tmp_path), "t1/a.arrow.unfinished", True
    )
    assert type(message) is WriteConflict
    assert isinstance(message, TryAgain)
    assert "longer grace" in str(message)


def test_a_root_that_cannot_be_looked_at_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the root decides whether a missing file is gone alone, or with its disk."""

    def fail(*_: object, **__: object) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fail)
        message = disk_error(gone, str(tmp_path), "t1/a.arrow", writing=False)
    assert type(message) is ShardUnavailable
