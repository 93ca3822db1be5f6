"""A batch with newer rows in their places: rows that replace, are added, or take rows away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.concurrency import cached_property
from elasticscan.storage.lookup import Mask, Rows
from elasticscan.storage.merge import Array

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
        if self.keep_keys and is_flat(old) and is_flat(new):
            return self.overwritten(old, new)
        return self.joined(old, new) if len(self.rows) <= _MOST_JOINED else self.taken(old, new)

    def overwritten(self, old: pa.Array, new: pa.Array) -> pa.Array:
        """Return a copy of the column, with other values in some rows."""
        values, newer = flat_values(old), flat_values(new)
        data = pa.allocate_buffer(values.nbytes)
        copy = np.frombuffer(data, values.dtype)
        copy[:] = values
        copy[self.rows[self.living]] = newer[self.living]
        return pa.Array.from_buffers(old.type, self.count, [None, data])

    def joined(self, old: pa.Array, new: pa.Array) -> pa.Array:
        """Join pieces of two columns: they are copied as they are, whatever their type."""
        if not self._pieces:
            return old.slice(0, 0)
        return pa.concat_arrays(
            [(new if newer else old).slice(begin, rows) for newer, begin, rows in self._pieces]
        )

    def taken(self, old: pa.Array, new: pa.Array) -> pa.Array:
        """Values of two columns, each by its number."""
        return pc.take(pa.concat_arrays([old, new]), self._indices, boundscheck=False)

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
        numbers = np.arange(self.count, self.count + len(self.rows), dtype=np.int32)
        replacing, added = self.living & self.replaces, self.living & ~self.replaces
        indices[self.rows[replacing]] = numbers[replacing]
        indices[self.rows[self.gone]] = -1
        if added.any():
            places = self.rows[added] + np.arange(np.count_nonzero(added))
            whole = np.empty(self.count + len(places), dtype=np.int32)
            is_old = np.ones(len(whole), dtype=bool)
            is_old[places] = False
            whole[places], whole[is_old] = numbers[added], indices
            indices = whole
        return pa.array(indices[indices >= 0] if self.gone.any() else indices)


def is_flat(column: pa.Array) -> bool:
    """Return whether a column is one buffer of fixed-width values: no nulls, no texts, no parts."""
    kind = column.type
    return pa.types.is_primitive(kind) and kind.bit_width in (8, 16, 32, 64) and not column.null_count


def flat_values(column: pa.Array) -> Array:
    width = column.type.bit_width // 8
    return np.frombuffer(column.buffers()[1], f"u{width}", len(column), column.offset * width)
