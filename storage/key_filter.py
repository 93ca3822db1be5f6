"""Filters of primary keys: which keys a fragment does not have, without a search in it.

Of several fragments that serve a slot one has the key that is looked for, and each of the others has to be
asked for it, too. A filter is the sorted hashes of all keys of a fragment, of 32 bits each: a key whose hash
is not there is not in the fragment. A hash that is there proves nothing, so the fragment is searched.

To build a filter reads and hashes all keys, to search for some reads and compares few. So it is built once
as much time was spent on searches as it takes to build it: who reads a fragment once does not pay for it,
and no reader pays twice the cost of the better way. It lies in the cache of batches, counts against
its bound, and goes when it was not used lately; then it has to be earned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.hashing import spark_hash
from elasticscan.base.key_encoding import sort_codes
from elasticscan.storage.batches.reader import KeptBatches

Comparable: TypeAlias = Any  # an array of NumPy, or one of Arrow: bytes and texts
KeyHashes: TypeAlias = NDArray[np.uint32]

ROWS_PER_SEARCH = 16_384  # are hashed in the time that a search for a few keys takes
ROWS_PER_KEY = 16  # and so many more for each key
MOST_ROWS = 1 << 21  # of a fragment that gets a filter, which is then a 16th of the cache

# Compared by Arrow; everything else as integers.
_TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.binary(1))
_BYTES = frozenset(kind.id for kind in _TEXTS)
_DECIMAL = pa.decimal128(1).id

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


def comparable(column: pa.Array) -> list[Comparable]:
    """Return a key column as one or two columns that compare across arrays; the most significant first."""
    kind = column.type
    if kind.id in _BYTES:
        return [column]
    if kind.id == _DECIMAL:
        halves = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset)
        return [halves[1::2], halves[0::2].view(np.uint64)]
    return [sort_codes(column)]


def key_hashes(keys: Sequence[pa.Array]) -> KeyHashes:
    """Return a hash of each key; equal keys of equal types have equal ones, whatever arrays they are in."""
    hashes = np.zeros(len(keys[0]), dtype=np.uint64)
    for part in (part for key in keys for part in comparable(key)):
        values = part if isinstance(part, np.ndarray) else spark_hash([part])
        hashes ^= values.astype(np.uint64)
        hashes *= _FACTOR
        hashes ^= hashes >> _HALF
    return (hashes * _FACTOR >> _HALF).astype(np.uint32)


class KeyFilter:
    """The filter of one fragment, as far as it was earned. Threads may share it.

    Args:
        kept: where it is kept.
        rows: how many rows the fragment has.
    """

    def __init__(self, kept: KeptBatches, rows: int) -> None:
        self._kept, self._rows = kept, rows
        self._searched = 0  # in rows that might have been hashed instead

    def is_worth_asking(self, keys: int) -> bool:
        """Return whether there is a filter, or is worth one; else the fragment is searched for these keys."""
        if self._kept.peek(0) is not None:
            return True
        if self._rows > MOST_ROWS:
            return False
        self._searched += ROWS_PER_SEARCH + ROWS_PER_KEY * keys
        return self._searched >= self._rows

    def may_have(self, hashes: KeyHashes, keys: Iterable[Sequence[pa.Array]]) -> NDArray[np.bool_]:
        """Return False for each key that the fragment lacks; `keys` are all that it has, batch by batch."""

        def build(_: int) -> pa.RecordBatch:
            self._searched = 0
            own = np.concatenate([np.empty(0, dtype=np.uint32), *map(key_hashes, keys)])
            return pa.RecordBatch.from_arrays([pa.array(np.sort(own))], names=["hash"])

        own: KeyHashes = self._kept.get(0, build).column(0).to_numpy()
        if not len(own):
            return np.zeros(len(hashes), dtype=bool)
        places = np.minimum(own.searchsorted(hashes), len(own) - 1)
        may_have: NDArray[np.bool_] = own[places] == hashes
        return may_have
