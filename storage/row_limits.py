"""Limits on rows, looked at for whole batches before anything of them is staged.

A page may end at any row, and its continuation key then holds the row's keys. So a row whose keys are
longer than a continuation key takes is refused when it is written, not when a scan ends there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.errors import InvalidKey, LimitExceeded
from elasticscan.base.limits import MAX_KEY_BYTES, MAX_ROW_BYTES
from elasticscan.base.order_keys import encoded_lengths
from elasticscan.base.value_keys import encoded_value_lengths


def check_key_bytes(rows: pa.RecordBatch, primary_key: Sequence[str]) -> None:
    """Raise `InvalidKey` when a primary key is longer than `MAX_KEY_BYTES`, encoded."""
    columns = [rows.column(name) for name in primary_key]
    if rows.num_rows and not _surely_short(columns):
        _check(encoded_lengths(columns), columns, primary_key, "primary key")


def check_index_key_bytes(rows: pa.RecordBatch, index: str, names: Sequence[str]) -> None:
    """Raise `InvalidKey` when an index key is longer than `MAX_KEY_BYTES`, encoded."""
    columns = [rows.column(name) for name in names]
    if rows.num_rows and not _surely_short(columns):
        _check(encoded_value_lengths(columns), columns, names, f"key of index {index!r}")


def check_row_bytes(rows: pa.RecordBatch) -> None:
    """Raise `LimitExceeded` when a row takes more than `MAX_ROW_BYTES`."""
    if rows.nbytes <= MAX_ROW_BYTES:
        return
    if rows.num_rows == 1:
        largest = max(rows.schema.names, key=lambda name: rows.column(name).nbytes)
        raise LimitExceeded(
            f"a row takes {rows.nbytes:,} bytes, most of them in column {largest!r}, and may take "
            f"{MAX_ROW_BYTES:,}; keep such values in files, and their names in the table",
            column=largest,
            limit="bytes of a row",
            most=MAX_ROW_BYTES,
            found=rows.nbytes,
        )
    half = rows.num_rows // 2
    check_row_bytes(rows.slice(0, half))
    check_row_bytes(rows.slice(half))


def _surely_short(columns: Sequence[pa.Array]) -> bool:
    """Return whether no key can be too long, seen from the bytes of all together; a zero byte takes two."""
    return bool(sum(2 * column.nbytes + 24 for column in columns) <= MAX_KEY_BYTES)


def _check(lengths: NDArray[np.int64], columns: Sequence[pa.Array], names: Sequence[str], kind: str) -> None:
    row = int(np.argmax(lengths))
    if lengths[row] <= MAX_KEY_BYTES:
        return
    column = max(zip(columns, names, strict=True), key=lambda pair: pair[0].slice(row, 1).nbytes)[1]
    raise InvalidKey(
        f"a {kind} takes {lengths[row]:,} bytes, most of them in column {column!r}, and may take "
        f"{MAX_KEY_BYTES:,}; use a digest of the value as key",
        column=column,
        length=int(lengths[row]),
        most=MAX_KEY_BYTES,
    )
