"""backup, restore."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import elasticscan
from elasticscan.base.redaction import shown
from elasticscan.cli.options import Json, Uri, pairs_of
from elasticscan.cli.output import answer, counted, size


def backup(
    uri: Uri,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The place of its backups: a directory or a URI.")
    ],
    keep: Annotated[int | None, typer.Option(help="How many backups stay there; all by default.")] = None,
    json: Json = False,
) -> None:
    """Copy a whole store as of now, with all snapshots that it keeps; only files that are not there yet.

    Example: elasticscan backup trips.store /mnt/backups --keep 7
    """
    with elasticscan.open(uri) as store:
        made = store.backup(target, keep=keep)
    copied = f"{made.copied:,} of {made.files:,} files copied ({size(made.copied_bytes)})"
    gone = f", {made.removed:,} removed" if made.removed else ""
    answer(json, asdict(made), f"Backup {made.name}, snapshot {made.snapshot}: {copied}{gone}.")


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
    """Make a store of a backup.

    Example: elasticscan restore /mnt/backups restored.store
    """
    with elasticscan.Store.from_backup(source, uri, pairs_of(root, "--root"), name) as store:
        state = store.status()
    tables = {table["name"]: table["rows"] for table in state["tables"]}
    value = {"store": shown(uri), "snapshot": state["snapshot"], "tables": tables}
    text = f"{shown(uri)} holds snapshot {state['snapshot']} with {counted(len(tables), 'table')}."
    answer(json, value, text)
