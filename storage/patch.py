"""A batch with newer rows in their places: rows that replace, are added, or take rows away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.concurrency import cached_property
from elasticscan.storage.lookup import Mask, Rows

_MOST_JOINED = 64  # so many rows are laid over a batch by copying what lies between them


@dataclass(frozen=True)
class Patch:
    """Newer rows of a batch: the rows before which they belong, and whether these have their keys.

    Attributes:
        count: the batch's rows.
        gone: they take away the row with their key, which is there, and are not in the batch that results.
    """

    count: int
    rows: Rows
    replaces: Mask
    gone: Mask

    @cached_property
    def keep_keys(self) -> bool:
        """Return whether the batch that results has the same keys."""
        return bool((self.replaces & ~self.gone).all())

    def column(self, old: pa.Array, new: pa.Array) -> pa.Array:
        """Return a column of the batch that results, of the batch's and that of the newer rows."""
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
        """Return the rows to take of the batch's and the newer ones behind them."""
        indices = np.arange(self.count, dtype=np.int32)
        newer = np.where(self.gone, -1, self.count + np.arange(len(self.rows)))
        indices[self.rows[self.replaces]] = newer[self.replaces]
        indices = np.insert(indices, self.rows[~self.replaces], newer[~self.replaces])
        return pa.array(indices[indices >= 0])
