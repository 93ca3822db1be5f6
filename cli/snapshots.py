"""history, set-retention, tag create, tag drop, tag list, restore-table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from elasticscan.cli.options import Json, Snapshot, Table, Uri, seconds_of, snapshot_of
from elasticscan.cli.output import answer, listing, size, when
from elasticscan.store import Store

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tag's name.")]

tags = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Names that keep a snapshot: create, drop, list."
)


@tags.command("create")
def create_tag(uri: Uri, table: Table, name: Name, snapshot: Snapshot = None, json: Json = False) -> None:
    """Name a snapshot, and keep it readable until the tag is dropped."""
    with Store.open(uri) as store:
        tag = store.table(table).tag(name, snapshot_of(snapshot))
    answer(
        json, asdict(tag), f"Tag [bold]{tag.name}[/bold] keeps snapshot {tag.snapshot} of {escape(table)}."
    )


@tags.command("drop")
def drop_tag(uri: Uri, table: Table, name: Name, json: Json = False) -> None:
    """Let go of a tag; its snapshot stays for as long as retention and leases keep it."""
    with Store.open(uri) as store:
        store.table(table).drop_tag(name)
    text = f"Tag [bold]{escape(name)}[/bold] of {escape(table)} dropped."
    answer(json, {"table": table, "dropped": name}, text)


@tags.command("list")
def list_tags(uri: Uri, table: Table, json: Json = False) -> None:
    """List a table's tags, the oldest snapshot first."""
    with Store.open(uri) as store:
        made = store.table(table).tags()
    shown = listing("tag", "snapshot", "since", right=("snapshot",))
    for tag in made:
        shown.add_row(tag.name, str(tag.snapshot), when(tag.created_at))
    none = "[dim]no tags yet; `elasticscan tag create` makes one[/dim]"
    answer(json, [asdict(tag) for tag in made], shown if made else none)


def set_retention(
    uri: Uri,
    table: Table,
    period: Annotated[
        str, typer.Argument(metavar="PERIOD", help="As in 12h or 7d; `store` for the store's own.")
    ],
    json: Json = False,
) -> None:
    """Say how long snapshots and changes of a table stay readable without a tag or a lease."""
    seconds = None if period == "store" else seconds_of(period, "PERIOD")
    with Store.open(uri) as store:
        store.table(table).set_retention(None if period == "store" else period)
    kept = "as long as the store says" if seconds is None else f"for {period}"
    answer(
        json,
        {"table": table, "retention": seconds},
        f"Snapshots and changes of [bold]{escape(table)}[/bold] are kept {kept}.",
    )


def restore_table(
    uri: Uri,
    table: Table,
    to: Annotated[
        str,
        typer.Option("--to", help="A commit number, a tag, or a time with its zone, as 2026-03-01T12:00Z."),
    ],
    json: Json = False,
) -> None:
    """Make a table again what it was at a snapshot, by a new commit."""
    with Store.open(uri) as store:
        handle = store.table(table)
        number = handle.restore(snapshot_of(to) or "")
        snapshot = next(int(c.user_metadata["restored_to"]) for c in handle.history() if c.number == number)
    value = {"table": table, "restored_to": snapshot, "commit": number}
    answer(json, value, f"{escape(table)} is what it was at snapshot {snapshot}, since commit {number}.")


def history(
    uri: Uri,
    table: Table,
    limit: Annotated[int | None, typer.Option(help="The newest so many; all by default.")] = None,
    json: Json = False,
) -> None:
    """List a table's commits, oldest first: each is a snapshot that a scan takes.

    Also called log.
    """
    with Store.open(uri) as store:
        commits = store.table(table).history(limit)
    shown = listing("commit", "time", "operation", "rows", "bytes", "said of it", right=("rows", "bytes"))
    for commit in commits:
        said = ", ".join(f"{key}={text}" for key, text in commit.user_metadata.items())
        made = when(commit.created_at)
        figures = f"{commit.rows:,}", size(commit.bytes)
        shown.add_row(str(commit.number), made, commit.kind, *figures, escape(said))
    answer(json, [asdict(commit) for commit in commits], shown)
