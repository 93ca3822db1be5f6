"""CSV, Parquet and Arrow files as record batches, and record batches as such files.

Files are streamed both ways: memory holds some batches, however large the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.base.limits import BATCH_ROWS

# The types of a CSV file are guessed from this many bytes at its beginning, and hold for all of it.
GUESS_BYTES = 32 << 20
_CSV_BLOCK_BYTES = 4 << 20
_HINTS = {
    "csv": "; say what stands for null, as in --null NA, or name the type of a column with --type NAME=TYPE"
}

# Called with the bytes of the file that were read since the last call.
OnRead = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class CsvRules:
    """Rules for reading CSV text as values.

    Attributes:
        nulls: what stands for null beside a field with nothing in it, not even quotes.
        types: types of columns by name, instead of guessed ones.
    """

    nulls: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] | None = None

    def options(self, types: Mapping[str, pa.DataType]) -> Any:
        """The rules as options of pyarrow, with the types of columns."""
        return pyarrow.csv.ConvertOptions(
            column_types=dict(types),
            null_values=["", *self.nulls],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )


def kind_of(path: Path) -> str:
    """`csv`, `parquet` or `arrow`, by the name."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".bz2", ".zst") and ".csv" in suffixes:
        return "csv"
    kinds = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
    kind = kinds.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise InvalidOption(
            f"{path} is of no kind that is known by its name: use .csv (also .csv.gz), .parquet or .arrow",
            file=str(path),
        )
    return kind


def schema_of(path: Path, rules: CsvRules) -> pa.Schema:
    """The schema of a file; for CSV guessed from its beginning."""
    kind = kind_of(path)
    with _translate_errors(path, "read", _HINTS.get(kind, "")):
        if kind == "parquet":
            return pyarrow.parquet.read_schema(path).remove_metadata()
        if kind == "arrow":
            with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
                return reader.schema.remove_metadata()
        guessed = _guess(path, rules.options(rules.types or {}))
        if not rules.nulls:
            _check_no_null_is_text(path, guessed, rules.types or {})
    return pa.schema([field.with_type(_table_type(field.type)) for field in guessed])


def _guess(path: Path, options: Any) -> pa.Schema:
    reading = pyarrow.csv.ReadOptions(block_size=GUESS_BYTES)
    return pyarrow.csv.open_csv(_open_csv(path)[1], read_options=reading, convert_options=options).schema


def _check_no_null_is_text(path: Path, guessed: pa.Schema, types: Mapping[str, pa.DataType]) -> None:
    """Refuse a column that would be text only for the sake of an NA or NULL among its numbers."""
    usual = _guess(path, pyarrow.csv.ConvertOptions(column_types=dict(types)))
    for strict, lenient in zip(guessed, usual, strict=True):
        if strict.type != lenient.type and not pa.types.is_null(lenient.type):
            raise SchemaMismatch(
                f"{path} has text among the values of column {strict.name!r}, which else are "
                f"{lenient.type}; say what stands for null, as in --null NA, or that it is text, with "
                f"--type {strict.name}=string",
                file=str(path),
                column=strict.name,
            )


def _table_type(guessed: pa.DataType) -> pa.DataType:
    """The type a table gets: text where no value was seen, and the microseconds of Spark."""
    if pa.types.is_null(guessed):
        return pa.string()
    return pa.timestamp("us", guessed.tz) if pa.types.is_timestamp(guessed) else guessed


def read_batches(
    paths: Sequence[Path], schema: pa.Schema, rules: CsvRules, on_read: OnRead
) -> Iterator[pa.RecordBatch]:
    """The batches of all files, one after another; CSV is read as the types of `schema`."""
    for path in paths:
        kind = kind_of(path)
        with _translate_errors(path, "read", _HINTS.get(kind, "")):
            if kind == "csv":
                yield from _read_csv(path, schema, rules, on_read)
            elif kind == "parquet":
                with pyarrow.parquet.ParquetFile(path) as file:
                    unit_bytes = path.stat().st_size / max(1, file.metadata.num_rows)
                    for batch in file.iter_batches(BATCH_ROWS):
                        on_read(round(batch.num_rows * unit_bytes))
                        yield batch
            else:
                with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
                    unit_bytes = path.stat().st_size / max(1, reader.num_record_batches)
                    for index in range(reader.num_record_batches):
                        on_read(round(unit_bytes))
                        yield reader.get_batch(index)


def _read_csv(path: Path, schema: pa.Schema, rules: CsvRules, on_read: OnRead) -> Iterator[pa.RecordBatch]:
    types = {field.name: field.type for field in schema}
    file, text = _open_csv(path)
    reader = pyarrow.csv.open_csv(
        text,
        read_options=pyarrow.csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
        convert_options=rules.options(types),
    )
    reported = 0
    for batch in reader:
        at = file.tell()
        on_read(at - reported)
        reported = at
        yield batch


def _open_csv(path: Path) -> tuple[Any, Any]:
    """The file, for the position up to which it was read, and a reader of its text.

    Arrow reads ahead in threads of its own, also when a reader was given up after an error. So both are
    Arrow's own files, where no Python code runs, and they are closed by whoever lets go of them last.
    """
    file = pa.OSFile(str(path))
    if path.suffix.lower() == ".csv":
        return file, file
    return file, pa.CompressedInputStream(file, pa.Codec.detect(str(path)).name)


@contextmanager
def _translate_errors(path: Path, verb: str, hint: str) -> Iterator[None]:
    """Translate errors of pyarrow and the disk into ones that name the file."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidOption(f"{path} cannot be {verb}: {reason}", file=str(path)) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(f"{path} cannot be {verb}: {error}{hint}", file=str(path)) from error


# Writing


@contextmanager
def open_writer(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """A writer with `write_batch`; the file has its name only once it is complete."""
    partial = path.with_name(f".{path.name}.partial")
    hint = "; choose other columns with --columns, or write .parquet"
    try:
        with _translate_errors(path, "written", hint), _writer(partial, kind_of(path), schema) as writer:
            yield writer
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _writer(path: Path, kind: str, schema: pa.Schema) -> Any:
    if kind == "parquet":
        return pyarrow.parquet.ParquetWriter(path, schema)
    if kind == "arrow":
        return pa.ipc.new_file(str(path), schema)
    return pyarrow.csv.CSVWriter(str(path), schema)
