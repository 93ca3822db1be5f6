"""load: files into a table, as one commit or as a job that can be started again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import elasticscan
from elasticscan.base.errors import InvalidOption
from elasticscan.cli.options import Json, Since, Table, Uri, UserMetadata, names_of, pairs_of
from elasticscan.cli.output import answer, counted, progress

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Files, directories, patterns in quotes, or addresses as s3://bucket/in/: CSV, JSON lines, "
        "Parquet, Arrow, ORC.",
    ),
]
Job = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A commit for each file; started again under the same name, it goes on.",
    ),
]
Null = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="CSV: a text for null, besides empty fields without quotes."),
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type", metavar="NAME=TYPE", help="CSV, JSON, names of directories: a column's Arrow type."
    ),
]
Delimiter = Annotated[str, typer.Option(metavar="CHARACTER", help=r"CSV: between fields; \t for a tab.")]
ColumnNames = Annotated[
    list[str] | None, typer.Option(metavar="A,B", help="CSV without a header: its columns.")
]


def load(
    uri: Uri,
    table: Table,
    source: Sources,
    primary_key: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Makes the table if it is missing, with this key.")
    ] = None,
    shard_key: Annotated[
        list[str] | None, typer.Option(metavar="A", help="The prefix of the key that decides a row's slot.")
    ] = None,
    compression: Annotated[
        str | None, typer.Option(help="Of a table that is made: lz4, zstd or none (the default).")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace all rows by these.")] = False,
    null: Null = None,
    type_: Types = None,
    delimiter: Delimiter = ",",
    column_names: ColumnNames = None,
    insert: Annotated[
        bool, typer.Option("--insert", help="Refuse rows whose primary keys are there already.")
    ] = False,
    job: Job = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="csv, json, parquet, arrow or orc."),
    ] = None,
    if_unchanged_since: Since = None,
    user_metadata: UserMetadata = None,
    json: Json = False,
) -> None:
    """Load files into a table: one commit, all or nothing; or, as a job, a commit for each file.

    Example: elasticscan load trips.store trips 'in/**/*.parquet' --primary-key id --job 2026-06
    """
    if overwrite and insert:
        raise InvalidOption(
            "--overwrite and --insert do not go together; give one of them", option="--insert"
        )
    types, said = pairs_of(type_, "--type"), pairs_of(user_metadata, "--user-metadata")
    with elasticscan.open(uri) as store, progress(f"loading {table}") as update:
        done = store.load(
            table,
            source,
            primary_key=names_of(primary_key),
            shard_key=names_of(shard_key),
            compression=compression,
            mode="overwrite" if overwrite else "insert" if insert else "upsert",
            format=format_,
            nulls=null or (),
            types=types,
            delimiter="\t" if delimiter == r"\t" else delimiter,
            column_names=names_of(column_names),
            job=job,
            if_unchanged_since=if_unchanged_since,
            user_metadata=said,
            on_progress=lambda read, total, rows: update(completed=read, total=total, note=f"{rows:,} rows"),
        )
    before = f"; {done.skipped:,} were loaded by this job before" if done.skipped else ""
    last = "" if done.commit is None else f" as commit {done.commit}"
    answer(
        json,
        asdict(done),
        f"{counted(done.rows, 'row')} loaded into {table}{last}{before}.",
    )
