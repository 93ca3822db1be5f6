"""history: the commits of a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from elasticscan.cli.options import Json, Table, Uri
from elasticscan.cli.output import answer, listing, size, when
from elasticscan.store import Store


def history(
    uri: Uri,
    table: Table,
    limit: Annotated[int | None, typer.Option(help="The newest so many; all by default.")] = None,
    json: Json = False,
) -> None:
    """List a table's commits, oldest first: each is a snapshot that a scan takes."""
    with Store.open(uri) as store:
        commits = store.table(table).history(limit)
    shown = listing("commit", "time", "operation", "rows", "bytes", "said of it", right=("rows", "bytes"))
    for commit in commits:
        said = ", ".join(f"{key}={text}" for key, text in commit.user_metadata.items())
        made = when(commit.created_at)
        figures = f"{commit.rows:,}", size(commit.bytes)
        shown.add_row(str(commit.number), made, commit.kind, *figures, escape(said))
    answer(json, [asdict(commit) for commit in commits], shown)
