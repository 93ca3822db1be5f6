"""export: rows of a snapshot as files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import elasticscan
from elasticscan.cli.options import Columns, Filter, Json, Snapshot, Table, Uri, names_of
from elasticscan.cli.output import answer, counted, progress


def export(
    uri: Uri,
    table: Table,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A new .parquet, .csv or .arrow; or an empty directory, or s3://bucket/out."
        ),
    ],
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    compression: Annotated[str, typer.Option(help="Of Parquet: zstd, snappy, lz4, gzip or none.")] = "zstd",
    json: Json = False,
) -> None:
    """Write the rows of a snapshot to a file, or as Parquet files with _SUCCESS to a directory.

    Example: elasticscan export trips.store trips s3://bucket/out --filter "city = 'Oslo'"
    """
    with elasticscan.open(uri) as store, progress(f"exporting {table}") as update:
        done = store.table(table).export(
            path,
            names_of(columns),
            filter,
            compression=compression,
            snapshot=snapshot,
            on_progress=lambda rows: update(note=f"{rows:,} rows"),
        )
    files = f"{done.files:,} file{'s' if done.files > 1 else ''}"
    answer(
        json,
        asdict(done),
        f"{counted(done.rows, 'row')} of snapshot {done.snapshot} written to {files}: {done.path}.",
    )
