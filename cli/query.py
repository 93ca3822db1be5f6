"""aggregate, sql, explain."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import elasticscan
from elasticscan.base.errors import InvalidOption
from elasticscan.cli.options import (
    Columns,
    Filter,
    IndexChoice,
    OrderBy,
    Snapshot,
    Table,
    Uri,
    names_of,
)
from elasticscan.cli.output import answer, listing
from elasticscan.cli.rows import SHOWN_ROWS, print_rows


def aggregate(
    uri: Uri,
    table: Table,
    values: Annotated[
        list[str],
        typer.Argument(metavar="VALUE...", help='"count(*)", "sum(km) AS km", "count(DISTINCT city)", …'),
    ],
    by: Annotated[list[str] | None, typer.Option(metavar="A,B", help="The columns to group by.")] = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
) -> None:
    """Compute count, sum, min, max and avg of a snapshot's rows, by group.

    Each row counts once, while tablets move; types and results are Spark's. Groups are in the order of their
    columns.

    Example: elasticscan aggregate trips.store trips 'count(*)' 'avg(km) AS km' --by city
    """
    groups = names_of(by) or []
    with elasticscan.open(uri) as store:
        rows = store.table(table).aggregate(values, groups, filter, snapshot)
    if groups:
        rows = rows.sort_by([(name, "ascending") for name in groups])
    print_rows(rows.schema, rows.to_batches(), None, "of the result", None)


def sql(
    uri: Uri,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT of DuckDB's SQL, in quotes.")],
    limit: Annotated[int | None, typer.Option(min=0, help="Print so many rows of the result.")] = None,
) -> None:
    """Query the tables of a store with DuckDB: all of them at one snapshot, each row once.

    Every table that the query names is read as a whole, a page at a time; conditions are DuckDB's. For few
    rows of a large table, scan, get and aggregate use its indexes. Needs pip install 'elasticscan\\[sql]'.

    Example: elasticscan sql trips.store 'SELECT city, count(*) FROM trips GROUP BY ALL'
    """
    try:
        import duckdb  # an optional extra  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InvalidOption("sql needs the package 'duckdb': pip install 'elasticscan[sql]'") from None
    with elasticscan.open(uri) as store, duckdb.connect() as database:
        tables = store.tables()
        snapshot = store.status()["snapshot"]
        for table in tables:
            database.register(table.name, _AtSnapshot(table, snapshot))
        try:
            if [each.type for each in duckdb.extract_statements(query)] != [duckdb.StatementType.SELECT]:
                raise InvalidOption("sql takes one SELECT; update, delete, load and export do the rest")
            found = database.sql(query)
            reader = (found if limit is None else found.limit(limit)).to_arrow_reader(SHOWN_ROWS * 1_000)
            most = None if limit is not None else SHOWN_ROWS
            print_rows(reader.schema, reader, None, "of the result", most)
        except duckdb.Error as error:
            raise InvalidOption(f"DuckDB: {error}", option="QUERY") from error


class _AtSnapshot:
    """A table at a snapshot as an Arrow stream; each reference of a query gets a scan of its own."""

    def __init__(self, table: elasticscan.Table, snapshot: int) -> None:
        self._table, self._snapshot = table, snapshot

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.scan(snapshot=self._snapshot).__arrow_c_stream__(requested_schema)


def explain(
    uri: Uri,
    table: Table,
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    index: IndexChoice = None,
    order_by: OrderBy = None,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Run the scan, and compare the estimates with it.")
    ] = False,
) -> None:
    """Explain how a scan would read, where, and why.

    Example: elasticscan explain trips.store trips --filter 'id < 10' --analyze
    """
    with (
        elasticscan.open(uri) as store,
        store.table(table).scan(
            names_of(columns), filter, index=index or "auto", order_by=order_by, snapshot=snapshot
        ) as begun,
    ):
        explained = begun.explain()
        if analyze:
            begun.count()
            explained["actual"] = begun.explain()["actual"]
    rows = [
        (
            Text(each["access"], "bold" if each["access"] == explained["access"] else ""),
            *(
                (each["condition"], each["remainder"], round(each["rows_scanned"]))
                if each["usable"]
                else 3 * [None]
            ),
            each["reason"],
        )
        for each in explained["candidates"]
    ]
    actual = ", ".join(f"{name} {number:,}" for name, number in explained["actual"].items())
    text: tuple[RenderableType, ...] = (
        f"{table}   snapshot {explained['snapshot']}   filter {explained['filter'] or 'none'}",
        listing(["access", "looks up", "then tests", "scans", "note"], rows),
        f"chosen: {explained['access']}{f' ({actual})' if analyze else ''}",
        *(
            f"reads: {part['scan']} of {part['slots']:,} slots at {part['shard']}"
            for part in explained["scans"]
        ),
    )
    answer(explained, Group(*text))
