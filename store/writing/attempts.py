"""Attempts: writes of what was read, done again from the beginning where others came before.

Before each further attempt there is a random pause whose bound doubles (backoff with full jitter): of several
processes that write the same rows all the time, those that lost spread out, and each of them gets its turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from elasticscan.base.errors import RowsChanged, TableChanged, WriteConflict
from elasticscan.store.context import Context

# Attempts end when both are over: long ones are made a few times all the same.
ATTEMPTS_SECONDS, FEWEST_ATTEMPTS = 60.0, 10
_DOUBLINGS = 7
_MOST_PAUSE_SECONDS = 1.0

T = TypeVar("T")


class OutdatedLookError(Exception):
    """The look at the table is no longer true: its columns changed, or its snapshot is no longer kept."""


def until_unchanged(
    context: Context, attempt: Callable[[], T], rows: str, advice: str, *, is_final: bool = False
) -> T:
    """Return the result of the first attempt whose rows nobody wrote between their reading and its commit.

    It is made again, too, where the columns changed, or the index by which rows were looked up was dropped:
    nobody had asked for that index.

    Args:
        context: the store's; where it cannot be written nothing is read either.
        attempt: reads rows at a snapshot, and commits what follows from them.
        rows: which ones, for the error: "rows of table 't' that meet the condition".
        advice: what to do about it, for the error.
        is_final: the rows are those of a commit that the caller named, so a change of them since is told.

    Raises:
        ReadOnlyStore: the store cannot be written.
        WriteConflict: they were written each time, for a minute and ten attempts.
        RowsChanged: they were written, and that is final.
    """
    context.catalog.check_writable()
    began, conflict = context.clock.now(), None
    for attempts in count(1):
        try:
            return attempt()
        except OutdatedLookError:
            pass
        except TableChanged as error:
            if error.fields.get("kind") != "index":
                raise
        except RowsChanged as error:
            if is_final:
                raise
            conflict = error
        if attempts >= FEWEST_ATTEMPTS and context.clock.now() - began > ATTEMPTS_SECONDS:
            break
        bound = _MOST_PAUSE_SECONDS * 2.0 ** (min(attempts, _DOUBLINGS) - _DOUBLINGS)
        context.clock.sleep(random.uniform(0, bound))
    raise WriteConflict(
        f"{rows} were written by others each of the {attempts} times that they were read; nothing was "
        f"written: {advice}",
        **({} if conflict is None else conflict.fields),
    )
