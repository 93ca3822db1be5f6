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
        living: they are in the batch that results.
        gone: they take away the row with their key.
    """

    count: int
    rows: Rows
    replaces: Mask
    living: Mask
    gone: Mask

    @cached_property
    def keep_keys(self) -> bool:
        """Return whether the batch that results has the same keys."""
        return not (self.gone | (self.living & ~self.replaces)).any()

    def column(self, old: pa.Array, new: pa.Array) -> pa.Array:
        """Return a column of the batch that results, of the batch's and that of the newer rows."""
        if len(self.rows) > _MOST_JOINED:
            return pc.take(pa.concat_arrays([old, new]), self._indices, boundscheck=False)
        if not self._pieces:
            return old.slice(0, 0)
        return pa.concat_arrays(
            [(new if newer else old).slice(begin, rows) for newer, begin, rows in self._pieces]
        )

    @cached_property
    def _pieces(self) -> list[tuple[bool, int, int]]:
        """Return pieces of the batch, and the newer rows between them: (newer, begin, rows)."""
        pieces, begin = [], 0
        chosen = np.flatnonzero(self.living | self.gone)
        parts = (chosen, self.rows[chosen], self.replaces[chosen], self.living[chosen])
        for number, row, replaces, lives in zip(*(part.tolist() for part in parts), strict=True):
            if begin < row:
                pieces.append((False, begin, row - begin))
            if lives:
                pieces.append((True, number, 1))
            begin = row + replaces
        if begin < self.count:
            pieces.append((False, begin, self.count - begin))
        return pieces

    @cached_property
    def _indices(self) -> pa.Array:
        """Return the rows to take of the batch's and the newer ones behind them."""
        indices = np.arange(self.count, dtype=np.int32)
        replacing, added = self.living & self.replaces, self.living & ~self.replaces
        indices[self.rows[replacing]] = self.count + np.flatnonzero(replacing)
        indices[self.rows[self.gone]] = -1
        indices = np.insert(indices, self.rows[added], self.count + np.flatnonzero(added))
        return pa.array(indices[indices >= 0])
