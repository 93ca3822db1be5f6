"""Rows for the option `explain`: the possible access paths, one a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

EXPLANATION = pa.schema(
    [
        pa.field("access", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("condition", pa.string()),
        pa.field("remainder", pa.string()),
        pa.field("rows_scanned", pa.int64()),
        pa.field("cost", pa.float64()),
        pa.field("chosen", pa.bool_(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)


class Explained(InputPartition):
    """The answer as a partition: the driver finds it, and a task only returns it."""

    def __init__(self, paths: Sequence[Mapping[str, Any]]) -> None:
        super().__init__("explanation")
        self.rows = [_row(path) for path in paths]

    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(self.rows, schema=EXPLANATION)


def _row(path: Mapping[str, Any]) -> dict[str, Any]:
    """Return an access path; rows scanned and cost are null for one that cannot be taken at all."""
    if math.isfinite(path["cost"]):
        return {**path, "rows_scanned": round(path["rows_scanned"])}
    return {**path, "rows_scanned": None, "cost": None}
