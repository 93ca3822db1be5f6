"""keep, compact, gc, backup, restore, adopt, verify, repair, rotate-secret."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from typing import Annotated, Any

import typer

import elasticscan
from elasticscan.base.clock import seconds_of
from elasticscan.base.errors import TryAgain
from elasticscan.base.limits import GC_GRACE_SECONDS, GC_SHARE, ORPHAN_SECONDS
from elasticscan.base.redaction import shown
from elasticscan.cli.options import AnyTable, Texts, Uri, argument, option, pairs_of, switch
from elasticscan.cli.output import answer, counted, is_json, print_json_line, say, warn
from elasticscan.ui import size

DAMAGE_FOUND = PROBLEMS_MET = 5


def keep(
    uri: Uri,
    once: Annotated[bool, switch("--once", "Do the pending work, then exit.")] = False,
    every: Annotated[
        str, option("TIME", "How long to wait when no work is pending, such as 10s or 5m.")
    ] = "10s",
) -> None:
    """Maintain a store while others write, until stopped: merge, split, join, move, collect garbage.

    Example: elasticscan keep trips.store --once
    """
    pause = seconds_of("--every", every)
    with elasticscan.open(uri, upkeep="off") as store, until_stopped():
        while True:
            try:
                done = asdict(store.keep())
            except TryAgain as error:  # the next round may reach the catalog again
                if once:
                    raise
                done = {"problems": [str(error)]}
            for problem in done["problems"]:
                warn(problem, "red")
            steps = [
                f"{name.replace('_', ' ')} {n:,}" for name, n in done.items() if n and name != "problems"
            ]
            if is_json():
                print_json_line(done)
            elif once:
                say(f"{', '.join(steps)}." if steps else "Nothing was changed.")
            if once:
                raise typer.Exit(PROBLEMS_MET if done["problems"] else 0)
            if not steps:
                time.sleep(pause)


@contextmanager
def until_stopped() -> Iterator[None]:
    """End the block on Ctrl-C or SIGTERM; unfinished steps are undone."""

    def stop(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def compact(uri: Uri, table: AnyTable = None) -> None:
    """Merge small fragments into large ones."""
    with elasticscan.open(uri) as store:
        gone = store.compact() if table is None else store.table(table).compact()
    answer({"fragments_removed": gone}, f"{gone:,} fragments fewer.")


def gc(
    uri: Uri,
    grace: Annotated[
        str, option("TIME", "Keep files that were needed within this time, such as 30m or 2h.")
    ] = f"{GC_GRACE_SECONDS // 3_600}h",
    dry_run: Annotated[
        bool, switch("--dry-run", "Remove nothing; list which files would be removed or kept, and why.")
    ] = False,
    orphans: Annotated[
        str, option("TIME", "Keep files that the catalog does not know for this time.")
    ] = f"{ORPHAN_SECONDS // 86_400}d",
    share: Annotated[
        float,
        option(None, "The largest part of a shard's files, 0 to 1, to remove as unknown."),
    ] = GC_SHARE,
) -> None:
    """Remove files that are no longer needed.

    Example: elasticscan gc trips.store --dry-run
    """
    spared, orphan_seconds = seconds_of("--grace", grace), seconds_of("--orphans", orphans)
    with elasticscan.open(uri) as store:
        done = store.collect_garbage(
            grace_seconds=spared, dry_run=dry_run, orphan_seconds=orphan_seconds, share=share
        )
    value = asdict(done) | {"files_removed": done.removed}
    if not is_json():
        for decision in done.decisions if dry_run else ():
            say(f"{decision.action:7}  {decision.shard}:{decision.path}  {decision.reason}")
        for shard, why in done.skipped:
            warn(f"shard {shard} was skipped: {why}")
        if done.refused:
            warn(f"refused: {done.refused}")
    answer(value, f"{counted(done.removed, 'file')} {'to remove' if dry_run else 'removed'}.")


def backup(
    uri: Uri,
    target: Annotated[str, argument("TARGET", "A new directory or URI for the backup.")],
) -> None:
    """Copy the current state of a store, with all snapshots that it keeps.

    Example: elasticscan backup trips.store /mnt/backups/monday
    """
    with elasticscan.open(uri) as store:
        made = store.backup(target)
    text = f"Snapshot {made.snapshot} is backed up: {counted(made.files, 'file')}, {size(made.bytes)}."
    answer(asdict(made), text)


def restore(
    source: Annotated[str, argument("BACKUP", "The directory or URI of a backup.")],
    uri: Annotated[str, argument("URI", "The directory or URI of the new store.")],
    root: Annotated[
        Texts, option("SHARD=ROOT", "A shard's root; by default in the store's directory.", "--root")
    ] = None,
) -> None:
    """Create a store from a backup.

    Example: elasticscan restore /mnt/backups/monday restored.store
    """
    with elasticscan.Store.from_backup(source, uri, pairs_of(root, "--root")) as store:
        snapshot = store.status()["snapshot"]
    answer({"store": shown(uri), "snapshot": snapshot}, f"{shown(uri)} contains snapshot {snapshot}.")


def adopt(uri: Uri) -> None:
    """Make this catalog the owner of its shards, after restoring its backup or copying the store."""
    with elasticscan.open(uri) as store:
        adopted = store.adopt()
    had, reached = adopted.commits
    text = f"{shown(uri)} owns its shards now; keys and stream offsets from before are refused."
    if reached > had:
        text += f"\nCommits {had + 1} to {reached} are not in this catalog, and lost."
    answer(asdict(adopted), text)


def verify(uri: Uri) -> None:
    """Read every file and report damaged ones with their rows, slots and commits; then exit with 5."""
    with elasticscan.open(uri) as store:
        damaged = store.verify()
    if is_json() or not damaged:
        answer({"damaged": [asdict(each) for each in damaged]}, "Every file is intact.")
    else:
        for each in damaged:
            warn(str(each), "red")
    if damaged:
        raise typer.Exit(DAMAGE_FOUND)


def repair(
    uri: Uri,
    into: Annotated[str, argument("INTO", "The directory or URI of the new store.")],
    root: Annotated[
        Texts, option("ROOT", "A shard's root; by default those in the store's directory.", "--root")
    ] = None,
) -> None:
    """Create a new store from the files of a damaged one, without changing it; exit with 5 if rows are lost.

    Example: elasticscan repair damaged.store repaired.store
    """
    report = import_module("elasticscan.store").repair_store(uri, into, root or None)
    made = [f"{name}: {rows:,} rows." for name, rows in report.tables.items()]
    answer(asdict(report), "\n".join(made) or "No table could be made.")
    if not is_json():
        for text in report.lost:
            warn(f"lost: {text}", "red")
        for text in report.doubts:
            warn(f"not known: {text}", "yellow")
    if report.lost:
        raise typer.Exit(DAMAGE_FOUND)


def rotate_secret(
    uri: Uri,
    revoke: Annotated[
        bool, switch("--revoke", "Also invalidate all keys and checkpoints of streams, if a secret leaked.")
    ] = False,
) -> None:
    """Replace the secrets of continuation keys and stream offsets; existing keys and offsets stay valid."""
    with elasticscan.open(uri) as store:
        number = store.rotate_secret(revoke=revoke)
    ended = "earlier keys are invalid" if revoke else "earlier keys stay valid"
    text = f"Keys are sealed with secret {number} from now on; {ended}."
    answer({"secret": number, "revoked": revoke}, text)
