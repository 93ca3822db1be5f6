"""Statistics of a fragment, collected batch by batch while it is written.

They are exact: the lowest and the highest value and the nulls of every record batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.key_encoding import can_be_encoded, encode_value, successor
from elasticscan.metadata import KEY_BYTES, Block, FragmentStatistics


class StatisticsCollector:
    """Collects the statistics of a fragment from its record batches, handed in one after another.

    Columns of types without value keys are left out. Tombstones count like other rows: their value
    columns are nulls, their keys are within the bounds.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._blocks: dict[str, list[Block]] = {f.name: [] for f in fields if can_be_encoded(f.type)}
        self._block_rows: list[int] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self._block_rows.append(rows.num_rows)
        for name, blocks in self._blocks.items():
            blocks.append(_block(rows.column(name)))

    def finish(self) -> FragmentStatistics:
        return FragmentStatistics(
            tuple(self._block_rows), {name: tuple(blocks) for name, blocks in self._blocks.items()}
        )


def _block(values: pa.Array) -> Block:
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
