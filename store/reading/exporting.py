"""Rows of a scan as files, written page by page: one, or Parquet in a directory, complete with `_SUCCESS`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import fs

from elasticscan.base.errors import InvalidOption
from elasticscan.base.redaction import shown
from elasticscan.base.user_files import naming_file
from elasticscan.metadata import TableInfo
from elasticscan.store.reading.formats import ENDINGS, PARQUET, kind_of, open_file
from elasticscan.store.reading.scan import Scan
from elasticscan.store.roots.aliases import file_system_at, whole_uri, with_home

FILE_BYTES = 256 << 20
COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")
COMPLETE = "_SUCCESS"
_LIKE_A_FILE = re.compile(r"[^/]\.[A-Za-z][A-Za-z0-9]{0,9}\Z")

# Called with the rows that were written until now.
OnExported = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """The outcome of an export."""

    path: str
    table: str
    rows: int
    files: int
    snapshot: int


def export_scan(
    scan: Scan,
    table: TableInfo,
    path: str,
    file_bytes: int,
    compression: str,
    on_progress: OnExported | None = None,
) -> Exported:
    """Write all remaining rows of a scan; where that fails, the files go again."""
    translated = partial(naming_file, path, "written", {"": "; choose other columns"})
    about = {
        "table": table.name,
        "snapshot": str(scan.snapshot),
        "primary_key": json.dumps(table.primary_key),
    }
    schema = scan.schema.with_metadata({f"elasticscan.{name}": text for name, text in about.items()})
    with naming_file(path, "written"):
        files = _files_at(path, schema, file_bytes, compression)
    rows = 0
    try:
        with translated():
            files.begin()
        for batch in scan.batches():
            with translated():
                files.write(batch)
            rows += batch.num_rows
            if on_progress is not None:
                on_progress(rows)
        with translated():
            files.finish()
    except BaseException:
        files.remove()
        raise
    return Exported(shown(path), table.name, rows, files.count, scan.snapshot)


def _files_at(path: str, schema: pa.Schema, file_bytes: int, compression: str) -> _OneFile | _ParquetFiles:
    """One file, if a place is named like one, or a directory of them, which is empty or made now."""
    system, place = file_system_at(with_home(whole_uri(path)))
    (info,) = system.get_file_info([place])
    is_directory = info.type == fs.FileType.Directory or path.endswith("/")
    kind = None if is_directory else kind_of(place)
    if kind is None and not is_directory and _LIKE_A_FILE.search(place):
        raise InvalidOption(
            f"{shown(path)} is named like a file of a kind that is not written: {', '.join(ENDINGS)} are; or "
            "Parquet files in a directory, with a / behind its name",
            option="path",
        )
    if info.type == fs.FileType.File:
        raise InvalidOption(
            f"{shown(path)} is a file that is there already; name another, or a directory, or remove it",
            option="path",
        )
    if kind is not None:
        return _OneFile(system, place, kind, schema, compression)
    held = system.get_file_info(fs.FileSelector(place, allow_not_found=True))
    if held:
        is_whole = any(each.base_name == COMPLETE for each in held)
        cut = "" if is_whole else f" (without {COMPLETE}: not a whole export)"
        raise InvalidOption(
            f"{shown(path)} holds {held[0].base_name!r}{cut}; name a directory that is empty, or not "
            "there yet, or remove what it holds",
            option="path",
        )
    system.create_dir(place, recursive=True)
    return _ParquetFiles(system, place, schema, file_bytes, compression)


class _OneFile:
    """One file, which has its name once it is complete."""

    count = 1

    def __init__(
        self, system: fs.FileSystem, path: str, kind: str, schema: pa.Schema, compression: str
    ) -> None:
        self._system, self._path, self._kind = system, path, kind
        self._schema, self._compression = schema, compression
        folder, slash, name = path.rpartition("/")
        # In object storage a file is there when it is closed, and a rename would be a copy.
        is_local = isinstance(system, fs.LocalFileSystem)
        self._partial = f"{folder}{slash}.{name}.partial" if is_local else path
        self._opened: list[Any] = []
        if is_local:
            system.create_dir(folder or slash, recursive=True)

    def begin(self) -> None:
        self._opened.append(self._system.open_output_stream(self._partial))
        self._opened.append(open_file(self._kind, self._opened[0], self._schema, self._compression))

    def write(self, batch: pa.RecordBatch) -> None:
        self._opened[1].write_batch(batch.cast(self._schema))

    def finish(self) -> None:
        for opened in reversed(self._opened):
            opened.close()
        if self._partial != self._path:
            self._system.move(self._partial, self._path)

    def remove(self) -> None:
        """Remove what was written, as far as that can be done."""
        for opened in reversed(self._opened):
            with suppress(OSError, pa.ArrowException):
                opened.close()
        with suppress(OSError):
            self._system.delete_file(self._partial)


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

    @property
    def count(self) -> int:
        return len(self.names)

    def begin(self) -> None:
        """Begin the next file."""
        self.names.append(f"{self._path}/part-{len(self.names):05}.parquet")
        self._sink = self._system.open_output_stream(self.names[-1])
        self._writer = open_file(PARQUET, self._sink, self._schema, self._compression)

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
        """Remove what was written, where possible; never files next to a `_SUCCESS` that stays."""
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
