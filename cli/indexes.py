"""index create, index drop, index list."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from elasticscan.cli.options import Json, Table, Uri, names_of
from elasticscan.cli.output import Listing, answer, listing, progress, size
from elasticscan.metadata import SORTED
from elasticscan.store import Store

Name = Annotated[str, typer.Argument(metavar="NAME", help="The index's name.")]

commands = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Secondary indexes: create, drop, list."
)


@commands.command("create")
def create(
    uri: Uri,
    table: Table,
    name: Name,
    columns: Annotated[
        list[str], typer.Option("--columns", metavar="A,B", help="What to index, the most significant first.")
    ],
    kind: Annotated[
        str, typer.Option(help="sorted (equality, ranges, order) or hash (equality alone).")
    ] = SORTED,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="C,D", help="More columns to carry, so that rows need no fetching."),
    ] = None,
    json: Json = False,
) -> None:
    """Make an index, while others write, scan and move.

    A build that was stopped leaves an index that scans do not use; the same command goes on with it.
    """
    with Store.open(uri) as store, progress() as bar:
        task = bar.add_task(f"building {name}", total=None, note="")

        def built(done: int, total: int) -> None:
            # Without rows `total` is 0, and a bar of total 0 is never complete.
            bar.update(task, completed=done or 1, total=total or 1, note=f"{done:,} of {total:,} rows")

        store.table(table).create_index(name, names_of(columns) or [], kind, names_of(include) or [], built)
        bar.stop()
        index = next((entry for entry in _indexes(store, table) if entry["name"] == name), None)
    outcome = "was dropped while it was built."
    if index is not None:
        of = f"of {escape(table)} ({escape(', '.join(index['columns']))})"
        outcome = f"{of}: {size(index['bytes'])}, in use from now on."
    answer(json, index, f"Index [bold]{escape(name)}[/bold] {outcome}")


@commands.command("drop")
def drop(uri: Uri, table: Table, name: Name, json: Json = False) -> None:
    """Remove an index; scans that read it end with ES_INDEX_CHANGED."""
    with Store.open(uri) as store:
        store.table(table).drop_index(name)
    text = f"Index [bold]{escape(name)}[/bold] of {escape(table)} dropped; `elasticscan gc` frees its files."
    answer(json, {"table": table, "dropped": name}, text)


@commands.command("list")
def list_indexes(
    uri: Uri,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="One table; all by default.")] = None,
    json: Json = False,
) -> None:
    """List indexes, with what they take on disk."""
    with Store.open(uri) as store:
        indexes = _indexes(store, table)
    none = "[dim]no indexes yet; `elasticscan index create` makes one[/dim]"
    answer(json, indexes, index_listing(indexes) if indexes else none)


def _indexes(store: Store, table: str | None) -> list[dict[str, Any]]:
    if table is not None:
        store.table(table)  # raises for a wrong name, with the nearest one
    return [
        {"table": of_table["name"], **index}
        for of_table in store.status()["tables"]
        if table in (None, of_table["name"])
        for index in of_table["indexes"]
    ]


def index_listing(indexes: list[dict[str, Any]]) -> Listing:
    """Indexes of `Store.status()`, each with its table."""
    shown = listing("table", "index", "kind", "columns", "carries", "size", "", right=("size",))
    for index in indexes:
        shown.add_row(
            index["table"],
            index["name"],
            index["kind"],
            escape(", ".join(index["columns"])),
            escape(", ".join(index["include"])),
            size(index["bytes"]),
            "" if index["ready"] else "[yellow]not built yet[/yellow]",
        )
    return shown
