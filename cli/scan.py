"""scan, changes, count, get: rows to the terminal, to stdout or to a file."""

from __future__ import annotations

import base64
import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer

import elasticscan
from elasticscan.backends import is_cluster, open_cluster
from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import DEFAULT_PAGE_ROWS
from elasticscan.base.redaction import shown
from elasticscan.base.user_files import naming_file
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
    pairs_of,
)
from elasticscan.cli.output import (
    answer,
    counted,
    print_json_line,
    print_json_lines,
    progress,
    say,
    show_rows,
)

# The rows that are shown when no option says how many.
SHOWN_ROWS = 20

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write .parquet, .csv or .arrow.")
]
Format = Annotated[
    Literal["table", "csv", "json"] | None,
    typer.Option("--format", help="To stdout, all rows; a table of the first rows by default."),
]
Pages = Annotated[
    int | None, typer.Option(min=1, help="Stop after so many pages, and print the key that continues.")
]
PageRows = Annotated[int, typer.Option(help="Most rows of a page.")]


def scan(
    uri: Uri,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Not needed with --key.")] = None,
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    index: IndexChoice = None,
    order_by: OrderBy = None,
    limit: Annotated[int | None, typer.Option(help="Return so many rows and no more.")] = None,
    pages: Pages = None,
    page_rows: PageRows = DEFAULT_PAGE_ROWS,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Continue where a scan stopped.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="Of a Redis or Valkey cluster, as model=json."),
    ] = None,
    output: Output = None,
    format_: Format = None,
    json: Json = False,
) -> None:
    """Read every row of a snapshot exactly once, while tablets move.

    Of a Redis or Valkey cluster (redis://host:7000/person) each key that exists throughout. Rows go to the
    terminal as a table (the first 20 by default), to stdout as one JSON object a line, or to a file. A scan
    that stops after some --pages prints the key that continues after them.

    Example: elasticscan scan trips.store trips --filter 'km > 9' --columns id,km -o trips.parquet
    """
    settings: dict[str, Any] = {
        "columns": names_of(columns),
        "filter": filter,
        "snapshot": snapshot,
        "index": index,
        "order_by": order_by,
        "limit": limit,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    form = "json" if json else format_
    is_preview = output is None and form is None and limit is None and pages is None
    if key is not None and given:
        name = f"--{next(iter(given)).replace('_', '-')}"
        raise InvalidOption(f"{name} cannot change a scan that has begun; leave it out", option=name)
    if is_preview and key is None:
        given |= {"limit": SHOWN_ROWS + 1}
    with _opened(uri, option) as store:
        if key is not None:
            begun = store.resume(key)
            if table not in (None, begun.explain()["table"]):
                raise InvalidOption(f"the key is not one of table {table!r}; leave TABLE out", option="--key")
        elif table is None and not is_cluster(uri):  # whose URL may name it
            raise InvalidOption("name a TABLE, or pass the --key of a scan that stopped", option="TABLE")
        else:
            begun = store.table(table or "").scan(page_rows=page_rows, **given)
        of = "of a cluster" if is_cluster(uri) else f"of snapshot {begun.snapshot}"
        _give(begun, islice(begun, pages), f"elasticscan scan {shown(uri)}", of, output, form, is_preview)


def changes(
    uri: Uri,
    table: Table,
    after: Annotated[
        str | None, typer.Option(help="The commit, tag or time after which to begin; all that is kept else.")
    ] = None,
    upto: Annotated[str | None, typer.Option(help="The last commit, tag or time; else the newest.")] = None,
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    pages: Pages = None,
    page_rows: PageRows = DEFAULT_PAGE_ROWS,
    output: Output = None,
    format_: Format = None,
    json: Json = False,
) -> None:
    """Read the changes of commits: each insert, update and delete exactly once, while tablets move.

    Rows have the columns _change_type, _commit_version and _commit_timestamp besides the table's own. After
    some --pages `scan --key` continues.

    Example: elasticscan changes trips.store trips --after 2026-03-01T12:00Z --json
    """
    form = "json" if json else format_
    is_preview = output is None and form is None and pages is None
    with elasticscan.open(uri) as store:
        begun = store.table(table).changes(after, upto, names_of(columns), filter, page_rows=page_rows)
        of = f"of changes up to commit {begun.snapshot}"
        _give(begun, islice(begun, pages), f"elasticscan scan {shown(uri)}", of, output, form, is_preview)


def count(
    uri: Uri,
    table: Table,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    json: Json = False,
) -> None:
    """Count the rows of a snapshot, or of a condition.

    Example: elasticscan count trips.store trips --filter "city = 'Oslo'"
    """
    with _opened(uri) as store:
        begun = store.table(table).scan(filter=filter, snapshot=snapshot)
        rows = begun.count()
    if is_cluster(uri):
        return answer(json, {"table": table, "rows": rows}, f"{counted(rows, 'key')}.")
    value = {"table": table, "rows": rows, "snapshot": begun.snapshot}
    answer(json, value, f"{counted(rows, 'row')} of snapshot {begun.snapshot}.")


def _opened(uri: str, options: list[str] | None = None) -> Any:
    """Open a store, or a cluster, whose columns have the types that its values fit."""
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
    output: Output = None,
    json: Json = False,
) -> None:
    """Read the rows that have some primary keys, in the order of the keys.

    Rows go to the terminal as a table, to stdout as one JSON object a line, or to a file. A key that is not
    there has no row.

    Example: elasticscan get trips.store trips 7 9
    """
    with elasticscan.open(uri) as store:
        opened = store.table(table)
        asked = keys_of(keys, pa.schema([opened.schema.field(name) for name in opened.primary_key]))
        rows = opened.get(asked, names_of(columns), snapshot)
    found = f"{rows.num_rows:,} of {counted(asked.num_rows, 'key')} found"
    if output is not None:
        with open_writer(output, rows.schema) as writer:
            writer.write_table(rows)
        value = {"output": str(output), "rows": rows.num_rows, "keys": asked.num_rows}
        answer(json, value, f"{found}; their rows were written to {output}.")
    elif json:
        print_json_lines(rows.to_pylist())
    else:
        show_rows(rows.schema, rows.to_pylist())
        say(f"{found}.")


def keys_of(texts: Sequence[str], fields: pa.Schema) -> pa.Table:
    """Parse keys as they are typed, of several columns as a line of CSV; binary values are base64."""
    try:
        rows = [[text] if len(fields) == 1 else next(csv.reader([text]), []) for text in texts]
        if any(len(row) != len(fields) for row in rows):
            raise InvalidOption(
                f"a KEY must have values of {', '.join(fields.names)}, as in 5,mon", option="KEY"
            )
        columns = [
            _parsed(values, field.type) for values, field in zip(zip(*rows, strict=True), fields, strict=True)
        ]
    except (pa.ArrowException, csv.Error, ValueError, NotImplementedError) as error:
        types = ", ".join(f"{field.name!r} {field.type}" for field in fields)
        raise InvalidOption(
            f"a KEY must have the type of its column ({types}): {error}", option="KEY"
        ) from error
    return pa.Table.from_arrays(columns, schema=fields)


def _parsed(texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    if "binary" in str(kind):
        return pa.array([base64.b64decode(text, validate=True) for text in texts], kind)
    return pa.array(texts, pa.string()).cast(kind)


@contextmanager
def open_writer(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """Open a file for record batches, by the end of its name; it has its name once it is complete."""
    files, partial = import_module("elasticscan.store"), path.with_name(f".{path.name}.partial")
    if (kind := files.kind_of(path.name)) is None:
        raise InvalidOption(f"{path} has no known format; name it .csv, .parquet or .arrow", file=str(path))
    try:
        with (
            naming_file(str(path), "written"),
            pa.OSFile(str(partial), "wb") as sink,
            files.open_file(kind, sink, schema) as writer,
        ):
            yield writer
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _give(
    begun: elasticscan.Scan,
    pages: Iterable[elasticscan.Page],
    command: str,
    of: str,
    output: Path | None,
    form: str | None,
    preview: bool,
) -> None:
    """Write the rows of pages to a file, to stdout, or as a table, perhaps of the first rows only."""
    if output is not None:
        _write(begun, pages, of, output, form == "json")
    elif form == "csv":
        with naming_file("stdout", "written"):
            sink = pa.PythonFile(sys.stdout.buffer, "w")
            with import_module("pyarrow.csv").CSVWriter(sink, begun.schema) as writer:
                for page in pages:
                    writer.write_batch(page.rows)
    elif form == "json":
        for page in pages:
            print_json_lines(page.rows.to_pylist())
    else:
        rows = (row for page in pages for row in page.rows.to_pylist())
        number, more = show_rows(begun.schema, islice(rows, SHOWN_ROWS if preview else None)), "."
        if preview and next(rows, None) is not None:
            more = "; there are more: --limit, --pages or --output."
        elif not preview and begun.key is not None:
            more = f"; there are more:\n{command} --key {begun.key}"
        say(f"{counted(number, 'row')} {of}{more}")
    if form in ("csv", "json") and output is None and begun.key is not None:
        print_json_line({"continuation_key": begun.key}, stderr=True)
    if preview or begun.key is None:
        begun.close()


def _write(
    begun: elasticscan.Scan, pages: Iterable[elasticscan.Page], of: str, path: Path, as_json: bool
) -> None:
    rows = 0
    with open_writer(path, begun.schema) as writer, progress(f"writing {path.name}") as update:
        for page in pages:
            writer.write_batch(page.rows)
            rows += page.rows.num_rows
            update(note=f"{rows:,} rows")
    value = {"output": str(path), "rows": rows, "snapshot": getattr(begun, "snapshot", None)}
    value["continuation_key"] = begun.key
    more = f"\nMore with --key {begun.key}" if begun.key else ""
    answer(as_json, value, f"{counted(rows, 'row')} {of} written to {path}.{more}")
