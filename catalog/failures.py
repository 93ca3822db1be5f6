"""Errors of the log's database as typed errors, and retries after them."""

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


class Interrupted(CatalogUnavailable, code=CatalogUnavailable.code):
    """A transaction was lost without any change, so the caller may repeat all of it."""


def unavailable(reason: str) -> CatalogUnavailable:
    return CatalogUnavailable(
        f"the catalog could not be used: {reason}; check that it is reachable and writable, then try again",
        detail=reason,
    )


def interrupted(reason: str) -> Interrupted:
    return Interrupted(unavailable(reason).message, detail=reason)


def replaced_file() -> Interrupted:
    return interrupted("its file, or the log alongside it, was replaced or removed")


def disk_full(reason: str) -> DiskFull:
    return DiskFull(
        f"the catalog's disk is full ({reason}); nothing was committed: free some space and try again"
    )


def not_writable(reason: str) -> ReadOnlyStore:
    return ReadOnlyStore(
        f"the catalog cannot be written: {reason}; nothing was changed, do this as a user who may", why=reason
    )


def unfit_value(reason: str) -> InvalidOption:
    return InvalidOption(f"the catalog's database cannot hold a value: {reason}; nothing was committed")


def commit_unknown(reason: str) -> CommitUnknown:
    return CommitUnknown(
        f"the catalog was lost during a commit ({reason}), which may have succeeded; check history(), or "
        "repeat the write with txn=",
        detail=reason,
    )


# Retries


def _attempts(seconds: float) -> Iterator[bool]:
    """Yield for each attempt whether it is the last; sleep between attempts with random, growing pauses."""
    until, pause = monotonic() + seconds, 0.02
    while True:
        yield monotonic() >= until
        sleep(pause * random())
        pause = min(1.0, 2 * pause)


def retry(home: LogHome, attempt: Callable[[], T]) -> T:
    """Return the result of an attempt; repeat it while the home is unreachable or an answer was lost.

    The attempt must be safe to repeat. After a lost answer or an interruption there is at least one more
    attempt, so that it can search the log for the effect of the one before.
    """
    repeated = False
    for is_last in _attempts(home.retry_seconds):
        try:
            return attempt()
        except (CatalogUnavailable, CommitUnknown) as error:
            must_repeat = isinstance(error, (CommitUnknown, Interrupted)) and not repeated
            if is_last and not must_repeat:
                raise
            repeated = repeated or must_repeat
    raise AssertionError("there is always another attempt")


def change(home: LogHome, statements: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Execute statements in one writing transaction; they must be safe to repeat."""

    def attempt() -> None:
        with home.writing():
            for statement in statements:
                home.execute(*statement)

    retry(home, attempt)


def retry_interrupted(work: Callable[P, T]) -> Callable[P, T]:
    """Return a function that is repeated after `Interrupted`, for at most a minute.

    Functions with a transaction need it; single statements are repeated by `LogHome.execute`. The changes of
    an interrupted attempt were rolled back. Within an outer transaction the function is not repeated: the
    whole outer one must be.
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
                    raise CatalogUnavailable(error.message) from error
        raise AssertionError("there is always another attempt")

    return working
