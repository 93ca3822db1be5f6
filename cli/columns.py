"""add-column, drop-column, rename-column, widen-column, set-compression."""

from __future__ import annotations

from typing import Annotated

import pyarrow as pa
import typer
from rich.markup import escape

from elasticscan.cli.options import Json, Table, Uri, type_of
from elasticscan.cli.output import answer
from elasticscan.store import Store

PACKED = {None: "uncompressed", "lz4": "with LZ4", "zstd": "with zstd"}
Name = Annotated[str, typer.Argument(metavar="NAME", help="The column.")]
Kind = Annotated[
    str,
    typer.Argument(
        metavar="TYPE", help=escape("Its Arrow type: int64, double, string, bool, timestamp[us], …")
    ),
]


def add_column(uri: Uri, table: Table, name: Name, kind: Kind, json: Json = False) -> None:
    """Add a column to a table, while others write, scan and move; rows that are there are null in it."""
    hint = "; nested types and decimals are added in Python, with Table.add_columns"
    field = pa.field(name, type_of(kind, "TYPE", f"TYPE {kind!r} must be", hint))
    with Store.open(uri) as store:
        handle = store.table(table)
        added = name not in handle.schema.names
        handle.add_columns([field])
    outcome = "added" if added else "was there already"
    answer(
        json,
        {"table": table, "column": name, "type": str(field.type), "added": added},
        f"Column [bold]{escape(name)}[/bold] of {escape(table)}, {escape(str(field.type))}, {outcome}.",
    )


def drop_column(uri: Uri, table: Table, name: Name, json: Json = False) -> None:
    """Drop a column of a table, while others write, scan and move; merges remove its values later."""
    with Store.open(uri) as store:
        store.table(table).drop_columns([name])
    message = f"Column [bold]{escape(name)}[/bold] of {escape(table)} is dropped."
    answer(json, {"table": table, "column": name, "dropped": True}, message)


def rename_column(
    uri: Uri,
    table: Table,
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    json: Json = False,
) -> None:
    """Give a column of a table another name, while others write, scan and move."""
    with Store.open(uri) as store:
        store.table(table).rename_column(name, new)
    message = f"Column [bold]{escape(name)}[/bold] of {escape(table)} is [bold]{escape(new)}[/bold] now."
    answer(json, {"table": table, "column": new, "was": name}, message)


def widen_column(uri: Uri, table: Table, name: Name, kind: Kind, json: Json = False) -> None:
    """Give a column of a table a wider type of the same kind: int32 to int64, float to double."""
    hint = "; decimals are widened in Python, with Table.widen_column"
    wide = type_of(kind, "TYPE", f"TYPE {kind!r} must be", hint)
    with Store.open(uri) as store:
        store.table(table).widen_column(name, wide)
    message = f"Column [bold]{escape(name)}[/bold] of {escape(table)} is {escape(str(wide))} now."
    answer(json, {"table": table, "column": name, "type": str(wide)}, message)


def set_compression(
    uri: Uri,
    table: Table,
    form: Annotated[str, typer.Argument(metavar="FORM", help="none, lz4 or zstd.")],
    json: Json = False,
) -> None:
    """Say how a table's files are written from now on; compact writes those that are there again."""
    with Store.open(uri) as store:
        handle = store.table(table)
        handle.set_compression(form)
        now = handle.definition.compression
    message = f"Files of [bold]{escape(table)}[/bold] are written {PACKED[now]} from now on."
    answer(json, {"table": table, "compression": now}, message)
