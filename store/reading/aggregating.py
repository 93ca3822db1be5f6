"""Aggregates of a table: a scan of the columns that they need, folded page by page.

Counts, least and greatest values of all rows follow from the statistics of fragments, without reading
rows, where the fragments hold nothing but rows that a scan would give (`_plain_fragments`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.types as pt

from elasticscan.base.errors import InvalidOption
from elasticscan.base.formatting import brief
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS
from elasticscan.catalog import Interrupted, retry_interrupted
from elasticscan.filters import COUNT, COUNT_ROWS, MAX, MIN, Aggregate, Fold, check_groupable, decode_key
from elasticscan.metadata import AUTO, Block, Bounds, Fragment, FragmentStatistics, TableInfo
from elasticscan.protocol import ContinuationKey, Cursor
from elasticscan.store.context import Context, Find
from elasticscan.store.context.lookups import KnownTable
from elasticscan.store.reading.scan import Scan, begin_scan, columns_of
from elasticscan.topology import SlotSet


def aggregate_rows(
    context: Context,
    find: Find,
    values: Sequence[str],
    group_by: Sequence[str],
    filter: str | None,  # noqa: A002 - the word users know
    snapshot: int | str | datetime | None,
) -> pa.Table:
    """Return one row for each group of a snapshot.

    A page is folded when it has left the scan, after the second placement check: so rows that moved while
    they were read are folded in once, wherever they are read then.
    """
    scan, aggregates = _begin(context, find, values, group_by, filter, snapshot)
    with scan:
        names = [aggregate.name for aggregate in aggregates]
        known = None if group_by else known_values(context, scan.standing, aggregates)
        if known is not None:
            return pa.table(known, names)
        if not group_by and all(aggregate.function == COUNT_ROWS for aggregate in aggregates):
            return pa.table([pa.array([scan.count()], pa.int64())] * len(names), names)
        fold = Fold(aggregates, tuple(group_by), scan.schema)
        for rows in scan.batches():
            fold.add(rows)
    return fold.result()


@retry_interrupted
def _begin(
    context: Context,
    find: Find,
    values: Sequence[str],
    group_by: Sequence[str],
    filter: str | None,  # noqa: A002 - the word users know
    snapshot: int | str | datetime | None,
) -> tuple[Scan, tuple[Aggregate, ...]]:
    """Begin a scan of the columns that are needed; return the aggregates by the definition that it reads."""
    with context.catalog.reading() as tx:
        table = find(tx)[0]
    aggregates = _parse(table, values, group_by)
    used = [name for aggregate in aggregates for name in aggregate.columns]
    columns = list(dict.fromkeys([*group_by, *used])) or list(table.primary_key[:1])
    limits = DEFAULT_PAGE_ROWS, DEFAULT_PAGE_BYTES
    scan = begin_scan(context, find, columns, filter, snapshot, limits, index=AUTO)
    if scan.standing.definition != table.definition:
        scan.close()
        raise Interrupted(f"columns of table {table.name!r} changed while they were aggregated; begin again")
    return scan, aggregates


def _parse(table: TableInfo, values: Sequence[str], group_by: Sequence[str]) -> tuple[Aggregate, ...]:
    """Return the aggregates by the table's columns."""
    if not values:
        raise InvalidOption('values=[] must name an aggregate, such as "count(*)"', option="values")
    if group_by:
        for name in columns_of(table, list(group_by), "group_by"):
            check_groupable(name, table.schema.field(name).type, "group_by")
    aggregates = tuple(Aggregate.parse(text, table.schema) for text in values)
    names = Counter([*group_by, *(aggregate.name for aggregate in aggregates)])
    twice = [name for name, times in names.items() if times > 1]
    if twice:
        raise InvalidOption(
            f"two columns of the result are called {brief(twice[0])}; name one of them with AS",
            option="values",
        )
    return aggregates


# Values that statistics of fragments have


def known_values(
    context: Context, key: ContinuationKey, aggregates: Sequence[Aggregate]
) -> list[pa.Array] | None:
    """Return the values of aggregates over all rows of a scan that stands at its beginning, one each.

    None where rows have to be looked at: with a condition, too.

    Raises:
        TableChanged, SnapshotExpired: as a scan of it would.
    """
    if key.filter is not None or any(
        each.function not in (COUNT_ROWS, COUNT, MIN, MAX) for each in aggregates
    ):
        return None
    plain = _plain_fragments(context, key)
    if plain is None:
        return None
    state, fragments = plain
    rows = sum(fragment.rows for fragment in fragments)
    statistics = context.statistics(state).fragments_of(key.definition)
    known = [statistics.get(fragment.id) for fragment in fragments]
    values = [_value(aggregate, rows, known) for aggregate in aggregates]
    return None if None in values else values


def _value(
    aggregate: Aggregate, rows: int, statistics: Sequence[FragmentStatistics | None]
) -> pa.Array | None:
    """Return an aggregate over fragments with so many rows; None where statistics do not tell it."""
    if aggregate.function == COUNT_ROWS:
        return pa.array([rows], pa.int64())
    (column,) = aggregate.columns
    blocks: list[Block] = []
    for known in statistics:
        if known is None or column not in known.columns:
            return None
        blocks += known.columns[column]
    if aggregate.function == COUNT:
        return pa.array([rows - sum(block.nulls for block in blocks)], pa.int64())
    return _extreme(aggregate, [block for block in blocks if block.low < block.high])


def _extreme(aggregate: Aggregate, blocks: Sequence[Block]) -> pa.Array | None:
    """Return the least or greatest value; None of texts, which may be cut, and of ambiguous floats."""
    kind = aggregate.type
    is_float = pt.is_float32(kind) or pt.is_float64(kind)
    if not (is_float or pt.is_signed_integer(kind) or pt.is_date32(kind) or pt.is_timestamp(kind)):
        return None
    if not blocks:
        return pa.nulls(1, kind)
    # The highest key is one above that of the greatest value: with a zero byte behind it.
    least = aggregate.function == MIN
    key = min(block.low for block in blocks) if least else max(block.high for block in blocks)[:-1]
    value = decode_key(key, kind)
    if is_float and not abs(value.as_py()) > 0:  # -0.0 has the key of 0.0, and NaN has several forms
        return None
    return pa.repeat(value, 1)


def _plain_fragments(context: Context, key: ContinuationKey) -> tuple[KnownTable, list[Fragment]] | None:
    """Return fragments that hold exactly the rows which a scan from its beginning would return.

    Each slot must be in one fragment alone, and each fragment must be nothing but rows of these slots that
    are in the snapshot: no deleted keys, no key twice, no rows of slots that moved away. None where that is
    not so.

    Raises:
        TableChanged, SnapshotExpired: as a scan of it would.
    """
    whole = SlotSet.span(0, context.info.slots)
    if key.limit is not None or key.segments or key.cursors != (Cursor(whole),):
        return None
    state = context.table_state(key.table, key.snapshot)
    bounds, fragments = state.bounds(key.snapshot), {}
    for interval in state.intervals_at(key.snapshot):
        if len(interval.fragments) != 1:
            return None
        fragments[interval.fragments[0].id] = interval.fragments[0]
    slots = SlotSet()
    for fragment in fragments.values():
        if not _is_plain(fragment, bounds) or fragment.slots & slots:
            return None
        slots |= fragment.slots
    return state, list(fragments.values())


def _is_plain(fragment: Fragment, bounds: Bounds) -> bool:
    return (
        fragment.unique
        and not fragment.tombstones
        and fragment.superseded_at is None
        and bounds.wholly_hold(fragment)
        and len(fragment.slots) == fragment.slots_written
    )
