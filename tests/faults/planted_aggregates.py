"""Faults of aggregates: what folds rows must fold each once, into the right group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.filters import Fold, folding
from tests.faults.planted import Patch, fault

_PROGRAM = "test_rows_are_folded_once_into_their_groups_while_a_tablet_moves"


@fault("scenarios", "a partial row is merged once", style=_PROGRAM)
def partial_row_counted_twice(patch: Patch) -> None:
    merge = Fold._merge

    def twice(self: Fold) -> None:
        self._partial.append(self._partial[-1])
        merge(self)

    patch.setattr(Fold, "_merge", twice)


@fault("scenarios", "null is a group of its own", style=_PROGRAM)
def null_group_is_zero(patch: Patch) -> None:
    honest = folding._as_group

    def filled(values: pa.Array) -> pa.Array:
        group = honest(values)
        return pc.fill_null(group, 0) if pa.types.is_integer(group.type) else group

    patch.setattr(folding, "_as_group", filled)


@fault("scenarios", "NaN is above all numbers", style=_PROGRAM)
def nan_is_below_some(patch: Patch) -> None:
    patch.setattr(folding, "_NAN_BITS", np.int64(0))


@fault("scenarios", "sums of a page that may overflow are not added up in 64 bits", style=_PROGRAM)
def page_sums_wrap_around(patch: Patch) -> None:
    patch.setattr(folding, "_adds_up", lambda values: True)
