"""scan, changes, count, get: rows to the terminal or to stdout."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import islice
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer

import elasticscan
from elasticscan.backends import is_cluster, open_cluster
from elasticscan.base.errors import InvalidOption
from elasticscan.base.user_files import naming_file
from elasticscan.cli.options import (
    Columns,
    Filter,
    IndexChoice,
    OrderBy,
    Snapshot,
    Table,
    Uri,
    names_of,
    pairs_of,
)
from elasticscan.cli.output import (
    answer,
    counted,
    is_json,
    print_json_line,
    print_json_lines,
    say,
    show_rows,
)

# The rows that are shown when no option says how many.
SHOWN_ROWS = 20

Format = Annotated[
    Literal["csv", "json"] | None,
    typer.Option("--format", help="To stdout, all rows; a table of the first rows by default."),
]


def scan(
    uri: Uri,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A cluster's URL may name it.")] = "",
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    index: IndexChoice = None,
    order_by: OrderBy = None,
    limit: Annotated[int | None, typer.Option(help="Return so many rows and no more.")] = None,
    page_rows: Annotated[int | None, typer.Option(help="The most rows of a page.")] = None,
    pages: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many; the key of the rest goes to stderr.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Continue where a scan stopped; without a TABLE.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="Of a Redis or Valkey cluster, as model=json."),
    ] = None,
    format_: Format = None,
) -> None:
    """Read every row of a snapshot exactly once, while tablets move.

    Of a Redis or Valkey cluster (redis://host:7000/person) each key that exists throughout. Rows go to the
    terminal as a table (the first 20 by default), or to stdout as one JSON object a line or as CSV; `export`
    writes files. A scan stops at any page and goes on elsewhere by its key, also after moves.

    Example: elasticscan scan trips.store trips --filter 'km > 9' --columns id,km --format csv
    """
    settings = {
        "columns": names_of(columns),
        "filter": filter,
        "snapshot": snapshot,
        "index": index,
        "order_by": order_by,
        "limit": limit,
        "page_rows": page_rows,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    if key is not None and (table or given):
        name = next(iter(given), "TABLE").replace("_", "-")
        raise InvalidOption(f"--key goes on with a scan as it was begun; leave {name} out", option=name)
    is_preview = limit is None and pages is None and format_ is None and not is_json()
    if is_preview and key is None:
        given["limit"] = SHOWN_ROWS + 1
    with _opened(uri, option) as store:
        begun = store.table(table).scan(**given) if key is None else store.resume(key)
        of = "of a cluster" if is_cluster(uri) else f"of snapshot {begun.snapshot}"
        batches = (page.rows for page in islice(begun, pages))
        try:
            print_rows(begun.schema, batches, format_, of, SHOWN_ROWS if is_preview else None)
        finally:
            if pages is None or begun.key is None:  # else the rest stays readable
                begun.close()
        if pages is not None and begun.key is not None:
            print_json_line({"continuation_key": begun.key}, stderr=True)


def changes(
    uri: Uri,
    table: Table,
    after: Annotated[
        str | None, typer.Option(help="The commit, tag or time after which to begin; all that is kept else.")
    ] = None,
    upto: Annotated[str | None, typer.Option(help="The last commit, tag or time; else the newest.")] = None,
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    format_: Format = None,
) -> None:
    """Read the changes of commits: each insert, update and delete exactly once, while tablets move.

    Rows have the columns _change_type, _commit_version and _commit_timestamp besides the table's own.

    Example: elasticscan changes trips.store trips --after 2026-03-01T12:00Z --json
    """
    with (
        elasticscan.open(uri) as store,
        store.table(table).changes(after, upto, names_of(columns), filter) as begun,
    ):
        of = f"of changes up to commit {begun.snapshot}"
        print_rows(begun.schema, begun.batches(), format_, of, SHOWN_ROWS)


def print_rows(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: str | None, of: str, most: int | None
) -> None:
    """Print rows as CSV or JSON lines, or the first `most` as a table for people."""
    if form == "csv" and not is_json():
        with naming_file("stdout", "written"):
            sink = pa.PythonFile(sys.stdout.buffer, "w")
            with import_module("pyarrow.csv").CSVWriter(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        return
    rows = (row for batch in batches for row in batch.to_pylist())
    if form == "json" or is_json():
        return print_json_lines(rows)
    number = show_rows(schema, islice(rows, most))
    more = "; there are more: --limit or --format" if next(rows, None) is not None else ""
    say(f"{counted(number, 'row')} {of}{more}.")


def count(
    uri: Uri,
    table: Table,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
) -> None:
    """Count the rows of a snapshot, or of a condition.

    Example: elasticscan count trips.store trips --filter "city = 'Oslo'"
    """
    with _opened(uri) as store:
        begun = store.table(table).scan(filter=filter, snapshot=snapshot)
        rows = begun.count()
    if is_cluster(uri):
        return answer({"table": table, "rows": rows}, f"{counted(rows, 'key')}.")
    value = {"table": table, "rows": rows, "snapshot": begun.snapshot}
    answer(value, f"{counted(rows, 'row')} of snapshot {begun.snapshot}.")


def _opened(uri: str, options: list[str] | None = None) -> Any:
    """Open a store, or a cluster with inferred column types."""
    if is_cluster(uri):
        return open_cluster(uri, **{"inferSchema": "true"} | pairs_of(options, "--option"))
    return elasticscan.open(uri)


def get(
    uri: Uri,
    table: Table,
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help="Of several columns: 5,mon as in CSV. Before -5: --"),
    ],
    columns: Columns = None,
    snapshot: Snapshot = None,
) -> None:
    """Read the rows of primary keys, in the order of the keys.

    Rows go to the terminal as a table, or to stdout as one JSON object a line. A key that is not there has
    no row.

    Example: elasticscan get trips.store trips 7 9
    """
    with elasticscan.open(uri) as store:
        opened = store.table(table)
        rows = opened.get(keys_of(keys, opened), names_of(columns), snapshot)
    of = f"of {counted(len(keys), 'key')}"
    print_rows(rows.schema, rows.to_batches(), None, of, None)


def keys_of(texts: Sequence[str], table: elasticscan.Table) -> pa.Table:
    """Parse keys as they are typed, of several columns as a line of CSV."""
    fields = pa.schema([table.schema.field(name) for name in table.primary_key])
    try:
        rows = [[text] if len(fields) == 1 else next(csv.reader([text]), []) for text in texts]
        given: dict[str, list[str]] = {field.name: [] for field in fields}
        for row in rows:
            for name, text in zip(fields.names, row, strict=True):
                given[name].append(text)
        return pa.table(given).cast(fields)
    except (pa.ArrowException, csv.Error, ValueError, NotImplementedError) as error:
        types = ", ".join(f"{field.name} {field.type}" for field in fields)
        raise InvalidOption(
            f"a KEY must have values of {types}, as in 5,mon: {error}", option="KEY"
        ) from error
