"""Scans at their beginning: what is read, at which snapshot, by which path."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from elasticscan.base.errors import InvalidOption, NotFound, NotReady
from elasticscan.catalog import Interrupted, Tx, newest_topology, retry_interrupted
from elasticscan.filters import Predicate
from elasticscan.metadata import AUTO, NONE, TableInfo, no_such_column
from elasticscan.protocol import ContinuationKey, Cursor, NamedColumns, Segment, Segments
from elasticscan.store.context import Context, Find
from elasticscan.store.context.leases import end_lease, hold_snapshot, keep_lease, lease_snapshot
from elasticscan.store.context.lookups import SlotPlaces, check_kept, oldest_kept
from elasticscan.store.context.shards import note_look
from elasticscan.store.context.tags import snapshot_of
from elasticscan.store.reading.access_paths import Access, bind_to_key, choose_access, slots_of_filter
from elasticscan.store.reading.first_rows import kept_order
from elasticscan.store.reading.ordering import order_of, terms_of
from elasticscan.store.reading.scan import Layout, Scan
from elasticscan.topology import SlotSet, Topology


@retry_interrupted
def begin_scan(
    context: Context,
    find: Find,
    columns: list[str] | None,
    filter: str | None,  # noqa: A002 - the word users know
    snapshot: int | str | datetime | None,
    page_limits: tuple[int, int],
    *,
    index: str,
    order_by: str | Sequence[str] | None = None,
    limit: int | None = None,
    is_divided: bool = False,
    may_sort: bool = False,
) -> Scan:
    """Return a new scan, with fixed snapshot, base topology, access path and, to divide it, layout."""
    lease = secrets.token_hex(8)

    def look(tx: Tx) -> tuple[Topology, Layout | None, int]:
        layout = (SlotPlaces.at(tx), context.fragments_in(tx, table)) if is_divided else None
        return newest_topology(tx), layout, find(tx)[0].definition

    if not isinstance(snapshot, int | str):  # the newest until a time is one that the catalog may lack
        context.check_newest()
    with context.catalog.reading() as tx:
        table, indexes = find(tx)
        note_look(context, tx)
        asked = snapshot_of(tx, table, snapshot)
        held = hold_snapshot(context, tx, table, asked, look)
        if held is not None and not is_divided:
            context.follow(tx, table.id, held[0], with_statistics=filter is not None)
    column_names = columns_of(table, columns)
    predicate = None if filter is None else Predicate.parse(filter, table.schema)
    by_key = bind_to_key(context, table, predicate)
    compare = partial(choose_access, context, table, indexes, column_names, predicate, by_key, index, asked)

    # Nothing beats the rows themselves where all are wanted: other ways are compared if somebody asks.
    wants_all = predicate is None and index in (AUTO, NONE)
    terms = None if order_by is None else terms_of(order_by, table.schema)
    kept = kept_order(terms, limit, table) if terms and may_sort and index == AUTO else None
    try:
        order = order_of(terms) if terms else None
        choice = None if wants_all and order is None else compare(order)
        kept = None
    except (NotFound, NotReady, InvalidOption):
        if kept is None:  # else the scan keeps the first rows of the order itself
            raise
        order, choice = None, None if wants_all else compare(None)
    at, (base, layout, definition) = held or lease_snapshot(context, lease, table, asked, look)
    if definition != table.definition:  # a snapshot is read by a definition that is not older than it
        end_lease(context, lease)
        raise Interrupted(f"columns of table {table.name!r} changed while a scan of it began; begin it again")
    first = first_key(table, at, base, by_key.slots, column_names, filter, page_limits, lease)
    key = replace(
        first,
        cursors=() if limit == 0 else first.cursors,
        index=None if choice is None or choice.index is None else choice.index.id,
        descending=order is not None and order.descending,
        merged=order is not None,
        limit=limit,
        by_key=choice is not None and choice.by_key,
    )
    bound = by_key if key.by_key else None if choice is None else choice.bound
    access = Access.along(table, predicate, bound, key.descending, key.merged)
    choose = (lambda: choice) if choice else partial(compare, order)
    leased = held is None and context.catalog.read_only is None
    return Scan(context, table, base, key, True, choose, access, leased, layout, kept)


def first_key(
    table: TableInfo,
    snapshot: int,
    base: Topology,
    slots: SlotSet,
    columns: Sequence[str],
    filter: str | None,  # noqa: A002 - the word users know
    page_limits: tuple[int, int],
    lease: str,
) -> ContinuationKey:
    """Return the key of a direct scan of all rows of some slots that has read nothing yet."""
    return ContinuationKey(
        table=table.id,
        snapshot=snapshot,
        base_topology=base.number,
        slots=slots,
        cursors=(Cursor(slots),) if slots else (),
        columns=tuple(columns),
        filter=filter,
        page_rows=page_limits[0],
        page_bytes=page_limits[1],
        lease=lease,
        definition=table.definition,
    )


@retry_interrupted
def begin_changes(
    context: Context,
    find: Find,
    commits: tuple[int | str | datetime | None, int | str | datetime | None],
    columns: list[str] | None,
    filter: str | None,  # noqa: A002 - the word users know
    feed: bool,
    page_limits: tuple[int, int],
) -> Scan:
    """Return a scan of the changes of commits in (after, upto]; None is the oldest kept, and the newest."""
    if not isinstance(commits[1], int | str):
        context.check_newest()
    with context.catalog.reading() as tx:
        (table, _), newest = find(tx), tx.state.commit
        after, upto = snapshot_of(tx, table, commits[0]), snapshot_of(tx, table, commits[1])
        if after is None:
            after = oldest_kept(table)
            check_kept(table, after if upto is None else min(after, upto))
        if upto is not None and upto < after:
            raise InvalidOption(
                f"upto={upto} is a commit before after={after}: changes are those in between; swap them",
                option="upto",
            )
        for commit in (after, after if upto is None else upto):
            if commit > newest:
                raise NotFound(
                    f"commit {commit} is still to come: the newest is {newest}; a reader that follows "
                    "goes on after the last commit that it has read",
                    table=table.name,
                    snapshot=commit,
                    newest=newest,
                    kind="snapshot",
                )
        check_kept(table, after)
        base = newest_topology(tx)
    upto = newest if upto is None else upto
    segments = (Segment(after, upto, 0, context.info.slots),) if after < upto else ()
    column_names, lease = columns_of(table, columns), secrets.token_hex(8)
    return scan_changes(context, table, base, segments, upto, column_names, filter, feed, page_limits, lease)


def scan_changes(
    context: Context,
    table: TableInfo,
    base: Topology,
    segments: Segments,
    upto: int,
    columns: Sequence[str],
    filter: str | None,  # noqa: A002 - the word users know
    feed: bool,
    page_limits: tuple[int, int],
    lease: str,
) -> Scan:
    """Return a scan of segments up to a commit; without a lease where a stream holds what it needs.

    A change has the key of its row, so slots without rows for the filter have no changes for it either.
    """
    slots = SlotSet.of((segment.start, segment.end) for segment in segments)
    slots &= slots_of_filter(context, table, filter)
    key = first_key(table, upto, base, slots, columns, filter, page_limits, lease)
    key = replace(key, feed=feed).begin(segments)
    if lease:
        table = keep_lease(context, key)
    return Scan(context, table, base, key, leased=bool(lease))


def columns_of(
    table: NamedColumns, columns: Sequence[str] | None, option: str = "columns"
) -> tuple[str, ...]:
    """Return the columns that were asked for; all of them by default."""
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
