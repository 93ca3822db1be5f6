"""A batch with newer rows in their places: rows that replace, are added, or take rows away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.concurrency import cached_property
from elasticscan.storage.lookup import Mask, Rows


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
        if self.keep_keys and is_flat(old) and is_flat(new):
            return self.overwritten(old, new)
        return self.taken(old, new)

    def overwritten(self, old: pa.Array, new: pa.Array) -> pa.Array:
        """Return a copy of the column, with other values in some rows."""
        values, newer = flat_values(old), flat_values(new)
        data = pa.allocate_buffer(values.nbytes)
        copy = np.frombuffer(data, values.dtype)
        copy[:] = values
        copy[self.rows[self.living]] = newer[self.living]
        return pa.Array.from_buffers(old.type, self.count, [None, data])

    def taken(self, old: pa.Array, new: pa.Array) -> pa.Array:
        """Values of two columns, each by its number."""
        return pc.take(pa.concat_arrays([old, new]), self._indices, boundscheck=False)

    @cached_property
    def _indices(self) -> pa.Array:
        """Return the rows to take of the batch's and the newer ones behind them."""
        indices = np.arange(self.count, dtype=np.int32)
        replacing, added = self.living & self.replaces, self.living & ~self.replaces
        indices[self.rows[replacing]] = self.count + np.flatnonzero(replacing)
        indices[self.rows[self.gone]] = -1
        indices = np.insert(indices, self.rows[added], self.count + np.flatnonzero(added))
        return pa.array(indices[indices >= 0])
