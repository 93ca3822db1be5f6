"""scan: rows to the terminal, to stdout or to a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.markup import escape
from rich.table import Table as Listing

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import DEFAULT_PAGE_ROWS
from elasticscan.base.redaction import shown
from elasticscan.cli.files import kind_of, open_writer
from elasticscan.cli.options import Columns, Filter, IndexChoice, Json, Snapshot, Uri, names_of
from elasticscan.cli.output import (
    console,
    plain,
    print_json,
    print_json_line,
    print_json_lines,
    progress,
    say,
)
from elasticscan.cli.paging import first_pages
from elasticscan.store import Page, Scan, Store

# What people see when they did not say how much they want to see.
SHOWN_ROWS = 20


@dataclass(slots=True)
class _Told:
    """What is told of a scan when it stopped."""

    snapshot: int
    key: str | None
    rows: int = 0


def scan(
    uri: Uri,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Not needed with --key.")] = None,
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    index: IndexChoice = None,
    order: Annotated[
        str | None,
        typer.Option(metavar="index", help="index: all rows in the order of the index that --index names."),
    ] = None,
    descending: Annotated[
        bool, typer.Option("--descending", help="From the highest key of the named index down.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=0, help="Stop after so many rows.")] = None,
    pages: Annotated[int | None, typer.Option(min=1, help="Stop after so many pages.")] = None,
    page_rows: Annotated[int, typer.Option(help="Most rows of a page.")] = DEFAULT_PAGE_ROWS,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Go on where a scan stopped.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write .parquet, .csv or .arrow.")
    ] = None,
    json: Json = False,
) -> None:
    """Read every row of a snapshot exactly once, while tablets move.

    Rows go to the terminal as a table (the first 20, unless told otherwise), to stdout as one JSON
    object a line, or to a file. A scan that stops early prints the key that goes on after the last row.
    """
    if output is not None:
        kind_of(output)
    if limit is None and pages is None and output is None and not json:
        limit = SHOWN_ROWS
    with Store.open(uri) as store:
        asked = {
            "columns": names_of(columns),
            "filter": filter,
            "snapshot": snapshot,
            "index": index,
            "order": order,
            "descending": descending or None,
        }
        begun = _begin(store, table, key, asked, page_rows)
        beginning = begun.key
        told = _Told(begun.snapshot, beginning)
        found = _watched(first_pages(store, begun, limit, pages), told)
        if output is not None:
            _to_file(begun, found, output)
            _tell_file(told, output, json)
        elif json:
            for page in found:
                print_json_lines(page.rows.to_pylist())
            if told.key is not None:
                print_json_line({"continuation_key": told.key}, stderr=True)
        else:
            _to_terminal(begun, found)
            _tell(told, uri)
        if told.key is None:
            begun.end_lease()


def _begin(store: Store, table: str | None, key: str | None, asked: dict[str, Any], page_rows: int) -> Scan:
    if key is None:
        if table is None:
            raise InvalidOption("name a TABLE, or pass the --key of a scan that stopped", option="TABLE")
        wanted = {name: value for name, value in asked.items() if value is not None}
        return store.table(table).scan(page_rows=page_rows, **wanted)
    given = [f"--{name}" for name, value in asked.items() if value is not None]
    if given:
        raise InvalidOption(
            f"{', '.join(given)} cannot change a scan that has begun; leave it out, or start a new scan "
            "without --key",
            option=given[0],
        )
    begun = store.resume(key)
    name = begun.explain()["table"]
    if table is not None and table != name:
        raise InvalidOption(f"the key goes on with table {name!r}, not {table!r}", option="--key")
    return begun


def _watched(pages: Iterable[Page], told: _Told) -> Iterator[Page]:
    for page in pages:
        told.rows += page.rows.num_rows
        told.key = page.key
        yield page


def _to_file(begun: Scan, pages: Iterable[Page], path: Path) -> None:
    total = _slots_left(begun)
    with progress() as bar, open_writer(path, begun.schema) as writer:
        task = bar.add_task(f"writing {path.name}", total=total, note="")
        rows = 0
        for page in pages:
            writer.write_batch(page.rows)
            rows += page.rows.num_rows
            bar.update(task, completed=(total or 0) - (_slots_left(begun) or 0), note=f"{rows:,} rows")


def _slots_left(begun: Scan) -> int | None:
    """How far a scan is; one through an index has all slots before it until its end."""
    found = begun.explain()
    return int(found["pending_slots"]) if found["ranges"] is None else None


def _to_terminal(begun: Scan, pages: Iterable[Page]) -> None:
    shown = Listing(header_style="bold", row_styles=("", "dim"))
    for field in begun.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        shown.add_column(escape(field.name), justify="right" if number else "left", overflow="fold")
    for page in pages:
        for row in page.rows.to_pylist():
            shown.add_row(
                *("[dim]·[/dim]" if value is None else escape(_text(value)) for value in row.values())
            )
    console().print(shown)


def _text(value: Any) -> str:
    return plain(value) if isinstance(value, bytes) else str(value)


def _tell(told: _Told, uri: str) -> None:
    say(
        f"{told.rows:,} rows of snapshot {told.snapshot}" + ("." if told.key is None else "; there are more:")
    )
    if told.key is not None:
        console().print(f"elasticscan scan {shown(uri)} --key {told.key}", markup=False, soft_wrap=True)


def _tell_file(told: _Told, path: Path, as_json: bool) -> None:
    if as_json:
        print_json(
            {"output": str(path), "rows": told.rows, "snapshot": told.snapshot, "continuation_key": told.key}
        )
        return
    say(f"{told.rows:,} rows of snapshot {told.snapshot} written to {escape(str(path))}.")
    if told.key is not None:
        console().print(f"More with --key {told.key}", markup=False, soft_wrap=True)
