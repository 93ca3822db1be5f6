"""One place that says what an error of a disk means: which of ours it is, and what to do about it.

out of room         ENOSPC EDQUOT EFBIG     DiskFull            free some space
out of handles …    EMFILE ENFILE ENOMEM    OutOfResources      of the process, not of the store
                    EAGAIN
not there           ENOENT                  ShardUnavailable    the root is gone: mount it
                                            FragmentMissing     the root is there, its file is not
                                            WriteConflict       … and it was being written
not allowed         EACCES EPERM EROFS      ShardUnavailable    permissions, a read-only mount
all others          ESTALE EIO …            ShardUnavailable    what is so, and what to look at

A directory for temporary files is no shard: there all but the first two is `InvalidOption`, of TMPDIR.
"""

from __future__ import annotations

import errno
import os

from elasticscan.base.errors import (
    RESTORE,
    DiskFull,
    ElasticScanError,
    FragmentDamaged,
    FragmentMissing,
    InvalidOption,
    OutOfResources,
    ShardUnavailable,
    WriteConflict,
)

# EFBIG: the limit on the size of a file is one more way in which a disk has no room.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_NO_MEMORY = frozenset({errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS})


# For each error number: what happened, and what to do next. `{doing}` is "read" or "written".
_SAID = {
    errno.EACCES: "this user may not have it {doing}; run as the store's owner, or give it the permission",
    errno.EPERM: "this user may not have it {doing}; run as the store's owner, or give it the permission",
    errno.EROFS: "its file system is mounted read-only; mount it for writing, or only read the store",
    errno.ESTALE: "the file server dropped it (a stale handle); mount it again",
    errno.EIO: "the device reports an input/output error; look at its health (the kernel's log tells more), "
    "and copy what can still be read before anything else",
    errno.ENODEV: "its device is gone; mount it again",
    errno.ENXIO: "its device is gone; mount it again",
    errno.ENOTCONN: "the connection to its file server is gone; mount it again",
    errno.EHOSTDOWN: "its file server is down; try again once that is up",
    errno.EHOSTUNREACH: "its file server cannot be reached; try again once it can",
    errno.ENETUNREACH: "its file server cannot be reached; try again once it can",
    errno.ECONNREFUSED: "its file server refuses connections; try again once it takes them",
    errno.ECONNRESET: "the connection to its file server broke off; try again",
    errno.ETIMEDOUT: "its file server did not answer in time; try again",
    errno.ENOTDIR: "a part of its path is no directory; put a directory there, or correct the root",
    errno.EISDIR: "there is a directory, a pipe or a device where a file should be; nothing of elasticscan "
    "makes one, remove it",
    errno.ELOOP: "its path goes round in symbolic links; correct them",
    errno.ENAMETOOLONG: "its path is too long for the file system; use a shorter root",
    errno.EBUSY: "it is in use by something else; try again",
    errno.ETXTBSY: "it is in use by something else; try again",
}


def disk_error(error: OSError | MemoryError, root: str, path: str | None, writing: bool) -> ElasticScanError:
    """Return the error to raise for what a disk said.

    Args:
        error: as the operating system or `pyarrow.fs` raised it; one without a number becomes
            `ShardUnavailable` with its own text.
        root: the shard's root. A directory is looked at when something is not there, to tell a
            file that is gone from a disk that is; of any other root the caller has to know.
        path: the file below the root, or None when the root itself was used.
        writing: whether it was to be changed, rather than read.
    """
    number = _number(error)
    where = root if path is None else f"{root.rstrip('/')}/{path}"
    if number in _NO_ROOM:
        return DiskFull(
            f"the disk is full while writing {where}; nothing was committed: free some space (`elasticscan "
            "gc`) and try again",
            path=where,
        )
    if number in _NO_FILES:
        return out_of_files(where)
    if number in _NO_MEMORY:
        return out_of_memory(where)
    if number == errno.ENOENT and path is not None and ("://" in root or os.path.isdir(root)):  # noqa: PTH112
        return _swept(where) if writing else missing_file(where)
    if number == errno.ENOENT:
        return missing_root(root, writing)
    said = _SAID.get(number or 0, "see there what is the matter, and try again")
    why = f"{said.format(doing='written' if writing else 'read')} ({error})"
    return ShardUnavailable(
        f"the shard's storage {where} cannot be {'written' if writing else 'read'}: {why}",
        root=root,
        errno=number,
    )


def temporary_error(error: OSError | MemoryError, place: str) -> ElasticScanError:
    """Return the error to raise for what the disk of temporary files said."""
    number = _number(error)
    if number in _NO_ROOM:
        return DiskFull(
            f"the disk of temporary files, {place}, is full; nothing was committed: free some space, or set "
            "TMPDIR to a larger directory",
            path=place,
        )
    if number in _NO_FILES:
        return out_of_files(f"a temporary file in {place}")
    if number in _NO_MEMORY:
        return out_of_memory(f"a temporary file in {place}")
    return InvalidOption(
        f"temporary files cannot be kept in {place} ({error}); set TMPDIR to a directory that this user may "
        "write to",
        option="TMPDIR",
    )


def missing_root(root: str, writing: bool = False) -> ShardUnavailable:
    """Return the error for a shard's root that is not there."""
    return ShardUnavailable(
        f"the shard's storage {root} cannot be {'written' if writing else 'read'}: it does not exist; mount "
        "or restore it and try again",
        root=root,
        errno=errno.ENOENT,
    )


def missing_file(where: str, label: str = "") -> FragmentMissing:
    """Return the error for a file that is gone, although its root is there."""
    return FragmentMissing(
        f"{where}{label} is missing although the catalog refers to it; {RESTORE}", path=where
    )


def cut_file(where: str, offset: int, length: int) -> FragmentDamaged:
    """Return the error for a file that ends before the bytes that were to be read."""
    return FragmentDamaged(f"{where} ends before byte {offset + length:,}: it was cut; {RESTORE}", path=where)


def out_of_files(where: str) -> OutOfResources:
    """Return the error when the process, or the machine, has as many files open as it may."""
    return OutOfResources(
        f"{where} cannot be opened, because too many files are open; allow more (`ulimit -n 65536`), or "
        "compact the table",
        what="files",
    )


def out_of_memory(where: str) -> OutOfResources:
    """Return the error when the machine, or a limit of the process, refused memory."""
    return OutOfResources(
        f"{where} cannot be used, because the process gets no more memory; allow more, or use smaller pages",
        what="memory",
    )


def _swept(where: str) -> WriteConflict:
    return WriteConflict(
        f"{where} was removed by a garbage collection while it was being written; nothing was committed: "
        "try again with a longer grace",
        path=where,
    )


def _number(error: OSError | MemoryError) -> int | None:
    """Return the errno of an error, or the one that its class stands for."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    kinds = {
        MemoryError: errno.ENOMEM,
        FileNotFoundError: errno.ENOENT,
        PermissionError: errno.EACCES,
        NotADirectoryError: errno.ENOTDIR,
        IsADirectoryError: errno.EISDIR,
        TimeoutError: errno.ETIMEDOUT,
        ConnectionRefusedError: errno.ECONNREFUSED,
        ConnectionResetError: errno.ECONNRESET,
    }
    return next((number for kind, number in kinds.items() if isinstance(error, kind)), None)
