"""Files into a table: as one commit, or file by file under the name of a job, which can be started again.

A file is committed under an idempotency key made of the job's name and of the file's path, size and time. A
job that was killed and is started again skips the files that it committed: no row is lost, none is written
twice, and rows that were changed meanwhile stay changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, NotFound, SchemaMismatch
from elasticscan.catalog import IdempotencyKey
from elasticscan.metadata import TableInfo
from elasticscan.storage import conform
from elasticscan.store.context import Context
from elasticscan.store.rows.sources import (
    SourceFile,
    check_types,
    find_files,
    read_file,
    schema_of,
    split_file,
)
from elasticscan.store.rows.text import TextRules
from elasticscan.store.writing.definitions import reserve_table
from elasticscan.store.writing.preconditions import absent, unchanged
from elasticscan.store.writing.publishing import is_committed
from elasticscan.store.writing.writer import write

UPSERT, INSERT, OVERWRITE = MODES = "upsert", "insert", "overwrite"

# Called with the bytes of the files that were read, the bytes of all files, and the rows.
OnLoaded = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome of a load.

    Attributes:
        rows: the rows that were read and written.
        commit: the last commit; None where all was loaded before.
        created: whether the table was made.
        skipped: files, and parts of files, that the same job had loaded before.
    """

    table: str
    rows: int
    commit: int | None
    created: bool
    skipped: int


@dataclass(frozen=True, slots=True)
class Load:
    """The checked arguments of `Store.load`."""

    table: str
    sources: tuple[Any, ...]
    primary_key: list[str] | None = None
    shard_key: list[str] | None = None
    compression: str | None = None
    mode: str = UPSERT
    format: str | None = None
    rules: TextRules = field(default_factory=TextRules)
    job: str | None = None
    if_unchanged_since: int | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `InvalidOption` where two of them exclude each other."""
        is_checked, is_job = self.if_unchanged_since is not None, self.job is not None
        if is_checked and (is_job or self.mode != UPSERT):
            both = f"if_unchanged_since and {'job' if is_job else f'mode {self.mode!r}'}"
        elif is_job and self.mode == OVERWRITE:
            both = f"job and mode {self.mode!r}"
        else:
            return
        raise InvalidOption(f"{both} do not go together; leave one out", option=both.split()[0])


class _LoadProgress:
    """The count of what was read, and the caller's function for it."""

    def __init__(self, files: Sequence[SourceFile], on_progress: OnLoaded | None) -> None:
        self._total, self._on_progress = sum(file.bytes for file in files), on_progress
        self._bytes = self.rows = 0

    def add(self, size: int, rows: int) -> None:
        self._bytes += size
        self.rows += rows
        if self._on_progress is not None:
            self._on_progress(self._bytes, self._total, self.rows)


def load_files(context: Context, load: Load, on_progress: OnLoaded | None = None) -> Loaded:
    """Load files into a table, which is made if it is missing."""
    load.check()
    files = find_files(load.sources, load.format)
    table, created = _table_of(context, load, files)
    # A job that goes on after a kill reads as the one that made the table.
    is_guessed = created or load.job is not None
    guessed = [name for name in table.schema.names if is_guessed and name not in load.rules.types]
    progress = _LoadProgress(files, on_progress)

    def commit(files: Iterable[SourceFile], once: IdempotencyKey | None) -> int:
        batches = pa.RecordBatchReader.from_batches(
            table.schema, _batches(files, table, load.rules, guessed, progress)
        )
        kind = "overwrite" if load.mode == OVERWRITE else "write"
        with unchanged(context, table, load.if_unchanged_since, once) as since:
            check = absent(context, table, once) if load.mode == INSERT else since
            return write(context, table, batches, kind, once, check=check, user_metadata=load.user_metadata)

    if load.job is None:
        number = commit(files, None)
        return Loaded(load.table, progress.rows, number, created, 0)
    done = Loaded(load.table, 0, None, created, 0)
    for part in (part for file in files for part in split_file(file)):
        once = IdempotencyKey(f"load:{load.job}:{part.identity}", 0)
        if is_committed(context, table.id, once):
            progress.add(part.bytes, 0)
            done = replace(done, skipped=done.skipped + 1)
        else:
            done = replace(done, commit=commit([part], once), rows=progress.rows)
    return done


def _table_of(context: Context, load: Load, files: Sequence[SourceFile]) -> tuple[TableInfo, bool]:
    """Return the table, and whether its first rows have still to enter it."""
    there = next((table for table in context.tables()[0] if table.name == load.table), None)
    if there is not None:
        _check_keys(there, load)
        check_types(load.rules.types, there.schema)
        return there, False
    schema = schema_of(files, load.rules)
    check_types(load.rules.types, schema)
    if not load.primary_key:
        context.compare_with_shards()  # it may be there, and only an older catalog not know it
        columns = ", ".join(schema.names)
        raise NotFound(
            f"the store has no table {load.table!r}; make it with primary_key=, --primary-key of {columns}",
            table=load.table,
            kind="table",
        )
    made = reserve_table(context, load.table, schema, load.primary_key, load.shard_key, load.compression)
    return made, True


def _check_keys(table: TableInfo, load: Load) -> None:
    """Raise `InvalidOption` when the table has other keys than the load names."""
    for option, asked, actual in (
        ("primary_key", load.primary_key, table.primary_key),
        ("shard_key", load.shard_key, table.shard_key),
    ):
        if asked is not None and asked != list(actual):
            raise InvalidOption(
                f"{option} {','.join(asked)!r}, but table {table.name!r} has {','.join(actual)!r}; "
                "leave it out",
                option=option,
            )


def _batches(
    files: Iterable[SourceFile],
    table: TableInfo,
    rules: TextRules,
    guessed: Sequence[str],
    progress: _LoadProgress,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files as the table has them; an error names the file."""
    for file in files:
        for batch in read_file(file, table.schema, rules, guessed):
            try:
                yield conform(batch, table.schema)
            except SchemaMismatch as error:
                raise SchemaMismatch(f"{file.path}: {error.message}", **error.fields) from error
            progress.add(0, batch.num_rows)
        progress.add(file.bytes, 0)
