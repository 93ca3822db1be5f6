"""Export of a scan's rows, page by page: to one file, or to a directory of Parquet files with `_SUCCESS`.

`pyarrow.dataset.write_dataset` is not used, because it queues up to eight million rows before it waits for
the disk: for a stream of 960 MB it used 740 MB of memory. Here memory holds one page.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyarrow import fs

from elasticscan.base.errors import InvalidOption
from elasticscan.base.redaction import shown
from elasticscan.base.user_files import naming_file
from elasticscan.metadata import TableInfo
from elasticscan.store.reading.scan import Scan
from elasticscan.store.roots.location import file_system_at

CSV, PARQUET, ARROW = "csv", "parquet", "arrow"
ENDINGS = {".csv": CSV, ".parquet": PARQUET, ".pq": PARQUET, ".arrow": ARROW, ".feather": ARROW}
FILE_BYTES = 256 << 20
COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")
COMPLETE = "_SUCCESS"
_FILE_NAME = re.compile(r"[^/]\.[A-Za-z][A-Za-z0-9]{0,9}\Z")


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    path: str
    table: str
    rows: int
    files: int
    snapshot: int


def _writer(kind: str | None, sink: Any, schema: pa.Schema, compression: str) -> Any:
    """Return a writer with a method `write_batch`; `compression` is for Parquet."""
    if kind == ARROW:  # the modules of the other formats load slowly, so they are imported when needed
        return pa.ipc.new_file(sink, schema)
    if kind == CSV:
        return import_module("pyarrow.csv").CSVWriter(sink, schema)
    return import_module("pyarrow.parquet").ParquetWriter(sink, schema, compression=compression)


def export_scan(scan: Scan, table: TableInfo, path: str, file_bytes: int, compression: str) -> Exported:
    """Write all remaining rows of a scan. If that fails, the files are removed."""
    about = {
        "table": table.name,
        "snapshot": str(scan.snapshot),
        "primary_key": json.dumps(table.primary_key),
    }
    schema = scan.schema.with_metadata({f"elasticscan.{name}": text for name, text in about.items()})
    with naming_file(path, "written"):
        system, place, kind = _destination(path)
        folder, slash, name = place.rpartition("/")
        is_renamed = kind is not None and isinstance(system, fs.LocalFileSystem)
        if is_renamed:  # not in object storage: an object appears when it is closed, and a rename copies it
            system.create_dir(folder or slash, recursive=True)
            name = f".{name}.partial"
        rows, written, batches = 0, list[str](), scan.batches()
        try:
            batch = next(batches, None)
            while batch is not None or not written:
                file = f"{place}/part-{len(written):05}.parquet" if kind is None else f"{folder}{slash}{name}"
                written.append(file)
                sink = system.open_output_stream(file)
                with sink, _writer(kind, sink, schema, compression) as writer:
                    while batch is not None:
                        writer.write_batch(batch.cast(schema))
                        rows += batch.num_rows
                        batch = next(batches, None)
                        if kind is None and sink.tell() >= file_bytes:
                            break
            if is_renamed:
                system.move(written[0], place)
        except BaseException:
            for file in written:
                with suppress(OSError):
                    system.delete_file(file)
            raise
        if kind is None:  # after the `try`: the complete files stay, even if this file cannot be written
            system.open_output_stream(f"{place}/{COMPLETE}").close()
    return Exported(shown(path), table.name, rows, len(written), scan.snapshot)


def _destination(path: str) -> tuple[fs.FileSystem, str, str | None]:
    """Return the file system, the path on it, and the format of a single file; None for a directory.

    Raises `InvalidOption` if the file exists, the directory is not empty, or the format is unknown.
    """
    system, place = file_system_at(path)
    (info,) = system.get_file_info([place])
    is_directory = info.type == fs.FileType.Directory or path.endswith("/")
    kind = None if is_directory else ENDINGS.get(f".{place.rpartition('.')[2]}".lower())
    if kind is None and not is_directory and _FILE_NAME.search(place):
        raise InvalidOption(
            f"{shown(path)} names no known format; use {', '.join(ENDINGS)}, or end a directory with /",
            option="path",
        )
    if info.type == fs.FileType.File:
        raise InvalidOption(f"{shown(path)} already exists; choose another name, or remove it", option="path")
    if kind is None:
        files = system.get_file_info(fs.FileSelector(place, allow_not_found=True))
        if files:
            raise InvalidOption(
                f"{shown(path)} holds {files[0].base_name!r}; choose an empty directory", option="path"
            )
        system.create_dir(place, recursive=True)
    return system, place, kind
