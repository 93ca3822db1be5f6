"""Files into a table: as one commit, or file by file under the name of a job, which can be started again.

A file is committed under an idempotency key made of the job's name and of the file's path, size and time. A
job that was killed and is started again skips the files that it committed: no row is lost, none is written
twice, and rows that were changed meanwhile stay changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, NotFound, SchemaMismatch
from elasticscan.catalog import IdempotencyKey
from elasticscan.metadata import TableInfo
from elasticscan.storage import conform
from elasticscan.store.context import Context
from elasticscan.store.rows.files import SourceFile, TextRules, find_files, read_file, schema_of
from elasticscan.store.writing.definitions import reserve_table
from elasticscan.store.writing.publishing import is_committed
from elasticscan.store.writing.transactions import WriteTransaction

UPSERT, INSERT, OVERWRITE = MODES = "upsert", "insert", "overwrite"

# Called with the rows that were read so far.
OnLoaded = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome of a load.

    Attributes:
        rows: the rows that were read and written.
        commit: the last commit; None where all was loaded before.
        created: whether the table was made.
        skipped: files that the same job had loaded before.
    """

    table: str
    rows: int
    commit: int | None
    created: bool
    skipped: int


@dataclass(frozen=True, slots=True)
class Load:
    """The arguments of `Store.load`; `made` are the keys and the compression of a table that is made."""

    table: str
    mode: str
    rules: TextRules
    made: Mapping[str, Any]
    job: str | None
    if_unchanged_since: int | None
    user_metadata: Mapping[str, str]
    on_progress: OnLoaded | None


def load_files(context: Context, load: Load, sources: Sequence[str], form: str | None) -> Loaded:
    """Load files of a format, or of that of their names, into a table, which is made if it is missing."""
    if load.if_unchanged_since is not None and (load.job is not None or load.mode != UPSERT):
        raise InvalidOption(
            "if_unchanged_since and a job or mode do not go together; leave one out", option="mode"
        )
    if load.job is not None and load.mode == OVERWRITE:
        raise InvalidOption("job and mode 'overwrite' do not go together; leave one out", option="job")
    files = find_files(sources, form)
    table, created = _table_of(context, load, files)
    rows = skipped = 0
    number = None

    def batches(some: Sequence[SourceFile]) -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in _batches(some, table, load.rules):
            yield batch
            rows += batch.num_rows
            if load.on_progress is not None:
                load.on_progress(rows)

    def commit(some: Sequence[SourceFile], once: IdempotencyKey | None) -> int:
        reader = pa.RecordBatchReader.from_batches(table.schema, batches(some))
        kind = "overwrite" if load.mode == OVERWRITE else "write"
        find = partial(context.table, name=load.table)
        asked = WriteTransaction(context, find, None, load.if_unchanged_since, once, load.user_metadata)
        return asked.write(table, reader, kind, is_insert=load.mode == INSERT)

    if load.job is None:
        number = commit(files, None)
    for file in files if load.job is not None else ():
        once = IdempotencyKey(f"load:{load.job}:{file.identity}", 0)
        if is_committed(context, table.id, once):
            skipped += 1
        else:
            number = commit([file], once)
    return Loaded(load.table, rows, number, created, skipped)


def _batches(files: Sequence[SourceFile], table: TableInfo, rules: TextRules) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files as the table has them; an error names the file."""
    for file in files:
        for batch in read_file(file, table.schema, rules):
            try:
                yield conform(batch, table.schema)
            except SchemaMismatch as error:
                raise SchemaMismatch(f"{file.path}: {error.message}", **error.fields) from error


def _table_of(context: Context, load: Load, files: Sequence[SourceFile]) -> tuple[TableInfo, bool]:
    """Return the table, and whether its first rows have still to enter it."""
    there = next((table for table in context.state().infos() if table.name == load.table), None)
    schema = schema_of(files, load.rules) if there is None else there.schema
    if unknown := [name for name in load.rules.types if name not in schema.names]:
        columns = ", ".join(schema.names)
        raise InvalidOption(f"types name {unknown[0]!r}; the columns are {columns}", option="types")
    if there is not None:
        for option, actual in (("primary_key", there.primary_key), ("shard_key", there.shard_key)):
            if load.made[option] not in (None, list(actual)):
                raise InvalidOption(f"{option} of table {there.name!r} is {', '.join(actual)}", option=option)
        return there, False
    if not load.made["primary_key"]:
        context.roots.compare_with_shards()  # it may be there, and only an older catalog not know it
        columns = ", ".join(schema.names)
        raise NotFound(
            f"the store has no table {load.table!r}; name its primary key, of the columns {columns}",
            table=load.table,
            kind="table",
        )
    return reserve_table(context, load.table, schema, **load.made), True
