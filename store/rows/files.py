"""Files of rows: found by path, pattern or URI, and read in batches by `pyarrow.dataset`.

Columns of CSV have the types of the table. For a new table, Arrow infers them from the first block of the
first file. Text in JSON stays text in a new table, because Arrow would drop the zone of a time. A directory
named `year=2024`, as Hive and Spark name them, adds a column to its files, if it is below the directory or
pattern that the caller passed. Its value replaces a column of the same name in a file.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
from pyarrow import fs

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import BATCH_ROWS
from elasticscan.base.redaction import shown
from elasticscan.base.user_files import naming_file
from elasticscan.storage import conform, map_leaves
from elasticscan.store.roots.location import file_system_at
from elasticscan.store.rows.conversion import table_type

FORMATS = ("csv", "json", "parquet", "arrow", "orc")
_ENDINGS = {"jsonl": "json", "ndjson": "json", "pq": "parquet", "feather": "arrow"}
_COMPRESSED = (".gz", ".bz2", ".zst")
BLOCK_BYTES = 4 << 20
# Spark's and Hive's name for null in the name of a directory.
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class TextRules:
    """Rules for reading CSV and JSON.

    Attributes:
        nulls: texts that mean null in CSV, in addition to an empty field without quotes.
        types: types of columns by name, instead of inferred ones.
        delimiter: the character between fields of CSV.
        columns: names of the columns, for CSV without a header; None if there is a header.
    """

    nulls: Sequence[str] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    delimiter: str = ","
    columns: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to load.

    Attributes:
        identity: hash that differs for every other file, and after the file changed.
        partitions: values, as texts, of the columns that its directories add.
    """

    system: fs.FileSystem
    path: str
    kind: str
    identity: str
    partitions: Mapping[str, str]


def find_files(sources: Sequence[str], kind: str | None) -> list[SourceFile]:
    """Return the files of paths, directories, patterns and URIs; those of one source sorted by name."""
    return [file for source in sources for file in _files_of(source, kind)]


def _files_of(source: str, kind: str | None) -> Iterator[SourceFile]:
    with naming_file(source, "read"):
        system, base = file_system_at(source)
        (info,) = infos = system.get_file_info([base])
        if info.type == fs.FileType.File:
            base = base.rpartition("/")[0]
        elif info.type == fs.FileType.NotFound and "://" not in source:
            infos = system.get_file_info(glob.glob(base, recursive=True))  # noqa: PTH207 - it may be absolute
            base = re.split(r"[*?[]", base)[0].rpartition("/")[0]
        else:
            infos = system.get_file_info(fs.FileSelector(base, recursive=True))
        files = [info for info in infos if info.type == fs.FileType.File and not _is_hidden(info.path, base)]
        if not files:
            raise InvalidOption(f"{shown(source)} matches no files; check its spelling", file=shown(source))
        for info in sorted(files, key=lambda info: info.path):
            named = f"{system.type_name}\0{info.path}\0{info.size}\0{info.mtime_ns}"
            identity = hashlib.blake2b(named.encode(), digest_size=16).hexdigest()
            form = kind or _kind_of(info.path)
            yield SourceFile(system, info.path, form, identity, _partitions(base, info.path))


def _is_hidden(path: str, base: str) -> bool:
    """Return whether Spark ignores a file, such as `_SUCCESS`, `.part-0.crc`, or files in `_delta_log`."""
    parts = path[len(base) :].split("/")
    return any(part.startswith((".", "_")) and "=" not in part for part in parts)


def _partitions(base: str, path: str) -> dict[str, str]:
    """Return the columns, with values, in names of the directories between a base directory and a file."""
    named = (part.partition("=") for part in path[len(base) :].split("/")[:-1])
    return {name: unquote(text, errors="strict") for name, equals, text in named if name and equals}


def _kind_of(path: str) -> str:
    """Return the format of a file by its ending. Raises `InvalidOption` for an unknown ending."""
    name = PurePosixPath(path.lower())
    ending = (name.with_suffix("") if name.suffix in _COMPRESSED else name).suffix[1:]
    kind = _ENDINGS.get(ending, ending)
    if kind not in FORMATS:
        raise InvalidOption(f"{path} has no known ending; use format= or --format: {', '.join(FORMATS)}")
    return kind


def schema_of(files: Sequence[SourceFile], rules: TextRules) -> pa.Schema:
    """Return the schema of a new table: the columns of the first file and of its directories."""
    first = files[0]
    with naming_file(first.path, "read"):
        change = {"csv": _type_of_csv, "json": _text}.get(first.kind, table_type)
        if first.kind == "json":
            columns = _open_json(first, None).schema
        else:
            columns = _zoned(first, _dataset(first, rules, rules.types), {})
        fields = {each.name: each.with_type(map_leaves(each.type, change)) for each in columns}
    for name in first.partitions:
        texts = {file.partitions.get(name, _NULL) for file in files} - {_NULL}
        is_whole = all(re.fullmatch(r"0|-?[1-9][0-9]{0,8}", text) for text in texts)
        fields[name] = pa.field(name, pa.int32() if is_whole and texts else pa.string())
    for name, kind in rules.types.items():
        if name in fields:
            fields[name] = fields[name].with_type(kind)
    return pa.schema(fields.values())


def _type_of_csv(leaf: pa.DataType) -> pa.DataType:
    """Return the type in a new table for a type that Arrow inferred from CSV."""
    if pa.types.is_timestamp(leaf):
        return pa.timestamp("us", leaf.tz)
    return pa.string() if pa.types.is_time(leaf) or pa.types.is_binary(leaf) else table_type(leaf)


def read_file(file: SourceFile, schema: pa.Schema, rules: TextRules) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in a table's schema, with the columns of its directories. Errors name the file."""
    types = {each.name: each.type for each in schema}
    with naming_file(file.path, "read"):
        constants = {
            name: pa.scalar(None if text == _NULL else text, pa.string()).cast(types.pop(name, pa.string()))
            for name, text in file.partitions.items()
        }
        for batch in _batches(file, rules, types):
            rows = batch.drop_columns([name for name in constants if name in batch.schema.names])
            for name, value in constants.items():
                rows = rows.append_column(name, pa.repeat(value, batch.num_rows))
            yield conform(rows, schema)


def _batches(
    file: SourceFile, rules: TextRules, types: Mapping[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    if file.kind == "json":
        schema = pa.schema(list(types.items()))
        for batch in _open_json(file, schema):
            batch.validate(full=True)  # finds text that is not UTF-8
            yield batch.cast(schema)
        return
    dataset = _dataset(file, rules, types)
    wanted = _zoned(file, dataset, types)
    for batch in dataset.to_batches(batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1):
        yield batch.cast(wanted)


def _dataset(file: SourceFile, rules: TextRules, types: Mapping[str, pa.DataType]) -> Any:
    datasets = import_module("pyarrow.dataset")  # takes half a second to import
    form: Any = file.kind
    if form == "parquet":  # nanoseconds, the default, overflow for times outside of 1677 to 2262
        options = datasets.ParquetReadOptions(coerce_int96_timestamp_unit="us")
        form = datasets.ParquetFileFormat(read_options=options)
    elif form == "csv":
        form = datasets.CsvFileFormat(
            read_options=pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES, column_names=rules.columns),
            parse_options=pyarrow.csv.ParseOptions(delimiter=rules.delimiter, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict(types),
                null_values=["", *rules.nulls],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    return datasets.dataset(file.path, filesystem=file.system, format=form)


def _open_json(file: SourceFile, schema: pa.Schema | None) -> pa.RecordBatchReader:
    """Return a reader of JSON lines, with the fields of a schema and no others; None infers the fields."""
    with file.system.open_input_stream(file.path) as start:  # Arrow crashes if the only value is null
        if start.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b""):
            raise pa.ArrowInvalid("a line of JSON must be one object")
    fields = None if schema is None else [each.with_type(map_leaves(each.type, _text)) for each in schema]
    return pyarrow.json.open_json(
        file.system.open_input_stream(file.path),
        read_options=pyarrow.json.ReadOptions(block_size=BLOCK_BYTES),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=fields and pa.schema(fields),
            unexpected_field_behavior="infer" if schema is None else "error",
        ),
    )


def _text(leaf: pa.DataType) -> pa.DataType:
    """Return text for a time, because Arrow's JSON reader drops its zone, and for a column of nulls."""
    return pa.string() if pa.types.is_temporal(leaf) or pa.types.is_null(leaf) else leaf


def _zoned(file: SourceFile, dataset: Any, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the columns of a file. A Parquet INT96, Spark's TIMESTAMP, is in UTC unless `types` differ."""
    schema = dataset.schema.remove_metadata()
    if file.kind != "parquet":
        return schema
    parquet = next(dataset.get_fragments()).metadata.schema
    stored = iter([parquet.column(at).physical_type for at in range(len(parquet))])  # of the leaves

    def with_zone(leaf: pa.DataType) -> pa.DataType:
        return pa.timestamp("us", "UTC") if next(stored, "") == "INT96" else leaf

    zoned = [each.with_type(map_leaves(each.type, with_zone)) for each in schema]
    pairs = zip(schema, zoned, strict=True)
    return pa.schema([given if types.get(given.name) == given.type else each for given, each in pairs])
