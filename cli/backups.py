"""backup, restore."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from elasticscan.base.redaction import shown
from elasticscan.cli.options import Json, Uri, shards_of
from elasticscan.cli.output import answer, counted, size
from elasticscan.store import Store


def backup(
    uri: Uri,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The place of its backups: a directory or a URI.")
    ],
    keep: Annotated[int | None, typer.Option(help="How many backups stay there; all by default.")] = None,
    json: Json = False,
) -> None:
    """Copy a whole store as of now, with all snapshots that it keeps; only what is not there yet."""
    with Store.open(uri) as store:
        made = store.backup(target, keep=keep)
    copied = f"{made.copied:,} of {made.files:,} files copied ({size(made.copied_bytes)})"
    gone = f", {made.removed:,} removed" if made.removed else ""
    answer(json, asdict(made), f"Backup [bold]{made.name}[/bold], snapshot {made.snapshot}: {copied}{gone}.")


def restore(
    source: Annotated[str, typer.Argument(metavar="BACKUP", help="A place of backups.")],
    uri: Annotated[str, typer.Argument(metavar="URI", help="Where the new store is made.")],
    root: Annotated[
        list[str] | None,
        typer.Option("--root", metavar="SHARD=ROOT", help="A shard's root; else in the store's directory."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Which backup; the newest by default.")] = None,
    json: Json = False,
) -> None:
    """Make a store of a backup."""
    _, roots = shards_of(root or [])
    with Store.from_backup(source, uri, roots, name) as store:
        state = store.status()
    tables = {table["name"]: table["rows"] for table in state["tables"]}
    value = {"store": shown(uri), "snapshot": state["snapshot"], "tables": tables}
    text = f"{escape(shown(uri))} holds snapshot {state['snapshot']} with {counted(len(tables), 'table')}."
    answer(json, value, text)
