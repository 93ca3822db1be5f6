"""history, restore-table, set-retention, tag create, tag drop, tag list."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import elasticscan
from elasticscan.base.clock import seconds_of
from elasticscan.base.formatting import utc
from elasticscan.cli.options import Limit, Snapshot, Table, Uri
from elasticscan.cli.output import answer, listing
from elasticscan.ui import size

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tag's name.")]

tags = typer.Typer(name="tag", no_args_is_help=True, help="Names that keep a snapshot: create, drop, list.")


@tags.command("create")
def create_tag(uri: Uri, table: Table, name: Name, snapshot: Snapshot = None) -> None:
    """Name a snapshot, and keep it readable until the tag is dropped.

    Example: elasticscan tag create trips.store trips june --snapshot 5
    """
    with elasticscan.open(uri) as store:
        tag = store.table(table).tag(name, snapshot)
    answer(asdict(tag), f"Tag {tag.name} keeps snapshot {tag.snapshot} of {table}.")


@tags.command("drop")
def drop_tag(uri: Uri, table: Table, name: Name) -> None:
    """Drop a tag; its snapshot stays for as long as retention and leases keep it."""
    with elasticscan.open(uri) as store:
        store.table(table).drop_tag(name)
    answer({"table": table, "dropped": name}, f"Tag {name} of {table} dropped.")


@tags.command("list")
def list_tags(uri: Uri, table: Table) -> None:
    """List a table's tags, the oldest snapshot first."""
    with elasticscan.open(uri) as store:
        found = store.table(table).tags()
    rows = [(tag.name, str(tag.snapshot), utc(tag.created_at)) for tag in found]
    none = "no tags yet; `elasticscan tag create` makes one"
    answer([asdict(tag) for tag in found], listing(["tag", "snapshot", "since"], rows) if rows else none)


def set_retention(
    uri: Uri,
    table: Table,
    period: Annotated[
        str, typer.Argument(metavar="PERIOD", help="As in 12h or 7d; `store` for the store's own.")
    ],
) -> None:
    """Set how long snapshots and changes of a table stay readable without a tag or a lease.

    Example: elasticscan set-retention trips.store trips 30d
    """
    seconds = None if period == "store" else seconds_of("PERIOD", period)
    with elasticscan.open(uri) as store:
        store.table(table).set_retention(None if seconds is None else period)
    kept = "as long as the store says" if seconds is None else f"for {period}"
    value = {"table": table, "retention": seconds}
    answer(value, f"Snapshots and changes of {table} are kept {kept}.")


def restore_table(
    uri: Uri,
    table: Table,
    to: Annotated[
        str,
        typer.Option("--to", help="A commit number, a tag, or a time with its zone, as 2026-03-01T12:00Z."),
    ],
) -> None:
    """Restore a table to a snapshot, by a new commit.

    Example: elasticscan restore-table trips.store trips --to 2026-03-01T12:00Z
    """
    with elasticscan.open(uri) as store:
        handle = store.table(table)
        number = handle.restore(to)
        snapshot = next(int(c.user_metadata["restored_to"]) for c in handle.history() if c.number == number)
    value = {"table": table, "restored_to": snapshot, "commit": number}
    answer(value, f"{table} is as it was at snapshot {snapshot}, since commit {number}.")


def history(uri: Uri, table: Table, limit: Limit = None) -> None:
    """List a table's commits, oldest first: each is a snapshot that a scan takes.

    Example: elasticscan history trips.store trips --limit 10
    """
    with elasticscan.open(uri) as store:
        commits = store.table(table).history(limit)
    rows = [
        (
            str(commit.number),
            utc(commit.created_at),
            commit.kind,
            commit.rows,
            size(commit.bytes),
            ", ".join(f"{key}={text}" for key, text in commit.user_metadata.items()),
        )
        for commit in commits
    ]
    shown = listing(["commit", "time", "operation", "rows", "bytes", "metadata"], rows)
    answer([asdict(commit) for commit in commits], shown)
