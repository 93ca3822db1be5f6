"""Rows of a scan as files, written page by page: one file, or a directory of Parquet with `_SUCCESS`.

`pyarrow.dataset.write_dataset` is not used, since it queues up to eight million rows before it waits for the
disk: of a stream of 960 MB it held 740. Here memory holds a page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyarrow import fs

from elasticscan.base.errors import InvalidOption
from elasticscan.base.redaction import shown
from elasticscan.base.user_files import naming_file
from elasticscan.metadata import TableInfo
from elasticscan.store.reading.scan import Scan
from elasticscan.store.roots.aliases import file_system_at

CSV, PARQUET, ARROW = "csv", "parquet", "arrow"
ENDINGS = {".csv": CSV, ".parquet": PARQUET, ".pq": PARQUET, ".arrow": ARROW, ".feather": ARROW}
FILE_BYTES = 256 << 20
COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")
COMPLETE = "_SUCCESS"
_FILE_NAME = re.compile(r"[^/]\.[A-Za-z][A-Za-z0-9]{0,9}\Z")

# Called with the rows that were written so far.
OnExported = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """The outcome of an export."""

    path: str
    table: str
    rows: int
    files: int
    snapshot: int


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


def export_scan(
    scan: Scan,
    table: TableInfo,
    path: str,
    file_bytes: int,
    compression: str,
    on_progress: OnExported | None = None,
) -> Exported:
    """Write all remaining rows of a scan; where that fails, the files are removed."""
    about = {
        "table": table.name,
        "snapshot": str(scan.snapshot),
        "primary_key": json.dumps(table.primary_key),
    }
    schema = scan.schema.with_metadata({f"elasticscan.{name}": text for name, text in about.items()})
    with naming_file(path, "written"):
        output = _ExportedFiles(*_destination(path), schema, file_bytes, compression)
    rows = 0
    try:
        with naming_file(path, "written"):
            output.begin()
        for batch in scan.batches():
            with naming_file(path, "written"):
                output.write(batch)
            rows += batch.num_rows
            if on_progress is not None:
                on_progress(rows)
        with naming_file(path, "written"):
            output.finish()
    except BaseException:
        output.remove()
        raise
    return Exported(shown(path), table.name, rows, output.count, scan.snapshot)


def _destination(path: str) -> tuple[fs.FileSystem, str, str | None]:
    """Return the file system, the path on it, and the kind of a single file; None for a directory.

    Raises:
        InvalidOption: the file is there, the directory holds something, or the name is of another kind.
    """
    system, place = file_system_at(path)
    (info,) = system.get_file_info([place])
    is_directory = info.type == fs.FileType.Directory or path.endswith("/")
    kind = None if is_directory else kind_of(place)
    if kind is None and not is_directory and _FILE_NAME.search(place):
        raise InvalidOption(
            f"{shown(path)} names no known format; use {', '.join(ENDINGS)}, or end a directory with /",
            option="path",
        )
    if info.type == fs.FileType.File:
        raise InvalidOption(
            f"{shown(path)} is there already; choose another name, or remove it", option="path"
        )
    if kind is None:
        held = system.get_file_info(fs.FileSelector(place, allow_not_found=True))
        if held:
            raise InvalidOption(
                f"{shown(path)} holds {held[0].base_name!r}; choose an empty directory", option="path"
            )
        system.create_dir(place, recursive=True)
    return system, place, kind


@dataclass(slots=True)
class _ExportedFiles:
    """One file, or Parquet files in a directory, one after another."""

    system: fs.FileSystem
    path: str
    kind: str | None
    schema: pa.Schema
    file_bytes: int
    compression: str
    count: int = 0
    written: list[str] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)

    def begin(self) -> None:
        """Open the next file."""
        self.count += 1
        if self.kind is None:
            path = f"{self.path}/part-{self.count - 1:05}.parquet"
        elif isinstance(self.system, fs.LocalFileSystem):
            folder, slash, name = self.path.rpartition("/")
            self.system.create_dir(folder or slash, recursive=True)
            path = f"{folder}{slash}.{name}.partial"
        else:  # an object is visible when it is closed, and a rename would copy it
            path = self.path
        self.written.append(path)
        self.opened.append(self.system.open_output_stream(path))
        self.opened.append(open_file(self.kind or PARQUET, self.opened[0], self.schema, self.compression))

    def write(self, batch: pa.RecordBatch) -> None:
        if self.kind is None and self.opened[0].tell() >= self.file_bytes:
            self._close()
            self.begin()
        self.opened[1].write_batch(batch.cast(self.schema))

    def _close(self) -> None:
        for opened in reversed(self.opened):
            opened.close()
        self.opened.clear()

    def finish(self) -> None:
        """Complete the last file, and say so."""
        self._close()
        if self.kind is None:
            self.written.clear()  # they are complete, and stay, whether the mark can be made or not
            self.system.open_output_stream(f"{self.path}/{COMPLETE}").close()
        elif self.written[0] != self.path:
            self.system.move(self.written[0], self.path)

    def remove(self) -> None:
        """Remove the files, where possible."""
        for opened in reversed(self.opened):
            with suppress(OSError, pa.ArrowException):
                opened.close()
        for path in self.written:
            with suppress(OSError):
                self.system.delete_file(path)
