"""Newer rows applied to a batch: they replace rows, are inserted, or delete rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.concurrency import cached_property
from elasticscan.storage.lookup import Mask, Rows

_MOST_JOINED = 64  # up to so many newer rows, the ranges between them are copied; else single rows


@dataclass(frozen=True)
class Patch:
    """The places of newer rows in a batch.

    Attributes:
        count: the number of the batch's rows.
        rows: for each newer row, the number of the batch's row before which it belongs.
        replaces: whether the row at this number has the same key, so that the newer row replaces it.
        gone: whether the newer row is a tombstone: it deletes the row with its key and adds none.
    """

    count: int
    rows: Rows
    replaces: Mask
    gone: Mask

    @cached_property
    def keep_keys(self) -> bool:
        """Return whether the resulting batch has the same keys."""
        return bool((self.replaces & ~self.gone).all())

    def column(self, old: pa.Array, new: pa.Array) -> pa.Array:
        """Return a column of the resulting batch, from the columns of the batch and of the newer rows."""
        if len(self.rows) > _MOST_JOINED:
            return pc.take(pa.concat_arrays([old, new]), self._indices, boundscheck=False)
        parts, begin = [old.slice(0, 0)], 0
        for number, (row, replaces, gone) in enumerate(self._steps):
            parts += [old.slice(begin, row - begin), new.slice(number, 1 - gone)]
            begin = row + replaces
        return pa.concat_arrays([*parts, old.slice(begin)])

    @cached_property
    def _steps(self) -> list[tuple[int, bool, bool]]:
        return list(zip(self.rows.tolist(), self.replaces.tolist(), self.gone.tolist(), strict=True))

    @cached_property
    def _indices(self) -> pa.Array:
        """Return the rows of the resulting batch, as indices in the batch followed by the newer rows."""
        indices = np.arange(self.count, dtype=np.int32)
        newer = np.where(self.gone, -1, self.count + np.arange(len(self.rows)))
        indices[self.rows[self.replaces]] = newer[self.replaces]
        indices = np.insert(indices, self.rows[~self.replaces], newer[~self.replaces])
        return pa.array(indices[indices >= 0])
