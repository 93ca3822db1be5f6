"""The access path of a scan: chosen when it begins, and derived from its key when it is resumed.

The continuation key has only the index's id and direction, or a flag for reads by primary key. The ranges to
read are derived from the scan's filter and the definition of the index or of the table's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from elasticscan.base.errors import Busy, ElasticScanError
from elasticscan.filters import KeySets, Predicate, column_sets
from elasticscan.metadata import AUTO, KEY, NONE, Fragment, IndexInfo, IndexRun, TableInfo
from elasticscan.optimizer import Choice, KeyCondition, bind, bind_key, choose
from elasticscan.protocol import ContinuationKey, IndexOrder, KeyList, KeyRanges
from elasticscan.reader import SortKey
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import KnownTable
from elasticscan.store.reading.ordering import Terms, indexes_in_order
from elasticscan.topology import SlotSet

MOST_COUNTED = 64  # about the largest number of (run, range) pairs whose entries are counted


@dataclass(frozen=True, slots=True)
class Access:
    """The access path of a scan.

    Attributes:
        order: the index and the ranges to read; None for a direct scan.
        predicate: the residual condition to test on each row; None if there is none.
        sort: the sort key of a scan that merges the rows of all shards in one order.
        index: the index's definition.
        key_sets: for a direct scan, the values of columns in rows that can match the filter.
        keys: for reads by primary key, the keys or ranges of keys.
    """

    order: IndexOrder | None
    predicate: Predicate | None
    sort: SortKey | None = None
    index: IndexInfo | None = None
    key_sets: KeySets = field(default_factory=dict)
    keys: KeyList | KeyRanges | None = None


def choose_access(
    context: Context,
    state: KnownTable,
    columns: Sequence[str],
    predicate: Predicate | None,
    key: KeyCondition,
    name: str,
    at: int,
    order: Terms | None = None,
) -> Choice:
    """Choose the cheapest path for a snapshot of a table, or the path with a name or an order.

    `key` is the result of `bind_to_key` for the predicate. Raises `NotFound`, `Busy` or `InvalidOption`
    if there is no path with this name or order, or the index is not ready.
    """
    table, indexes, statistics = state.table, state.indexes, context.statistics(state)
    named = next((index for index in indexes if index.name == name), None)
    if named is not None and not named.ready:
        raise Busy(
            f"index {name!r} of table {table.name!r} is still being built; wait for it, or call "
            "create_index again if its build was killed",
            index=name,
            kind="index",
        )
    runs = {index: state.runs_at(at, index) for index in indexes if index.ready}

    def chosen(access: str) -> Choice:
        return choose(
            None if predicate is None else predicate.condition,
            table,
            columns,
            state.fragments_at(at),
            statistics,
            [(index, [run.rows for _, run in read]) for index, read in runs.items()],
            access,
            lambda index, ranges: _count_entries(context, table, index, runs[index], ranges),
            max(state.shards, 1),
            key,
        )

    if order is not None and (named or name in (AUTO, NONE, KEY)):  # else `choose` raises: no such index
        matching = indexes_in_order(order, table, indexes, name)
        if len(matching) > 1:
            costs = {candidate.access: candidate.cost for candidate in chosen(AUTO).candidates}
            matching.sort(key=costs.__getitem__)
        name = matching[0]
    return chosen(name)


def predicate_of(table: TableInfo, filter: str | None) -> Predicate | None:  # noqa: A002
    """Parse a filter over the table's columns; None stays None."""
    return None if filter is None else Predicate.parse(filter, table.schema)


def bind_to_key(context: Context, table: TableInfo, predicate: Predicate | None) -> KeyCondition:
    """Return slots and ranges of primary keys that include all rows that match a filter."""
    if predicate is None:
        return bind_key(None, table, context.known.slots)
    # Cached: a scan needs it when it begins, and again for its access path.
    key = (bind_to_key, table, predicate.text or predicate)
    bound: KeyCondition = context.derived.get(
        key, lambda: bind_key(predicate.condition, table, context.known.slots)
    )
    return bound


def slots_of_filter(context: Context, table: TableInfo, filter: str | None) -> SlotSet:  # noqa: A002
    """Return the slots of a table that can have rows that match a filter."""
    return bind_to_key(context, table, predicate_of(table, filter)).slots


def _count_entries(
    context: Context,
    table: TableInfo,
    index: IndexInfo,
    runs: Sequence[tuple[Fragment, IndexRun]],
    ranges: Sequence[tuple[bytes, bytes]],
) -> float:
    """Return about how many entries of an index, in these runs, are in the ranges.

    Counts a sample if there are many ranges. Counts all entries of a run that cannot be read; the scan raises
    the error if it reads the index.
    """
    step = -(-len(runs) * len(ranges) // MOST_COUNTED) or 1
    counted = unread = 0
    for number, (fragment, run) in enumerate(runs):
        try:
            reader = context.readers.open_run(table, index, fragment.shard, run)
            for low, high in ranges[number % step :: step]:
                first, end = reader.range_of(low, high)
                counted += end - first
        except ElasticScanError:
            unread += run.rows
    return float(counted * step + unread)


def access_of(context: Context, table: TableInfo, key: ContinuationKey) -> Access:
    """Return the access path of the scan with a key. Raises `TableChanged` if its index was dropped."""
    index, known = None, context.catalog.known  # recent enough: the caller has just read the catalog
    if key.index is not None:
        state = context.table_state(table.id, key.snapshot, layout=known.layout if known else None)
        index = state.index(key.index)

    def derive() -> Access:
        predicate = predicate_of(table, key.filter)
        condition = None if predicate is None else predicate.condition
        if index is None and not key.by_key:
            return Access(None, predicate, key_sets=column_sets(condition, table.schema))
        bound = (
            bind_to_key(context, table, predicate) if index is None else bind(index, condition, table.schema)
        )
        assert bound is not None, "an index is chosen only if it helps the filter"
        text = "" if predicate is None else predicate.text  # of the user, for errors
        residual = None if bound.residual is None else Predicate(bound.residual, text)
        if isinstance(bound, KeyCondition):
            return Access(None, residual, keys=bound.keys)
        order = IndexOrder(bound.index.id, bound.ranges, key.descending)
        columns = (*bound.index.columns, *table.primary_key)
        return Access(order, residual, SortKey(columns, key.descending) if key.merged else None, bound.index)

    # Cached: a client may resume a scan for every page.
    cache_key = (table, key.filter, index, key.descending, key.merged, key.by_key)
    access: Access = context.derived.get(cache_key, derive)
    return access
