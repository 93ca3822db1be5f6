"""The plan of a query: what each reference of a table reads, decided before Spark parses the query.

    plan = plan_query("SELECT f.origin FROM flights f WHERE f.dep_delay > 60", tables, Session())
    plan.scans[0].columns, plan.scans[0].filter      # ('origin', 'dep_delay'), 'dep_delay > 60'
    plan.rewritten(["v1"], [False])                  # "SELECT f.origin FROM `v1` f WHERE ..."

Each reference of a table is replaced by the name of a relation. Every condition stays in the query, so a
relation may omit only rows and columns that the query does not use. The rest of the text changes in two
cases: if a relation has partial rows, the aggregates add them up, and the WHERE is removed (`aggregates`). If
one reader returns exactly the rows of an `ORDER BY … LIMIT n` at the end of the query, in that order, these
clauses are removed, which saves a sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlglot import exp
from sqlglot.errors import SqlglotError

from elasticscan.connector.options import PartialAggregates
from elasticscan.connector.sql.aggregates import AggregateRewriting, is_aggregated
from elasticscan.connector.sql.conditions import push_conditions
from elasticscan.connector.sql.joins import SelectBlock, blocks_of
from elasticscan.connector.sql.limits import RowLimit, can_be_listed, ordered_tail, row_limit
from elasticscan.connector.sql.query import Edit, Query, Reference, Session, read_query
from elasticscan.connector.sql.tokens import NotUnderstoodError, quoted
from elasticscan.metadata import TableInfo


@dataclass(frozen=True, slots=True)
class TableScan:
    """The read of one reference to a table.

    Attributes:
        columns: the columns to read, in the table's order; None for all.
        why_all: why all columns are read.
        filter: a condition that each row must meet, or None.
        complete: whether `filter` contains all conditions of the SELECT.
        limit: the number of rows that suffice; None if the query may need all that meet the filter.
        partial: aggregates that tasks compute over their rows; None if Spark needs the rows.
        stayed: (condition, why) of conditions that only Spark tests, and of aggregates that it computes.
        edits: edits of the query's text for a relation of partial rows.
        ended: edits for a relation that one reader made, which remove ORDER BY … LIMIT n, or GROUP BY; None
            if Spark needs these clauses anyway.
    """

    reference: Reference
    table: TableInfo
    columns: tuple[str, ...] | None
    why_all: str | None
    filter: str | None
    complete: bool
    limit: RowLimit | None
    partial: PartialAggregates | None
    stayed: tuple[tuple[str, str], ...]
    edits: tuple[Edit, ...] = ()
    ended: tuple[Edit, ...] | None = None

    def options(self, newest: int) -> dict[str, str]:
        """Return the options of the read, at the newest snapshot unless the query names another one."""
        order = () if self.limit is None else self.limit.order
        snapshot, text = self.reference.as_of or ("versionAsOf", str(newest))
        choices = {
            "columns": None if self.partial or self.columns is None else ",".join(self.columns),
            "filter": self.filter,
            snapshot: text,
            "maxRowsPerTask": None if self.limit is None else str(self.limit.rows),
            "taskOrder": ",".join(order) or None,
            "partialAggregates": None if self.partial is None else self.partial.text(),
        }
        return {name: value for name, value in choices.items() if value is not None}

    def explained(self, name: str, rows_here: int | None) -> str:
        """Return a text about the read, for people."""
        reference, total = self.reference, len(self.table.schema)
        lines = [name if reference.alias == reference.table else f"{name} AS {reference.alias}"]
        if reference.as_of is not None:
            lines.append(f"  as of    {reference.as_of[1]}")
        if self.columns is None:
            lines.append(f"  columns  all {total}: {self.why_all}")
        else:
            lines.append(f"  columns  {', '.join(self.columns)} ({len(self.columns)} of {total})")
        lines.append(f"  filter   {self.filter or 'none'}")
        if self.limit is not None:
            order = f" in the order of {', '.join(self.limit.order)}" if self.limit.order else ""
            lines.append(f"  limit    {self.limit.rows:,}{order}")
        if self.partial is not None:
            by = f" by {', '.join(self.partial.by)}" if self.partial.by else ""
            rest = (
                "each group once"
                if rows_here is not None and self.ended is not None
                else "partial rows, added up by Spark"
            )
            lines.append(f"  folded   {', '.join(self.partial.values) or 'rows'}{by}: {rest}")
        if rows_here is not None:
            lines.append(f"  read     in the driver: {rows_here:,} rows")
        lines += [f"  stays    {condition}: {why}" for condition, why in self.stayed]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A query and the reads of its references, in the order of the text."""

    text: str
    scans: tuple[TableScan, ...]

    def rewritten(self, names: Sequence[str], complete: Sequence[bool]) -> str:
        """Return the query over one relation for each scan.

        Args:
            names: the names of the relations.
            complete: for each relation, whether one reader made it.
        """
        edits, pieces, at = list[Edit](), list[str](), 0
        for scan, name, is_complete in zip(self.scans, names, complete, strict=True):
            place = scan.reference
            alias = "" if place.node.alias else f" AS {quoted(place.alias)}"
            edits.append((place.start, place.end, quoted(name) + alias))
            edits += scan.ended if is_complete and scan.ended is not None else scan.edits
        for start, end, text in sorted(edits, key=lambda edit: edit[:2]):
            pieces += [self.text[at:start], text]
            at = end
        return "".join([*pieces, self.text[at:]])

    def explained(self, snapshot: int, rows_here: Sequence[int | None]) -> str:
        """Return a text about the scans and the query that Spark runs, for people.

        `rows_here` has the number of rows of each scan that the driver makes, None for a scan by tasks.
        """
        names = [f"{scan.reference.table}#{number}" for number, scan in enumerate(self.scans, 1)]
        given = zip(self.scans, names, rows_here, strict=True)
        parts = [scan.explained(name, rows) for scan, name, rows in given]
        text = self.rewritten(names, [rows is not None for rows in rows_here])
        return "\n\n".join([f"snapshot {snapshot}", *parts, text.strip()])


def plan_query(text: str, tables: Mapping[str, TableInfo], session: Session) -> QueryPlan:
    """Return the plan of a query. Raises `NotUnderstoodError` if it is not understood with certainty."""
    try:
        query = read_query(text, tables, session)
        scans = [scan for block in blocks_of(query) for scan in _scans(query, block, tables, session)]
    except (SqlglotError, RecursionError):
        raise NotUnderstoodError("it is nested too deeply") from None
    return QueryPlan(text, tuple(sorted(scans, key=lambda scan: scan.reference.start)))


def _scans(
    query: Query, block: SelectBlock, tables: Mapping[str, TableInfo], session: Session
) -> Iterator[TableScan]:
    schemas = {reference.table: tables[reference.table].schema for reference in block.references}
    filters, spark_tests, is_complete = push_conditions(query, block, schemas, session)
    for reference in block.references:
        table, stayed = tables[reference.table], tuple(spark_tests[reference])
        limit, partial, edits, ended = None, None, tuple[Edit, ...](), None
        if is_aggregated(block.select):
            try:
                if len(block.references) == 1 and not is_complete:
                    raise NotUnderstoodError("Spark must test a condition before")
                rewriting = AggregateRewriting(query, block.select, reference, table.schema, session)
                partial, edits, ended = rewriting.result()
            except NotUnderstoodError as error:
                stayed = (*stayed, ("aggregates", str(error)))
        elif is_complete and (limit := row_limit(block, reference, table.schema)) is not None:
            ended = ordered_tail(query, block.select, reference)
        columns, pushed = _columns(query, block, reference, table), filters[reference]
        yield TableScan(reference, table, *columns, pushed, is_complete, limit, partial, stayed, edits, ended)


def _columns(
    query: Query, block: SelectBlock, reference: Reference, table: TableInfo
) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the columns to read; or None, and why all are read.

    Spark resolves names by scope. Here a column is needed if its name occurs anywhere in the SELECT that
    reads the table (or in its sub-queries), alone or after the table's alias. A column name that two tables
    have is read from both, so that an ambiguous name stays ambiguous in Spark.
    """
    columns = table.schema.names
    if not can_be_listed(columns):
        return None, "names that a list cannot hold"
    region: exp.Expr = block.select
    # An ORDER BY after a SELECT in parentheses can name columns of this SELECT.
    while isinstance(region.parent, exp.Subquery):
        region = region.parent
    alias = reference.alias.lower()
    names = set(query.words)
    for node in region.walk():
        if isinstance(node, exp.Star):
            if _takes_all(node, block.select, alias):
                return None, "*"
        elif isinstance(node, exp.Column):
            parts = [part.name.lower() for part in node.parts]
            names.add(parts[0])
            names.update(after for part, after in pairwise(parts) if part == alias)
        elif isinstance(node, exp.Identifier) and not _defines(node):
            names.add(node.name.lower())
    needed = tuple(column for column in columns if column.lower() in names)
    if len(needed) == len(columns):
        return None, "all are used"
    return needed or table.primary_key[:1], None  # counting rows needs a column


def _defines(name: exp.Identifier) -> bool:
    """Return True if the identifier defines an alias, or is a part of a column's or table's name."""
    if isinstance(name.parent, exp.Alias):
        return name.arg_key == "alias"
    return isinstance(name.parent, exp.Column | exp.Table | exp.TableAlias)


def _takes_all(star: exp.Star, select: exp.Select, alias: str) -> bool:
    parent = star.parent
    if isinstance(parent, exp.Column):
        # `f.*` takes all columns of f; `f.struct.*` only reads the column `struct`.
        return parent.parts[-2].name.lower() == alias
    if isinstance(parent, exp.Count) and not any(star.args.values()):
        return False
    if isinstance(parent, exp.Dot):
        return alias in {part.name.lower() for part in parent.find_all(exp.Identifier)}
    owner = star.find_ancestor(exp.Select)
    if owner is not None and star.parent is owner and isinstance(owner.parent, exp.Exists):
        return False
    # In a SELECT without FROM, `*` means the columns of the outer SELECT.
    while owner is not None and owner is not select and owner.args.get("from_") is None:
        owner = owner.find_ancestor(exp.Select)
    return owner is None or owner is select
