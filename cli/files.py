"""load and export: from files to a table, and from a snapshot to files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import elasticscan
from elasticscan.base.errors import InvalidOption
from elasticscan.cli.options import (
    Columns,
    Filter,
    Since,
    Snapshot,
    Table,
    Texts,
    Uri,
    UserMetadata,
    argument,
    names_of,
    option,
    pairs_of,
    switch,
)
from elasticscan.cli.output import answer, counted, progress

Sources = Annotated[
    list[str],
    argument(
        "SOURCE...",
        "Files, directories, patterns in quotes, or URLs such as s3://bucket/in/: CSV, JSON lines, "
        "Parquet, Arrow, ORC.",
    ),
]


def load(
    uri: Uri,
    table: Table,
    source: Sources,
    primary_key: Annotated[Texts, option("A,B", "Create the table with this key if it is missing.")] = None,
    shard_key: Annotated[
        Texts, option("A", "The first columns of the key; they decide a row's slot.")
    ] = None,
    compression: Annotated[
        str | None, option(None, "For a new table: lz4, zstd or none (the default).")
    ] = None,
    overwrite: Annotated[bool, switch("--overwrite", "Replace all rows of the table.")] = False,
    insert: Annotated[bool, switch("--insert", "Refuse rows whose primary keys exist.")] = False,
    null: Annotated[Texts, option("TEXT", "CSV: a text for null, like empty fields without quotes.")] = None,
    type_: Annotated[
        Texts, option("NAME=TYPE", "The Arrow type of a column of a new table.", "--type")
    ] = None,
    delimiter: Annotated[str, option("CHARACTER", r"CSV: the text between fields; \t for a tab.")] = ",",
    column_names: Annotated[Texts, option("A,B", "CSV without a header: the names of its columns.")] = None,
    job: Annotated[str | None, option("NAME", "Make a commit per file; a repeated call continues.")] = None,
    format_: Annotated[str | None, option(None, "csv, json, parquet, arrow or orc.", "--format")] = None,
    if_unchanged_since: Since = None,
    user_metadata: UserMetadata = None,
) -> None:
    """Load files into a table in one commit, all or nothing; with --job, in one commit per file.

    Example: elasticscan load trips.store trips 'in/**/*.parquet' --primary-key id --job 2026-06
    """
    if overwrite and insert:
        raise InvalidOption(
            "--overwrite and --insert do not go together; give one of them", option="--insert"
        )
    with elasticscan.open(uri) as store, progress(f"loading {table}"):
        done = store.load(
            table,
            source,
            primary_key=names_of(primary_key),
            shard_key=names_of(shard_key),
            compression=compression,
            mode="overwrite" if overwrite else "insert" if insert else "upsert",
            format=format_,
            nulls=null or (),
            types=pairs_of(type_, "--type"),
            delimiter="\t" if delimiter == r"\t" else delimiter,
            column_names=names_of(column_names),
            job=job,
            if_unchanged_since=if_unchanged_since,
            user_metadata=pairs_of(user_metadata, "--user-metadata"),
        )
    before = f"; {done.skipped:,} files were loaded by this job before" if done.skipped else ""
    last = "" if done.commit is None else f" as commit {done.commit}"
    answer(asdict(done), f"{counted(done.rows, 'row')} loaded into {table}{last}{before}.")


def export(
    uri: Uri,
    table: Table,
    path: Annotated[
        str, argument("PATH", "A new .parquet, .csv or .arrow file, an empty directory, or s3://bucket/out.")
    ],
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    compression: Annotated[str, option(None, "For Parquet: zstd, snappy, lz4, gzip or none.")] = "zstd",
) -> None:
    """Write the rows of a snapshot to a file, or to Parquet files and _SUCCESS in a directory.

    Example: elasticscan export trips.store trips s3://bucket/out --filter "city = 'Oslo'"
    """
    with elasticscan.open(uri) as store, progress(f"exporting {table}"):
        done = store.table(table).export(
            path,
            names_of(columns),
            filter,
            compression=compression,
            snapshot=snapshot,
        )
    rows, files = counted(done.rows, "row"), counted(done.files, "file")
    answer(asdict(done), f"{rows} of snapshot {done.snapshot} written to {files}: {done.path}.")
