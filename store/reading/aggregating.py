"""Aggregates of a table: a scan of the columns that they need, folded page by page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS
from elasticscan.base.showing import brief
from elasticscan.catalog import Interrupted, retry_interrupted
from elasticscan.filters import COUNT_ROWS, Aggregate, Fold, check_groupable
from elasticscan.metadata import AUTO, TableInfo
from elasticscan.store.context import Context, Find
from elasticscan.store.notebooks import Explanation
from elasticscan.store.reading.beginning import begin_scan, columns_of
from elasticscan.store.reading.extremes import known_values
from elasticscan.store.reading.scan import Scan


class Aggregation:
    """Aggregates over the rows of a snapshot, by group.

    A page is folded when it has left the scan, after the second look at where its slots are: so rows that
    moved while they were read are folded in once, wherever they are read then.
    """

    def __init__(
        self,
        context: Context,
        find: Find,
        values: Sequence[str],
        group_by: Sequence[str],
        filter: str | None,  # noqa: A002 - the word users know
        snapshot: int | str | datetime | None,
    ) -> None:
        self._context, self._find = context, find
        self._values, self._group_by = tuple(values), tuple(group_by)
        self._filter, self._snapshot = filter, snapshot

    def compute(self) -> pa.Table:
        """One row for each group."""
        scan, aggregates = self._begin()
        with scan:
            names = [aggregate.name for aggregate in aggregates]
            known = self._known(scan, aggregates)
            if known is not None:
                return pa.table(known, names)
            if self._only_counts(aggregates):
                return pa.table([pa.array([scan.count()], pa.int64())] * len(names), names)
            fold = Fold(aggregates, self._group_by, scan.schema)
            for rows in scan.batches():
                fold.add(rows)
        return fold.result()

    def explain(self) -> Explanation:
        """Explain the scan, and what its pages are folded into."""
        scan, aggregates = self._begin()
        with scan:
            explained, is_known = scan.explain(), self._known(scan, aggregates) is not None
        columns = [] if is_known or self._only_counts(aggregates) else explained["columns"]
        folded = {
            "values": [str(aggregate) for aggregate in aggregates],
            "group_by": list(self._group_by),
            "from_statistics": is_known,
        }
        return Explanation({**explained, "columns": columns, "aggregate": folded})

    @retry_interrupted
    def _begin(self) -> tuple[Scan, tuple[Aggregate, ...]]:
        """A scan of the columns that are needed, and the aggregates by the definition that it reads by."""
        table, aggregates = self._read()
        scan = self._scan(table, aggregates)
        if scan.standing.definition != table.definition:
            scan.close()
            raise Interrupted(
                f"columns of table {table.name!r} changed while they were aggregated; begin again"
            )
        return scan, aggregates

    def _read(self) -> tuple[TableInfo, tuple[Aggregate, ...]]:
        """The table, and the aggregates by its columns."""
        with self._context.catalog.reading() as tx:
            table = self._find(tx)[0]
        if not self._values:
            raise InvalidOption('values=[] must name an aggregate, such as "count(*)"', option="values")
        if self._group_by:
            for name in columns_of(table, list(self._group_by), "group_by"):
                check_groupable(name, table.schema.field(name).type, "group_by")
        aggregates = tuple(Aggregate.parse(text, table.schema) for text in self._values)
        names = Counter([*self._group_by, *(aggregate.name for aggregate in aggregates)])
        twice = [name for name, times in names.items() if times > 1]
        if twice:
            raise InvalidOption(
                f"two columns of the result are called {brief(twice[0])}; name one of them with AS",
                option="values",
            )
        return table, aggregates

    def _known(self, scan: Scan, aggregates: Sequence[Aggregate]) -> list[pa.Array] | None:
        return None if self._group_by else known_values(self._context, scan.standing, aggregates)

    def _only_counts(self, aggregates: Sequence[Aggregate]) -> bool:
        return not self._group_by and all(aggregate.function == COUNT_ROWS for aggregate in aggregates)

    def _scan(self, table: TableInfo, aggregates: Sequence[Aggregate]) -> Scan:
        used = [name for aggregate in aggregates for name in aggregate.columns]
        columns = list(dict.fromkeys([*self._group_by, *used])) or list(table.primary_key[:1])
        return begin_scan(
            self._context,
            self._find,
            columns,
            self._filter,
            self._snapshot,
            (DEFAULT_PAGE_ROWS, DEFAULT_PAGE_BYTES),
            index=AUTO,
        )
