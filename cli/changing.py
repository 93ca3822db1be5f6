"""update, delete: rows that meet a condition, or whose keys are in files; each one commit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from rich.markup import escape

from elasticscan.base.errors import InvalidOption
from elasticscan.base.showing import brief
from elasticscan.cli.getting import keys_of
from elasticscan.cli.options import Json, Since, Table, Uri, UserMetadata, said_of
from elasticscan.cli.output import answer, counted
from elasticscan.storage import conform
from elasticscan.store import Selection, Store, delete_rows, read_files, update_rows


def update(
    uri: Uri,
    table: Table,
    new: Annotated[
        list[str],
        typer.Option("--set", metavar="COLUMN=SQL", help='A new value: "km=km * 2", "city=\'Oslo\'".'),
    ],
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help='A condition on the rows; "true" for all.')
    ] = None,
    if_unchanged_since: Since = None,
    user_metadata: UserMetadata = None,
    json: Json = False,
) -> None:
    """Give columns new values in the rows that meet a condition: one commit, all or nothing."""
    if where is None:
        raise InvalidOption(
            "say which rows with --where SQL, or all of them with --where true", option="--where"
        )
    values = dict(map(_assignment, new))
    said = said_of(user_metadata)
    with Store.open(uri) as store:
        selection = _selection(store, table, where, if_unchanged_since, said)
        changed = update_rows(selection, values)
    answer(
        json,
        {"table": table, "rows": changed.rows, "commit": changed},
        f"{counted(changed.rows, 'row')} of [bold]{escape(table)}[/bold] updated as commit {changed}.",
    )


def delete(
    uri: Uri,
    table: Table,
    file: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="Files that have the key columns.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="In place of files a key as get takes it; of several columns: 5,mon"
        ),
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help='In place of files a condition; "true" for all rows.')
    ] = None,
    if_unchanged_since: Since = None,
    user_metadata: UserMetadata = None,
    json: Json = False,
) -> None:
    """Delete rows that meet a condition, or that have keys: one commit, all or nothing."""
    said, files, typed = said_of(user_metadata), file or [], key or []
    if (bool(files), bool(typed), where is not None).count(True) != 1:
        raise InvalidOption("give one of files of keys, --key and --where", option="--where")
    with Store.open(uri) as store:
        if where is not None:
            changed = delete_rows(_selection(store, table, where, if_unchanged_since, said))
            rows, commit = changed.rows, int(changed)
        elif files:
            rows, commit = _delete_files(store, table, files, if_unchanged_since, said)
        else:
            rows, commit = _delete_typed(store, table, typed, if_unchanged_since, said)
    what, which = ("row", "") if where is not None else ("key", ", whether there was a row or not")
    answer(
        json,
        {"table": table, f"{what}s": rows, "commit": commit},
        f"{counted(rows, what)} of [bold]{escape(table)}[/bold] deleted as commit {commit}{which}.",
    )


def _assignment(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise InvalidOption(f"--set {text!r} must be COLUMN=SQL, as in --set 'km=km * 2'", option="--set")
    return name.strip(), value.strip()


def _selection(store: Store, table: str, where: str, since: int | None, said: dict[str, str]) -> Selection:
    return Selection(
        store.context, lambda tx: store.context.table(tx, table), where, since, user_metadata=said
    )


def _check_no_keys(files: Sequence[Path], schema: pa.Schema, names: Sequence[str]) -> None:
    """Raises `InvalidOption` for a key in place of a file of keys."""
    for file in map(str, files):
        with suppress(OSError):
            if set(file) & set("*?[") or "://" in file or Path(file).exists():
                continue
        if _may_be_key(file, schema, names):
            raise InvalidOption(
                f"there is no file {brief(file, 40)} of keys; to delete a row by its key "
                f"({', '.join(names)}), write --key {shlex.quote(file) if len(file) <= 40 else '…'}",
                option="FILE",
            )


def _may_be_key(word: str, schema: pa.Schema, names: Sequence[str]) -> bool:
    """True unless a word can only be the name of a file."""
    if not set(word) & set("./"):
        return True
    try:
        keys_of([word], schema, names)
    except InvalidOption:
        return False
    return True


def _delete_files(
    store: Store, table: str, files: Sequence[Path], since: int | None, said: dict[str, str]
) -> tuple[int, int]:
    """(keys in the files, the commit)."""
    target, count = store.table(table), 0
    names, schema = list(target.primary_key), target.schema
    _check_no_keys(files, schema, names)
    key_schema = pa.schema([schema.field(name) for name in names])

    def keys() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in read_files(files, schema):
            missing = [name for name in names if name not in batch.schema.names]
            if missing:
                raise InvalidOption(f"the files lack {missing[0]!r}, a column of the key", option="FILE")
            count += batch.num_rows
            yield conform(batch.select(names), key_schema)

    reader = pa.RecordBatchReader.from_batches(key_schema, keys())
    commit = target.delete(reader, if_unchanged_since=since, user_metadata=said)
    return count, commit


def _delete_typed(
    store: Store, table: str, typed: Sequence[str], since: int | None, said: dict[str, str]
) -> tuple[int, int]:
    """(keys as they were typed, the commit)."""
    target = store.table(table)
    keys = keys_of(typed, target.schema, target.primary_key)
    return keys.num_rows, target.delete(keys, if_unchanged_since=since, user_metadata=said)
