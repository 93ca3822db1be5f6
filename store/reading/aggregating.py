"""Aggregates of a table: a scan of the columns that they need, folded page by page.

The number of all rows is computed from the fragments without reading rows, if each of their rows is in the
snapshot (`known_count`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from elasticscan.base.errors import InvalidOption
from elasticscan.base.formatting import brief
from elasticscan.base.limits import DEFAULT_PAGE_ROWS
from elasticscan.filters import COUNT_ROWS, Aggregate, Fold, check_groupable
from elasticscan.metadata import TableInfo
from elasticscan.protocol import ContinuationKey, Cursor, ReadRequest
from elasticscan.storage import most_rows
from elasticscan.store.context import Context, Find
from elasticscan.store.reading.scan import begin_scan, columns_of
from elasticscan.topology import SlotSet


def aggregate_rows(
    context: Context, find: Find, values: Sequence[str], group_by: Sequence[str], read: ReadRequest
) -> pa.Table:
    """Return a row for each group; `read` has the filter and the snapshot.

    Pages are folded after the scan has validated them. So rows that moved while they were read are folded
    once, with the page that is read at their new shard.
    """
    table = find(context.catalog.newest())[0]
    used = [name for aggregate in _parse(table, values, group_by) for name in aggregate.columns]
    columns = list(dict.fromkeys([*group_by, *used])) or list(table.primary_key[:1])
    with begin_scan(context, find, replace(read, columns=columns, page_rows=DEFAULT_PAGE_ROWS)) as scan:
        # Parsed again: a column may have been widened before the scan began.
        aggregates = tuple(Aggregate.parse(text, scan.schema) for text in values)
        if not group_by and all(aggregate.function == COUNT_ROWS for aggregate in aggregates):
            known = known_count(context, scan.standing)
            count = pa.array([scan.count() if known is None else known], pa.int64())
            return pa.table([count] * len(aggregates), [aggregate.name for aggregate in aggregates])
        fold = Fold(aggregates, tuple(group_by), scan.schema)
        for rows in scan.batches():
            fold.add(rows)
    return fold.result()


def _parse(table: TableInfo, values: Sequence[str], group_by: Sequence[str]) -> tuple[Aggregate, ...]:
    """Parse aggregates over the table's columns. Raises `InvalidOption` if two results have one name."""
    if not values:
        raise InvalidOption('values=[] must name an aggregate, such as "count(*)"', option="values")
    if group_by:
        for name in columns_of(table, list(group_by), "group_by"):
            check_groupable(name, table.schema.field(name).type, "group_by")
    aggregates = tuple(Aggregate.parse(text, table.schema) for text in values)
    names = Counter([*group_by, *(aggregate.name for aggregate in aggregates)])
    repeated = [name for name, times in names.items() if times > 1]
    if repeated:
        raise InvalidOption(
            f"two columns of the result are called {brief(repeated[0])}; name one of them with AS",
            option="values",
        )
    return aggregates


def known_count(context: Context, key: ContinuationKey) -> int | None:
    """Return the number of rows that a new scan returns; None if it has to read them or has begun.

    Raises `TableChanged` and `SnapshotExpired` as the scan.
    """
    whole = (Cursor(SlotSet.span(0, context.known.slots)),)
    if key.filter is not None or key.limit is not None or key.segments or key.cursors != whole:
        return None
    state = context.table_state(key.table, key.snapshot)
    rows, is_exact = most_rows(state.fragments, state.bounds(key.snapshot))
    return rows if is_exact else None
