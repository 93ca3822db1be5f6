"""compact, gc, verify."""

from __future__ import annotations

from typing import Annotated

import typer

from elasticscan.base.limits import GC_GRACE_SECONDS
from elasticscan.cli.options import Json, Uri, seconds_of
from elasticscan.cli.output import console, print_json, say
from elasticscan.store import Store

DAMAGE_FOUND = 5


def compact(
    uri: Uri,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="One table; all by default.")] = None,
    json: Json = False,
) -> None:
    """Merge small fragments into large ones."""
    with Store.open(uri) as store:
        gone = store.compact(table)
    if json:
        print_json({"fragments_removed": gone})
    else:
        say(f"{gone:,} fragments fewer.")


def collect_garbage(
    uri: Uri,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Spare files that were needed so recently, as in 30m or 2h.")
    ] = f"{GC_GRACE_SECONDS // 3_600}h",
    json: Json = False,
) -> None:
    """Remove files that nothing needs any more."""
    with Store.open(uri) as store:
        removed = store.collect_garbage(seconds_of(grace, "--grace"))
    if json:
        print_json({"files_removed": removed})
    else:
        say(f"{removed:,} files removed.")


def verify(uri: Uri, json: Json = False) -> None:
    """Compare every fragment with its checksum; exit code 5 if one is damaged."""
    with Store.open(uri) as store:
        damaged = store.verify()
    if json:
        print_json({"damaged": damaged})
    elif damaged:
        for text in damaged:
            console(stderr=True).print(text, style="red", markup=False, soft_wrap=True)
    else:
        say("Every fragment is as it was written.")
    if damaged:
        raise typer.Exit(DAMAGE_FOUND)
