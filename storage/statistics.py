"""Statistics of a record batch's columns: the lowest and the highest value, and the nulls. They are exact."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.key_encoding import encode_value, successor
from elasticscan.metadata import KEY_BYTES, Block


def block_of(values: pa.Array) -> Block:
    """Return the bounds of a column of a batch, of a type that has value keys.

    Tombstones count like other rows: their value columns are nulls, their keys are within the bounds.
    """
    nulls = values.null_count
    if nulls == len(values):
        return Block(b"", b"", nulls)
    low, high = _extremes(values.drop_null() if nulls else values)
    return Block(
        low[:KEY_BYTES], high + b"\0" if len(high) <= KEY_BYTES else successor(high[:KEY_BYTES]), nulls
    )


def _extremes(values: pa.Array) -> tuple[bytes, bytes]:
    """Return the keys of the lowest and the highest value of a column that has values and no nulls."""
    if pa.types.is_floating(values.type):
        low, high = _float_extremes(values)
    else:
        low, high = pc.min_max(values).values()
    return encode_value(low), encode_value(high)


def _float_extremes(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the lowest and the highest value. NaN is above all numbers, where Arrow would leave it out."""
    numbers = values.to_numpy(zero_copy_only=False)
    low, high = numbers.min(), numbers.max()  # both are NaN when there is one
    if np.isnan(high):
        found = numbers[~np.isnan(numbers)]  # `fmin` of a signalling NaN is NaN
        low = found.min() if len(found) else high
    return pa.scalar(float(low), values.type), pa.scalar(float(high), values.type)
