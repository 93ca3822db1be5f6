"""The errors of databases as ours, and attempts that are made again after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from random import random
from time import monotonic, sleep
from typing import Any, ParamSpec, TypeVar

from elasticscan.base.errors import CatalogUnavailable, CommitUnknown, DiskFull, InvalidOption, ReadOnlyStore
from elasticscan.base.limits import RECONNECT_SECONDS
from elasticscan.catalog.database import LogHome, in_transaction

P = ParamSpec("P")
T = TypeVar("T")


class Interrupted(CatalogUnavailable):
    """A transaction was lost, or its file was replaced: nothing was done, and all of it may begin again."""


def unavailable(said: str) -> CatalogUnavailable:
    return CatalogUnavailable(
        f"the catalog could not be used: {said}; check that it is reachable and writable, then try again",
        detail=said,
    )


def interrupted(said: str) -> Interrupted:
    return Interrupted(unavailable(said).message, detail=said)


def replaced_file() -> Interrupted:
    return interrupted("its file, or the log alongside it, was replaced or removed")


def disk_full(said: str) -> DiskFull:
    return DiskFull(
        f"the catalog's disk is full ({said}); nothing was committed: free some space and try again"
    )


def not_writable(said: str) -> ReadOnlyStore:
    return ReadOnlyStore(
        f"the catalog cannot be written: {said}; nothing was changed, do this as a user who may", why=said
    )


def unfit_value(said: str) -> InvalidOption:
    return InvalidOption(f"the catalog's database cannot hold a value: {said}; nothing was committed")


def commit_unknown(said: str) -> CommitUnknown:
    return CommitUnknown(
        f"the catalog was lost during a commit ({said}): all or nothing was done; look at history() first, "
        "or repeat a write with txn=",
        detail=said,
    )


# Attempts


def _attempts(seconds: float) -> Iterator[bool]:
    """Yield for each attempt whether it is the last; waits in between for random times, which grow."""
    until, pause = monotonic() + seconds, 0.02
    while True:
        yield monotonic() >= until
        sleep(pause * random())
        pause = min(1.0, 2 * pause)


def retry(home: LogHome, attempt: Callable[[], T]) -> T:
    """Return what an attempt returns, made again while the home cannot be reached, or an answer is lost.

    The attempt does no harm if it is made twice. After a lost answer, or an interruption, it is made once
    more at least, so that it can look for what it did.
    """
    looked = False
    for is_last in _attempts(home.retry_seconds):
        try:
            return attempt()
        except (CatalogUnavailable, CommitUnknown) as error:
            must_look = isinstance(error, (CommitUnknown, Interrupted)) and not looked
            if is_last and not must_look:
                raise
            looked = looked or must_look
    raise AssertionError("there is always another attempt")


def change(home: LogHome, statements: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Execute statements that may be executed twice, in one transaction that writes."""

    def attempt() -> None:
        with home.writing():
            for statement in statements:
                home.execute(*statement)

    retry(home, attempt)


def retry_interrupted(work: Callable[P, T]) -> Callable[P, T]:
    """Return a function that begins again when it is interrupted, for a minute.

    It is needed around transactions: a statement outside of them is repeated by itself (`LogHome.execute`).
    What the function changed is undone with its transaction. Within another one it does not begin again.
    """

    @wraps(work)
    def working(*args: P.args, **kwargs: P.kwargs) -> T:
        for is_last in _attempts(RECONNECT_SECONDS):
            try:
                return work(*args, **kwargs)
            except Interrupted as error:
                if in_transaction():
                    raise
                if is_last:
                    raise CatalogUnavailable(str(error)) from error
        raise AssertionError("there is always another attempt")

    return working
