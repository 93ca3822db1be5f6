"""Parallel work on several items, properties that are computed once, and locks of modules.

A forked child has only the thread that forked, but the memory of all threads: a lock of another thread stays
locked forever. An open store is opened again in the child, with new locks. Locks of a module for the whole
process, for example of a cache, are replaced by `renewed_in_child`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from elasticscan.base.errors import OutOfResources

T = TypeVar("T")
Item = TypeVar("Item")
Made = TypeVar("Made")


def parallel(work: Callable[[Item], Made], items: Sequence[Item], threads: int) -> list[Made]:
    """Return the results of `work` for all items, in their order; a single item needs no thread.

    Raises the first error after all running work has ended; items that had not begun are skipped.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        try:
            pool.submit(int)
        except RuntimeError:  # the system has no more threads, or the main thread has ended
            return [work(item) for item in items]
        try:
            results = pool.map(work, items)
        except RuntimeError as error:  # closing the pool waits for running items
            raise OutOfResources(
                "no more threads can be started; allow more (`ulimit -u`)", what="threads"
            ) from error
        return list(results)


def renewed_in_child(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that returns a module's lock or semaphore; a forked child makes a new one."""
    kept = [make()]

    def renew() -> None:
        kept[0] = make()

    os.register_at_fork(after_in_child=renew)
    return lambda: kept[0]


class cached_property(Generic[T]):
    """A cached property without the lock of `functools`, which all instances share in Python 3.11.

    With that lock, threads would wait for each other's files. If two threads read the property at the same
    time, both may compute it; they get the same result.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __get__(self, instance: object, owner: type[Any] | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]  # read from the class, for its documentation
        value: T = instance.__dict__.setdefault(self.compute.__name__, self.compute(instance))
        return value
