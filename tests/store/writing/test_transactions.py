"""Work that is done again where others came before, and what is reported when that has no end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from elasticscan.base.errors import AlreadyExists, ElasticScanError, RowsChanged, TableChanged, WriteConflict
from elasticscan.store.context import Context
from elasticscan.store.writing.transactions import (
    ATTEMPTS_SECONDS,
    FEWEST_ATTEMPTS,
    OutdatedLookError,
    until_unchanged,
)
from tests.base.manual_clock import ManualClock

CHANGED = [RowsChanged("a", table="t", newest=n) for n in range(10_000)]


def tried(errors: list[Exception], seconds: float = 0.0, is_final: bool = False) -> tuple[object, int]:
    """What comes of attempts that meet these errors, one each time, after so long; and how many were made."""
    clock, made = ManualClock(), iter(errors)
    context = SimpleNamespace(catalog=SimpleNamespace(check_writable=lambda: None), clock=clock)

    def attempt() -> str:
        clock.advance(seconds)
        for error in made:
            raise error
        return "done"

    try:
        came = until_unchanged(cast(Context, context), attempt, "rows", "try again", is_final=is_final)
    except ElasticScanError as error:
        return type(error), len(errors) - len([*made])
    return came, len(errors) - len([*made])


@pytest.mark.parametrize(
    ("errors", "options", "came", "fewest", "most"),
    [
        ([RowsChanged("a"), TableChanged("b", kind="index"), OutdatedLookError()], {}, "done", 3, 3),
        (CHANGED, {}, WriteConflict, 61, 999),
        ([OutdatedLookError()] * 10_000, {}, WriteConflict, 61, 999),
        (CHANGED, {"seconds": ATTEMPTS_SECONDS + 1}, WriteConflict, FEWEST_ATTEMPTS, FEWEST_ATTEMPTS),
        ([OutdatedLookError(), *CHANGED], {"is_final": True}, RowsChanged, 2, 2),
        ([AlreadyExists("a")], {}, AlreadyExists, 1, 1),
    ],
    ids=["ends", "no end", "columns without end", "slow attempts", "a named commit", "another error"],
)
def test_what_others_changed_meanwhile_is_done_again_for_a_while(
    errors: list[Exception], options: dict[str, float], came: object, fewest: int, most: int
) -> None:
    found, made = tried(errors, **options)  # type: ignore[arg-type]
    assert found == came
    assert fewest <= made <= most
