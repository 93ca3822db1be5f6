"""The needs of a query from each table, decided before Spark sees it.

    plan = plan_query("SELECT f.origin FROM flights f WHERE f.dep_delay > 60", tables, Session())
    plan.scans[0].columns, plan.scans[0].filter      # ('origin', 'dep_delay'), 'dep_delay > 60'
    plan.rewritten(["v1"])                           # "SELECT f.origin FROM `v1` f WHERE ..."

Each reference of a table is given the name of a relation of its own. Every condition stays where it was, so
what a relation leaves out can only be rows and columns that the query had not used. Nothing else of the text
changes, but where a relation gives partial rows: there the aggregates add these up, and no condition is left
(`aggregates`); and where it gives the very rows that an `ORDER BY … LIMIT n` at the query's end asks for,
in that order: there these words go, and with them a sort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot.errors import SqlglotError

from elasticscan.connector.sql.aggregates import (
    Edit,
    NotFoldedError,
    SourceAggregates,
    is_aggregated,
    source_aggregates,
)
from elasticscan.connector.sql.columns import needed_columns
from elasticscan.connector.sql.conditions import push_conditions
from elasticscan.connector.sql.joins import SelectBlock, blocks_of
from elasticscan.connector.sql.limits import RowLimit, ordered_tail, row_limit
from elasticscan.connector.sql.query import AsOf, Query, Reference, Session, UnreadableError, read_query
from elasticscan.connector.sql.tokens import quoted


@dataclass(frozen=True, slots=True)
class TableShape:
    """A plan's view of a table."""

    schema: pa.Schema
    key: str


@dataclass(frozen=True, slots=True)
class TableScan:
    """The read of one reference to a table.

    Attributes:
        view: the table's view, as it was attached.
        alias: its name in the query.
        columns: the columns to read, in the table's order; None for all.
        filter: a condition that every row needed meets; None when there is none.
        limit: the rows that suffice; None where the query may need all that meet the filter.
        aggregates: what tasks can compute of their own rows; None where Spark needs the rows.
        why_all: why every column is read, where it is.
        stayed: (condition, why) of conditions that Spark alone tests, and of aggregates that it computes.
        complete: true if `filter` is all that the SELECT requires of a row.
        as_of: the snapshot that the query names; None for the newest.
        tail: where the query's last words stand, ORDER BY … LIMIT n, if the rows of `limit` are its answer.
        ended: true if the relation gives these rows, in that order, so that the last words can go; or each
            group once, so that nothing is left to add up.
    """

    view: str
    alias: str
    columns: tuple[str, ...] | None
    filter: str | None
    limit: RowLimit | None
    aggregates: SourceAggregates | None
    why_all: str | None
    stayed: tuple[tuple[str, str], ...]
    complete: bool
    as_of: AsOf | None
    tail: tuple[int, int] | None = None
    ended: bool = False

    def options(self, newest: int) -> dict[str, str]:
        """Return the options of a read by tasks, each of which gives the first rows of a limit; of the newest
        snapshot, unless the query names another."""
        by_time = self.as_of is not None and self.as_of.is_time
        folded = self.aggregates is not None
        order = () if self.limit is None else self.limit.order
        choices = {
            "columns": None if folded or self.columns is None else ",".join(self.columns),
            "filter": self.filter,
            "timestampAsOf" if by_time else "versionAsOf": str(newest)
            if self.as_of is None
            else self.as_of.text,
            "maxRowsPerTask": None if self.limit is None else str(self.limit.rows),
            "taskOrder": ",".join(order) or None,
            "partialAggregates": None if self.aggregates is None else self.aggregates.partial.text(),
        }
        return {name: value for name, value in choices.items() if value is not None}


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A query, what each reference reads, in the order of the text, and the tables it was planned for."""

    text: str
    scans: tuple[TableScan, ...]
    _references: tuple[Reference, ...]
    shapes: Mapping[str, TableShape]

    def rewritten(self, names: Sequence[str]) -> str:
        """Return the query over relations of these names, one for each scan; some have partial rows."""
        edits: list[Edit] = []
        for reference, scan, name in zip(self._references, self.scans, names, strict=True):
            edits.append((reference.start, reference.end, quoted(name)))
            if reference.alias_at is not None:
                edits.append((reference.alias_at, reference.alias_at, f" AS {quoted(reference.alias)}"))
            if scan.aggregates is not None:
                whole = scan.aggregates.edits_of_whole
                edits += whole if scan.ended and whole is not None else scan.aggregates.edits
            if scan.ended and scan.tail is not None:
                edits.append((*scan.tail, ""))
        pieces, at = [], 0
        for start, end, text in sorted(edits, key=lambda edit: edit[:2]):
            pieces += [self.text[at:start], text]
            at = end
        return "".join([*pieces, self.text[at:]])


def plan_query(text: str, tables: Mapping[str, TableShape], session: Session) -> QueryPlan:
    """Decide what each reference of a table reads.

    Raises:
        UnreadableError: the text is no query, or not one that can be taken apart for certain.
    """
    try:
        query = read_query(text, tables, session)
        blocks = blocks_of(query)
        if sorted(reference.start for block in blocks for reference in block.references) != [
            reference.start for reference in query.references
        ]:
            raise UnreadableError("a table stands where none was expected")
        scans = {}
        for block in blocks:
            scans.update(_scans(query, block, tables, session))
    except (SqlglotError, RecursionError):
        raise UnreadableError("it is nested too deeply") from None
    ordered = tuple(scans[reference] for reference in query.references)
    return QueryPlan(text, ordered, query.references, tables)


def _scans(
    query: Query, block: SelectBlock, tables: Mapping[str, TableShape], session: Session
) -> dict[Reference, TableScan]:
    schemas = {reference.table: tables[reference.table].schema for reference in block.references}
    conditions = push_conditions(query, block, schemas, session)
    scans = {}
    for reference in block.references:
        columns, why = _columns(query, block, reference, tables[reference.table])
        pushed = conditions[reference]
        limit = aggregates = tail = None
        stayed = pushed.stayed
        if is_aggregated(block.select):
            try:
                if len(block.references) == 1 and not pushed.complete:
                    raise NotFoldedError("Spark tests a condition first")
                aggregates = source_aggregates(query, block, reference, schemas[reference.table], session)
            except NotFoldedError as error:
                stayed = (*stayed, ("aggregates", str(error)))
        if pushed.complete:
            limit = row_limit(block, reference, schemas[reference.table])
            tail = None if limit is None else ordered_tail(query, block.select, reference)
        scans[reference] = TableScan(
            reference.table,
            reference.alias,
            columns,
            pushed.filter,
            limit,
            aggregates,
            why,
            stayed,
            pushed.complete,
            reference.as_of,
            tail=tail,
        )
    return scans


def _columns(
    query: Query, block: SelectBlock, reference: Reference, table: TableShape
) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the columns to read, and why that is all of them."""
    names = table.schema.names
    if not _can_be_chosen(names):
        return None, "names that a list cannot hold"
    needed = needed_columns(query, block, reference, names)
    if needed is None:
        return None, "*"
    if len(needed) == len(names):
        return None, "all are used"
    # Rows are counted by some column.
    return tuple(name for name in names if name in needed) or (table.key,), None


def _can_be_chosen(names: Sequence[str]) -> bool:
    """Return True if the option `columns` can name each of them."""
    plain = all(name and name == name.strip() and "," not in name for name in names)
    return plain and len({name.lower() for name in names}) == len(names)
