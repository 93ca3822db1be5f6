"""Columns of keys in forms that compare across arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from elasticscan.base.key_encoding import sort_codes

Comparable: TypeAlias = Any  # an array of NumPy, or one of Arrow: bytes and texts

# Compared by Arrow; everything else as integers.
_TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.binary(1))
_BYTES = frozenset(kind.id for kind in _TEXTS)
_DECIMAL = pa.decimal128(1).id


def comparable(column: pa.Array) -> list[Comparable]:
    """Return a key column as one or two columns that compare across arrays; the most significant first."""
    kind = column.type
    if kind.id in _BYTES:
        return [column]
    if kind.id == _DECIMAL:
        halves = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset)
        return [halves[1::2], halves[0::2].view(np.uint64)]
    return [sort_codes(column)]
