"""The translation of a disk's errors into errors of the package, which name the next step.

no space            ENOSPC EDQUOT EFBIG     DiskFull            free some space
no handles, memory  EMFILE ENFILE ENOMEM    OutOfResources      a limit of the process, not of the store
does not exist      ENOENT                  ShardUnavailable    the root does not exist: mount it
                                            MissingFile     the root exists, the file does not
                                            Busy       the file was removed while it was written
not allowed         EACCES EPERM EROFS      ShardUnavailable    permissions, a read-only mount
all others          ESTALE EIO …            ShardUnavailable    with the message of the system

For temporary files, all but the first two kinds are `InvalidOption`, for TMPDIR.
"""

from __future__ import annotations

import errno
import os

from elasticscan.base.errors import (
    RESTORE,
    Busy,
    DiskFull,
    ElasticScanError,
    FragmentDamaged,
    InvalidOption,
    ShardUnavailable,
)
from elasticscan.base.resources import lack_in

# EFBIG: the file exceeds the largest size of a file.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class MissingFile(FragmentDamaged, code=FragmentDamaged.code):
    """A file that is gone, while its root is there: it may have been collected, and others hold its rows."""


def disk_error(error: OSError | MemoryError, root: str, path: str | None, writing: bool) -> ElasticScanError:
    """Return the error to raise for an error of a disk.

    `path` is the file below the root, or None if the operation was on the root itself. After ENOENT this
    function checks whether the root exists, to tell a missing file from a missing disk.
    """
    number = getattr(error, "errno", None)
    if (lack := lack_in(error)) is not None:
        return lack
    where = root if path is None else f"{root.rstrip('/')}/{path}"
    if number in _NO_ROOM:
        return DiskFull(
            f"the disk is full while writing {where}; nothing was committed: free some space (`elasticscan "
            "gc`) and try again",
            path=where,
        )
    if number == errno.ENOENT:
        if path is None or not os.path.isdir(root):  # noqa: PTH112
            return missing_root(root, writing)
        return collected(where) if writing else missing_file(where)
    return ShardUnavailable(
        f"the shard's storage {where} cannot be {'written' if writing else 'read'}: {error}; "
        "check its device, mount and permissions",
        root=root,
        errno=number,
    )


def temporary_error(error: OSError | MemoryError, place: str) -> ElasticScanError:
    """Return the error to raise for an error of the disk of temporary files."""
    if (lack := lack_in(error)) is not None:
        return lack
    if getattr(error, "errno", None) in _NO_ROOM:
        return DiskFull(
            f"the disk of temporary files, {place}, is full; nothing was committed: free some space, or set "
            "TMPDIR to a larger directory",
            path=place,
        )
    return InvalidOption(
        f"temporary files cannot be kept in {place} ({error}); set TMPDIR to a directory that this user may "
        "write to",
        option="TMPDIR",
    )


def missing_root(root: str, writing: bool = False) -> ShardUnavailable:
    """Return the error for a shard's root that does not exist."""
    return ShardUnavailable(
        f"the shard's storage {root} cannot be {'written' if writing else 'read'}: it does not exist; mount "
        "or restore it and try again",
        root=root,
        errno=errno.ENOENT,
    )


def missing_file(where: str, label: str = "") -> MissingFile:
    """Return the error for a missing file, although its root exists."""
    return MissingFile(f"{where}{label} is missing although the catalog refers to it; {RESTORE}", path=where)


def collected(where: str) -> Busy:
    """Return the error for a file that was removed before it was complete."""
    return Busy(
        f"{where} was removed by a garbage collection while it was being written; nothing was committed: "
        "try again with a longer `gc --orphans`",
        path=where,
    )


def cut_file(where: str, offset: int, length: int) -> FragmentDamaged:
    """Return the error for a file that is too short for a read."""
    return FragmentDamaged(f"{where} ends before byte {offset + length:,}: it was cut; {RESTORE}", path=where)
