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
    once: Annotated[bool, switch("--once", "Do the pending work, and end.")] = False,
    every: Annotated[
        str, option("TIME", "How long to wait when no work is pending, as in 10s or 5m.")
    ] = "10s",
) -> None:
    """Maintain a store that others write to, until stopped: merge, split, join, move, collect garbage.

    Example: elasticscan keep trips.store --once
    """
    pause = seconds_of("--every", every)
    with elasticscan.open(uri, upkeep="off") as store, until_stopped():
        while True:
            try:
                done = asdict(store.keep())
            except TryAgain as error:  # a catalog that is out of reach may be back in the next round
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
    """Let Ctrl-C and SIGTERM end a block; unfinished steps are undone."""

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
        str, option("TIME", "Spare files that were needed so recently, as in 30m or 2h.")
    ] = f"{GC_GRACE_SECONDS // 3_600}h",
    dry_run: Annotated[
        bool, switch("--dry-run", "Remove nothing; list what would go or stay, and why.")
    ] = False,
    orphans: Annotated[
        str, option("TIME", "Spare files that the catalog does not know for so long.")
    ] = f"{ORPHAN_SECONDS // 86_400}d",
    share: Annotated[
        float, option(None, "Most of a shard's files that may go though the catalog never knew them.")
    ] = GC_SHARE,
) -> None:
    """Remove files that are not needed any more.

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
    target: Annotated[str, argument("TARGET", "A new place for it: a directory or a URI.")],
) -> None:
    """Copy a whole store as of now, with all snapshots that it keeps.

    Example: elasticscan backup trips.store /mnt/backups/monday
    """
    with elasticscan.open(uri) as store:
        made = store.backup(target)
    text = f"Snapshot {made.snapshot} is backed up: {counted(made.files, 'file')}, {size(made.bytes)}."
    answer(asdict(made), text)


def restore(
    source: Annotated[str, argument("BACKUP", "The place of a backup.")],
    uri: Annotated[str, argument("URI", "Where the new store is made.")],
    root: Annotated[
        Texts, option("SHARD=ROOT", "A shard's root; else in the store's directory.", "--root")
    ] = None,
) -> None:
    """Make a store of a backup.

    Example: elasticscan restore /mnt/backups/monday restored.store
    """
    with elasticscan.Store.from_backup(source, uri, pairs_of(root, "--root")) as store:
        snapshot = store.status()["snapshot"]
    answer({"store": shown(uri), "snapshot": snapshot}, f"{shown(uri)} holds snapshot {snapshot}.")


def adopt(uri: Uri) -> None:
    """Make this catalog the owner of its shards: after its backup was put back, or of a copied store."""
    with elasticscan.open(uri) as store:
        adopted = store.adopt()
    had, reached = adopted.commits
    text = f"{shown(uri)} owns its shards now; keys and stream offsets from before are refused."
    if reached > had:
        text += f"\nCommits {had + 1} to {reached} are not in this catalog, and lost."
    answer(asdict(adopted), text)


def verify(uri: Uri) -> None:
    """Read every file; exit code 5 if one is damaged, with its rows, slots and commits."""
    with elasticscan.open(uri) as store:
        damaged = store.verify()
    if is_json() or not damaged:
        answer({"damaged": [asdict(each) for each in damaged]}, "Every file is as it was written.")
    else:
        for each in damaged:
            warn(str(each), "red")
    if damaged:
        raise typer.Exit(DAMAGE_FOUND)


def repair(
    uri: Uri,
    into: Annotated[str, argument("INTO", "Where the new store is made.")],
    root: Annotated[
        Texts, option("ROOT", "A shard's root; those in the store's directory by default.", "--root")
    ] = None,
) -> None:
    """Make a new store from a damaged one's files, which are only read; exit code 5 if something is lost.

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
        bool, switch("--revoke", "End all keys and streams' checkpoints, where the old secret leaked.")
    ] = False,
) -> None:
    """Replace the secrets of continuation keys and of streams' offsets; those in use stay valid."""
    with elasticscan.open(uri) as store:
        number = store.rotate_secret(revoke=revoke)
    ended = "earlier keys have ended" if revoke else "earlier keys still open"
    text = f"Keys are sealed with secret {number} from now on; {ended}."
    answer({"secret": number, "revoked": revoke}, text)
