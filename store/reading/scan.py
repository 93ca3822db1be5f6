"""A scan as users hold it: pages with keys, a table, a stream, an explanation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from threading import Lock, get_ident
from typing import Any, NoReturn

import pyarrow as pa

from elasticscan.base.drawing import code
from elasticscan.base.errors import InvalidOption, NotPicklable, ScanFinished, ScanInUse
from elasticscan.base.forks import cached_property
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.catalog import retry_interrupted
from elasticscan.metadata import TableInfo
from elasticscan.optimizer import Choice
from elasticscan.protocol import ContinuationKey, slots_of
from elasticscan.reader import ScanStats
from elasticscan.store.context import Context
from elasticscan.store.context.leases import end_lease, keep_lease
from elasticscan.store.context.lookups import ScanLayout
from elasticscan.store.notebooks import Explanation
from elasticscan.store.reading.access_paths import Access, access_of, explain_access
from elasticscan.store.reading.first_rows import FirstRows, KeptOrder
from elasticscan.store.reading.paging import Page, Pages, schema_of
from elasticscan.store.reading.progress import Reporting
from elasticscan.topology import SlotMap, SlotSet, Topology

_DRAWN_TOPOLOGIES = 100

# What pandas calls the types of columns that else would become floats, or objects, for the sake of a null.
_NULLABLE = {
    pa.bool_(): "BooleanDtype",
    **{getattr(pa, f"int{bits}")(): f"Int{bits}Dtype" for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): f"UInt{bits}Dtype" for bits in (8, 16, 32, 64)},
}


class Scan(Iterator[Page]):
    """Every row of one snapshot exactly once, in pages.

    Iterating yields pages; each page's key resumes the scan after that page, in any process, as
    long as the snapshot is kept (a scan renews its lease with its pages) and the key's time is not up
    (30 days, or longer where snapshots are kept for longer). A scan can be iterated once, by several threads
    together if they like; `key` is where it stands.

    `to_table`, `count` and streams read all that remains, each for itself alone: no row goes to two readers,
    and a reader whose scan is closed, or read by somebody else meanwhile, gets an error and never a part
    that looks like the whole. A `to_table` or `count` that failed can be called again and begins again
    where it began; a stream that failed or was left cannot.

    It is an Arrow stream, too: `duckdb.sql("SELECT count(*) FROM scan")`, `polars.DataFrame(scan)`,
    `pandas.DataFrame.from_arrow(scan)` and `pyarrow.table(scan)` read it, each to its end. A scan gives its
    rows once; to read them again, begin another one.

    Where retention keeps the snapshot for less than two more hours, a scan holds a lease on it. In a store
    that is open for reading alone there is none: the scan goes on for as long as the snapshot is there,
    and then ends with `SnapshotExpired`. `explain()["kept_by"]` says which of the two it is.
    """

    def __init__(
        self,
        context: Context,
        table: TableInfo,
        base: Topology,
        key: ContinuationKey,
        ends_lease: bool = True,
        choose: Callable[[], Choice] | None = None,
        access: Access | None = None,
        leased: bool = True,
        layout: ScanLayout | None = None,
        kept: KeptOrder | None = None,
    ) -> None:
        self._context = context
        self._table = table
        self._base = base
        self._state = key
        self._ends_lease = ends_lease
        self._process = os.getpid()  # a child that was forked during the scan must not end its parent's lease
        self._may_have_lease = leased
        self._lease_end = context.clock.now() + LEASE_SECONDS
        self._kept = kept  # the order that it sorts its first rows by
        self._choose, self.layout = choose, layout  # of a scan that begins; None of one that was resumed
        self._pages = Pages(context, table, base, access or access_of(context, table, key))
        self._progress = Reporting(context, base, key, self._pages.stats)
        self._returned = 0
        self._reading: Iterator[Page] | None = None
        self._lock = Lock()
        self._reader: int | None = None  # the thread that is reading a page
        self._read_by = os.getpid()
        self._stream: _Stream | None = None  # the one that reads what remains
        self._closed = False
        self._complete = False
        self._shared = False  # all pages were given out one by one, to whoever asked

    def __reduce__(self) -> NoReturn:
        raise NotPicklable(
            "a Scan cannot be pickled; send store.uri and scan.key, and call Store.resume there", kind="Scan"
        )

    def __repr__(self) -> str:
        left, all_slots = len(slots_of(self._state.cursors)), len(self._state.slots)
        stats = self._pages.stats
        return (
            f"<elasticscan.Scan of {self._table.name!r} at snapshot {self.snapshot}: {self._returned:,} rows "
            f"in {stats.pages:,} pages, {stats.virtual_reads:,} of them where slots had moved to; "
            f"{all_slots - left:,} of {all_slots:,} slots done>"
        )

    @retry_interrupted
    def _repr_html_(self) -> str:
        """The picture that notebooks show: where the slots were since the scan began."""
        with self._context.catalog.reading() as tx:
            newest = tx.newest_topologies(_DRAWN_TOPOLOGIES)
        since = tuple(t for t in newest if t.number > self._base.number)
        return f"{code(repr(self))}<br/>{SlotMap((self._base, *since)).svg}"

    @property
    def snapshot(self) -> int:
        """The commit number that the scan reads at."""
        return self._state.snapshot

    @property
    def slots(self) -> SlotSet:
        """All slots of the scan, read or not."""
        return self._state.slots

    @property
    def stats(self) -> ScanStats:
        """Counts of what was read until now."""
        return self._pages.stats

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self._table, self._state)

    @property
    def key(self) -> str | None:
        """The continuation key of where the scan stands now; None when it is complete.

        Raises:
            InvalidOption: the scan sorts its rows itself, and has one page and nothing to go on from.
        """
        if self._kept is not None and self._state.cursors:
            raise InvalidOption(
                "this scan sorts its rows itself, as no index gives their order, and gives them as one page: "
                "no key goes on from before it; begin the scan again, or make an index in its order",
                option="order_by",
            )
        return self._context.seal(self._state) if self._state.cursors else None

    @property
    def standing(self) -> ContinuationKey:
        """The state of the scan now, for this process alone."""
        return self._state

    def __iter__(self) -> Iterator[Page]:
        """The pages from where the scan stands, as one iterator for all who ask.

        Several threads may share it: each page goes to exactly one of them. After an error it goes on
        where it stood, when it is asked again.

        Raises:
            ScanFinished: all pages were given out before.
        """
        self._check_not_finished()
        return self

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The remaining rows as a stream; pages without rows are left out. Raises as `to_reader`."""
        self._check_not_finished()
        return _Stream(self)

    def to_table(self) -> pa.Table:
        """All remaining rows at once; needs the memory for them.

        After an error the scan stands where it stood, so the same call can be made again.

        Raises:
            ScanFinished: all rows were given out before, or the scan is closed, also meanwhile.
            ScanInUse: a stream has begun to read the scan.
        """
        with self._alone(self._state.columns) as batches:
            return pa.Table.from_batches(list(batches), schema=self.schema)

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
        polars = _library("polars")
        return polars.from_arrow(self.to_table())

    def to_reader(self) -> pa.RecordBatchReader:
        """All remaining rows as a stream of record batches, read as they are asked for.

        Raises:
            ScanFinished: all rows were given out before, or the scan is closed; from the stream, too, when
                that happens before its end, or when it is asked again after an error.
            ScanInUse: from the stream's first batch, when another stream of this scan was begun, or pages
                were taken since.
        """
        self._check_not_finished()
        return pa.RecordBatchReader.from_batches(self.schema, _Stream(self))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The Arrow PyCapsule stream, by which other libraries read a scan."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """Count how many rows remain; reads the columns that the filter needs, or a single one.

        Raises as `to_table`, and can be called again as that can.
        """
        with self._alone(()) as batches:
            return sum(rows.num_rows for rows in batches)

    def close(self) -> None:
        """End the scan early, and its lease with it. Whoever still reads it gets `ScanFinished`.

        The keys of its pages can still be resumed for as long as retention keeps the snapshot.
        """
        if not self._closed and not self._complete:
            self._closed = True
            self._let_go()

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_not_finished(self) -> None:
        if self._complete:
            raise self._used_up()
        if self._closed:
            raise ScanFinished(
                f"this scan of table {self._table.name!r} was closed; begin another one with Table.scan, or "
                "go on from a page's key with Store.resume",
                table=self._table.name,
            )

    def _used_up(self) -> ScanFinished:
        return ScanFinished(
            f"this scan of table {self._table.name!r} has given out all of its rows; "
            "begin another one with Table.scan, or hand over the table itself, which can be read any number "
            "of times",
            table=self._table.name,
        )

    def _check_stream(self, stream: _Stream | None) -> None:
        """Raises where the remaining rows are another reader's."""
        if self._stream is stream:
            return
        if self._stream is None and stream is not None and stream.begin is self._state:
            return
        happened = "is being read as a stream, or was until that failed or was left"
        if self._stream is None:
            happened = "gave out pages since this stream of it was made"
        raise ScanInUse(
            f"this scan of table {self._table.name!r} {happened}, and gives each row once; begin a scan for "
            "each place where a query reads it; rows that were not given out yet are read by "
            "Store.resume(scan.key)",
            table=self._table.name,
        )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The time in which one thread alone reads; others wait for its page, or its table."""
        self._check_thread()
        with self._lock:
            self._reader = get_ident()
            try:
                yield
            finally:
                self._reader = None

    @contextmanager
    def _alone(self, columns: tuple[str, ...]) -> Iterator[Iterator[pa.RecordBatch]]:
        """All remaining rows for one call; the scan's state moves when they have all become its result."""
        state, returned = self._state, 0

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal state, returned
            for page in self._read(columns):
                self._check_not_finished()  # it may have been closed meanwhile
                state, returned = page.standing, returned + page.rows.num_rows
                if page.rows.num_rows:
                    yield page.rows

        with self._turn():
            self._check_not_finished()
            self._check_stream(None)
            state, self._reading = self._state, None
            yield batches()
            self._let_go()
            self._state, self._complete = state, True
            self._returned += returned

    def __next__(self) -> Page:
        page = self._next_page(None)
        if page is None:
            raise StopIteration
        return page

    def _next_page(self, stream: _Stream | None) -> Page | None:
        """The next page, for a stream or for whoever shares the pages; None after the last."""
        with self._turn():
            if self._shared and stream is None:
                return None
            if self._complete or (self._closed and self._state.cursors):
                self._check_not_finished()
            self._check_stream(stream)
            self._reading = reading = self._reading or self._read(self._state.columns)
            try:
                page = next(reading, None)
                if page is None:
                    self._complete, self._shared, self._reading = True, stream is None, None
                    return None
                if not page.standing.cursors:
                    self._let_go()
                # Steps that may fail come first: the scan's state moves beyond a page only when the page
                # is there, so a read that is repeated after an error gives the same page.
                self._state, self._stream = page.standing, stream
                self._returned += page.rows.num_rows
                return page
            except BaseException:
                self._reading = None
                raise

    def _check_thread(self) -> None:
        """Raises `ScanInUse` where waiting for the page that is being read would never end."""
        if self._read_by != os.getpid():
            # A forked child has none of its parent's threads, so it reads on from where the scan stands.
            self._read_by, self._lock, self._reading, self._reader = os.getpid(), Lock(), None, None
        elif self._reader == get_ident():
            raise ScanInUse(
                f"this scan of table {self._table.name!r} was asked for a page by the very thread that is "
                "reading one, as in a signal handler; ask again when that page is there",
                table=self._table.name,
            )

    def _read(self, columns: tuple[str, ...]) -> Iterator[Page]:
        """Pages from where the scan stands to its end, with these columns; with none, rows to be counted."""
        rows = self._returned
        if self._kept is not None and columns:
            yield from self._sorted(self._kept, columns)
            return
        for page in self._pages.read(self._state, columns):
            rows += page.rows.num_rows
            if page.standing.cursors:
                self._renew_lease(page.standing)
                self._progress.note(page.standing, rows)
            yield page

    def _sorted(self, kept: KeptOrder, columns: tuple[str, ...]) -> Iterator[Page]:
        """The first rows of an order as one page, after all others were looked at."""
        read = tuple(dict.fromkeys((*columns, *kept.columns)))
        first = FirstRows(kept.terms, kept.rows, pa.schema([self._table.schema.field(name) for name in read]))
        for page in self._pages.read(replace(self._state, limit=None), read):
            first.add(page.rows)
            if page.standing.cursors:
                self._renew_lease(page.standing)
                self._progress.note(page.standing, self._returned)
        rows = first.rows().select(list(columns)).combine_chunks()
        batch = rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], rows.schema)
        yield Page(batch, replace(self._state, cursors=(), limit=0), self._context.seal)

    def _let_go(self) -> None:
        self._progress.end()
        if self._ends_lease and self._may_have_lease and os.getpid() == self._process:
            end_lease(self._context, self._state.lease)

    def _renew_lease(self, state: ContinuationKey) -> None:
        """Pages keep the snapshot readable; half a lease passes before the catalog hears of it."""
        if self._context.clock.now() >= self._lease_end - LEASE_SECONDS / 2:
            keep_lease(self._context, state)
            self._may_have_lease = self._context.catalog.read_only is None
            self._lease_end = self._context.clock.now() + LEASE_SECONDS

    def part(self, slots: SlotSet) -> str:
        """A key of this scan over some of its slots alone, as from `parts`."""
        return self.parts([slots])[0]

    def parts(self, slots: Sequence[SlotSet]) -> list[str]:
        """Keys of this scan over some of its slots each: how it is divided among tasks.

        The catalog is asked once, however many there are.

        Raises:
            InvalidOption: the scan has a limit, which no part could keep alone.
            ScanFinished: all rows were given out before, or the scan is closed.
            ScanInUse: a scan of changes has given out pages, and is only divided before its first.
        """
        state = self._state
        if state.limit is not None:
            raise InvalidOption(
                f"this scan gives {state.limit:,} rows at most, and each of its parts would give as many; "
                "divide one without a limit",
                option="limit",
            )
        if not state.cursors and self.stats.pages:
            raise self._used_up()
        self._check_not_finished()
        if state.segments and state != state.begin(state.segments):
            raise ScanInUse(
                f"this scan of changes of table {self._table.name!r} has given out pages, and can be divided "
                "only before its first; begin another one with Table.changes",
                table=self._table.name,
            )
        sealer = self._context.sealer
        return [sealer.seal(state.restrict_to(some)) for some in slots]

    @retry_interrupted
    def _is_leased(self) -> bool:
        with self._context.catalog.reading() as tx:
            return tx.lease_end(self._state.lease) > tx.now

    @cached_property
    def choice(self) -> Choice | None:
        """The ways that there were to read, and the one that was taken; None of a scan that was resumed."""
        return None if self._choose is None else self._choose()

    def explain(self) -> Explanation:
        """Explain the scan's access path; after a run, with estimated against actual counts."""
        placement = self._context.placement()
        names = dict(self._base.shard_names) | self._context.shard_names()
        pending = slots_of(self._state.cursors)
        scans = []
        for shard, slots in sorted(placement.split_by_shard(pending).items()):
            home = slots & self._base.placement.at(shard)
            for kind, part in (("base-shard scan", home), ("virtual scan", slots - home)):
                if part:
                    scans.append({"scan": kind, "shard": names.get(shard, str(shard)), "slots": len(part)})
        message = {
            "table": self._table.name,
            "snapshot": self._state.snapshot,
            "base_topology": self._base.number,
            "columns": list(self._state.columns),
            "filter": self._state.filter,
            **explain_access(self._pages.access, self.choice, self._table),
            **({} if self._kept is None else {"order_by": list(self._kept.terms)}),
            "limit": self._state.limit,
            "kept_by": "lease" if self._is_leased() else "retention",
            "actual": {
                "rows_scanned": self.stats.scanned,
                "rows_skipped": self.stats.skipped_rows,
                "rows_returned": self._returned,
                "pages": self.stats.pages,
            },
            "slots": len(self._state.slots),
            "pending_slots": len(pending),
            "scans": scans,
        }
        return Explanation(message)


def _library(name: str) -> Any:
    """Another library, imported when somebody asks for what is its own, and not before."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidOption(f"{name} is not installed: pip install {name}; or use to_table()") from error


class _Stream(Iterator[pa.RecordBatch]):
    """The remaining rows of a scan, for one reader alone; pages without rows are left out.

    No generator: one that has failed ends at the next call as if it had given everything.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan, self.begin = scan, scan.standing
        self._complete, self._failed = False, False

    def __next__(self) -> pa.RecordBatch:
        if self._failed:
            raise ScanFinished(
                "this stream of a scan failed before, and its reader may have lost what it had read; begin "
                "another scan with Table.scan"
            )
        while not self._complete:
            try:
                page = self._scan._next_page(self)
            except ScanInUse:  # nothing was read, nor lost
                raise
            except BaseException:
                self._failed = True
                raise
            if page is None:
                self._complete = True
            elif page.rows.num_rows:
                return page.rows
        raise StopIteration
