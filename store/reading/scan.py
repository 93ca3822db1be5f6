"""`Scan`: reads of one snapshot or of changes, in pages with keys; and the functions that begin scans."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from elasticscan.base.concurrency import cached_property
from elasticscan.base.errors import InvalidCall, InvalidOption, NotFound, SnapshotExpired
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.catalog import Interrupted, newest_topology, retry_interrupted
from elasticscan.metadata import AUTO, DIRECT, KEY, NONE, TableInfo, no_such_column
from elasticscan.optimizer import Choice
from elasticscan.protocol import (
    ContinuationKey,
    Cursor,
    NamedColumns,
    PageRequest,
    ReadRequest,
    Segment,
    Segments,
    slots_of,
)
from elasticscan.reader import ScanPlan, ScanStats, drive, drive_sorted
from elasticscan.store.context import Context, Find
from elasticscan.store.context.leases import end_lease, is_kept, keep_lease, lease_end, lease_snapshot
from elasticscan.store.context.lookups import check_kept, oldest_kept
from elasticscan.store.context.tags import snapshot_of
from elasticscan.store.reading.access_paths import (
    access_of,
    bind_to_key,
    choose_access,
    predicate_of,
    slots_of_filter,
)
from elasticscan.store.reading.changes import (
    CommitFacts,
    change_pages,
    commit_facts,
    feed_arrays,
    feed_fields,
)
from elasticscan.store.reading.ordering import FirstRows, terms_of, total_order, written
from elasticscan.store.reading.paged_scan import PagedScan
from elasticscan.topology import SlotSet, Topology


class Scan(PagedScan):
    """A scan that returns every row of one snapshot exactly once, in pages.

    Iteration yields pages. Each page's key resumes the scan after that page, in any process, while the
    snapshot is kept (reading pages renews the scan's lease) and the key is valid (30 days, or the retention
    period if that is longer). Several threads may share the iteration. `key` is the scan's present position.

    `to_table`, `count` and streams read all remaining rows. No row is returned to two readers: a second one
    gets `InvalidCall`, not a part of the rows that looks complete. `to_table` and `count` can be called
    again after an error; a stream that failed or was abandoned cannot be read again. A forked child cannot
    read its parent's scan; it calls `Store.resume(scan.key)`.

    A scan is an Arrow stream, too: `duckdb.sql("SELECT count(*) FROM scan")`, `polars.DataFrame(scan)`,
    `pandas.DataFrame.from_arrow(scan)` and `pyarrow.table(scan)` read it to its end, once.

    If retention keeps the snapshot for less than two more hours, the scan has a lease on it. In a read-only
    store there is no lease: the scan raises `SnapshotExpired` if the snapshot expires.
    `explain()["kept_by"]` is "lease" or "retention".
    """

    def __init__(
        self,
        context: Context,
        table: TableInfo,
        base: Topology,
        key: ContinuationKey,
        ends_lease: bool = True,
        choose: Callable[[], Choice] | None = None,
        leased: bool = True,
        sort_order: list[str] | None = None,
    ) -> None:
        super().__init__(table.name, key)
        self._opened = context
        self._table = table
        self.base = base  # the newest topology when the scan began
        self._ends_lease = ends_lease
        self._sort_order = sort_order  # the order, if the scan sorts its rows itself
        self._choose = choose  # the comparison of access paths; None for a resumed scan or changes
        self._access = access_of(context, table, key)
        self.stats = ScanStats()
        self._may_have_lease, self._lease_end = leased, context.clock.now() + LEASE_SECONDS

    @property
    def _context(self) -> Context:
        return self._opened.here()

    def __repr__(self) -> str:
        left, all_slots = len(slots_of(self.standing.cursors)), len(self.standing.slots)
        stats = self.stats
        return (
            f"<elasticscan.Scan of {self._table.name!r} at snapshot {self.snapshot}: {self._returned:,} rows "
            f"in {stats.pages:,} pages, {stats.virtual_reads:,} of them where slots had moved to; "
            f"{all_slots - left:,} of {all_slots:,} slots done>"
        )

    @property
    def snapshot(self) -> int:
        """The commit number that the scan reads at."""
        return self.standing.snapshot

    @property
    def schema(self) -> pa.Schema:
        fields = [self._table.schema.field(name) for name in self.standing.columns]
        return pa.schema([*fields, *feed_fields()] if self.standing.feed else fields)

    @property
    def key(self) -> str | None:
        """The continuation key of the scan's present position; None when it is complete.

        Raises `InvalidOption` before the single page of a scan that sorts its rows itself.
        """
        if self._sort_order is not None and self.standing.cursors:
            raise InvalidOption(
                "a scan that sorts its rows itself has no key before its page; make an index in its order",
                option="order_by",
            )
        return super().key

    def _seal(self, state: ContinuationKey) -> str:
        return self._context.sealer.seal(state)

    def _read(self, columns: tuple[str, ...]) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
        if self._sort_order is not None and columns:
            yield self._sorted(self._sort_order, self.standing, columns)
        else:
            yield from self._rows(self.standing, columns)

    def _end(self) -> None:
        """Remove the lease, unless others use it after this scan."""
        if self._ends_lease and self._may_have_lease:
            end_lease(self._context, self.standing.lease)

    def _sorted(
        self, sort_order: list[str], begin: ContinuationKey, columns: tuple[str, ...]
    ) -> tuple[pa.RecordBatch, ContinuationKey]:
        """Read all pages, and return the first rows in an order as one page."""
        schema = self._table.schema
        read = tuple(dict.fromkeys((*columns, *(name for name, _ in terms_of(sort_order, schema)))))
        first = FirstRows(sort_order, begin.limit or 0, pa.schema([schema.field(name) for name in read]))
        for rows, _ in self._rows(begin, read):
            first.add(rows)
        table = first.rows().select(list(columns)).combine_chunks()
        batch = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)
        return batch, replace(begin, cursors=())

    def _renew_lease(self, standing: ContinuationKey) -> None:
        """Renew the lease when half of its time is over."""
        if standing.cursors and self._context.clock.now() >= self._lease_end - LEASE_SECONDS / 2:
            keep_lease(self._context, standing)
            self._may_have_lease = self._context.catalog.read_only is None
            self._lease_end = self._context.clock.now() + LEASE_SECONDS

    def _rows(
        self, begin: ContinuationKey, columns: tuple[str, ...]
    ) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
        """Yield the rows of each page, and the state of the scan after it."""
        if not begin.cursors:
            return
        context, access, facts = self._context, self._access, CommitFacts((), {})
        if begin.feed or begin.segments is not None:
            facts = context.ask(lambda tx: commit_facts(tx, self._table, begin))
        request = PageRequest(
            table=self._table.id,
            shard=0,
            cursors=begin.cursors,
            snapshot=begin.snapshot,
            columns=self._columns_read(columns),
            page_rows=self._page_rows(begin),
            page_bytes=begin.page_bytes,
            order=access.order,
            key_sets=access.key_sets,
            keys=access.keys,
            definition=begin.definition,
        )
        plan, cluster = ScanPlan(request, self.base.placement, begin.slots), context.cluster
        pages: Iterable[tuple[pa.RecordBatch, ContinuationKey]]
        if begin.segments is not None:
            pages = change_pages(begin, plan, facts, cluster, self.stats)
        else:
            if access.sort is None:
                read = drive(plan, cluster.placements, cluster.shards, self.stats)
            else:
                read = drive_sorted(plan, access.sort, cluster.placements, cluster.shards, self.stats)
            pages = ((page.rows, begin.advance(page.after)) for page in read)
        for rows, reached in pages:
            self._renew_lease(reached)
            yield self._finish(rows, begin, columns, facts), reached

    def _page_rows(self, state: ContinuationKey) -> int:
        """Return the maximum rows of a page: at most the limit, unless a filter may drop rows."""
        most, limit = state.page_rows, state.limit
        if limit is None or self._access.predicate is not None or self._sort_order is not None:
            return most
        return min(most, limit)

    def _columns_read(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns to read: these columns, and the ones that the filter and the order need."""
        access = self._access
        tested = sorted(access.predicate.columns) if access.predicate else ()
        sorted_by = access.sort.columns if access.sort else ()
        return tuple(dict.fromkeys((*columns, *tested, *sorted_by))) or self._table.primary_key[:1]

    def _finish(
        self, rows: pa.RecordBatch, begin: ContinuationKey, columns: tuple[str, ...], facts: CommitFacts
    ) -> pa.RecordBatch:
        if self._access.predicate is not None:
            mask = self._access.predicate.mask(rows)
            if columns and not begin.feed:
                rows = rows.select(list(columns))  # do not copy the columns that only the condition needs
            rows = rows.filter(mask)
        if begin.feed and columns:
            arrays = [*map(rows.column, columns), *feed_arrays(rows, begin, facts)]
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        names = list(columns)
        return rows if not names or rows.schema.names == names else rows.select(names)

    def parts(self, slots: Sequence[SlotSet]) -> list[str]:
        """Divide the scan among tasks: return a continuation key for each set of slots.

        The catalog is read once for all keys.

        Raises:
            InvalidOption: the scan has a limit, which parts cannot keep independently.
            InvalidCall: all rows were returned before, the scan is closed, or it is a scan of changes that
                has begun.
        """
        state = self.standing
        self._check_open()
        if state.limit is not None:
            raise InvalidOption(
                "a scan with a limit cannot be divided into parts; divide one without a limit", option="limit"
            )
        is_read = not state.cursors and self.stats.pages > 0
        if is_read or (state.segments and state != state.begin(state.segments)):
            raise InvalidCall(
                "a scan can be divided only before its last page, a scan of changes only before its first; "
                "begin another one",
                table=self._table.name,
            )
        sealer = self._context.sealer
        return [sealer.seal(state.restrict_to(part)) for part in slots]

    @property
    def choice(self) -> Choice | None:
        """The access paths and which one is chosen; None for a resumed scan, and for changes."""
        return self._chosen

    @cached_property
    def _chosen(self) -> Choice | None:
        return None if self._choose is None else self._choose()

    def explain(self) -> dict[str, Any]:
        """Describe the access path, the rows read so far, and the shards of the slots that remain."""
        context, state = self._context, self.standing
        placement, pending = context.placement(), slots_of(state.cursors)
        names = dict(self.base.shard_names) | context.shard_names()
        scans = []
        for shard, slots in sorted(placement.split_by_shard(pending).items()):
            home = slots & self.base.placement.at(shard)
            for kind, part in (("base-shard scan", home), ("virtual scan", slots - home)):
                if part:
                    scans.append({"scan": kind, "shard": names.get(shard, str(shard)), "slots": len(part)})
        is_leased = context.ask(lambda tx: lease_end(tx, state.lease) > tx.now)
        access, choice, order = self._access, self.choice, self._sort_order
        if access.sort is not None:
            order = written([(name, access.sort.descending) for name in dict.fromkeys(access.sort.columns)])
        return {
            "table": self._table.name,
            "snapshot": state.snapshot,
            "base_topology": self.base.number,
            "columns": list(state.columns),
            "filter": state.filter,
            "access": access.index.name if access.index else KEY if access.keys else DIRECT,
            "index_condition": choice.candidate.condition if choice else None,
            "ranges": len(access.order.ranges) if access.order else access.keys and access.keys.count,
            "remainder": access.predicate.shown() if access.predicate else None,
            "order_by": order,
            # Empty for a resumed scan.
            "candidates": [asdict(candidate) for candidate in choice.candidates] if choice else [],
            "limit": state.limit,
            "kept_by": "lease" if is_leased else "retention",
            "actual": {
                "rows_scanned": self.stats.scanned,
                "rows_skipped": self.stats.skipped_rows,
                "rows_returned": self._returned,
                "pages": self.stats.pages,
            },
            "slots": len(state.slots),
            "pending_slots": len(pending),
            "scans": scans,
        }


# New and resumed scans


def resume_scan(context: Context, key: str, ends_lease: bool = True) -> Scan:
    """Resume a scan after a page, from the page's key; errors as for `Store.resume`."""
    state = context.sealer.open(key)
    table, base = keep_lease(context, state), context.base_topology(state.base_topology)
    return Scan(context, table, base, state, ends_lease)


@retry_interrupted
def begin_scan(
    context: Context,
    find: Find,
    read: ReadRequest,
    order_by: str | Sequence[str] | None = None,
    limit: int | None = None,
) -> Scan:
    """Return a new scan, with a fixed snapshot, base topology and access path."""
    index = read.index
    if not isinstance(read.snapshot, int):  # an older catalog would resolve a tag or time differently
        context.check_newest()
    tx = context.catalog.newest()
    table = find(tx)[0]
    context.looked = tx.state.placement, context.clock.now()
    requested, base = snapshot_of(tx, table, read.snapshot), newest_topology(tx)
    at = tx.state.commit if requested is None else requested
    state, is_leased = context.table_in(tx, table.id, at), not is_kept(context, tx, table, at)
    if read.filter is not None:  # load the statistics that the choice of a path needs
        context.statistics(state, tx)
    columns, predicate = columns_of(table, read.columns), predicate_of(table, read.filter)
    by_key = bind_to_key(context, table, predicate)
    compare = partial(choose_access, context, state, columns, predicate, by_key, index, at)

    # If all rows are read, a direct scan is the cheapest; paths are compared only for `explain`.
    wants_all = predicate is None and index in (AUTO, NONE)
    order = sort_order = choice = None
    if order_by is not None:
        order = terms_of(order_by, table.schema)
        try:
            choice = compare(order)
        except (NotFound, InvalidOption):
            sort_order = total_order(order, limit, table) if index == AUTO else None
            if sort_order is None:  # otherwise the scan sorts its rows itself
                raise
            order = None
    if order is None:
        choice = None if wants_all else compare()
    lease = secrets.token_hex(8)
    try:
        is_leased = is_leased and lease_snapshot(context, lease, table, at)
    except SnapshotExpired as expired:
        if requested is not None:
            raise
        raise Interrupted(f"table {table.name!r} was changed while a scan began; begin it again") from expired
    first = first_key(table, at, base, by_key.slots, read, lease)
    key = replace(
        first,
        cursors=() if limit == 0 else first.cursors,
        index=None if choice is None or choice.bound is None else choice.bound.index.id,
        descending=order is not None and order[0][1],
        merged=order is not None,
        limit=limit,
        by_key=choice is not None and choice.candidate.kind == KEY,
    )
    choose = (lambda: choice) if choice else compare
    return Scan(context, table, base, key, True, choose, is_leased, sort_order)


def first_key(
    table: TableInfo, snapshot: int, base: Topology, slots: SlotSet, read: ReadRequest, lease: str
) -> ContinuationKey:
    """Return the key of a direct scan of some slots, before its first page."""
    return ContinuationKey(
        table=table.id,
        snapshot=snapshot,
        base_topology=base.number,
        slots=slots,
        cursors=(Cursor(slots),) if slots else (),
        columns=columns_of(table, read.columns),
        filter=read.filter,
        page_rows=read.page_rows,
        page_bytes=read.page_bytes,
        lease=lease,
        feed=read.feed,
        definition=table.definition,
    )


def begin_changes(
    context: Context,
    find: Find,
    commits: tuple[int | str | datetime | None, int | str | datetime | None],
    read: ReadRequest,
) -> Scan:
    """Return a scan of the changes of commits in (after, upto]; None means the oldest kept, or the newest."""
    if not all(isinstance(commit, int) for commit in commits):
        context.check_newest()
    tx = context.catalog.newest()
    (table, _), newest = find(tx), tx.state.commit
    after, upto = snapshot_of(tx, table, commits[0]), snapshot_of(tx, table, commits[1])
    after = oldest_kept(table) if after is None else after
    upto = newest if upto is None else upto
    if max(after, upto) > newest:
        raise NotFound(
            f"commit {max(after, upto)} is still to come: the newest is {newest}; continue after the last "
            "commit that was read",
            table=table.name,
            snapshot=max(after, upto),
            newest=newest,
            kind="snapshot",
        )
    check_kept(table, min(after, upto))
    if upto < after:
        raise InvalidOption(
            f"upto={upto} is a commit before after={after}: changes are those in between; swap them",
            option="upto",
        )
    base = newest_topology(tx)
    segments = (Segment(after, upto, 0, context.known.slots),) if after < upto else ()
    return scan_changes(context, table, base, segments, upto, read, secrets.token_hex(8))


def scan_changes(
    context: Context,
    table: TableInfo,
    base: Topology,
    segments: Segments,
    upto: int,
    read: ReadRequest,
    lease: str,
) -> Scan:
    """Return a scan of changes in segments up to a commit. `lease` is empty if a stream has a lease on them.

    A change has the key of its row, so slots that cannot match the filter have no matching changes either.
    """
    slots = SlotSet.of((segment.start, segment.end) for segment in segments)
    slots &= slots_of_filter(context, table, read.filter)
    key = first_key(table, upto, base, slots, read, lease).begin(segments)
    if lease:
        table = keep_lease(context, key)
    return Scan(context, table, base, key)


def columns_of(
    table: NamedColumns, columns: Sequence[str] | None, option: str = "columns"
) -> tuple[str, ...]:
    """Check names of columns and return them; None means all columns."""
    if columns is None:
        return tuple(table.schema.names)
    if not columns or len(set(columns)) < len(columns):
        raise InvalidOption(
            f"{option}={columns!r} must be a list of column names, at least one and each once",
            option=option,
        )
    for name in columns:
        if name not in table.schema.names:
            raise no_such_column(table.name, name, table.schema.names)
    return tuple(columns)
