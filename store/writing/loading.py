"""Loads of files into a table: as one commit, or as one commit for each file of a job.

The commit of a job's file has an idempotency key: the job's name, and the file's path, size and time. A job
that was killed can be started again. It skips the files that it has committed, so no row is lost or written
twice, and it does not undo later changes of these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, NotFound
from elasticscan.catalog import IdempotencyKey
from elasticscan.metadata import TableInfo
from elasticscan.storage import batches_of, conformed
from elasticscan.store.context import Context
from elasticscan.store.rows.files import SourceFile, TextRules, read_file, schema_of
from elasticscan.store.writing.definitions import reserve_table
from elasticscan.store.writing.publishing import CommitRequest, earlier_commit, write

UPSERT, INSERT, OVERWRITE = MODES = "upsert", "insert", "overwrite"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a load.

    Attributes:
        rows: the number of rows that were read and written.
        commit: the last commit; None if all files had been loaded before.
        created: whether the load created the table.
        skipped: the number of files that the same job had loaded before.
    """

    table: str
    rows: int
    commit: int | None
    created: bool
    skipped: int


def load_files(
    context: Context,
    name: str,
    files: Sequence[SourceFile],
    mode: str,
    rules: TextRules,
    made: Mapping[str, Any],
    job: str | None,
    since: int | None,
    user_metadata: Mapping[str, str],
) -> Loaded:
    """Load files into a table. If it does not exist, create it with the keys and compression of `made`."""
    if (job is not None and mode == OVERWRITE) or (since is not None and (job, mode) != (None, UPSERT)):
        raise InvalidOption("a job, mode 'overwrite' and if_unchanged_since do not go together; give one")
    table, created = _table_of(context, name, files, rules, made)
    rows = skipped = 0
    number = None

    def batches(sources: Sequence[SourceFile]) -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for file in sources:
            for batch in read_file(file, table.schema, rules):
                yield batch
                rows += batch.num_rows

    def commit(sources: Sequence[SourceFile], txn: IdempotencyKey | None) -> int:
        kind = "overwrite" if mode == OVERWRITE else "write"
        request = CommitRequest(kind, txn, since, mode == INSERT, user_metadata)
        reader = pa.RecordBatchReader.from_batches(table.schema, batches(sources))
        return write(context, table, conformed(batches_of(reader), table), request)

    if job is None:
        number = commit(files, None)
    for file in files if job is not None else ():
        txn = IdempotencyKey(f"load:{job}:{file.identity}", 0)
        if earlier_commit(context, table.id, txn) is not None:
            skipped += 1
        else:
            number = commit([file], txn)
    return Loaded(name, rows, number, created, skipped)


def _table_of(
    context: Context, name: str, files: Sequence[SourceFile], rules: TextRules, made: Mapping[str, Any]
) -> tuple[TableInfo, bool]:
    """Return (table, whether it is new); a new table is only reserved until its first rows are committed."""
    existing = next((table for table in context.state().infos() if table.name == name), None)
    schema = schema_of(files, rules) if existing is None else existing.schema
    columns = ", ".join(schema.names)
    if unknown := [column for column in rules.types if column not in schema.names]:
        raise InvalidOption(f"types name {unknown[0]!r}; the columns are {columns}", option="types")
    if existing is not None:
        for option, actual in (("primary_key", existing.primary_key), ("shard_key", existing.shard_key)):
            if made[option] not in (None, list(actual)):
                raise InvalidOption(f"{option} of table {name!r} is {', '.join(actual)}", option=option)
        return existing, False
    if not made["primary_key"]:
        context.check_newest()  # an older copy of the catalog might not know the table
        raise NotFound(
            f"the store has no table {name!r}; name its primary key, of the columns {columns}",
            table=name,
            kind="table",
        )
    return reserve_table(context, name, schema, **made), True
