"""The part of a scan that returns each row once: as pages, as a table or as a stream."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from threading import RLock
from typing import Any, NoReturn, Self

import pyarrow as pa

from elasticscan.base.concurrency import cached_property
from elasticscan.base.errors import InvalidCall, InvalidOption
from elasticscan.protocol import ContinuationKey
from elasticscan.topology import SlotSet

# Nullable types of pandas, for columns with nulls that pandas would otherwise convert to floats or objects.
_NULLABLE = {
    pa.bool_(): "BooleanDtype",
    **{getattr(pa, f"int{bits}")(): f"Int{bits}Dtype" for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): f"UInt{bits}Dtype" for bits in (8, 16, 32, 64)},
}


def _library(name: str) -> Any:
    """Import pandas or Polars, which are optional. Raises `InvalidOption`."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidOption(f"{name} is not installed: pip install {name}; or use to_table()") from error


@dataclass(frozen=True)
class Page:
    """A page of a scan.

    Attributes:
        rows: the rows. There are none if the filter dropped all, or if all had moved during the read.
        standing: the state of the scan after this page, for use in this process.
    """

    rows: pa.RecordBatch
    standing: ContinuationKey = field(repr=False)
    _seal: Callable[[ContinuationKey], str] = field(repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Return the rows and the sealed key, which are valid in other processes."""
        return {"rows": self.rows, "key": self.key}

    @cached_property
    def key(self) -> str | None:
        """Return the continuation key after this page, for `Store.resume`; None after the last page.

        It is sealed at the first access. Raises `LimitExceeded`.
        """
        return self._seal(self.standing) if self.standing.cursors else None


class PagedScan(Iterator[Page]):
    """A scan that returns each row once, to one reader at a time.

    Subclasses read the remaining rows (`_read`), seal keys (`_seal`), and remove the lease (`_end`).

    Attributes:
        standing: the present state of the scan, for use in this process.
    """

    def __init__(self, name: str, state: ContinuationKey) -> None:
        self._name, self.standing = name, state
        self._process = os.getpid()  # the only process that may read it and end its lease
        self._returned = 0
        self._reading: Iterator[Page] | None = None  # the pages after `standing`
        self._lock, self._is_read = RLock(), False  # held while a page, or all remaining rows, are read
        # The reader: a stream, or the scan itself after a call that read all rows; None for iteration.
        self._reader: _Stream | PagedScan | None = None
        self._closed = self._complete = False

    @property
    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @abstractmethod
    def _read(self, columns: tuple[str, ...]) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
        """Yield the rows of each remaining page, with these columns, and the state after the page.

        Without columns the rows are only counted.
        """

    @abstractmethod
    def _seal(self, state: ContinuationKey) -> str: ...

    def _end(self) -> None:
        """Remove the lease of the scan."""

    def _pages(self, columns: tuple[str, ...]) -> Iterator[Page]:
        """Yield the remaining pages until the limit is reached."""
        left = self.standing.limit
        for rows, after in self._read(columns):
            if left is None:
                yield Page(rows, after, self._seal)
                continue
            first = rows.slice(0, left)
            left -= first.num_rows
            yield Page(first, replace(after, cursors=after.cursors if left else (), limit=left), self._seal)
            if not left:
                return

    def __reduce__(self) -> NoReturn:
        raise InvalidOption(
            "a Scan cannot be pickled; send store.uri and scan.key, and call Store.resume there", kind="Scan"
        )

    @property
    def slots(self) -> SlotSet:
        """All slots of the scan, read or not."""
        return self.standing.slots

    @property
    def key(self) -> str | None:
        """The continuation key of the scan's present state; None when it is complete."""
        return self._seal(self.standing) if self.standing.cursors else None

    def __iter__(self) -> Iterator[Page]:
        """Return the iterator of the remaining pages; every call returns the same one.

        Several threads may share it: each page is returned to exactly one of them. After an error, the next
        call reads the same page again. Raises `InvalidCall` after the last page, or if the scan is closed.
        """
        self._check_open()
        return self

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the remaining rows as a stream, without empty batches. Raises as `to_reader`."""
        self._check_open()
        return _Stream(self)

    def to_table(self) -> pa.Table:
        """Return all remaining rows as a table in memory. Can be called again after an error.

        Raises:
            InvalidCall: all rows were returned before, a stream has begun to read the scan, or the scan is
                closed (possibly during the call).
        """
        batches = list[pa.RecordBatch]()
        self._read_all(self.standing.columns, batches.append)
        return pa.Table.from_batches(batches, schema=self.schema)

    def to_pandas(self) -> Any:
        """Return all remaining rows as a pandas frame, without a change of values.

        If an integer or boolean column has nulls, all columns of this type have pandas' nullable type.
        Decimals, dates and nested values are Python objects.

        Raises as `to_table`, and `InvalidOption` if pandas is not installed.
        """
        pandas = _library("pandas")
        rows = self.to_table()
        with_nulls = {column.type for column in rows.columns if column.null_count}
        nullable = {kind: getattr(pandas, name)() for kind, name in _NULLABLE.items() if kind in with_nulls}
        return rows.to_pandas(types_mapper=nullable.get)

    def to_polars(self) -> Any:
        """Return all remaining rows as a Polars frame. Raises as `to_pandas`."""
        return _library("polars").from_arrow(self.to_table())

    def to_reader(self) -> pa.RecordBatchReader:
        """Return all remaining rows as a stream of record batches, each read when it is requested.

        Raises:
            InvalidCall: all rows were returned before, or the scan is closed. The stream raises it, too: if
                the scan is closed before the stream's end, if it is read again after an error, or if pages
                or another stream were read before its first batch.
        """
        self._check_open()
        return pa.RecordBatchReader.from_batches(self.schema, _Stream(self))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the Arrow PyCapsule stream, through which other libraries read a scan."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """Count the remaining rows; reads only the columns that the filter needs, or one column.

        Raises the same errors as `to_table`. Can be called again after an error.
        """
        return self._read_all((), lambda _: None)

    def close(self) -> None:
        """End the scan and its lease early; later reads raise `InvalidCall`.

        The keys of its pages can still be resumed while retention keeps the snapshot.
        """
        if not self._closed and not self._complete:
            self._closed = True
            if os.getpid() == self._process:
                self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        """Raise `InvalidCall` if all rows were returned, or the scan was closed."""
        if self._complete or (self._closed and self.standing.cursors):
            raise InvalidCall(
                f"this scan of table {self._name!r} was closed, or read to its end; begin another one, or "
                "use Store.resume(key) with the key of a page",
                table=self._name,
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one thread read at a time; other threads wait until its page or table is complete."""
        if os.getpid() != self._process:
            raise InvalidCall(
                "a forked process cannot read a scan of its parent; use Store.resume(scan.key) in the child",
                process=os.getpid(),
            )
        with self._lock:
            if self._is_read:  # by this same thread, in the handler of a signal
                raise self._in_use()
            self._is_read = True
            try:
                yield
            finally:
                self._is_read = False

    def _check_reader(self, reader: _Stream | None) -> None:
        """Raise `InvalidCall` if no rows remain, or another reader has begun to read them."""
        self._check_open()
        begins = self._reader is None and reader is not None and reader.begin is self.standing
        if self._reader is not reader and not begins:
            raise self._in_use()

    def _in_use(self) -> InvalidCall:
        return InvalidCall(
            f"another reader has begun to read this scan of table {self._name!r}; begin a scan for each "
            "reader, or use Store.resume(scan.key)",
            table=self._name,
        )

    def _read_all(self, columns: tuple[str, ...], receive: Callable[[pa.RecordBatch], object]) -> int:
        """Pass all remaining rows to a function, and count them. The scan advances only at the end."""
        with self._locked():
            self._check_reader(None)
            self._reading, reached, returned = None, self.standing, 0
            for page in self._pages(columns):
                self._check_open()  # another thread may have closed it
                reached, returned = page.standing, returned + page.rows.num_rows
                if page.rows.num_rows:
                    receive(page.rows)
            self._end()
            self.standing, self._complete, self._reader = reached, True, self
            self._returned += returned
            return returned

    def __next__(self) -> Page:
        page = self._next_page(None)
        if page is None:
            raise StopIteration
        return page

    def _next_page(self, reader: _Stream | None) -> Page | None:
        """Return the next page to a stream, or with None to the shared iterator; None after the last page."""
        with self._locked():
            if self._complete and self._reader is reader:
                return None
            self._check_reader(reader)
            self._reading = pages = self._reading or self._pages(self.standing.columns)
            try:
                page = next(pages, None)
                if page is not None and not page.standing.cursors:
                    self._end()
            except BaseException:
                self._reading = None
                raise
            # The scan advances only after the last step that can fail: so a read that is repeated after an
            # error returns the same page.
            self._reader, self._complete = reader, page is None
            if page is not None:
                self.standing = page.standing
                self._returned += page.rows.num_rows
            return page


class _Stream(Iterator[pa.RecordBatch]):
    """The remaining rows of a scan, for one reader, without empty batches.

    Not a generator: after an error, the next call of a generator looks like the end of the rows.
    """

    def __init__(self, scan: PagedScan) -> None:
        self._scan, self.begin = scan, scan.standing
        self._failed = False

    def __next__(self) -> pa.RecordBatch:
        if self._failed:
            raise InvalidCall(
                "this stream of a scan failed before, and its reader may have lost rows; begin another scan"
            )
        try:
            while (page := self._scan._next_page(self)) is not None:
                if page.rows.num_rows:
                    return page.rows
        except InvalidCall:  # no rows were read, so none are lost
            raise
        except BaseException:
            self._failed = True
            raise
        raise StopIteration
