"""The part of a scan that does not depend on what reads it: pages, a table or a stream, given out once."""

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

# What pandas calls the types of columns that else would become floats, or objects, for the sake of a null.
_NULLABLE = {
    pa.bool_(): "BooleanDtype",
    **{getattr(pa, f"int{bits}")(): f"Int{bits}Dtype" for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): f"UInt{bits}Dtype" for bits in (8, 16, 32, 64)},
}


def _library(name: str) -> Any:
    """Import pandas or Polars, when a frame is asked for and not before."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidOption(f"{name} is not installed: pip install {name}; or use to_table()") from error


@dataclass(frozen=True)
class Page:
    """Some rows of a scan.

    Attributes:
        rows: the rows; possibly none, when a filter kept none or all had moved while being read.
        standing: where the scan stands after this page, for this process alone.
    """

    rows: pa.RecordBatch
    standing: ContinuationKey = field(repr=False)
    _seal: Callable[[ContinuationKey], str] = field(repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Return the rows and the sealed key: all that is of use elsewhere."""
        return {"rows": self.rows, "key": self.key}

    @cached_property
    def key(self) -> str | None:
        """Return the continuation key after this page, for `Store.resume`; None after the last page.

        It is sealed when it is first asked for. Raises `LimitExceeded`.
        """
        return self._seal(self.standing) if self.standing.cursors else None


class PagedScan(Iterator[Page]):
    """A scan that gives out its rows once, to one reader at a time.

    Subclasses read rows from where the scan stands (`_read`), seal keys, and end what a scan holds (`_end`).

    Attributes:
        standing: the state of the scan now, for this process alone.
    """

    def __init__(self, name: str, state: ContinuationKey) -> None:
        self._name, self.standing = name, state
        self._process = os.getpid()  # which reads it, and ends its lease
        self._returned = 0
        self._reading: Iterator[Page] | None = None  # pages from where the scan stands
        self._lock, self._is_read = RLock(), False  # held while a page is read, or all that remain
        # A stream that has begun, or the scan itself after a call that read all; None for shared pages.
        self._reader: _Stream | PagedScan | None = None
        self._closed = self._complete = False

    @property
    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @abstractmethod
    def _read(self, columns: tuple[str, ...]) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
        """Yield rows from where the scan stands, with these columns, and where it stands after them.

        Without columns they are only counted.
        """

    @abstractmethod
    def _seal(self, state: ContinuationKey) -> str: ...

    def _end(self) -> None:
        """End what the scan holds."""

    def _pages(self, columns: tuple[str, ...]) -> Iterator[Page]:
        """Yield pages from where the scan stands until its limit is reached."""
        left = self.standing.limit
        for rows, after in self._read(columns):
            if left is None:
                yield Page(rows, after, self._seal)
                continue
            some = rows.slice(0, left)
            left -= some.num_rows
            yield Page(some, replace(after, cursors=after.cursors if left else (), limit=left), self._seal)
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
        """The continuation key of where the scan stands now; None when it is complete."""
        return self._seal(self.standing) if self.standing.cursors else None

    def __iter__(self) -> Iterator[Page]:
        """Return the pages from where the scan stands, as one iterator for all who ask.

        Several threads may share it: each page goes to exactly one of them. After an error it goes on
        where it stood, when it is asked again.

        Raises:
            InvalidCall: all pages were given out before.
        """
        self._check_open()
        return self

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the remaining rows as a stream; pages without rows are left out. Raises as `to_reader`."""
        self._check_open()
        return _Stream(self)

    def to_table(self) -> pa.Table:
        """All remaining rows at once; needs the memory for them.

        After an error the scan stands where it stood, so the same call can be made again.

        Raises:
            InvalidCall: all rows were given out before, a stream has begun to read the scan, or it is
                closed, also meanwhile.
        """
        batches = list[pa.RecordBatch]()
        self._read_all(self.standing.columns, batches.append)
        return pa.Table.from_batches(batches, schema=self.schema)

    def to_pandas(self) -> Any:
        """All remaining rows as a pandas frame, exactly.

        Where a column has nulls, whole numbers and booleans of its type are of pandas' nullable types;
        decimals, dates and nested values are objects of Python's.

        Raises as `to_table`, and `InvalidOption` where pandas is not installed.
        """
        pandas = _library("pandas")
        rows = self.to_table()
        with_nulls = {column.type for column in rows.columns if column.null_count}
        nullable = {kind: getattr(pandas, name)() for kind, name in _NULLABLE.items() if kind in with_nulls}
        return rows.to_pandas(types_mapper=nullable.get)

    def to_polars(self) -> Any:
        """All remaining rows as a Polars frame. Raises as `to_table`, and `InvalidOption` without Polars."""
        return _library("polars").from_arrow(self.to_table())

    def to_reader(self) -> pa.RecordBatchReader:
        """All remaining rows as a stream of record batches, read as they are asked for.

        Raises:
            InvalidCall: all rows were given out before, or the scan is closed; from the stream, too, when
                that happens before its end, when it is asked again after an error, or when another stream
                was begun, or pages were taken, before its first batch.
        """
        self._check_open()
        return pa.RecordBatchReader.from_batches(self.schema, _Stream(self))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the Arrow PyCapsule stream, by which other libraries read a scan."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """Count how many rows remain; reads the columns that the filter needs, or a single one.

        Raises as `to_table`, and can be called again as that can.
        """
        return self._read_all((), lambda _: None)

    def close(self) -> None:
        """End the scan early, and its lease with it; reading on raises `InvalidCall`.

        The keys of its pages can still be resumed for as long as retention keeps the snapshot.
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
        """Raise `InvalidCall` where all rows were given out, or the scan was closed before that."""
        if self._complete or (self._closed and self.standing.cursors):
            raise InvalidCall(
                f"this scan of table {self._name!r} was closed, or read to its end; begin another one, or "
                "use Store.resume(key) with the key of a page",
                table=self._name,
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Read in one thread at a time; others wait for its page, or its table."""
        if os.getpid() != self._process:
            raise InvalidCall(
                "a forked process cannot read a scan of its parent; use Store.resume(scan.key) in the child",
                process=os.getpid(),
            )
        with self._lock:
            if self._is_read:  # by this very thread, as in the handler of a signal
                raise self._in_use()
            self._is_read = True
            try:
                yield
            finally:
                self._is_read = False

    def _check_reader(self, reader: _Stream | None) -> None:
        """Raise `InvalidCall` where no rows remain, or they are another reader's."""
        self._check_open()
        begins = self._reader is None and reader is not None and reader.begin is self.standing
        if self._reader is not reader and not begins:
            raise self._in_use()

    def _in_use(self) -> InvalidCall:
        return InvalidCall(
            f"another reader takes rows of this scan of table {self._name!r}; begin one for each, "
            "or use Store.resume(scan.key)",
            table=self._name,
        )

    def _read_all(self, columns: tuple[str, ...], take: Callable[[pa.RecordBatch], object]) -> int:
        """Give all remaining rows to one call, and count them; the scan moves on when it has them all."""
        with self._locked():
            self._check_reader(None)
            self._reading, reached, returned = None, self.standing, 0
            for page in self._pages(columns):
                self._check_open()  # it may have been closed meanwhile
                reached, returned = page.standing, returned + page.rows.num_rows
                if page.rows.num_rows:
                    take(page.rows)
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
        """Return the next page, for a stream or for the threads that share the pages; None after the last."""
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
            # The scan moves beyond a page only when nothing can fail any more: then a read that is repeated
            # after an error gives the same page.
            self._reader, self._complete = reader, page is None
            if page is not None:
                self.standing = page.standing
                self._returned += page.rows.num_rows
            return page


class _Stream(Iterator[pa.RecordBatch]):
    """The remaining rows of a scan, for one reader alone; pages without rows are left out.

    No generator: one that has failed ends at the next call as if it had given everything.
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
        except InvalidCall:  # nothing was read, nor lost
            raise
        except BaseException:
            self._failed = True
            raise
        raise StopIteration
