"""Files to load rows from: found by path, pattern or URI, and read in batches.

Parquet, Arrow and ORC are read through `pyarrow.dataset`, CSV and JSON by `elasticscan.store.rows.text`. A
directory named `year=2024`, as Hive and Spark name them, gives its files a column, if it lies below the
directory or pattern that was given. Its name counts, also where a file has a column of the same name.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import BATCH_ROWS
from elasticscan.base.redaction import shown
from elasticscan.base.suggestions import suggest
from elasticscan.base.user_files import naming_file
from elasticscan.store.roots.aliases import file_system_at
from elasticscan.store.rows.text import (
    TextRules,
    cast_text,
    check_names,
    guess_schema,
    guess_type,
    read_text,
)
from elasticscan.store.rows.typed import map_leaves, table_type

# A Parquet file of more bytes is committed in parts, where a load can be resumed.
PART_BYTES = 256 << 20
KINDS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".orc": "orc",
}
FORMATS = tuple(dict.fromkeys(KINDS.values()))
TEXT = ("csv", "json")
_COMPRESSED = (".gz", ".bz2", ".zst")
# The value in the name of a directory whose rows have none.
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to load, or some row groups of a Parquet file.

    Attributes:
        identity: differs from that of every other file, and after the file changed.
        partitions: the texts of the columns that the names of its directories give.
    """

    system: fs.FileSystem
    path: str
    kind: str
    bytes: int
    identity: str
    partitions: Mapping[str, str]
    row_groups: tuple[int, ...] | None = None


def find_files(sources: Sequence[Any], kind: str | None) -> list[SourceFile]:
    """Return the files that paths, directories, patterns and URIs name, in the order of their names.

    Raises:
        InvalidOption: there are none, or their format is not known.
    """
    found = []
    for source in sources:
        text = os.fspath(source)
        with naming_file(text, "read"):
            system, base, infos = _expand(text)
            for info in infos:
                named = f"{system.type_name}\0{info.path}\0{info.size}\0{info.mtime_ns}"
                identity = hashlib.blake2b(named.encode(), digest_size=16).hexdigest()
                partitions = _partitions(base, info.path)
                form = kind or kind_of(info.path)
                found.append(SourceFile(system, info.path, form, info.size or 0, identity, partitions))
    return found


def _expand(text: str) -> tuple[fs.FileSystem, str, list[fs.FileInfo]]:
    """Return the file system, the directory that was named, and the files."""
    system, base = file_system_at(text)
    (info,) = system.get_file_info([base])
    if info.type == fs.FileType.File:
        return system, base.rpartition("/")[0], [info]
    if info.type == fs.FileType.Directory:
        found = system.get_file_info(fs.FileSelector(base, recursive=True))
    elif "://" not in text and glob.has_magic(base):
        found = system.get_file_info(glob.glob(base, recursive=True))  # noqa: PTH207 - a pattern may be absolute
        base = re.split(r"[*?[]", base)[0].rpartition("/")[0]
    else:
        raise InvalidOption(f"{shown(text)} cannot be read: No such file or directory", file=shown(text))
    infos = [info for info in found if info.type == fs.FileType.File and not _is_hidden(info.path, base)]
    if not infos:
        raise InvalidOption(f"{shown(text)} matches no files; check its spelling", file=shown(text))
    return system, base, sorted(infos, key=lambda info: info.path)


def _is_hidden(path: str, base: str) -> bool:
    """Return whether Spark and others leave a file out: `_SUCCESS`, `.part-0.crc`, `_delta_log`."""
    parts = path[len(base) :].split("/")
    return any(part.startswith((".", "_")) and "=" not in part for part in parts)


def _partitions(base: str, path: str) -> dict[str, str]:
    """Return the columns that the directories between a base and a file name, with their texts."""
    named = (part.partition("=") for part in path[len(base) :].split("/")[:-1])
    return {name: unquote(text, errors="strict") for name, equals, text in named if name and equals}


def kind_of(path: str) -> str:
    """Return the format of a file by its name. Raises `InvalidOption` for any other name."""
    name = PurePosixPath(path.lower())
    is_compressed = name.suffix in _COMPRESSED
    kind = KINDS.get((name.with_suffix("") if is_compressed else name).suffix)
    if kind is None or (is_compressed and kind not in TEXT):
        raise InvalidOption(
            f"{path} has no name of a known format; use format= or --format, one of {', '.join(FORMATS)}",
            file=path,
        )
    return kind


def check_types(types: Mapping[str, pa.DataType], schema: pa.Schema) -> None:
    """Raise `InvalidOption` for the type of a column that there is not."""
    for name in types:
        if name not in schema.names:
            hint = suggest(name, schema.names) or f"; the columns are {', '.join(schema.names)}"
            raise InvalidOption(f"types name {name!r}, which is no column{hint}", option="types")


def schema_of(files: Sequence[SourceFile], rules: TextRules) -> pa.Schema:
    """Return the columns of a new table: those of the first file, and of all of its format.

    Raises:
        SchemaMismatch: files have a column in types that differ.
    """
    first = files[0]
    schema = pa.schema([])
    if first.kind in TEXT:
        with naming_file(first.path, "read"):
            own = {name: kind for name, kind in rules.types.items() if name not in first.partitions}
            schema = guess_schema(first.system, first.path, first.kind, replace(rules, types=own))
    else:
        for file in files:
            if file.kind == first.kind:
                with naming_file(file.path, "read"):
                    schema = pa.unify_schemas([schema, _columns(file)])
    fields = [each.with_type(table_type(each.type)) for each in schema if each.name not in first.partitions]
    for name in first.partitions:
        kind = rules.types.get(name)
        if kind is None and name in schema.names and not pa.types.is_null(schema.field(name).type):
            kind = schema.field(name).type
        texts = {file.partitions.get(name, _NULL) for file in files} - {_NULL}
        fields.append(pa.field(name, kind or guess_type(pa.array(texts, pa.string()), [pa.int32()])))
    return pa.schema(fields)


def split_file(file: SourceFile) -> Iterator[SourceFile]:
    """Yield a file, or the parts of a large Parquet file, of whole row groups."""
    if file.kind != "parquet" or file.bytes <= PART_BYTES:
        yield file
        return
    with naming_file(file.path, "read"):
        groups = _fragment(file).row_groups
    some, size = list[int](), 0
    for group in groups:
        some.append(group.id)
        size += group.total_byte_size
        if size >= PART_BYTES or group.id == len(groups) - 1:
            identity = f"{file.identity}:{some[0]}-{some[-1]}"
            share = file.bytes * len(some) // len(groups)
            yield replace(file, identity=identity, bytes=share, row_groups=tuple(some))
            some, size = [], 0


def read_files(sources: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, with the columns that the files have, in the types of a schema.

    Raises:
        InvalidOption, SchemaMismatch: a file is not there, or cannot be read.
    """
    for file in find_files(sources, None):
        yield from read_file(file, schema, TextRules(), ())


def read_file(
    file: SourceFile, schema: pa.Schema, rules: TextRules, guessed: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, with its own columns and those of its partitions.

    Args:
        guessed: columns whose types were guessed, and may change no text.
    """
    own = pa.schema([each for each in schema if each.name not in file.partitions])
    with naming_file(file.path, "read"):
        constants = {name: _constant(name, text, schema) for name, text in file.partitions.items()}
        if file.kind in TEXT:
            batches = read_text(file.system, file.path, file.kind, rules, own, guessed)
        else:
            batches = _read_columns(file, own)
        for batch in batches:
            rows = batch.drop_columns([name for name in constants if name in batch.schema.names])
            for name, value in constants.items():
                rows = rows.append_column(name, pa.repeat(value, batch.num_rows))
            yield rows


def _constant(name: str, text: str, schema: pa.Schema) -> pa.Scalar:
    """Return the value of a partition column."""
    kind = schema.field(name).type if name in schema.names else pa.string()
    if text == _NULL:
        return pa.scalar(None, kind)
    return cast_text(name, pa.array([text]), kind, is_guessed=False)[0]


def _read_columns(file: SourceFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet, Arrow or ORC file, in its own types."""
    fragment, columns = _fragment(file), _columns(file)
    raw = fragment.physical_schema.remove_metadata()
    there = {each.name: each.type for each in schema}
    # A time of an INT96 stays without zone, where the table has it so.
    wanted = pa.schema(
        [
            before if there.get(each.name) == before.type else each
            for before, each in zip(raw, columns, strict=True)
        ]
    )
    for batch in fragment.to_batches(
        schema=raw, batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1
    ):
        yield batch if wanted == raw else batch.cast(wanted)


def _fragment(file: SourceFile) -> Any:
    """Return the file as a fragment of a dataset."""
    datasets = import_module("pyarrow.dataset")  # which takes half a second to import
    if file.kind != "parquet":
        form = datasets.IpcFileFormat() if file.kind == "arrow" else datasets.OrcFileFormat()
        return form.make_fragment(file.path, file.system)
    # As nanoseconds, the default, times outside of the years 1677 to 2262 would wrap around.
    form = datasets.ParquetFileFormat(
        read_options=datasets.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    )
    return form.make_fragment(file.path, file.system, row_groups=file.row_groups)


def _columns(file: SourceFile) -> pa.Schema:
    """Return the columns of a Parquet, Arrow or ORC file; an INT96 of Parquet is a time in UTC."""
    fragment = _fragment(file)
    schema = fragment.physical_schema.remove_metadata()
    check_names(schema)
    if file.kind != "parquet":
        return schema
    parquet = fragment.metadata.schema
    stored = iter([parquet.column(at).physical_type for at in range(len(parquet))])  # of the leaves

    def with_zone(leaf: pa.DataType) -> pa.DataType:
        return pa.timestamp("us", "UTC") if next(stored, "") == "INT96" else leaf

    return pa.schema([each.with_type(map_leaves(each.type, with_zone)) for each in schema])
