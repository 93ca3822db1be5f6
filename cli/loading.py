"""load: files into a table, as one commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from rich.markup import escape

from elasticscan.base.errors import InvalidOption, TableNotFound
from elasticscan.cli.files import CsvRules, kind_of, read_batches, schema_of
from elasticscan.cli.options import Json, Since, Table, Uri, UserMetadata, names_of, said_of, type_of
from elasticscan.cli.output import answer, progress
from elasticscan.metadata import TableInfo
from elasticscan.storage import conform
from elasticscan.store import KeyCheck, Store, absent, reserve_table, unchanged, write


def load(
    uri: Uri,
    table: Table,
    file: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, Parquet or Arrow files.")],
    primary_key: Annotated[
        str | None, typer.Option(metavar="A,B", help="Makes the table if it is missing, with this key.")
    ] = None,
    shard_key: Annotated[
        str | None, typer.Option(metavar="A", help="The prefix of the key that decides a row's slot.")
    ] = None,
    compression: Annotated[str | None, typer.Option(help="lz4 or zstd; none by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace all rows by these.")] = False,
    null: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="CSV: what is null, beside empty fields without quotes."),
    ] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", metavar="NAME=TYPE", help="CSV: a column's Arrow type.")
    ] = None,
    insert: Annotated[
        bool, typer.Option("--insert", help="Refuse rows whose primary keys are there already.")
    ] = False,
    if_unchanged_since: Since = None,
    user_metadata: UserMetadata = None,
    json: Json = False,
) -> None:
    """Load files into a table: one commit, all or nothing."""
    rules = CsvRules(tuple(null or ()), _types(type_ or ()))
    modes = (
        ("--overwrite", overwrite),
        ("--insert", insert),
        ("--if-unchanged-since", if_unchanged_since is not None),
    )
    chosen = [name for name, given in modes if given]
    if len(chosen) > 1:
        raise InvalidOption(f"{' and '.join(chosen)} do not go together; give one of them", option=chosen[1])
    said = said_of(user_metadata)
    for path in file:
        kind_of(path)
    with Store.open(uri) as store:
        keys, shard_keys = names_of(primary_key), names_of(shard_key)
        created = table not in {there.name for there in store.tables()}
        if created:
            schema = schema_of(file[0], rules)
            if not keys:
                raise TableNotFound(
                    f"the store has no table {table!r}; pass --primary-key to make it with the columns of "
                    f"{file[0]} ({', '.join(schema.names)})",
                    table=table,
                )
            target = reserve_table(store.context, table, schema, keys, shard_keys, compression)
        else:
            target = store.table(table).definition
            _check_keys(target, keys, shard_keys)
        with _check_of(store, target, insert, if_unchanged_since) as check:
            commit, rows = _write(store, target, file, rules, overwrite, said, check)
    answer(
        json,
        {"table": table, "rows": rows, "commit": commit, "created": created},
        f"{rows:,} rows loaded into [bold]{escape(table)}[/bold] as commit {commit}.",
    )


@contextmanager
def _check_of(store: Store, table: TableInfo, insert: bool, since: int | None) -> Iterator[KeyCheck | None]:
    """The requirements of the write on its keys, if there are any."""
    if since is not None:
        with unchanged(store.context, table, since) as check:
            yield check
    else:
        yield absent(store.context, table) if insert else None


def _write(
    store: Store,
    table: TableInfo,
    files: Sequence[Path],
    rules: CsvRules,
    overwrite: bool,
    said: dict[str, str],
    check: KeyCheck | None,
) -> tuple[int, int]:
    """The commit number, and how many rows were read."""
    rows, schema = 0, table.schema
    with progress() as bar:
        task = bar.add_task(f"loading {table.name}", total=sum(map(_size, files)), note="")

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in read_batches(files, schema, rules, lambda size: bar.advance(task, size)):
                rows += batch.num_rows
                bar.update(task, note=f"{rows:,} rows")
                yield conform(batch, schema)
            bar.update(task, note=f"{rows:,} rows, committing")

        kind = "overwrite" if overwrite else "write"
        data = pa.RecordBatchReader.from_batches(schema, counted())
        commit = write(store.context, table, data, kind, check=check, user_metadata=said)
        return commit, rows


def _check_keys(table: TableInfo, primary_key: list[str] | None, shard_key: list[str] | None) -> None:
    """Raises `InvalidOption` when a table that is there already has other keys than those that were named."""
    for option, asked, actual in (
        ("--primary-key", primary_key, table.primary_key),
        ("--shard-key", shard_key, table.shard_key),
    ):
        if asked is not None and asked != list(actual):
            raise InvalidOption(
                f"{option} {','.join(asked)!r}, but table {table.name!r} has {','.join(actual)!r}; leave "
                "the option out, or load into another table",
                option=option,
            )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _types(items: Sequence[str]) -> dict[str, pa.DataType]:
    types = {}
    for item in items:
        name, _, alias = item.partition("=")
        types[name] = type_of(alias, "--type", f"--type {item!r} must be NAME=TYPE, with")
    return types
