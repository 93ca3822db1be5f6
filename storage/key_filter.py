"""Filters of primary keys: they show that a fragment does not have a key, without a search in it.

If several fragments serve a slot, a lookup of a key must search each of them, although one has the key. A
filter is the sorted 32-bit hashes of all keys of a fragment. If the hash of a key is missing, the fragment
does not have the key. If the hash is found, the fragment must be searched.

Building a filter reads and hashes all keys; a search reads and compares few. So a filter is built when
the searches in the fragment have taken as much time as building it: a single read does not pay for it,
and no reader pays more than twice the cost of the better way. The filter is kept in the cache of batches
and counts against its bound. When the cache drops it, the count of searches starts again.
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

Comparable: TypeAlias = Any  # a NumPy array, or an Arrow array for bytes and texts
KeyHashes: TypeAlias = NDArray[np.uint32]

ROWS_PER_SEARCH = 16_384  # rows that are hashed in the time of a search for a few keys
ROWS_PER_KEY = 16  # additional rows for each key
MOST_ROWS = 1 << 21  # larger fragments get no filter; the filter of so many rows takes 1/16 of the cache

# Compared by Arrow; everything else as integers.
_TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.binary(1))
_BYTES = frozenset(kind.id for kind in _TEXTS)
_DECIMAL = pa.decimal128(1).id

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


def comparable(column: pa.Array) -> list[Comparable]:
    """Return a key column as one or two columns, most significant first, comparable across arrays."""
    kind = column.type
    if kind.id in _BYTES:
        return [column]
    if kind.id == _DECIMAL:
        halves = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset)
        return [halves[1::2], halves[0::2].view(np.uint64)]
    return [sort_codes(column)]


def key_hashes(keys: Sequence[pa.Array]) -> KeyHashes:
    """Return a hash of each key; equal keys of equal types have equal hashes in all arrays."""
    hashes = np.zeros(len(keys[0]), dtype=np.uint64)
    for part in (part for key in keys for part in comparable(key)):
        values = part if isinstance(part, np.ndarray) else spark_hash([part])
        hashes ^= values.astype(np.uint64)
        hashes *= _FACTOR
        hashes ^= hashes >> _HALF
    return (hashes * _FACTOR >> _HALF).astype(np.uint32)


class KeyFilter:
    """The filter of one fragment with `rows` rows, built when it is worth it. Threads may share one."""

    def __init__(self, kept: KeptBatches, rows: int) -> None:
        self._kept, self._rows = kept, rows
        self._searched = 0  # the cost of all searches, in rows that could be hashed instead

    def is_worth_asking(self, keys: int) -> bool:
        """Return whether there is a filter, or it is time to build one; else count a search for the keys."""
        if self._kept.peek(0) is not None:
            return True
        if self._rows > MOST_ROWS:
            return False
        self._searched += ROWS_PER_SEARCH + ROWS_PER_KEY * keys
        return self._searched >= self._rows

    def may_have(self, hashes: KeyHashes, keys: Iterable[Sequence[pa.Array]]) -> NDArray[np.bool_]:
        """Return a mask that is False for keys that the fragment lacks.

        `keys` are the key columns of all its batches, which are read only to build the filter.
        """

        def build(_: int) -> pa.RecordBatch:
            self._searched = 0
            all_hashes = np.concatenate([np.empty(0, dtype=np.uint32), *map(key_hashes, keys)])
            return pa.RecordBatch.from_arrays([pa.array(np.sort(all_hashes))], names=["hash"])

        known: KeyHashes = self._kept.get(0, build).column(0).to_numpy()
        if not len(known):
            return np.zeros(len(hashes), dtype=bool)
        places = np.minimum(known.searchsorted(hashes), len(known) - 1)
        may_have: NDArray[np.bool_] = known[places] == hashes
        return may_have
