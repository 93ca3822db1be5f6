"""A scan as users hold it: pages with keys, a table, an explanation."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from threading import Lock, get_ident
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, ScanFinished, ScanInUse
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.catalog import Tx
from elasticscan.filters import Predicate
from elasticscan.metadata import DIRECT, TableInfo, no_such_column
from elasticscan.optimizer import Choice
from elasticscan.protocol import ContinuationKey, Cursor, Segment, Segments, slots_of
from elasticscan.reader import ScanPlan, ScanStats, drive, drive_sorted
from elasticscan.store.access_paths import Access, access_of, choose_access
from elasticscan.store.changes import (
    CommitFacts,
    change_pages,
    commit_facts,
    feed_arrays,
    feed_fields,
)
from elasticscan.store.context import Context, Find, ScanLayout, check_kept
from elasticscan.store.leases import end_lease, hold_snapshot, keep_lease, lease_snapshot
from elasticscan.store.names import Named
from elasticscan.store.ordering import order_of, whole_order
from elasticscan.topology import SlotSet, Topology


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

    @cached_property
    def key(self) -> str | None:
        """The continuation key after this page, for `Store.resume`; None after the last page.

        It is sealed when it is first asked for. Raises `KeyTooLong`.
        """
        return self._seal(self.standing) if self.standing.cursors else None


class Scan(Named, Iterator[Page]):
    """Every row of one snapshot exactly once, in pages.

    Iterating yields pages; each page's key resumes the scan after that page, in any process, as
    long as the snapshot is kept (a scan renews its lease with its pages) and the key's time is not up
    (30 days, or longer where snapshots are kept for longer). A scan can be iterated once, by several threads
    together if they like; `key` is where it stands.

    `to_table`, `count` and streams read all that remains, each for itself alone: no row goes to two readers,
    and a reader whose scan is closed, or read by somebody else meanwhile, gets an error and never a part
    that looks like the whole. A `to_table` or `count` that failed can be called again and begins anew
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
        choice: Choice | None = None,
        access: Access | None = None,
        leased: bool = True,
        layout: ScanLayout | None = None,
    ) -> None:
        self._context = context
        self._table = table
        self._base = base
        self._state = key
        self._ends_lease = ends_lease
        self._process = os.getpid()  # a child that was forked amid the scan must not end its parent's lease
        self._may_have_lease = leased
        self._lease_end = context.clock.now() + LEASE_SECONDS
        self.choice, self.layout = choice, layout  # of a scan that begins; None of one that was resumed
        self._access = access or access_of(context, table, key)
        self._returned = 0
        self._reading: Iterator[Page] | None = None
        self._lock = Lock()
        self._reader: int | None = None  # the thread that is reading a page
        self._read_by = os.getpid()
        self._stream: _Stream | None = None  # the one that reads what remains
        self._closed = False
        self._complete = False
        self._shared = False  # all pages were given out one by one, to whoever asked
        self._facts = CommitFacts((), {})
        self.stats = ScanStats()

    @property
    def snapshot(self) -> int:
        """The commit number that the scan reads at."""
        return self._state.snapshot

    @property
    def slots(self) -> SlotSet:
        """All slots of the scan, read or not."""
        return self._state.slots

    @property
    def schema(self) -> pa.Schema:
        fields = [self._table.schema.field(name) for name in self._state.columns]
        return pa.schema([*fields, *feed_fields()] if self._state.feed else fields)

    @property
    def key(self) -> str | None:
        """The continuation key of where the scan stands now; None when it is complete."""
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
            raise ScanFinished(
                f"this scan of table {self._table.name!r} has given out all of its rows; "
                "begin another one with Table.scan",
                table=self._table.name,
            )
        if self._closed:
            raise ScanFinished(
                f"this scan of table {self._table.name!r} was closed; begin another one with Table.scan, or "
                "go on from a page's key with Store.resume",
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
            for page in self._read(self._state, columns):
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
            self._reading = reading = self._reading or self._read(self._state, self._state.columns)
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

    def _read(self, begin: ContinuationKey, columns: tuple[str, ...]) -> Iterator[Page]:
        """Pages from a state of the scan to its end, with these columns; with none, rows to be counted."""
        left = begin.limit
        for scanned, reached in self._pages(begin, columns) if begin.cursors else ():
            rows, after = self._finish(scanned, columns), reached
            if left is not None:
                rows = rows.slice(0, left)
                left -= rows.num_rows
                after = replace(reached, cursors=reached.cursors if left else (), limit=left)
            if after.cursors:
                self._renew_lease(after)
            yield Page(rows, after, self._context.seal)
            if left == 0:
                return

    def _let_go(self) -> None:
        if self._ends_lease and self._may_have_lease and os.getpid() == self._process:
            end_lease(self._context, self._state.lease)

    def _pages(
        self, state: ContinuationKey, columns: tuple[str, ...]
    ) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
        """Rows as shards have them, and where the scan stands after them."""
        access = self._access
        if state.feed or state.segments is not None:
            with self._context.catalog.reading() as tx:
                self._facts = commit_facts(tx, self._table, state)
        plan = ScanPlan(
            table=self._table.id,
            snapshot=state.snapshot,
            columns=self._columns_read(columns),
            page_rows=self._page_rows(state),
            page_bytes=state.page_bytes,
            base=self._base.placement,
            slots=state.slots,
            order=access.order,
            key_sets=access.key_sets,
        )
        placements, shards = self._context.cluster.placements, self._context.cluster.shards
        if state.segments is not None:
            yield from change_pages(state, plan, self._facts, placements, shards, self.stats)
            return
        if access.sort is None:
            pages = drive(plan, state.cursors, placements, shards, self.stats)
        else:
            pages = drive_sorted(plan, access.sort, state.cursors, placements, shards, self.stats)
        for page in pages:
            yield page.rows, state.advance(page.after)

    def _page_rows(self, state: ContinuationKey) -> int:
        """The length of a page: no longer than the limit, unless a filter may drop some of it."""
        most, limit = state.page_rows, state.limit
        return most if limit is None or self._access.predicate is not None else min(most, limit)

    def _columns_read(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """The columns of pages, and those that only the scan itself needs."""
        access = self._access
        tested = sorted(access.predicate.columns) if access.predicate else ()
        sorted_by = access.sort.columns if access.sort else ()
        return tuple(dict.fromkeys((*columns, *tested, *sorted_by))) or self._table.primary_key[:1]

    def _finish(self, rows: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
        if self._access.predicate is not None:
            rows = rows.filter(self._access.predicate.mask(rows))
        if self._state.feed and columns:
            feed_columns = feed_arrays(rows, self._state, self._facts)
            return pa.RecordBatch.from_arrays([*map(rows.column, columns), *feed_columns], schema=self.schema)
        names = list(columns)
        return rows if not names or rows.schema.names == names else rows.select(names)

    def _renew_lease(self, state: ContinuationKey) -> None:
        """Pages keep the snapshot readable; half a lease passes before the catalog hears of it."""
        if self._context.clock.now() >= self._lease_end - LEASE_SECONDS / 2:
            keep_lease(self._context, state)
            self._may_have_lease = self._context.catalog.read_only is None
            self._lease_end = self._context.clock.now() + LEASE_SECONDS

    def part(self, slots: SlotSet) -> str:
        """A key of this scan over some of its slots alone: how it is divided among tasks."""
        return self._context.sealer.seal(self._state.restrict_to(slots))

    def _is_leased(self) -> bool:
        with self._context.catalog.reading() as tx:
            return tx.lease_end(self._state.lease) > tx.now

    def explain(self) -> dict[str, Any]:
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
        access = self._access
        return {
            "table": self._table.name,
            "snapshot": self._state.snapshot,
            "base_topology": self._base.number,
            "columns": list(self._state.columns),
            "filter": self._state.filter,
            "access": access.index.name if access.index else DIRECT,
            "index_condition": self.choice.candidate.condition if self.choice else None,
            "ranges": len(access.order.ranges) if access.order else None,
            "remainder": str(access.predicate) if access.predicate else None,
            "order_by": whole_order(access.index, self._table, self._state.descending).terms()
            if access.index and access.sort
            else None,
            "limit": self._state.limit,
            "candidates": [asdict(candidate) for candidate in self.choice.candidates] if self.choice else [],
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


def begin_scan(
    context: Context,
    find: Find,
    columns: list[str] | None,
    filter: str | None,  # noqa: A002 - the word users know
    snapshot: int | None,
    page_limits: tuple[int, int],
    *,
    index: str,
    order_by: str | Sequence[str] | None = None,
    limit: int | None = None,
    is_divided: bool = False,
) -> Scan:
    """A scan at its beginning: snapshot, base topology, access path and, to divide it, layout are fixed."""
    lease = secrets.token_hex(8)

    def look(tx: Tx) -> tuple[Topology, ScanLayout | None]:
        base = context.newest_topology(tx)
        return base, context.layout(tx, base, table) if is_divided else None

    if snapshot is None:
        context.check_newest()
    with context.catalog.reading() as tx:
        table, indexes = find(tx)
        held = hold_snapshot(context, tx, table, snapshot, look)
    column_names = columns_of(table, columns)
    predicate = None if filter is None else Predicate.parse(filter, table.schema)
    order = order_of(order_by, table.schema)
    choice = choose_access(context, table, indexes, column_names, predicate, index, order)
    at, (base, layout) = held or lease_snapshot(context, lease, table, snapshot, look)
    everything = SlotSet.span(0, context.info.slots)
    key = ContinuationKey(
        table=table.id,
        snapshot=at,
        base_topology=base.number,
        slots=everything,
        cursors=() if limit == 0 else (Cursor(everything),),
        columns=column_names,
        filter=filter,
        page_rows=page_limits[0],
        page_bytes=page_limits[1],
        lease=lease,
        index=None if choice.index is None else choice.index.id,
        descending=order is not None and order.descending,
        merged=order is not None,
        limit=limit,
    )
    leased = held is None and context.catalog.read_only is None
    access = Access.along(table, predicate, choice.bound, key.descending, key.merged)
    return Scan(context, table, base, key, choice=choice, access=access, leased=leased, layout=layout)


def begin_changes(
    context: Context,
    find: Find,
    commits: tuple[int, int | None],
    columns: list[str] | None,
    filter: str | None,  # noqa: A002 - the word users know
    feed: bool,
    page_limits: tuple[int, int],
) -> Scan:
    """A scan of what the commits in (after, upto] did, up to the newest for None."""
    after, upto = commits
    if upto is None:
        context.check_newest()
    with context.catalog.reading() as tx:
        (table, _), newest = find(tx), tx.versions()[1]
        check_kept(table, after)
        base = context.newest_topology(tx)
    upto = newest if upto is None else min(upto, newest)
    segments = (Segment(after, upto, 0, context.info.slots),) if after < upto else ()
    column_names, lease = columns_of(table, columns), secrets.token_hex(8)
    return scan_changes(context, table, base, segments, column_names, filter, feed, page_limits, lease)


def scan_changes(
    context: Context,
    table: TableInfo,
    base: Topology,
    segments: Segments,
    columns: Sequence[str],
    filter: str | None,  # noqa: A002 - the word users know
    feed: bool,
    page_limits: tuple[int, int],
    lease: str,
) -> Scan:
    """A scan of segments, one after another; without a lease where a stream holds what it needs."""
    key = ContinuationKey(
        table=table.id,
        snapshot=segments[-1].upto if segments else table.oldest_snapshot,
        base_topology=base.number,
        slots=SlotSet.of((segment.start, segment.end) for segment in segments),
        cursors=(),
        columns=tuple(columns),
        filter=filter,
        page_rows=page_limits[0],
        page_bytes=page_limits[1],
        lease=lease,
        feed=feed,
    ).begin(segments)
    if lease:
        table = keep_lease(context, key)
    return Scan(context, table, base, key, leased=bool(lease))


def resume_scan(context: Context, key: ContinuationKey, ends_lease: bool) -> Scan:
    """A scan from where its key stands."""
    return Scan(context, keep_lease(context, key), context.topology(key.base_topology), key, ends_lease)


def columns_of(table: TableInfo, columns: list[str] | None) -> tuple[str, ...]:
    """The columns that were asked for; all of them by default."""
    if columns is None:
        return tuple(table.schema.names)
    if not columns or len(set(columns)) < len(columns):
        raise InvalidOption(
            f"columns={columns!r} must be a list of column names, at least one and each once",
            option="columns",
        )
    for name in columns:
        if name not in table.schema.names:
            raise no_such_column(table.name, name, table.schema.names)
    return tuple(columns)
