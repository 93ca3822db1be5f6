"""index create, index drop, index list."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import elasticscan
from elasticscan.cli.options import AnyTable, Table, Uri, names_of
from elasticscan.cli.output import answer, progress, section
from elasticscan.ui import INDEXES, size

Name = Annotated[str, typer.Argument(metavar="NAME", help="The index's name.")]

indexes = typer.Typer(name="index", no_args_is_help=True, help="Secondary indexes: create, drop, list.")


@indexes.command("create")
def create(
    uri: Uri,
    table: Table,
    name: Name,
    columns: Annotated[
        list[str], typer.Option("--columns", metavar="A,B", help="What to index, the most significant first.")
    ],
    kind: Annotated[
        str, typer.Option(help="sorted (equality, ranges, order) or hash (equality alone).")
    ] = "sorted",
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="C,D", help="More columns to carry, so that rows need no fetching."),
    ] = None,
) -> None:
    """Make an index, while others write, scan and move.

    Scans do not use the index of a build that was stopped; the same command continues it.

    Example: elasticscan index create trips.store trips by_city --columns city
    """
    with elasticscan.open(uri) as store:
        with progress(f"building {name}"):
            store.table(table).create_index(name, names_of(columns) or [], kind, names_of(include) or [])
        made = next((entry for entry in _found(store, table) if entry["name"] == name), None)
    outcome = "was dropped while it was built."
    if made is not None:
        outcome = f"of {table} ({', '.join(made['columns'])}): {size(made['bytes'])}, in use from now on."
    answer(made, f"Index {name} {outcome}")


@indexes.command("drop")
def drop(uri: Uri, table: Table, name: Name) -> None:
    """Remove an index; scans that read it have to start again."""
    with elasticscan.open(uri) as store:
        store.table(table).drop_index(name)
    text = f"Index {name} of {table} dropped; `elasticscan gc` frees its files."
    answer({"table": table, "dropped": name}, text)


@indexes.command("list")
def list_indexes(uri: Uri, table: AnyTable = None) -> None:
    """List indexes, with their bytes on disk."""
    with elasticscan.open(uri) as store:
        found = _found(store, table)
    none = "no indexes yet; `elasticscan index create` makes one"
    answer(found, section(found, INDEXES) if found else none)


def _found(store: elasticscan.Store, table: str | None) -> list[dict[str, Any]]:
    if table is not None:
        store.table(table)  # raises for a wrong name
    return [
        {"table": of["name"], **index}
        for of in store.status()["tables"]
        if table in (None, of["name"])
        for index in of["indexes"]
    ]
