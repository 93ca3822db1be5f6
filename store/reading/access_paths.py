"""The access path of a scan: chosen when it begins, found again from its key when it goes on.

The continuation key has the index's id and the direction, or that rows are read by key, and nothing else
of the choice. The ranges to read follow from the scan's filter and the definition of the index, or of the
table's key.
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

MOST_COUNTED = 64  # ranges times runs whose entries are counted, about


@dataclass(frozen=True, slots=True)
class Access:
    """The access path of a scan.

    Attributes:
        order: through an index; None for a direct scan.
        predicate: what is still to be tested on each row, if anything.
        sort: for a scan whose rows leave in one order over all shards.
        index: the index's definition.
        key_sets: for a direct scan, the values with which rows can meet the filter, by column.
        keys: for a scan by key, the primary keys to read.
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
    """Choose the cheapest path for a snapshot of a table, or the one asked for by name or order.

    `key` is the predicate as `bind_to_key` gives it.

    Raises:
        NotFound, Busy, InvalidOption: what was asked for cannot be done.
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

    if order is not None and (named or name in (AUTO, NONE, KEY)):  # else no index has the name
        fitting = indexes_in_order(order, table, indexes, name)
        if len(fitting) > 1:
            costs = {candidate.access: candidate.cost for candidate in chosen(AUTO).candidates}
            fitting.sort(key=costs.__getitem__)
        name = fitting[0]
    return chosen(name)


def predicate_of(table: TableInfo, filter: str | None) -> Predicate | None:  # noqa: A002
    """Return the condition that a filter is."""
    return None if filter is None else Predicate.parse(filter, table.schema)


def bind_to_key(context: Context, table: TableInfo, predicate: Predicate | None) -> KeyCondition:
    """Return the slots and ranges of primary keys that have all rows for which a filter is true."""
    if predicate is None:
        return bind_key(None, table, context.known.slots)
    # A scan asks when it begins, and again for its access path.
    key = (bind_to_key, table, predicate.text or predicate)
    bound: KeyCondition = context.derived.get(
        key, lambda: bind_key(predicate.condition, table, context.known.slots)
    )
    return bound


def slots_of_filter(context: Context, table: TableInfo, filter: str | None) -> SlotSet:  # noqa: A002
    """Return the slots of a table that can hold rows that meet a filter."""
    return bind_to_key(context, table, predicate_of(table, filter)).slots


def _count_entries(
    context: Context,
    table: TableInfo,
    index: IndexInfo,
    runs: Sequence[tuple[Fragment, IndexRun]],
    ranges: Sequence[tuple[bytes, bytes]],
) -> float:
    """Return about how many entries of some runs of an index are in some ranges.

    Of many ranges some are counted; of a run that cannot be read all are, and reading the index raises it.
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
    """Return the access path with which a scan that stands at `key` goes on.

    Raises:
        TableChanged: the index that it reads is not there any more.
    """
    index, known = None, context.catalog.known  # the caller has just looked
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
        assert bound is not None, "an index that is of no use for the filter was not chosen"
        written = "" if predicate is None else predicate.text  # by the user, whose error it may be
        residual = None if bound.residual is None else Predicate(bound.residual, written)
        if isinstance(bound, KeyCondition):
            return Access(None, residual, keys=bound.keys)
        order = IndexOrder(bound.index.id, bound.ranges, key.descending)
        columns = (*bound.index.columns, *table.primary_key)
        return Access(order, residual, SortKey(columns, key.descending) if key.merged else None, bound.index)

    # A client may ask for page after page, each by its own key.
    at = (table, key.filter, index, key.descending, key.merged, key.by_key)
    access: Access = context.derived.get(at, derive)
    return access
