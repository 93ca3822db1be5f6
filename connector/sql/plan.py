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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from elasticscan.connector.sql.limits import RowLimit, can_be_listed, ordered_tail, row_limit
from elasticscan.connector.sql.query import Query, Reference, Session, UnreadableError, read_query
from elasticscan.connector.sql.tokens import quoted
from elasticscan.metadata import TableInfo


@dataclass(frozen=True, slots=True)
class TableScan:
    """The read of one reference to a table.

    Attributes:
        reference, table: the place in the query, and the table there.
        columns: the columns to read, in the table's order; None for all.
        why_all: why every column is read, where it is.
        filter: a condition that every row needed meets; None when there is none.
        complete: true if `filter` is all that the SELECT requires of a row.
        limit: the rows that suffice; None where the query may need all that meet the filter.
        aggregates: what tasks can compute of their own rows; None where Spark needs the rows.
        stayed: (condition, why) of conditions that Spark alone tests, and of aggregates that it computes.
        tail: where the query's last words stand, ORDER BY … LIMIT n, if the rows of `limit` are its answer.
    """

    reference: Reference
    table: TableInfo
    columns: tuple[str, ...] | None
    why_all: str | None
    filter: str | None
    complete: bool
    limit: RowLimit | None
    aggregates: SourceAggregates | None
    stayed: tuple[tuple[str, str], ...]
    tail: tuple[int, int] | None

    def options(self, newest: int) -> dict[str, str]:
        """Return the options of a read by tasks, each of which gives the first rows of a limit; of the newest
        snapshot, unless the query names another."""
        as_of, folded = self.reference.as_of, self.aggregates
        order = () if self.limit is None else self.limit.order
        choices = {
            "columns": None if folded or self.columns is None else ",".join(self.columns),
            "filter": self.filter,
            "timestampAsOf" if as_of and as_of.is_time else "versionAsOf": as_of.text
            if as_of
            else str(newest),
            "maxRowsPerTask": None if self.limit is None else str(self.limit.rows),
            "taskOrder": ",".join(order) or None,
            "partialAggregates": None if folded is None else folded.partial.text(),
        }
        return {name: value for name, value in choices.items() if value is not None}

    def edits(self, name: str, ended: bool) -> Iterator[Edit]:
        """Yield the changes of the query's text over a relation of this name, for `QueryPlan.rewritten`."""
        reference = self.reference
        yield reference.start, reference.end, quoted(name)
        if reference.alias_at is not None:
            yield reference.alias_at, reference.alias_at, f" AS {quoted(reference.alias)}"
        if self.aggregates is not None:
            whole = self.aggregates.edits_of_whole
            yield from whole if ended and whole is not None else self.aggregates.edits
        if ended and self.tail is not None:
            yield *self.tail, ""


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A query, and what each reference reads, in the order of the text."""

    text: str
    scans: tuple[TableScan, ...]

    def rewritten(self, names: Sequence[str], ended: Sequence[bool]) -> str:
        """Return the query over relations of these names, one for each scan; some have partial rows.

        Args:
            ended: whether a relation has the rows of a limit, in that order, so that the query's last words
                can go; or each group once, so that nothing is left to add up.
        """
        given = zip(self.scans, names, ended, strict=True)
        edits = [edit for scan, name, is_ended in given for edit in scan.edits(name, is_ended)]
        pieces, at = [], 0
        for start, end, text in sorted(edits, key=lambda edit: edit[:2]):
            pieces += [self.text[at:start], text]
            at = end
        return "".join([*pieces, self.text[at:]])


def plan_query(text: str, tables: Mapping[str, TableInfo], session: Session) -> QueryPlan:
    """Decide what each reference of a table reads.

    Raises:
        UnreadableError: the text is no query, or not one that can be taken apart for certain.
    """
    try:
        query = read_query(text, tables, session)
        scans = [scan for block in blocks_of(query) for scan in _scans(query, block, tables, session)]
    except (SqlglotError, RecursionError):
        raise UnreadableError("it is nested too deeply") from None
    return QueryPlan(text, tuple(sorted(scans, key=lambda scan: scan.reference.start)))


def _scans(
    query: Query, block: SelectBlock, tables: Mapping[str, TableInfo], session: Session
) -> Iterator[TableScan]:
    schemas = {reference.table: tables[reference.table].schema for reference in block.references}
    conditions = push_conditions(query, block, schemas, session)
    for reference in block.references:
        pushed, table = conditions[reference], tables[reference.table]
        limit = aggregates = tail = None
        stayed = pushed.stayed
        if is_aggregated(block.select):
            try:
                if len(block.references) == 1 and not pushed.complete:
                    raise NotFoldedError("Spark tests a condition first")
                aggregates = source_aggregates(query, block, reference, table.schema, session)
            except NotFoldedError as error:
                stayed = (*stayed, ("aggregates", str(error)))
        if pushed.complete:
            limit = row_limit(block, reference, table.schema)
            tail = None if limit is None else ordered_tail(query, block.select, reference)
        yield TableScan(
            reference,
            table,
            *_columns(query, block, reference, table),
            pushed.filter,
            pushed.complete,
            limit,
            aggregates,
            stayed,
            tail,
        )


def _columns(
    query: Query, block: SelectBlock, reference: Reference, table: TableInfo
) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the columns to read, and why that is all of them."""
    names = table.schema.names
    if not can_be_listed(names):
        return None, "names that a list cannot hold"
    needed = needed_columns(query, block, reference, names)
    if needed is None:
        return None, "*"
    if len(needed) == len(names):
        return None, "all are used"
    # Rows are counted by some column.
    return tuple(name for name in names if name in needed) or table.primary_key[:1], None
