"""Operations that begin again after their transaction was interrupted, with nothing done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from random import random
from threading import get_ident
from time import monotonic, sleep
from typing import Final, ParamSpec, TypeVar

from elasticscan.base.errors import CatalogUnavailable
from elasticscan.base.limits import RECONNECT_SECONDS
from elasticscan.catalog.home import Interrupted

P = ParamSpec("P")
T = TypeVar("T")

# The threads that are in writing transactions, as often as they are. Append and remove are atomic.
_WRITERS: Final[list[int]] = []


def is_writing() -> bool:
    """Return whether this thread is in a writing transaction; a second one would deadlock."""
    return get_ident() in _WRITERS


@contextmanager
def noting_that_it_writes() -> Iterator[None]:
    writer = get_ident()
    _WRITERS.append(writer)
    try:
        yield
    finally:
        _WRITERS.remove(writer)


def retry_interrupted(work: Callable[P, T]) -> Callable[P, T]:
    """Return a function that begins again when it is interrupted, for a minute, with growing random pauses.

    It may have staged files before, and looked at things; what it changed is undone with its transaction.
    Within a transaction it does not begin again: who began that does.
    """

    @wraps(work)
    def working(*args: P.args, **kwargs: P.kwargs) -> T:
        until, pause = monotonic() + RECONNECT_SECONDS, 0.02
        while True:
            try:
                return work(*args, **kwargs)
            except Interrupted as error:
                if is_writing():
                    raise
                if monotonic() > until:
                    raise CatalogUnavailable(str(error)) from error
            sleep(pause * random())
            pause = min(1.0, 2 * pause)

    return working
