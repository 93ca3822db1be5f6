"""Resources that a process may run out of, kept apart from everything that is wrong with a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from elasticscan.base.errors import OutOfResources


@contextmanager
def starting_threads() -> Iterator[None]:
    """Raise `OutOfResources` where the process may not start one of the threads that a block starts."""
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise OutOfResources(
            "no more threads can be started: the process, its user or its container has as many as it may. "
            "Nothing is wrong with the store; allow more (`ulimit -u`), or run less at once, and try again",
            what="threads",
        ) from error
