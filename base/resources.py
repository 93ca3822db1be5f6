"""The error for a process that has too many open files or no memory; the store itself is not affected."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack

from elasticscan.base.errors import OutOfResources

_FILES = frozenset({errno.EMFILE, errno.ENFILE})


def lack_in(error: Exception) -> OutOfResources | None:
    """Return the error for a system error about missing file handles or memory; None for other errors."""
    if isinstance(error, OSError) and error.errno in _FILES:
        return _lack("files", "too many files are open", "`ulimit -n 65536`")
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return lack_of_memory()
    return None


def _lack(what: str, refused: str, allow: str) -> OutOfResources:
    return OutOfResources(f"{refused}; allow more ({allow}), or run less at once, and try again", what=what)


def lack_of_memory() -> OutOfResources:
    """Return the error for a library that reports a lack of memory in its own words."""
    return _lack("memory", "no more memory is available", "`ulimit -v`, the container's limit")


def lack_of_files(needed: int) -> OutOfResources | None:
    """Return the error for a library that cannot open files without a reason; None if files can be opened."""
    with ExitStack() as opened:
        try:
            for _ in range(needed):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return lack_in(error)
    return None
