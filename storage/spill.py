"""Record batches that are read again later: in memory while they are small, else in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import SEEK_END
from tempfile import SpooledTemporaryFile
from typing import Any

import pyarrow as pa

from elasticscan.base.limits import WRITE_BUFFER_BYTES
from elasticscan.storage.disk.errors import temporary_error


class Spool:
    """Batches of one schema that can be read any number of times, also while more are written.

    Raises:
        DiskFull: there is no space for temporary files.
        OutOfResources: the process has too many open files, or no memory.
        InvalidOption: this user may not write to the directory of temporary files.
    """

    def __init__(self) -> None:
        self._count = 0
        self._writer: Any = None
        # A temporary file is no `IO` to typeshed; Arrow takes any file object.
        self._file: Any = SpooledTemporaryFile(max_size=WRITE_BUFFER_BYTES)  # noqa: SIM115 - see `__exit__`

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._writer, self._file):
            with suppress(OSError, AttributeError):  # closing writes the buffer, which is no longer needed
                file.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        with _typed():
            self._file.seek(0, SEEK_END)
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._file, batch.schema)
            self._writer.write_batch(batch)
        self._count += 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches that were written before the iteration began."""
        reader = None
        for _ in range(self._count):
            with _typed():
                if reader is None:
                    self._file.seek(0)
                    reader = pa.ipc.open_stream(self._file)
                batch = reader.read_next_batch()
            yield batch


@contextmanager
def _typed() -> Iterator[None]:
    try:
        yield
    except (OSError, MemoryError) as error:
        raise temporary_error(error, tempfile.tempdir or "TMPDIR") from error
