"""Record batches as CSV, Parquet and Arrow files, streamed: memory holds some, however large the file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from elasticscan.base.errors import InvalidOption
from elasticscan.base.user_files import naming_file
from elasticscan.store import kind_of, open_file


def known_kind(path: Path) -> str:
    """`csv`, `parquet` or `arrow`, by the name. Raises `InvalidOption` for any other."""
    kind = kind_of(path.name)
    if kind is None:
        raise InvalidOption(
            f"{path} is of no kind that is known by its name: use .csv, .parquet or .arrow",
            file=str(path),
        )
    return kind


def print_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Print rows as CSV, with a line of names."""
    hints = {"": "; choose other columns with --columns, or --format json"}
    with naming_file("stdout", "written", hints):
        sink = pa.PythonFile(sys.stdout.buffer, "w")
        with pyarrow.csv.CSVWriter(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        sys.stdout.flush()


@contextmanager
def open_writer(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """A writer with `write_batch`; the file has its name only once it is complete."""
    partial = path.with_name(f".{path.name}.partial")
    hints = {"": "; choose other columns with --columns, or write .parquet"}
    try:
        with (
            naming_file(str(path), "written", hints),
            pa.OSFile(str(partial), "wb") as sink,
            open_file(known_kind(path), sink, schema) as writer,
        ):
            yield writer
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
