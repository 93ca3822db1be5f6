"""Rows of a scan as Parquet files: written page by page, complete when `_SUCCESS` stands beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyarrow import fs

from elasticscan.base.errors import InvalidOption
from elasticscan.base.redaction import shown
from elasticscan.base.user_files import naming_file
from elasticscan.metadata import TableInfo
from elasticscan.store.reading.scan import Scan
from elasticscan.store.roots.aliases import file_system_at, whole_uri, with_home

FILE_BYTES = 256 << 20
COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")
COMPLETE = "_SUCCESS"

# Called with the rows that were written until now.
OnExported = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """The outcome of an export."""

    directory: str
    table: str
    rows: int
    files: int
    snapshot: int


def export_scan(
    scan: Scan,
    table: TableInfo,
    directory: str,
    file_bytes: int,
    compression: str,
    on_progress: OnExported | None = None,
) -> Exported:
    """Write all remaining rows of a scan; where that fails, the files go again."""
    translated = partial(naming_file, directory, "written", {"": "; choose other columns"})
    with naming_file(directory, "written"):
        system, path = _opened(directory)
    about = {
        "table": table.name,
        "snapshot": str(scan.snapshot),
        "primary_key": json.dumps(table.primary_key),
    }
    schema = scan.schema.with_metadata({f"elasticscan.{name}": text for name, text in about.items()})
    parts = _ParquetFiles(system, path, schema, file_bytes, compression)
    rows = 0
    try:
        with translated():
            parts.begin()
        for batch in scan.batches():
            with translated():
                parts.write(batch)
            rows += batch.num_rows
            if on_progress is not None:
                on_progress(rows)
        with translated():
            parts.finish()
    except BaseException:
        parts.remove()
        raise
    return Exported(shown(directory), table.name, rows, len(parts.names), scan.snapshot)


def _opened(directory: str) -> tuple[fs.FileSystem, str]:
    """The file system, and the path of a directory on it that is empty or made now."""
    system, path = file_system_at(with_home(whole_uri(directory)))
    (info,) = system.get_file_info([path])
    if info.type == fs.FileType.File:
        raise InvalidOption(f"{shown(directory)} is a file; name a directory", option="directory")
    held = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    if held:
        is_whole = any(each.base_name == COMPLETE for each in held)
        cut = "" if is_whole else f" (without {COMPLETE}: not a whole export)"
        raise InvalidOption(
            f"{shown(directory)} holds {held[0].base_name!r}{cut}; name a directory that is empty, or not "
            "there yet, or remove what it holds",
            option="directory",
        )
    system.create_dir(path, recursive=True)
    return system, path


class _ParquetFiles:
    """Parquet files in a directory, one after another, each after a `begin`."""

    def __init__(
        self, system: fs.FileSystem, path: str, schema: pa.Schema, file_bytes: int, compression: str
    ) -> None:
        self._system, self._path, self._schema = system, path, schema
        self._most, self._compression = file_bytes, compression
        self.names: list[str] = []
        self._is_marked = False
        self._sink: Any = None
        self._writer: Any = None

    def begin(self) -> None:
        """Begin the next file."""
        self.names.append(f"{self._path}/part-{len(self.names):05}.parquet")
        self._sink = self._system.open_output_stream(self.names[-1])
        parquet = import_module("pyarrow.parquet")  # when it is needed, for its time to load
        self._writer = parquet.ParquetWriter(self._sink, self._schema, compression=self._compression)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._sink.tell() >= self._most:
            self._end()
            self.begin()
        self._writer.write_batch(batch.cast(self._schema))

    def _end(self) -> None:
        self._writer.close()
        self._sink.close()

    def finish(self) -> None:
        self._end()
        self._is_marked = True  # perhaps, from here on
        with self._system.open_output_stream(f"{self._path}/{COMPLETE}"):
            pass

    def remove(self) -> None:
        """Remove what was written, as far as that can be done; never files beside a `_SUCCESS` that stays."""
        for opened in filter(None, (self._writer, self._sink)):
            with suppress(OSError, pa.ArrowException):
                opened.close()
        if self._is_marked:
            try:
                self._system.delete_file(f"{self._path}/{COMPLETE}")
            except FileNotFoundError:
                pass
            except OSError:
                return
        for name in self.names:
            with suppress(OSError):
                self._system.delete_file(name)
