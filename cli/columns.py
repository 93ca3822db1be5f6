"""add-column: a table gains a column."""

from __future__ import annotations

from typing import Annotated

import pyarrow as pa
import typer
from rich.markup import escape

from elasticscan.base.errors import InvalidOption
from elasticscan.cli.options import Json, Table, Uri
from elasticscan.cli.output import print_json, say
from elasticscan.store import Store


def add_column(
    uri: Uri,
    table: Table,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new column.")],
    kind: Annotated[
        str,
        typer.Argument(
            metavar="TYPE", help=escape("Its Arrow type: int64, double, string, bool, timestamp[us], …")
        ),
    ],
    json: Json = False,
) -> None:
    """Add a column to a table, while others write, scan and move; rows that are there are null in it."""
    field = pa.field(name, _type(kind))
    with Store.open(uri) as store:
        handle = store.table(table)
        added = name not in handle.schema.names
        handle.add_columns([field])
    if json:
        print_json({"table": table, "column": name, "type": str(field.type), "added": added})
    else:
        outcome = "added" if added else "was there already"
        say(f"Column [bold]{escape(name)}[/bold] of {escape(table)}, {escape(str(field.type))}, {outcome}.")


def _type(alias: str) -> pa.DataType:
    try:
        return pa.type_for_alias(alias)
    except ValueError as error:
        raise InvalidOption(
            f"TYPE {alias!r} must be one of Arrow's names, such as int64, double, string, bool, date32 "
            "or timestamp[us]; nested types and decimals are added in Python, with Table.add_columns",
            option="TYPE",
        ) from error
