"""Resources that a process may run out of, kept apart from everything that is wrong with a store.

Python, the operating system and Arrow each say so in words of their own, and at any line: an import
opens files, Arrow starts threads to read. So what users call is wrapped as a whole (`telling_lack`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

from elasticscan.base.errors import ElasticScanError, OutOfResources

Asked = ParamSpec("Asked")
Given = TypeVar("Given")

# What is lacking: its name, what was refused, and how to allow more.
_FILES = ("files", "no more files can be opened", "`ulimit -n 65536`")
_MEMORY = ("memory", "no more memory can be had", "`ulimit -v`, the container's limit")
_THREADS = ("threads", "no more threads can be started", "`ulimit -u`")

_NUMBERS = {
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: _MEMORY,
}
_SOME_BYTES = 64 << 20
_THREAD_WORDS = ("start new thread", "launch worker thread")  # of Python, of Arrow


def lack_in(error: Exception) -> OutOfResources | None:
    """The error to raise in place of one that tells of a lack; None for all others."""
    found = None
    if isinstance(error, MemoryError):
        found = _MEMORY
    elif isinstance(error, OSError):
        found = _NUMBERS.get(error.errno or 0)
    if found is None and any(words in str(error) for words in _THREAD_WORDS):
        found = _THREADS
    return None if found is None else _lack(*found)


def _lack(what: str, refused: str, allow: str) -> OutOfResources:
    return OutOfResources(
        f"{refused}: the process, its user or its container has as much as it may. Nothing is wrong with the "
        f"store; allow more ({allow}), or run less at once, and try again",
        what=what,
    )


def lack_of_memory() -> OutOfResources:
    """The error for a library that says in words of its own that it got no memory."""
    return _lack(*_MEMORY)


def lacks_memory() -> bool:
    """True if the process gets no memory to speak of: else it was for bytes that ask for too much."""
    try:
        bytearray(_SOME_BYTES)
    except MemoryError:
        return True
    return False


def lack_of_files(needed: int) -> OutOfResources | None:
    """The error for a library that fails to open so many files, and does not say why; None if they can be."""
    with ExitStack() as opened:
        try:
            for _ in range(needed):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return lack_in(error)
    return None


def telling_lack(function: Callable[Asked, Given]) -> Callable[Asked, Given]:
    """Make a function raise `OutOfResources` for want of memory, open files or threads."""

    @wraps(function)
    def call(*args: Asked.args, **named: Asked.kwargs) -> Given:
        try:
            return function(*args, **named)
        except Exception as error:
            lacking = lack_in(error)
            if lacking is None or isinstance(error, ElasticScanError):
                raise
            raise lacking from error

    return call
