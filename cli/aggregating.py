"""aggregate: counts, sums, extremes and averages of a table, by group."""

from __future__ import annotations

from typing import Annotated

import typer

from elasticscan.cli.options import Filter, Json, Snapshot, Table, Uri, names_of, snapshot_of
from elasticscan.cli.output import console, counted, print_json_lines
from elasticscan.cli.scanning import show_rows
from elasticscan.store import Store


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

    Each row counts once, while tablets move; types and results are those of Spark. Groups come in the order
    of their columns.
    """
    with Store.open(uri) as store:
        groups = names_of(by) or []
        rows = store.table(table).aggregate(values, groups, filter, snapshot_of(snapshot))
    if groups:
        rows = rows.sort_by([(name, "ascending") for name in groups])
    if json:
        print_json_lines(rows.to_pylist())
        return
    show_rows(rows.schema, rows.to_pylist())
    console().print(f"{counted(rows.num_rows, 'group')}." if groups else "All rows as one group.")
