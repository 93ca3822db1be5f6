"""drop, update, delete, columns, compression, history, restore-table, set-retention, tag …, index …."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import elasticscan
from elasticscan.base.errors import InvalidOption
from elasticscan.cli.options import (
    AnyTable,
    Limit,
    Name,
    Since,
    Snapshot,
    Table,
    Texts,
    Uri,
    UserMetadata,
    argument,
    names_of,
    option,
    pairs_of,
    switch,
)
from elasticscan.cli.output import answer, answer_rows, counted, progress
from elasticscan.cli.rows import keys_of
from elasticscan.ui import INDEXES

Kind = Annotated[str, argument("TYPE", r"Its Arrow type: int64, double, string, bool, timestamp\[us], …")]

tags = typer.Typer(name="tag", no_args_is_help=True, help="Names that keep a snapshot: create, drop, list.")
indexes = typer.Typer(name="index", no_args_is_help=True, help="Secondary indexes: create, drop, list.")


def drop(
    uri: Uri,
    table: Table,
    yes: Annotated[bool, switch("--yes", "Required, because all rows are lost.")] = False,
) -> None:
    """Drop a table with its rows and history; a later gc removes its files."""
    with elasticscan.open(uri) as store:
        handle = store.table(table)
        if not yes:
            raise InvalidOption(f"table {table!r} would lose all its rows; repeat with --yes", option="--yes")
        handle.drop()
    answer({"dropped": table}, f"Table {table} is dropped; gc removes its files.")


# Rows


def update(
    uri: Uri,
    table: Table,
    new: Annotated[list[str], option("COLUMN=SQL", 'A new value: "km=km * 2", "city=\'Oslo\'".', "--set")],
    where: Annotated[str, option("SQL", 'A condition on the rows; "true" for all.')],
    if_unchanged_since: Since = None,
    user_metadata: UserMetadata = None,
) -> None:
    """Set columns to new values in the rows that meet a condition: one commit, all or nothing.

    Example: elasticscan update trips.store trips --set 'km=km * 2' --where 'id = 7'
    """
    values, texts = pairs_of(new, "--set"), pairs_of(user_metadata, "--user-metadata")
    with elasticscan.open(uri) as store:
        commit = store.table(table).update(
            values, where, if_unchanged_since=if_unchanged_since, user_metadata=texts
        )
    value = {"table": table, "rows": commit.rows, "commit": commit}
    answer(value, f"{counted(commit.rows, 'row')} of {table} updated as commit {commit}.")


def delete(
    uri: Uri,
    table: Table,
    key: Annotated[Texts, option("KEY", "A key; 5,mon for a key of several columns.")] = None,
    where: Annotated[str | None, option("SQL", 'A condition instead of keys; "true" for all rows.')] = None,
    if_unchanged_since: Since = None,
    user_metadata: UserMetadata = None,
) -> None:
    """Delete the rows of keys, or the rows that meet a condition: one commit, all or nothing.

    Example: elasticscan delete trips.store trips --key 7 --key 9
    """
    if bool(key) == (where is not None):
        raise InvalidOption("delete takes either --key or --where", option="--where")
    texts = pairs_of(user_metadata, "--user-metadata")
    with elasticscan.open(uri) as store:
        handle = store.table(table)
        keys = keys_of(key, handle) if key else None
        commit = handle.delete(keys, where=where, if_unchanged_since=if_unchanged_since, user_metadata=texts)
    noun, which = ("row", "") if where is not None else ("key", ", whether there was a row or not")
    text = f"{counted(commit.rows, noun)} of {table} deleted as commit {commit}{which}."
    answer({"table": table, f"{noun}s": commit.rows, "commit": commit}, text)


# Columns


def add_column(uri: Uri, table: Table, name: Name, kind: Kind) -> None:
    """Add a column to a table, while others write, scan and move; existing rows get nulls.

    For nested types and decimals use Table.add_columns in Python.

    Example: elasticscan add-column trips.store trips note string
    """
    with elasticscan.open(uri) as store:
        made = str(store.table(table).add_columns({name: kind}).field(name).type)
    text = f"Column {name} of {table} is added, with type {made}."
    answer({"table": table, "column": name, "type": made}, text)


def drop_column(uri: Uri, table: Table, name: Name) -> None:
    """Drop a column of a table, while others write, scan and move; merges remove its values later."""
    with elasticscan.open(uri) as store:
        store.table(table).drop_columns([name])
    answer({"table": table, "dropped": name}, f"Column {name} of {table} is dropped.")


def rename_column(
    uri: Uri,
    table: Table,
    name: Name,
    new: Annotated[str, argument("NEW", "Its new name.")],
) -> None:
    """Rename a column of a table, while others write, scan and move."""
    with elasticscan.open(uri) as store:
        store.table(table).rename_column(name, new)
    answer({"table": table, "column": new, "was": name}, f"Column {name} of {table} is {new} now.")


def widen_column(uri: Uri, table: Table, name: Name, kind: Kind) -> None:
    """Change the type of a column to a wider type of the same kind: int32 to int64, float to double.

    For decimals use Table.widen_column in Python.

    Example: elasticscan widen-column trips.store trips stops int64
    """
    with elasticscan.open(uri) as store:
        wide = str(store.table(table).widen_column(name, kind).field(name).type)
    answer({"table": table, "column": name, "type": wide}, f"Column {name} of {table} is {wide} now.")


def set_compression(
    uri: Uri,
    table: Table,
    form: Annotated[str, argument("FORM", "none, lz4 or zstd.")],
) -> None:
    """Set the compression of a table's new files; compact rewrites existing files.

    Example: elasticscan set-compression trips.store trips zstd
    """
    with elasticscan.open(uri) as store:
        store.table(table).set_compression(form)
    answer({"table": table, "compression": form}, f"Compression of new files of {table}: {form}.")


# Snapshots


def history(uri: Uri, table: Table, limit: Limit = None) -> None:
    """List a table's commits, oldest first; each is a snapshot that a scan can read.

    Example: elasticscan history trips.store trips --limit 10
    """
    with elasticscan.open(uri) as store:
        commits = [asdict(commit) for commit in store.table(table).history(limit)]
    answer_rows(commits, ("number", "created_at", "kind", "rows", "bytes", "user_metadata"))


def restore_table(
    uri: Uri,
    table: Table,
    to: Annotated[
        str, option(None, "A commit number, a tag, or a time with a zone, such as 2026-03-01T12:00Z.", "--to")
    ],
) -> None:
    """Restore the rows of a snapshot in a new commit.

    Example: elasticscan restore-table trips.store trips --to 2026-03-01T12:00Z
    """
    with elasticscan.open(uri) as store:
        number = store.table(table).restore(to)
    text = f"{table} is as it was at {to}, since commit {number}."
    answer({"table": table, "restored_to": to, "commit": number}, text)


def set_retention(
    uri: Uri,
    table: Table,
    period: Annotated[str, argument("PERIOD", "Such as 12h or 7d; `store` for the setting of the store.")],
) -> None:
    """Set how long snapshots and changes of a table stay readable without a tag or a lease.

    Example: elasticscan set-retention trips.store trips 30d
    """
    with elasticscan.open(uri) as store:
        store.table(table).set_retention(None if period == "store" else period)
    kept = "for the retention of the store" if period == "store" else f"for {period}"
    answer({"table": table, "retention": period}, f"Snapshots and changes of {table} are kept {kept}.")


@tags.command("create")
def create_tag(uri: Uri, table: Table, name: Name, snapshot: Snapshot = None) -> None:
    """Name a snapshot, and keep it readable until the tag is dropped.

    Example: elasticscan tag create trips.store trips june --snapshot 5
    """
    with elasticscan.open(uri) as store:
        tag = store.table(table).tag(name, snapshot)
    answer(asdict(tag), f"Tag {tag.name} keeps snapshot {tag.snapshot} of {table}.")


@tags.command("drop")
def drop_tag(uri: Uri, table: Table, name: Name) -> None:
    """Drop a tag; its snapshot stays as long as retention or leases keep it."""
    with elasticscan.open(uri) as store:
        store.table(table).drop_tag(name)
    answer({"table": table, "dropped": name}, f"Tag {name} of {table} dropped.")


@tags.command("list")
def list_tags(uri: Uri, table: Table) -> None:
    """List a table's tags, the oldest snapshot first."""
    with elasticscan.open(uri) as store:
        rows = [asdict(tag) for tag in store.table(table).tags()]
    none = "no tags yet; `elasticscan tag create` makes one"
    answer_rows(rows, ("name", "snapshot", "created_at"), none)


# Indexes


@indexes.command("create")
def create_index(
    uri: Uri,
    table: Table,
    name: Name,
    columns: Annotated[list[str], option("A,B", "The indexed columns, in sort order.", "--columns")],
    kind: Annotated[
        str, option(None, "sorted (equality, ranges, order) or hash (only equality).")
    ] = "sorted",
    include: Annotated[Texts, option("C,D", "More columns to store, so that no rows are fetched.")] = None,
) -> None:
    """Create an index, while others write, scan and move.

    If the build is stopped, scans do not use the index; the same command continues the build.

    Example: elasticscan index create trips.store trips by_city --columns city
    """
    with elasticscan.open(uri) as store, progress(f"building {name}"):
        store.table(table).create_index(name, names_of(columns) or [], kind, names_of(include) or [])
    answer({"table": table, "created": name}, f"Index {name} of {table} is in use from now on.")


@indexes.command("drop")
def drop_index(uri: Uri, table: Table, name: Name) -> None:
    """Drop an index; scans that read it must start again."""
    with elasticscan.open(uri) as store:
        store.table(table).drop_index(name)
    text = f"Index {name} of {table} dropped; `elasticscan gc` frees its files."
    answer({"table": table, "dropped": name}, text)


@indexes.command("list")
def list_indexes(uri: Uri, table: AnyTable = None) -> None:
    """List indexes with their sizes on disk."""
    with elasticscan.open(uri) as store:
        if table is not None:
            store.table(table)  # raises for a wrong name
        tables = store.status()["tables"]
    rows = [
        {"table": each["name"], **index}
        for each in tables
        if table in (None, each["name"])
        for index in each["indexes"]
    ]
    answer_rows(rows, INDEXES, "no indexes yet; `elasticscan index create` makes one")
