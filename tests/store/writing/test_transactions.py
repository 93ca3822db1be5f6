"""Work that is done again where others came before, and what is reported when that has no end."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from elasticscan.base.errors import AlreadyExists, RowsChanged, TableChanged, WriteConflict
from elasticscan.store.context import Context
from elasticscan.store.writing.transactions import (
    ATTEMPTS_SECONDS,
    FEWEST_ATTEMPTS,
    OutdatedLookError,
    until_unchanged,
)
from tests.base.manual_clock import ManualClock

CLOCK = ManualClock()
WRITABLE = cast(Context, SimpleNamespace(catalog=SimpleNamespace(check_writable=lambda: None), clock=CLOCK))


def after(*errors: Exception) -> tuple[Callable[[], int], list[Exception]]:
    """An attempt that meets these errors, one each time that it is made; and those that are still to come."""
    left = list(errors)

    def attempt() -> int:
        if left:
            raise left.pop(0)
        return 7

    return attempt, left


def test_what_others_changed_meanwhile_is_done_again() -> None:
    attempt, left = after(RowsChanged("a"), TableChanged("b", kind="index"), OutdatedLookError())
    assert until_unchanged(WRITABLE, attempt, "rows", "try again") == 7
    assert left == []


def test_what_has_no_end_is_reported_with_the_newest_conflict() -> None:
    attempt, left = after(*[RowsChanged("a", table="t", newest=n) for n in range(10_000)])
    began = CLOCK.now()
    with pytest.raises(
        WriteConflict, match=r"\] rows of 't' were written .* times .*: pause them$"
    ) as caught:
        until_unchanged(WRITABLE, attempt, "rows of 't'", "pause them")
    made = 10_000 - len(left)
    assert caught.value.fields == {"table": "t", "newest": made - 1}
    assert 60 < made < 1_000 and ATTEMPTS_SECONDS < CLOCK.now() - began < ATTEMPTS_SECONDS + 1


def test_attempts_that_take_long_are_made_ten_times_all_the_same() -> None:
    made = 0

    def attempt() -> None:
        nonlocal made
        made += 1
        CLOCK.advance(ATTEMPTS_SECONDS + 1)
        raise RowsChanged("a")

    with pytest.raises(WriteConflict, match="each of the 10 times"):
        until_unchanged(WRITABLE, attempt, "rows", "try again")
    assert made == FEWEST_ATTEMPTS


def test_columns_that_change_without_end_are_a_conflict_too() -> None:
    attempt, _ = after(*[OutdatedLookError()] * 10_000)
    with pytest.raises(WriteConflict):
        until_unchanged(WRITABLE, attempt, "rows", "try again")


def test_a_change_of_rows_of_a_named_commit_is_final() -> None:
    attempt, left = after(OutdatedLookError(), RowsChanged("a"), RowsChanged("b"))
    with pytest.raises(RowsChanged, match="a"):
        until_unchanged(WRITABLE, attempt, "rows", "try again", is_final=True)
    assert len(left) == 1


def test_other_errors_are_nobody_s_meanwhile() -> None:
    attempt, _ = after(AlreadyExists("a"))
    with pytest.raises(AlreadyExists):
        until_unchanged(WRITABLE, attempt, "rows", "try again")
