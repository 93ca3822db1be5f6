"""compact, gc, adopt, verify."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from elasticscan.base.errors import RESTORE
from elasticscan.base.limits import GC_GRACE_SECONDS, GC_SHARE, TRASH_SECONDS
from elasticscan.cli.options import Json, Uri, seconds_of
from elasticscan.cli.output import console, print_json, say
from elasticscan.store import Action, Collected, Store

DAMAGE_FOUND = 5


def compact(
    uri: Uri,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="One table; all by default.")] = None,
    json: Json = False,
) -> None:
    """Merge small fragments into large ones."""
    with Store.open(uri) as store:
        gone = store.compact() if table is None else store.table(table).compact()
    if json:
        print_json({"fragments_removed": gone})
    else:
        say(f"{gone:,} fragments fewer.")


def collect_garbage(
    uri: Uri,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Spare files that were needed so recently, as in 30m or 2h.")
    ] = f"{GC_GRACE_SECONDS // 3_600}h",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing; list what would go or stay, and why.")
    ] = False,
    trash: Annotated[
        str, typer.Option(metavar="TIME", help="How long files stay in the trash; 0s for not at all.")
    ] = f"{TRASH_SECONDS // 86_400}d",
    share: Annotated[
        float, typer.Option(help="Most of a shard's files that may go though the catalog never knew them.")
    ] = GC_SHARE,
    json: Json = False,
) -> None:
    """Remove files that nothing needs any more."""
    spared, trash_seconds = seconds_of(grace, "--grace"), seconds_of(trash, "--trash")
    with Store.open(uri) as store:
        collected = store.collect_garbage(spared, dry_run, trash_seconds, share)
    if json:
        print_json(_as_json(collected))
        return
    if dry_run:
        for decision in collected.decisions:
            say(escape(f"{decision.action:7}  {decision.shard}:{decision.path}  {decision.reason}"))
    for shard, why in collected.skipped:
        console(stderr=True).print(f"shard {shard} was skipped: {why}", markup=False, soft_wrap=True)
    if collected.refused:
        console(stderr=True).print(f"refused: {collected.refused}", markup=False, soft_wrap=True)
    trashed, emptied = collected.count(Action.TRASH), collected.count(Action.EMPTY)
    back = f", {collected.count(Action.RESTORE):,} put back" if collected.count(Action.RESTORE) else ""
    say(
        f"{collected.removed:,} files {'to remove' if dry_run else 'removed'} ({trashed:,} to the trash), "
        f"{emptied:,} emptied from the trash{back}."
    )


def _as_json(collected: Collected) -> dict[str, Any]:
    return {
        "dry_run": collected.dry_run,
        "files_removed": collected.removed,
        "files_trashed": collected.count(Action.TRASH),
        "files_emptied": collected.count(Action.EMPTY),
        "files_restored": collected.count(Action.RESTORE),
        "decisions": [asdict(decision) for decision in collected.decisions],
        "skipped": [{"shard": shard, "why": why} for shard, why in collected.skipped],
        "refused": collected.refused,
    }


def adopt(uri: Uri, json: Json = False) -> None:
    """Make this catalog the owner of its shards: after a backup of it was put back, or of a copied store."""
    with Store.open(uri) as store:
        adoption = store.adopt()
    had, reached = adoption.commits
    if json:
        print_json(
            {
                "incarnation": adoption.incarnation,
                "commits": [had, reached],
                "missing": adoption.missing,
                "in_trash": adoption.in_trash,
            }
        )
        return
    say(escape(f"{uri} owns its shards now; keys and stream offsets from before are refused."))
    if reached > had:
        say(f"Commits {had + 1} to {reached} are not in this catalog, and lost.")
    for shard, path in adoption.missing:
        back = "`gc` puts it back from the trash"
        if (shard, path) not in adoption.in_trash:
            back = RESTORE
        say(escape(f"The catalog refers to {path} of shard {shard}, which is gone; {back}."))


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
