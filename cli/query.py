"""aggregate, sql, explain."""

from __future__ import annotations

import math
import time
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import elasticscan
from elasticscan.base.errors import InvalidOption, UsageError
from elasticscan.cli.options import (
    Columns,
    Filter,
    IndexChoice,
    Json,
    OrderBy,
    Snapshot,
    Table,
    Uri,
    names_of,
)
from elasticscan.cli.output import answer, counted, listing, print_json_lines, say, show_rows
from elasticscan.cli.scan import SHOWN_ROWS

CHOSEN = "▶"


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
    json: Json = False,
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
    if json:
        print_json_lines(rows.to_pylist())
    else:
        show_rows(rows.schema, rows.to_pylist())
        say(f"{counted(rows.num_rows, 'group')}." if groups else "All rows as one group.")


def sql(
    uri: Uri,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT of DuckDB's SQL, in quotes.")],
    snapshot: Snapshot = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Print so many rows of the result.")] = None,
    json: Json = False,
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
        for name, table in _tables_at(store, snapshot).items():
            database.register(name, table)
        try:
            if [each.type for each in duckdb.extract_statements(query)] != [duckdb.StatementType.SELECT]:
                raise InvalidOption("sql takes one SELECT; update, delete, load and export do the rest")
            reader = database.sql(query).to_arrow_reader(SHOWN_ROWS * 1_000)
            rows = (row for batch in reader for row in batch.to_pylist())
            if json:
                return print_json_lines(islice(rows, limit))
            first = list(islice(rows, SHOWN_ROWS + 1 if limit is None else limit))
        except duckdb.Error as error:
            raise InvalidOption(f"DuckDB: {error}", option="QUERY") from error
    is_cut = limit is None and len(first) > SHOWN_ROWS
    number = show_rows(reader.schema, first[:SHOWN_ROWS] if is_cut else first)
    say(f"{counted(number, 'row')}{'; there are more: --limit, or --json for all' if is_cut else ''}.")


def _tables_at(store: elasticscan.Store, snapshot: int | str | None) -> dict[str, _AtSnapshot]:
    """Return the tables that a snapshot has; others were made after it."""
    at = store.status()["snapshot"] if snapshot is None else snapshot
    found, missing = dict[str, _AtSnapshot](), None
    for table in store.tables():
        try:
            table.scan(snapshot=at).close()
        except UsageError as error:  # it was made after the snapshot
            missing = error
        else:
            found[table.name] = _AtSnapshot(table, at)
    if missing is not None and not found:
        raise missing
    return found


class _AtSnapshot:
    """A table at a snapshot as an Arrow stream; each reference of a query gets a scan of its own."""

    def __init__(self, table: elasticscan.Table, snapshot: int | str) -> None:
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
    json: Json = False,
) -> None:
    """Explain how a scan would read, where, and why.

    Example: elasticscan explain trips.store trips --filter 'id < 10' --analyze
    """
    asked = index or "auto"
    with (
        elasticscan.open(uri) as store,
        store.table(table).scan(
            names_of(columns), filter, index=asked, order_by=order_by, snapshot=snapshot
        ) as begun,
    ):
        explained = begun.explain()
        explained["candidates"] = [
            # A candidate that cannot be chosen costs infinity, which JSON cannot write.
            each
            | {
                "cost": each["cost"] if math.isfinite(each["cost"]) else None,
                "chosen": each["access"] == explained["access"],
            }
            for each in explained["candidates"]
        ]
        explained |= {"actual": None}
        if analyze:
            began = time.monotonic()
            for _ in begun:
                pass
            seconds = round(time.monotonic() - began, 3)
            explained |= {"actual": begun.explain()["actual"] | {"seconds": seconds}}
    answer(json, explained, _drawn(explained, asked))


def _drawn(explained: dict[str, Any], index: str) -> RenderableType:
    title = f"   snapshot {explained['snapshot']}   filter {explained['filter'] or 'none'}"
    rows = []
    for each in explained["candidates"]:
        style = "bold" if each["chosen"] else "" if each["usable"] else "dim"
        notes = ["fetches rows"] if each["usable"] and not each["covered"] else []
        estimates: tuple[Any, ...] = ("", "", "", "")
        if each["cost"] is not None:
            numbers = round(each["rows_scanned"]), round(each["cost"])
            estimates = each["condition"] or "all", each["remainder"], *numbers
        rows.append(
            (
                CHOSEN if each["chosen"] else "",
                Text(each["access"], style),
                each["kind"] if each["kind"] != each["access"] else "",
                *estimates,
                "; ".join([*notes, each["reason"]] if each["reason"] else notes),
            )
        )
    candidates = listing(", access, kind, looks up, then tests, scans, cost, note", rows)
    direct, path = explained["ranges"] is None, explained["access"]
    how = "a direct scan" if direct else f"{path}, {counted(explained['ranges'], 'range')}"
    reads = (f"{part['scan']} of {part['slots']:,} slots at {part['shard']}" for part in explained["scans"])
    choice = (
        f"chosen: {how} ({'the cheapest' if index == 'auto' else f'asked for with --index {index}'})\n"
        f"columns: {', '.join(explained['columns'])}\n"
        f"reads: {', '.join(reads)}"
    )
    head = Text.assemble((explained["table"], "bold"), title)
    parts: list[RenderableType] = [head, "", candidates, "", Text(choice)]
    if (actual := explained["actual"]) is not None:
        (expected,) = (round(each["rows_scanned"]) for each in explained["candidates"] if each["chosen"])
        parts.append(
            f"analyzed: scanned {counted(actual['rows_scanned'], 'row')} (estimated {expected:,}), "
            f"returned {actual['rows_returned']:,}, skipped {actual['rows_skipped']:,} by statistics; "
            f"{counted(actual['pages'], 'page')}, {actual['seconds']:.3f} s"
        )
    return Group(*parts)
