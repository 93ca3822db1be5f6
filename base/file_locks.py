"""Locks of files and directories (`flock`), which end with the process that holds them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread


@contextmanager
def locked(handle: int, seconds: float, too_late: Callable[[], Exception]) -> Iterator[None]:
    """Lock an open file during a block; unlock and close it at the end.

    The unlocking is explicit, because a child that was forked meanwhile has the file open, too.

    Args:
        seconds: the longest wait for other processes; then the error of `too_late` is raised.

    Raises:
        OSError: the file system does not support locks.
    """
    process = os.getpid()
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _waited(handle, seconds):
                raise too_late() from None
        yield
    finally:
        if os.getpid() == process:  # a forked child must not release its parent's lock
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _waited(handle: int, seconds: float) -> bool:
    """Wait in the system's fair queue: in a thread, because that wait has no time limit."""
    own, is_late = os.dup(handle), Event()

    def wait() -> None:
        fcntl.flock(own, fcntl.LOCK_EX)
        if is_late.is_set():
            fcntl.flock(own, fcntl.LOCK_UN)
        os.close(own)

    waiting = Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(seconds)
    if waiting.is_alive():
        is_late.set()
    return not is_late.is_set()
