"""export: rows of a snapshot as Parquet files in a directory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from elasticscan.cli.options import Columns, Filter, Json, Snapshot, Table, Uri, names_of, snapshot_of
from elasticscan.cli.output import answer, counted, progress
from elasticscan.store import Store


def export(
    uri: Uri,
    table: Table,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="An empty directory, a new one, or s3://bucket/out.")
    ],
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    compression: Annotated[str, typer.Option(help="zstd, snappy, lz4, gzip or none.")] = "zstd",
    json: Json = False,
) -> None:
    """Write the rows of a snapshot as Parquet files; _SUCCESS stands beside them when all are complete."""
    with Store.open(uri) as store, progress() as bar:
        task = bar.add_task(f"exporting {table}", total=None, note="")
        done = store.table(table).export(
            directory,
            names_of(columns),
            filter,
            compression=compression,
            snapshot=snapshot_of(snapshot),
            on_progress=lambda rows: bar.update(task, note=f"{rows:,} rows"),
        )
    files = f"{done.files:,} file{'s' if done.files > 1 else ''}"
    answer(
        json,
        asdict(done),
        f"{counted(done.rows, 'row')} of snapshot {done.snapshot} written to {files} "
        f"in {escape(done.directory)}.",
    )
