"""repair."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from elasticscan.cli.options import Json, Uri
from elasticscan.cli.output import console, print_json, say
from elasticscan.cli.upkeep import DAMAGE_FOUND
from elasticscan.store import repair_store


def repair(
    uri: Uri,
    into: Annotated[str, typer.Argument(metavar="INTO", help="Where the new store is made.")],
    root: Annotated[
        list[str] | None,
        typer.Option(
            "--root", metavar="ROOT", help="A shard's root; those in the store's directory by default."
        ),
    ] = None,
    store_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Which store, where the roots hold files of several.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a store anew from its files; the damaged one is only read. Exit code 5 if something is lost."""
    report = repair_store(uri, into, root or None, store_id)
    if json:
        print_json(asdict(report))
    else:
        for name, rows in report.tables.items():
            say(f"{name}: {rows:,} rows.")
        for text in report.lost:
            console(stderr=True).print(f"lost: {text}", style="red", markup=False, soft_wrap=True)
        for text in report.doubts:
            console(stderr=True).print(f"not known: {text}", style="yellow", markup=False, soft_wrap=True)
    if report.lost:
        raise typer.Exit(DAMAGE_FOUND)
