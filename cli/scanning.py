"""scan, changes, count: rows to the terminal, to stdout or to a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.markup import escape

from elasticscan.base.errors import InvalidOption
from elasticscan.base.json_text import plain
from elasticscan.base.limits import DEFAULT_PAGE_ROWS
from elasticscan.base.redaction import shown
from elasticscan.base.showing import brief
from elasticscan.cli.files import known_kind, open_writer, print_csv
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
    plain_name,
    snapshot_of,
)
from elasticscan.cli.output import (
    Listing,
    answer,
    console,
    counted,
    print_json_line,
    print_json_lines,
    printable,
    progress,
)
from elasticscan.store import Page, Scan, Store, feed_fields

# The rows that are shown when no option says how many.
SHOWN_ROWS = 20
FEED = {field.name for field in feed_fields()}

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write .parquet, .csv or .arrow.")
]

CSV, JSON = "csv", "json"
TABLE = "table"
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help="To stdout as table, csv or json, all rows; a table of the first by default."
    ),
]
Pages = Annotated[int | None, typer.Option(min=1, help="Stop after so many pages, and tell the key.")]
PageRows = Annotated[int, typer.Option(help="Most rows of a page.")]


def scan(
    uri: Uri,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Not needed with --key.", callback=plain_name)
    ] = None,
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    index: IndexChoice = None,
    order_by: OrderBy = None,
    limit: Annotated[int | None, typer.Option(help="Give so many rows and no more.")] = None,
    pages: Pages = None,
    page_rows: PageRows = DEFAULT_PAGE_ROWS,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Go on where a scan stopped.")] = None,
    output: Output = None,
    format_: Format = None,
    json: Json = False,
) -> None:
    """Read every row of a snapshot exactly once, while tablets move.

    Rows go to the terminal as a table (the first 20, unless told otherwise), to stdout as one JSON
    object a line, or to a file. A scan that stops after some --pages prints the key that goes on after them.
    """
    if output is not None:
        known_kind(output)
    voice = _voice(format_, output, json)
    glance = limit is None and pages is None and output is None and voice is None
    settings = {
        "columns": names_of(columns),
        "filter": filter,
        "snapshot": snapshot_of(snapshot),
        "index": index,
        "order_by": order_by,
        "limit": SHOWN_ROWS + 1 if glance and key is None else limit,
    }
    with Store.open(uri) as store:
        begun = _begin(store, table, key, settings, page_rows)
        tell(begun, islice(begun, pages), uri, output, glance, voice)


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
    """Read what commits did: each insert, update and delete exactly once, while tablets move.

    Rows have the columns _change_type, _commit_version and _commit_timestamp alongside the table's own. What
    stops after some --pages goes on with `scan --key`.
    """
    if output is not None:
        known_kind(output)
    voice = _voice(format_, output, json)
    with Store.open(uri) as store:
        begun = store.table(table).changes(
            snapshot_of(after), snapshot_of(upto), names_of(columns), filter, page_rows=page_rows
        )
        glance = pages is None and output is None and voice is None
        tell(begun, islice(begun, pages), uri, output, glance, voice)


def count(
    uri: Uri,
    table: Table,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    json: Json = False,
) -> None:
    """Count the rows of a snapshot, or those that meet a condition."""
    with Store.open(uri) as store:
        begun = store.table(table).scan(filter=filter, snapshot=snapshot_of(snapshot))
        rows = begun.count()
    answer(
        json,
        {"table": table, "rows": rows, "snapshot": begun.snapshot},
        f"{counted(rows, 'row')} of snapshot {begun.snapshot}.",
    )


def _voice(format_: str | None, output: Path | None, json: bool) -> str | None:
    """The form of rows on stdout; None where nobody asked for one."""
    voice = format_ or (JSON if json else None)
    if voice not in (None, TABLE, CSV, JSON):
        raise InvalidOption(
            f"--format {brief(voice)} must be table, csv or json; --output FILE writes Parquet and Arrow",
            option="--format",
        )
    if format_ is not None and (output is not None or (json and format_ != JSON)):
        other = "--json" if output is None else "--output"
        raise InvalidOption(f"--format and {other} do not go together; give one of them", option="--format")
    return voice


def tell(
    begun: Scan, read: Iterable[Page], uri: str, output: Path | None, glance: bool, voice: str | None
) -> None:
    """Give the rows of some pages to a file, to a script, or to people: to these perhaps the first only."""
    of = f"of snapshot {begun.snapshot}"
    if FEED.issubset(begun.schema.names):
        of = f"of changes up to commit {begun.snapshot}"
    if output is not None:
        _report_file(begun, _to_file(begun, read, output), output, voice == JSON)
    elif voice in (JSON, CSV):
        if voice == CSV:
            print_csv(begun.schema, (page.rows for page in read))
        else:
            for page in read:
                print_json_lines(page.rows.to_pylist())
        if begun.key is not None:
            print_json_line({"continuation_key": begun.key}, stderr=True)
    elif glance:
        some = list(islice(_rows(read), SHOWN_ROWS + 1))
        rows = show_rows(begun.schema, some[:SHOWN_ROWS])
        more = "; there are more: --limit, --pages or --output" if len(some) > rows else ""
        console().print(f"{counted(rows, 'row')} {of}{more}.")
    else:
        rows = show_rows(begun.schema, _rows(read))
        console().print(f"{counted(rows, 'row')} {of}{'; there are more:' if begun.key else '.'}")
        if begun.key:
            text = f"elasticscan scan {shown(uri)} --key {begun.key}"
            console().print(text, markup=False, soft_wrap=True)
    if glance or not begun.standing.cursors:
        begun.close()


def _begin(
    store: Store, table: str | None, key: str | None, settings: dict[str, Any], page_rows: int
) -> Scan:
    if key is None:
        if table is None:
            raise InvalidOption("name a TABLE, or pass the --key of a scan that stopped", option="TABLE")
        arguments = {name: value for name, value in settings.items() if value is not None}
        return store.table(table).scan(page_rows=page_rows, **arguments)
    changed = [f"--{name.replace('_', '-')}" for name, value in settings.items() if value is not None]
    if changed:
        raise InvalidOption(
            f"{', '.join(changed)} cannot change a scan that has begun; leave it out, or start a new scan "
            "without --key",
            option=changed[0],
        )
    begun = store.resume(key)
    name = begun.explain()["table"]
    if table is not None and table != name:
        raise InvalidOption(f"the key goes on with table {name!r}, not {table!r}", option="--key")
    return begun


def _to_file(begun: Scan, pages: Iterable[Page], path: Path) -> int:
    total, rows = _slots_left(begun), 0
    with progress() as bar, open_writer(path, begun.schema) as writer:
        task = bar.add_task(f"writing {path.name}", total=total, note="")
        for page in pages:
            writer.write_batch(page.rows)
            rows += page.rows.num_rows
            bar.update(task, completed=(total or 0) - (_slots_left(begun) or 0), note=f"{rows:,} rows")
    return rows


def _slots_left(begun: Scan) -> int | None:
    """Return how far a scan is; one through an index has all slots before it until its end."""
    explained = begun.explain()
    return int(explained["pending_slots"]) if explained["ranges"] is None else None


def _rows(pages: Iterable[Page]) -> Iterator[dict[str, Any]]:
    return (row for page in pages for row in page.rows.to_pylist())


def show_rows(schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> int:
    """Print rows as a table for people; returns how many."""
    shown = Listing(header_style="bold", row_styles=("", "dim"))
    for field in schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        shown.add_column(escape(field.name), justify="right" if number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*("[dim]·[/dim]" if value is None else escape(_text(value)) for value in row.values()))
    console().print(shown)
    return shown.row_count


def _text(value: Any) -> str:
    return plain(value) if isinstance(value, bytes) else printable(str(value))


def _report_file(begun: Scan, rows: int, path: Path, as_json: bool) -> None:
    key, snapshot = begun.key, begun.snapshot
    value = {"output": str(path), "rows": rows, "snapshot": snapshot, "continuation_key": key}
    answer(as_json, value, f"{counted(rows, 'row')} of snapshot {snapshot} written to {escape(str(path))}.")
    if key is not None and not as_json:
        console().print(f"More with --key {key}", markup=False, soft_wrap=True)
