"""Kinds of files that rows are written to, by the end of a name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyarrow as pa

CSV, PARQUET, ARROW = "csv", "parquet", "arrow"
ENDINGS = {".csv": CSV, ".parquet": PARQUET, ".pq": PARQUET, ".arrow": ARROW, ".feather": ARROW}


def kind_of(name: str) -> str | None:
    """Return `csv`, `parquet` or `arrow`, by the end of a file's name; None for any other."""
    _, dot, ending = name.rpartition(".")
    return ENDINGS.get(f"{dot}{ending}".lower())


def open_file(kind: str, sink: Any, schema: pa.Schema, compression: str = "snappy") -> Any:
    """Return a writer of a file of a kind, with `write_batch` and `close`; `compression` is for Parquet."""
    if kind == PARQUET:  # each is imported when it is needed, for its time to load
        return import_module("pyarrow.parquet").ParquetWriter(sink, schema, compression=compression)
    if kind == ARROW:
        return pa.ipc.new_file(sink, schema)
    return import_module("pyarrow.csv").CSVWriter(sink, schema)
