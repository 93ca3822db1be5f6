"""drop, add-column, drop-column, rename-column, widen-column, set-compression, update, delete."""

from __future__ import annotations

from typing import Annotated

import typer

import elasticscan
from elasticscan.base.errors import InvalidOption
from elasticscan.cli.options import Since, Table, Uri, UserMetadata, pairs_of
from elasticscan.cli.output import answer, counted
from elasticscan.cli.rows import keys_of

Name = Annotated[str, typer.Argument(metavar="NAME", help="The column.")]
Kind = Annotated[
    str,
    typer.Argument(metavar="TYPE", help=r"Its Arrow type: int64, double, string, bool, timestamp\[us], …"),
]


def drop(
    uri: Uri,
    table: Table,
    yes: Annotated[bool, typer.Option("--yes", help="Needed: the table's rows are gone then.")] = False,
) -> None:
    """Drop a table with its rows and its history; a later gc removes its files."""
    with elasticscan.open(uri) as store:
        handle = store.table(table)
        if not yes:
            raise InvalidOption(f"table {table!r} would lose all its rows; repeat with --yes", option="--yes")
        handle.drop()
    answer({"dropped": table}, f"Table {table} is dropped; gc removes its files.")


def add_column(uri: Uri, table: Table, name: Name, kind: Kind) -> None:
    """Add a column to a table, while others write, scan and move; existing rows are null in it.

    Nested types and decimals are added in Python, with Table.add_columns.

    Example: elasticscan add-column trips.store trips note string
    """
    with elasticscan.open(uri) as store:
        handle = store.table(table)
        added = name not in handle.schema.names
        made = str(handle.add_columns({name: kind}).field(name).type)
    value = {"table": table, "column": name, "type": made, "added": added}
    answer(value, f"Column {name} of {table}, {made}, {'added' if added else 'was there already'}.")


def drop_column(uri: Uri, table: Table, name: Name) -> None:
    """Drop a column of a table, while others write, scan and move; merges remove its values later."""
    with elasticscan.open(uri) as store:
        store.table(table).drop_columns([name])
    value = {"table": table, "column": name, "dropped": True}
    answer(value, f"Column {name} of {table} is dropped.")


def rename_column(
    uri: Uri,
    table: Table,
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
) -> None:
    """Rename a column of a table, while others write, scan and move."""
    with elasticscan.open(uri) as store:
        store.table(table).rename_column(name, new)
    answer({"table": table, "column": new, "was": name}, f"Column {name} of {table} is {new} now.")


def widen_column(uri: Uri, table: Table, name: Name, kind: Kind) -> None:
    """Give a column of a table a wider type of the same kind: int32 to int64, float to double.

    Decimals are widened in Python, with Table.widen_column.

    Example: elasticscan widen-column trips.store trips stops int64
    """
    with elasticscan.open(uri) as store:
        wide = str(store.table(table).widen_column(name, kind).field(name).type)
    value = {"table": table, "column": name, "type": wide}
    answer(value, f"Column {name} of {table} is {wide} now.")


def set_compression(
    uri: Uri,
    table: Table,
    form: Annotated[str, typer.Argument(metavar="FORM", help="none, lz4 or zstd.")],
) -> None:
    """Set how a table's files are compressed from now on; compact rewrites existing files.

    Example: elasticscan set-compression trips.store trips zstd
    """
    with elasticscan.open(uri) as store:
        handle = store.table(table)
        handle.set_compression(form)
        now = handle.definition.compression
    value = {"table": table, "compression": now}
    answer(value, f"Compression of new files of {table}: {now or 'none'}.")


def update(
    uri: Uri,
    table: Table,
    new: Annotated[
        list[str],
        typer.Option("--set", metavar="COLUMN=SQL", help='A new value: "km=km * 2", "city=\'Oslo\'".'),
    ],
    where: Annotated[str, typer.Option(metavar="SQL", help='A condition on the rows; "true" for all.')],
    if_unchanged_since: Since = None,
    user_metadata: UserMetadata = None,
) -> None:
    """Give columns new values in the rows that meet a condition: one commit, all or nothing.

    Example: elasticscan update trips.store trips --set 'km=km * 2' --where 'id = 7'
    """
    values, said = pairs_of(new, "--set"), pairs_of(user_metadata, "--user-metadata")
    with elasticscan.open(uri) as store:
        commit = store.table(table).update(
            values, where, if_unchanged_since=if_unchanged_since, user_metadata=said
        )
    value = {"table": table, "rows": commit.rows, "commit": commit}
    answer(value, f"{counted(commit.rows, 'row')} of {table} updated as commit {commit}.")


def delete(
    uri: Uri,
    table: Table,
    key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A key; of several columns: 5,mon")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help='A condition in place of keys; "true" for all rows.')
    ] = None,
    if_unchanged_since: Since = None,
    user_metadata: UserMetadata = None,
) -> None:
    """Delete rows that meet a condition, or that have keys: one commit, all or nothing.

    Example: elasticscan delete trips.store trips --key 7 --key 9
    """
    if bool(key) == (where is not None):
        raise InvalidOption("delete takes either --key or --where", option="--where")
    said = pairs_of(user_metadata, "--user-metadata")
    with elasticscan.open(uri) as store:
        handle = store.table(table)
        keys = keys_of(key, handle) if key else None
        commit = handle.delete(keys, where=where, if_unchanged_since=if_unchanged_since, user_metadata=said)
    noun, which = ("row", "") if where is not None else ("key", ", whether there was a row or not")
    text = f"{counted(commit.rows, noun)} of {table} deleted as commit {commit}{which}."
    answer({"table": table, f"{noun}s": commit.rows, "commit": commit}, text)
