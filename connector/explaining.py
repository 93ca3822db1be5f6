"""Rows for the option `explain`: the possible access paths, one a row."""

from __future__ import annotations

import math
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from elasticscan.optimizer import Candidate
from elasticscan.store import Scan

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

    def __init__(self, scan: Scan) -> None:
        """Keep the candidates of a scan, and close it: its rows are not read."""
        super().__init__("explanation")
        assert scan.choice is not None, "a scan that begins has chosen"
        scan.close()
        chosen = scan.choice.candidate
        self.rows = [_row(candidate, candidate == chosen) for candidate in scan.choice.candidates]

    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(self.rows, schema=EXPLANATION)


def _row(candidate: Candidate, chosen: bool) -> dict[str, object]:
    """Return a candidate; rows scanned and cost are null for a path that cannot be taken at all."""
    row = asdict(candidate) | {"chosen": chosen, "rows_scanned": round(candidate.rows_scanned)}
    return row if math.isfinite(candidate.cost) else row | {"rows_scanned": None, "cost": None}
