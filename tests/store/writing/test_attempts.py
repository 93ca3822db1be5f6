"""Work that is done again where others came before, and what is reported when that has no end."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from elasticscan.base.errors import AlreadyExists, RowsChanged, TableChanged, WriteConflict
from elasticscan.store.context import Context
from elasticscan.store.writing.attempts import MOST_ATTEMPTS, OutdatedLookError, until_unchanged

WRITABLE = cast(Context, SimpleNamespace(catalog=SimpleNamespace(check_writable=lambda: None)))


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
    attempt, left = after(*[RowsChanged("a", table="t", newest=n) for n in range(MOST_ATTEMPTS + 5)])
    with pytest.raises(
        WriteConflict, match=r"\] rows of 't' were written .* 10 times .*: pause them$"
    ) as caught:
        until_unchanged(WRITABLE, attempt, "rows of 't'", "pause them")
    assert caught.value.fields == {"table": "t", "newest": MOST_ATTEMPTS - 1}
    assert len(left) == 5


def test_columns_that_change_without_end_are_a_conflict_too() -> None:
    attempt, _ = after(*[OutdatedLookError()] * MOST_ATTEMPTS)
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
