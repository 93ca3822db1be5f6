"""keep, compact, gc, adopt, verify, repair, rotate-secret."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from elasticscan.base.errors import RESTORE, InvalidOption, TryAgain
from elasticscan.base.limits import GC_GRACE_SECONDS, GC_SHARE, TRASH_SECONDS
from elasticscan.base.redaction import shown
from elasticscan.cli.options import Json, Speed, Uri, bytes_of, seconds_of
from elasticscan.cli.output import answer, console, print_json_line, size, warn
from elasticscan.store import Action, Collected, Kept, Store, repair_store

DAMAGE_FOUND = PROBLEMS_MET = 5
KEEP_SECONDS = 10


def keep(
    uri: Uri,
    once: Annotated[bool, typer.Option("--once", help="Do what is due now, and end.")] = False,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait when nothing is due, as in 10s or 5m.")
    ] = f"{KEEP_SECONDS}s",
    bytes_per_second: Speed = None,
    json: Json = False,
) -> None:
    """Keep a store fast which others write to, until this is stopped: merge, split, join, move, collect."""
    pause, most = seconds_of(every, "--every"), bytes_of(bytes_per_second, "--bytes-per-second")

    if pause <= 0:
        raise InvalidOption(
            "--every must be more than 0: the catalog is asked again each time", option="--every"
        )

    def tell(step: str) -> None:
        if not json:
            console().print(step, markup=False)

    kept = Kept()
    with Store.open(uri, upkeep="off") as store, until_stopped():
        while True:
            try:
                kept = store.keep(bytes_per_second=most, on_step=tell)
            except TryAgain as error:  # a catalog that is out of reach may be there for the next round
                if once:
                    raise
                kept = Kept(problems=[str(error)])
            for problem in kept.problems:
                warn(problem, "red")
            if once:
                answer(json, asdict(kept), _summary(kept))
                break
            if json:
                print_json_line(asdict(kept))
            if not kept.steps:
                time.sleep(pause)
    if once and kept.problems:
        raise typer.Exit(PROBLEMS_MET)


@contextmanager
def until_stopped() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a keeper: what it has begun is undone, and its steps are free."""

    def stop(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _summary(kept: Kept) -> str:
    """Tell what a round did."""
    if not kept.steps:
        return "Nothing was due."
    changes = ((kept.splits, "split"), (kept.joins, "joined"), (kept.moves, "moved"))
    tablets = (f"{count} {name}" for count, name in changes if count)
    return (
        f"{kept.merges:,} merges ({kept.fragments_gone:,} fragments less, {size(kept.bytes_written)}), "
        f"tablets: {', '.join(tablets) or 'none changed'}; {kept.files_removed:,} files removed."
    )


def compact(
    uri: Uri,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="One table; all by default.")] = None,
    json: Json = False,
) -> None:
    """Merge small fragments into large ones.

    Also called optimize.
    """
    with Store.open(uri) as store:
        gone = store.compact() if table is None else store.table(table).compact()
    answer(json, {"fragments_removed": gone}, f"{gone:,} fragments fewer.")


def collect_garbage(
    uri: Uri,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Spare files that were needed so recently, as in 30m or 2h.")
    ] = f"{GC_GRACE_SECONDS // 3_600}h",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing; list what would go or stay, and why.")
    ] = False,
    trash: Annotated[
        str, typer.Option(metavar="TIME", help="How long files stay in the trash; 0 for not at all.")
    ] = f"{TRASH_SECONDS // 86_400}d",
    share: Annotated[
        float, typer.Option(help="Most of a shard's files that may go though the catalog never knew them.")
    ] = GC_SHARE,
    json: Json = False,
) -> None:
    """Remove files that nothing needs any more.

    Also called vacuum.
    """
    spared, trash_seconds = seconds_of(grace, "--grace"), seconds_of(trash, "--trash")
    with Store.open(uri) as store:
        collected = store.collect_garbage(
            grace_seconds=spared, dry_run=dry_run, trash_seconds=trash_seconds, share=share
        )
    if not json:
        for decision in collected.decisions if dry_run else ():
            text = f"{decision.action:7}  {decision.shard}:{decision.path}  {decision.reason}"
            console().print(text, markup=False)
        for shard, why in collected.skipped:
            warn(f"shard {shard} was skipped: {why}")
        if collected.refused:
            warn(f"refused: {collected.refused}")
    trashed, emptied = collected.count(Action.TRASH), collected.count(Action.EMPTY)
    back = f", {collected.count(Action.RESTORE):,} put back" if collected.count(Action.RESTORE) else ""
    outcome = f"{collected.removed:,} files {'to remove' if dry_run else 'removed'}"
    trash_outcome = f"({trashed:,} to the trash), {emptied:,} emptied from the trash{back}"
    answer(json, _as_json(collected), f"{outcome} {trash_outcome}.")


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
    message = [f"{shown(uri)} owns its shards now; keys and stream offsets from before are refused."]
    if reached > had:
        message.append(f"Commits {had + 1} to {reached} are not in this catalog, and lost.")
    for shard, path in adoption.missing:
        back = "`gc` puts it back from the trash" if (shard, path) in adoption.in_trash else RESTORE
        message.append(f"The catalog refers to {path} of shard {shard}, which is gone; {back}.")
    answer(json, asdict(adoption), escape("\n".join(message)))


def verify(uri: Uri, json: Json = False) -> None:
    """Read every file; exit code 5 if one is damaged, with the rows, slots and commits that it had."""
    with Store.open(uri) as store:
        damaged = store.verify()
    if json or not damaged:
        answer(json, {"damaged": [asdict(each) for each in damaged]}, "Every file is as it was written.")
    else:
        for each in damaged:
            warn(str(each), "red")
    if damaged:
        raise typer.Exit(DAMAGE_FOUND)


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
    """Make a store again from its files; the damaged one is only read. Exit code 5 if something is lost."""
    report = repair_store(uri, into, root or None, store_id)
    made = [f"{name}: {rows:,} rows." for name, rows in report.tables.items()]
    answer(json, asdict(report), "\n".join(made) or "No table could be made.")
    if not json:
        for text in report.lost:
            warn(f"lost: {text}", "red")
        for text in report.doubts:
            warn(f"not known: {text}", "yellow")
    if report.lost:
        raise typer.Exit(DAMAGE_FOUND)


def rotate_secret(
    uri: Uri,
    revoke: Annotated[
        bool,
        typer.Option(
            "--revoke", help="End all keys and streams' checkpoints: somebody may have seen the old."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Replace the secrets of continuation keys and of streams' offsets; those in use go on."""
    with Store.open(uri) as store:
        number = store.rotate_secret(revoke=revoke)
    ended = (
        "keys given out until now have ended, and streams need new checkpoints"
        if revoke
        else "keys given out until now still open, and streams go on"
    )
    text = f"Keys are sealed with secret {number} from now on; {ended}."
    answer(json, {"secret": number, "revoked": revoke}, text)
