"""Requests that are sent at once, some at a time.

Their threads end with them: a process that forks later has none, and a child none of its parent's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, Thread

MOST_AT_ONCE = (
    6  # beside each other; two stretches ahead of time, and who reads, leave some of 16 connections
)


def at_once(requests: Sequence[Callable[[], None]]) -> None:
    """Make all of these requests; raises what the first one that fails raises, once none is under way."""
    failed: list[BaseException] = []
    left, lock = iter(requests), Lock()

    def work() -> None:
        while not failed:
            with lock:
                request = next(left, None)
            if request is None:
                return
            try:
                request()
            except BaseException as error:  # raised below
                failed.append(error)

    threads = list[Thread]()
    with suppress(RuntimeError):  # the system gives no more threads: fewer will do
        for _ in range(min(len(requests), MOST_AT_ONCE) - 1):
            thread = Thread(target=work, daemon=True)
            thread.start()
            threads.append(thread)
    work()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
