"""The reads of a plan: what is read alongside the driver, and what of it spares other reads.

Where the rows of one side of a join are at hand, their keys go to the other side: as a condition where they
are few, and where they are primary keys by themselves, as many as are sooner read so than by tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from elasticscan.base.errors import FilterError
from elasticscan.connector.options import Options, parse_options
from elasticscan.connector.sql.aggregates import SourceAggregates
from elasticscan.connector.sql.few_rows import (
    MOST_KEYS,
    FewRows,
    first_few,
    fold_few,
    read_few,
    read_joined,
    read_keys,
    read_parts,
)
from elasticscan.connector.sql.plan import PlannedJoin, QueryPlan, TableScan, TableShape
from elasticscan.connector.sql.query import AsOf
from elasticscan.filters import Column, In, Literal, Predicate
from elasticscan.store import MOST_FIRST, can_be_sorted

# Keys that a condition names, one by one; more of them are read as primary keys, or not at all.
MOST_LISTED = 300
# Where they are the first column of primary keys, so many in each of several reads.
LISTED_IN_PART = 1_000


@dataclass(frozen=True, slots=True)
class Read:
    """One reference: what is read, and its rows where that is done already."""

    scan: TableScan
    few: FewRows | None

    @property
    def identity(self) -> tuple[object, ...]:
        """Reads that have it in common are one."""
        scan = self.scan
        partial = None if scan.aggregates is None else scan.aggregates.partial
        by_keys = None if scan.keys is None else id(self.few)
        return scan.view, scan.columns, scan.filter, scan.limit, scan.as_of, partial, by_keys


class Reads:
    """Reads tables at a snapshot, each reference in the way that takes least.

    Args:
        uri: the store.
        tables: the table of each view.
        shapes: of each view.
        snapshot: where the query names no other.
        cores: on which Spark's tasks run together; None if that is not known.
    """

    def __init__(
        self,
        uri: str,
        tables: Mapping[str, str],
        shapes: Mapping[str, TableShape],
        snapshot: int,
        cores: int | None,
    ) -> None:
        self._uri, self._tables, self._shapes, self._snapshot = uri, tables, shapes, snapshot
        self._cores = cores

    def of(self, plan: QueryPlan) -> list[Read]:
        """Return the reads of a plan, in its order."""
        known: dict[tuple[object, ...], FewRows | None] = {}
        reads = []
        for scan in plan.scans:
            identity = Read(scan, None).identity
            if identity not in known:
                known[identity] = self._few(scan)
            few = known[identity]
            reads.append(Read(replace(scan, ended=few is not None and _gives_the_answer(scan, few)), few))
        tried: set[int] = set()
        for join in plan.joins:
            self._hand_over(join, reads, tried)
        return reads

    def _hand_over(self, join: PlannedJoin, reads: list[Read], tried: set[int]) -> None:
        needed, given = reads[join.needed], reads[join.given]
        if needed.few is not None or needed.scan.aggregates is not None or needed.scan.limit is not None:
            return
        plain = given.scan.aggregates is None and given.scan.limit is None
        if given.few is None and plain and join.by_key and join.given not in tried:
            tried.add(join.given)
            given = reads[join.given] = Read(given.scan, read_joined(self._options(given.scan)))
        if (
            given.few is None
            or given.scan.aggregates is not None
            or join.key not in given.few.rows.column_names
        ):
            return
        keys = given.few.rows.column(join.key).unique().drop_null()
        message = f"{len(keys):,} of {given.scan.alias}.{join.key} for {join.column}"
        few = read_keys(self._options(needed.scan), join.column, keys) if join.by_key else None
        if few is not None:
            reads[join.needed] = Read(replace(needed.scan, keys=message), few)
            return
        parts = self._parts(needed.scan, join.column, keys) if join.begins_key else []
        few = read_parts([self._options(replace(needed.scan, filter=part)) for part in parts])
        if few is not None:
            reads[join.needed] = Read(replace(needed.scan, keys=message), few)
            return
        condition = self._listed(needed.scan, join.column, keys, MOST_LISTED)
        if condition is not None:
            scan = replace(needed.scan, filter=condition, keys=message)
            reads[join.needed] = Read(scan, self._few(scan))

    def _parts(self, scan: TableScan, column: str, keys: pa.Array) -> list[str]:
        """Return the conditions of several reads with more keys than one is given."""
        if not MOST_LISTED < len(keys) <= MOST_KEYS:
            return []
        starts = range(0, len(keys), LISTED_IN_PART)
        parts = [self._listed(scan, column, keys.slice(at, LISTED_IN_PART), LISTED_IN_PART) for at in starts]
        return [] if None in parts else [part for part in parts if part is not None]

    def _listed(self, scan: TableScan, column: str, keys: pa.Array, most: int) -> str | None:
        """Return the condition of a scan with a list of keys; None if that is too long for one."""
        schema = self._shapes[scan.view].schema
        if not 0 < len(keys) <= most or scan.as_of is not None:
            return None
        kind = schema.field(column).type
        values = tuple(Literal(value, kind) for value in keys.to_pylist())
        listed = str(Predicate(In(Column((column,), kind), values)))
        text = listed if scan.filter is None else f"({scan.filter}) AND {listed}"
        try:
            return str(Predicate.parse(text, schema))
        except FilterError:
            return None

    def _few(self, scan: TableScan) -> FewRows | None:
        if scan.aggregates is not None:
            return fold_few(parse_options(self.options_of_fold(scan, scan.aggregates)), self._cores)
        few = read_few(self._options(scan), scan.limit)
        if few is None and scan.limit is not None and self.are_first_kept(scan):
            return first_few(self._options(scan), scan.limit, self._cores)
        return few

    def are_first_kept(self, scan: TableScan) -> bool:
        """Return True if the first rows of an order are found without an index, each task keeping its own."""
        limit = scan.limit
        if limit is None or not limit.order or limit.rows > MOST_FIRST:
            return False
        listed = all(term == term.strip() and "," not in term for term in limit.order)
        once = len({term.lower() for term in limit.order}) == len(limit.order)
        return listed and once and can_be_sorted(limit.order, self._shapes[scan.view].schema)

    def _options(self, scan: TableScan) -> Options:
        options = options_of(scan.columns, scan.filter, scan.as_of or self._snapshot)
        return parse_options({"store": self._uri, "table": self._tables[scan.view], **options})

    def options_of_fold(self, scan: TableScan, aggregates: SourceAggregates) -> dict[str, str]:
        options = options_of(None, scan.filter, scan.as_of or self._snapshot)
        place = {"url": self._uri, "table": self._tables[scan.view]}
        return {**place, **options, "partialAggregates": aggregates.partial.text()}


def _gives_the_answer(scan: TableScan, few: FewRows) -> bool:
    """Return True if nothing is left to Spark of a query's order, or of its groups."""
    return scan.tail is not None or (scan.aggregates is not None and scan.aggregates.are_whole(few.rows))


def options_of(
    columns: Sequence[str] | None,
    condition: str | None,
    snapshot: int | AsOf | None,
    most: int | None = None,
    order: Sequence[str] = (),
) -> dict[str, str]:
    """Return the options of a read by tasks, of so many rows each: the first of an order, if there is one."""
    by_time = isinstance(snapshot, AsOf) and snapshot.is_time
    number = snapshot.text if isinstance(snapshot, AsOf) else snapshot
    choices = {
        "columns": None if columns is None else ",".join(columns),
        "filter": condition,
        "timestampAsOf" if by_time else "versionAsOf": None if number is None else str(number),
        "maxRowsPerTask": None if most is None else str(most),
        "taskOrder": ",".join(order) or None,
    }
    return {name: value for name, value in choices.items() if value is not None}
