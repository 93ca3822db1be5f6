"""Faults of aggregates, which must count each row once, in the right group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.filters import Fold, folding
from elasticscan.reader import scan as driver
from elasticscan.storage import view
from tests.faults.planted import Finder, fault, replacing

_PARTIAL = "test_partial_rows_hold_every_row_once_while_tablets_move_under_the_pages"
_PROGRAM = "test_rows_are_folded_once_into_their_groups_while_a_tablet_moves"


@fault("scenarios", "a partial row is merged once", style=_PROGRAM)
@replacing(Fold, "_merge")
def partial_row_counted_twice(honest: Any, self: Fold) -> None:
    self._partial.append(self._partial[-1])
    honest(self)


@fault("scenarios", "null is a group of its own", style=_PROGRAM)
@replacing(folding, "_as_group")
def null_group_is_zero(honest: Any, values: pa.Array) -> pa.Array:
    group = honest(values)
    return pc.fill_null(group, 0) if pa.types.is_integer(group.type) else group


@fault("scenarios", "partial rows that were handed over are not handed over again", style=_PARTIAL)
@replacing(Fold, "partial_rows")
def partial_rows_handed_over_twice(honest: Any, self: Fold) -> pa.Table:
    self._fold_waiting()
    self._merge()
    before = self._partial
    rows = honest(self)
    self._partial = before
    return rows


@fault("scenarios", "rows that wait to be folded are in the partial rows", style=_PARTIAL)
@replacing(Fold, "partial_rows")
def waiting_rows_are_lost(honest: Any, self: Fold) -> pa.Table:
    self._waiting = []
    return honest(self)


# Rules that one function keeps, and the replacement of that function.
program = Finder("scenarios", _PROGRAM)
program.rule("NaN is above all numbers").alters(
    folding, "float_codes", lambda honest, values: np.where(np.isnan(values), 0, honest(values))
)
program.rule("sums of a page that may overflow are not added up in 64 bits").gives(folding, "adds_up", True)
partial_rows = Finder("scenarios", _PARTIAL)
partial_rows.rule("rows that moved under a page are not folded").sets(
    driver, "drop_moved", lambda page, moved: page
)
partial_rows.rule("null is a group of its own in partial rows").plants(null_group_is_zero)
counted = Finder("scenarios", "test_tombstones_and_rows_that_moved_away_are_not_counted")
counted.rule("rows that moved away are not counted").alters(
    view,
    "_is_plain",
    lambda honest, fragment, bounds: honest(replace(fragment, slots_written=len(fragment.slots)), bounds),
)
