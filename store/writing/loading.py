"""Files into a table: as one commit, or piece by piece under the name of a job, which can be started again.

A piece is committed under an idempotency key that is made of the job's name and of what tells the piece from
others. So a job that was killed, and is started again, skips what was committed and goes on: no row is lost,
and none is written twice, also where others wrote meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, SchemaMismatch, TableNotFound
from elasticscan.catalog import IdempotencyKey
from elasticscan.metadata import TableInfo
from elasticscan.storage import conform
from elasticscan.store.context import Context
from elasticscan.store.rows.sources import (
    VERSIONED,
    Files,
    SourcePart,
    TextRules,
    check_rules,
    find_files,
    pieces_of,
    read_piece,
    rows_of,
    schema_of,
)
from elasticscan.store.writing.definitions import reserve_table
from elasticscan.store.writing.preconditions import KeyCheck, absent, unchanged
from elasticscan.store.writing.publishing import is_committed
from elasticscan.store.writing.writer import write

UPSERT, INSERT, OVERWRITE = MODES = "upsert", "insert", "overwrite"

# Called with the bytes that were read, those there are, and the rows.
OnLoaded = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome of a load.

    Attributes:
        rows: those that were read from files, and written.
        commit: the last commit; None where all was loaded before.
        created: the table was made.
        skipped: files, and parts of files, that the same job had loaded before.
    """

    table: str
    rows: int
    commit: int | None
    created: bool
    skipped: int


@dataclass(frozen=True, slots=True)
class Load:
    """A load as it was asked for, its arguments checked; `Store.load` says what they mean."""

    table: str
    sources: tuple[Any, ...]
    primary_key: list[str] | None = None
    shard_key: list[str] | None = None
    compression: str | None = None
    mode: str = UPSERT
    format: str | None = None
    version: int | None = None
    rules: TextRules = field(default_factory=TextRules)
    job: str | None = None
    if_unchanged_since: int | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `InvalidOption` where two of them do not go together."""
        given = {
            "if_unchanged_since": self.if_unchanged_since is not None,
            f"mode {self.mode!r}": self.mode != UPSERT,
            "job": self.job is not None,
        }
        chosen = [name for name, is_given in given.items() if is_given]
        if len(chosen) > 1 and not (len(chosen) == 2 and self.mode == INSERT and self.job is not None):
            raise InvalidOption(
                f"{' and '.join(chosen[:2])} do not go together; give one of them", option=chosen[1]
            )
        if self.version is not None and self.format not in VERSIONED:
            raise InvalidOption(
                "a version is that of a Delta table (format='delta') or an Iceberg table (format='iceberg')",
                option="version",
            )


def load_files(context: Context, load: Load, on_progress: OnLoaded | None = None) -> Loaded:
    """Carry a load out."""
    load.check()
    found = find_files(load.sources, load.format, load.version)
    table, created = _table_of(context, load, found)
    message = _Told(sum(files.bytes for files in found), on_progress)
    pieces = (
        piece
        for files in found
        for piece in pieces_of(files, table.schema, load.rules, split=load.job is not None)
    )
    if load.job is None:
        return replace(_write(context, load, table, pieces, message, None), created=created)
    done = Loaded(load.table, 0, None, created, 0)
    for piece in pieces:
        once = IdempotencyKey(f"load:{load.job}:{piece.identity}", 0)
        if is_committed(context, table.id, once):
            message.add(piece.bytes, 0)
            done = replace(done, skipped=done.skipped + 1)
        else:
            wrote = _write(context, load, table, [piece], message, once)
            done = replace(done, rows=done.rows + wrote.rows, commit=wrote.commit)
    if created and done.commit is None and not done.skipped:  # there were no files whose rows would enter it
        return replace(_write(context, load, table, [], message, None), created=True)
    return done


def _table_of(context: Context, load: Load, found: Sequence[Files]) -> tuple[TableInfo, bool]:
    """The table, and whether it has still to be entered with its first rows."""
    there = next((table for table in context.tables()[0] if table.name == load.table), None)
    if there is not None:
        _check_keys(there, load)
        check_rules(found, load.rules, there.schema)
        return there, False
    schema = schema_of(found[0], load.rules)
    check_rules(found, load.rules, schema)
    if not load.primary_key:
        context.compare_with_shards()  # it may be there, and only an older catalog not know it
        first = found[0].infos[0].path if found[0].infos else found[0].base  # a table may have no files
        raise TableNotFound(
            f"the store has no table {load.table!r}; pass a primary key, primary_key=[…] or --primary-key, "
            f"to make it with the columns of {first} ({', '.join(schema.names)})",
            table=load.table,
        )
    made = reserve_table(context, load.table, schema, load.primary_key, load.shard_key, load.compression)
    return made, True


def _check_keys(table: TableInfo, load: Load) -> None:
    """Raises `InvalidOption` when a table that is there already has other keys than those that were named."""
    for option, asked, actual in (
        ("primary_key", load.primary_key, table.primary_key),
        ("shard_key", load.shard_key, table.shard_key),
    ):
        if asked is not None and asked != list(actual):
            raise InvalidOption(
                f"{option} {','.join(asked)!r}, but table {table.name!r} has {','.join(actual)!r}; leave "
                "it out, or load into another table",
                option=option,
            )


def _write(
    context: Context,
    load: Load,
    table: TableInfo,
    pieces: Iterable[SourcePart],
    message: _Told,
    once: IdempotencyKey | None,
) -> Loaded:
    """Write pieces as one commit."""
    before = message.rows
    batches = pa.RecordBatchReader.from_batches(table.schema, _batches(pieces, table, message))
    kind = "overwrite" if load.mode == OVERWRITE else "write"
    with _check_of(context, load, table, once) as check:
        said = load.user_metadata
        commit = write(context, table, batches, kind, once, check=check, user_metadata=said)
    return Loaded(table.name, message.rows - before, commit, False, 0)


def _batches(pieces: Iterable[SourcePart], table: TableInfo, message: _Told) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        read, rows = 0, rows_of(piece)
        unit = 0.0 if rows is None else piece.bytes / max(1, rows)
        for batch in read_piece(piece, table.schema):
            yield _conform(batch, table, piece)
            size = round(batch.num_rows * unit)
            read += size
            message.add(size, batch.num_rows)
        message.add(piece.bytes - read, 0)


def _conform(batch: pa.RecordBatch, table: TableInfo, piece: SourcePart) -> pa.RecordBatch:
    try:
        return conform(batch, table.schema)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"{piece.path}: {error.message}", **error.fields) from error


@contextmanager
def _check_of(
    context: Context, load: Load, table: TableInfo, once: IdempotencyKey | None
) -> Iterator[KeyCheck | None]:
    """The requirements of the write on its keys, if there are any."""
    if load.if_unchanged_since is not None:
        with unchanged(context, table, load.if_unchanged_since) as check:
            yield check
    else:
        yield absent(context, table, once) if load.mode == INSERT else None


class _Told:
    """The count of what was read, told to whoever wants to know."""

    def __init__(self, total: int, on_progress: OnLoaded | None) -> None:
        self._total, self._on_progress = total, on_progress
        self._bytes = self.rows = 0

    def add(self, size: int, rows: int) -> None:
        self._bytes += size
        self.rows += rows
        if self._on_progress is not None:
            self._on_progress(self._bytes, self._total, self.rows)
