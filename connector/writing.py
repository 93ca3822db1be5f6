"""Batch writes and micro-batches: tasks stage fragments, and the driver publishes them as one commit.

If Spark crashes after the sink's commit and before its own record of it, it writes the micro-batch again
under the same number, perhaps with its rows in other tasks. Each commit therefore has the name of the stream
and the number of the batch. The catalog accepts such a pair once, and the files of a second attempt are
removed. So two drivers that run one stream at the same time do not write a batch twice.

A number alone does not identify rows: with a checkpoint that lost its newest files, or was restored, Spark
plans the same numbers again with other rows. So a commit also has a digest of the offsets at which its
micro-batch ends, read from Spark's log. A repetition that ends at other offsets is refused.

The name of a stream is the id in its checkpoint. Spark gives it to tasks, but not to the driver's side of a
Python sink, so the messages of the tasks contain it.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from elasticscan.base.errors import (
    AlreadyExists,
    ElasticScanError,
    InvalidCall,
    InvalidOption,
    NotFound,
    SchemaMismatch,
    TableChanged,
)
from elasticscan.base.redaction import shown, without
from elasticscan.connector.conversion import arrow_schema, from_spark, spell
from elasticscan.connector.deletions import deletions_of
from elasticscan.connector.options import Options
from elasticscan.connector.store_cache import open_store
from elasticscan.filters import Predicate
from elasticscan.metadata import StagedFragment, TableInfo
from elasticscan.storage import OBJECT_SCHEMES, files_of, open_disk
from elasticscan.store import (
    CommitRequest,
    IdempotencyKey,
    Store,
    check_no_key_twice,
    checked_rows,
    complete_rows,
    earlier_commit,
    has_forerunner,
    publish,
    publish_replacing,
    remove_staged,
    reserve_table,
    stage,
    table_to_write,
    unchanged,
)

_QUERY_ID = "sql.streaming.queryId"
_log = logging.getLogger(__name__)
_unreadable = set[str]()


class StagedMessage(WriterCommitMessage):
    """The files that one task staged, invisible until `publish`; their table; and the id of the stream."""

    def __init__(
        self, staged: Iterable[StagedFragment], store_id: str, table_id: int, query: str | None
    ) -> None:
        self.staged, self.store_id, self.table_id, self.query = tuple(staged), store_id, table_id, query


Messages = Sequence[WriterCommitMessage | None]


class ElasticScanWriter(DataSourceArrowWriter):
    """Writer of a batch: upserts rows by primary key, or replaces the whole table, in one commit.

    Only files given to `publish` are committed. A task that failed, or that Spark ran twice, leaves at most
    files without a reference, which `collect_garbage` deletes.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        """Check in the driver that rows of `schema` fit the table."""
        store, rows = open_store(options.store), arrow_schema(schema)
        table = _table(store, options, rows)
        names = spell(rows.names, table.schema)
        rows = pa.schema([field.with_name(name) for field, name in zip(rows, names, strict=True)])
        self._options = options
        self._deletions = deletions_of(options.delete_column, rows, table)
        if self._deletions:
            rows = self._deletions.stored
            if self._deletions.keys_alone and not overwrite:
                # Rows that delete need only their key. A task refuses a row that upserts without the others.
                rows = table.schema
        table = _with_columns(store, table, rows, options)
        self.store_id, self.table_id, self._definition = store.backend.identity, table.id, table.definition
        self.replaces = overwrite and options.replace_where is None  # all rows, not the rows of a condition
        self._kind = "overwrite" if self.replaces else "write"
        self._since, self._given = options.unchanged_since, None
        if options.partial_update and len(rows) < len(table.schema):
            self._given = rows.names
            if self._since is None:
                self._since = store.backend.newest()  # tasks read the other columns at this commit
        if options.replace_where is not None:
            Predicate.parse_for_change(options.replace_where, table.schema)
        with unchanged(store.context, table, self._since, options.txn):
            pass  # an unknown or expired commit is an error before any task runs

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of a task in the task's process. They are invisible until `publish`."""
        options, store = self._options, open_store(self._options.store, self.store_id)
        # The columns of the table as they were when the write was planned.
        table = self._find(store).at(self._definition)
        fill = options.merge_schema and not options.partial_update
        batches = (batch.rename_columns(spell(batch.schema.names, table.schema)) for batch in iterator)
        if self._deletions:
            rows = self._deletions.changes(batches, table, self.replaces, fill)
        else:
            names = self._given or table.schema.names
            schema = pa.schema([table.schema.field(name) for name in names], table.schema.metadata)
            rows = (from_spark(batch, schema, fill, table) for batch in batches)
        if self._given is not None:
            assert self._since is not None, "the other columns are read at a snapshot"
            rows = complete_rows(store.context, table, self._since, rows, self._given)
        if options.replace_where is not None:
            rows = checked_rows(options.replace_where, table, rows, "replaceWhere")
        staged = stage(store.context, table, rows, self._kind)
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty(_QUERY_ID)
        return StagedMessage(staged, self.store_id, self.table_id, query)

    def commit(self, messages: Messages) -> None:
        """Publish the files of the tasks that Spark reports as successful."""
        self.publish([message.staged for message in messages_of(messages)], self._options.txn)

    def publish(
        self, tasks: Sequence[Sequence[StagedFragment]], txn: IdempotencyKey | None, follows: bool = False
    ) -> None:
        """Publish the files of all tasks as one commit over all shards, or nothing.

        Args:
            tasks: the fragments that each task staged.
            txn: the pair under which the commit is made once.
            follows: whether the table must contain the earlier commits of the same application.

        Raises:
            TableChanged: the table is not the one of the plan, or not the one of the earlier commits.
            RowsChanged, AlreadyExists: `ifUnchangedSince` or `insertOnly` forbids the write.
        """
        staged = [fragment for task in tasks for fragment in task]
        options, store = self._options, open_store(self._options.store, self.store_id)
        table = self._find(store)
        if txn is not None and follows and has_forerunner(store.context, table, txn.application):
            raise TableChanged(
                f"table {table.name!r} was dropped and made again since this stream began; nothing was "
                "committed: use a new checkpoint",
                table=table.name,
            )
        # A repeated write is skipped, so its rows need no check.
        done = earlier_commit(store.context, table.id, txn) is not None
        if sum(map(bool, tasks)) > 1 and not done:
            check_no_key_twice(store.context, table, staged)
        if options.replace_where is not None:
            condition, metadata = options.replace_where, options.user_metadata
            selection = store.backend.selection(table.name, condition, metadata, txn, table.id)
            publish_replacing(selection, table, staged)
        else:
            request = CommitRequest(self._kind, txn, self._since, options.insert_only, options.user_metadata)
            publish(store.context, table, staged, request)

    def abort(self, messages: Messages) -> None:
        """Remove staged files. Spark also calls this after a failed `commit`, which may have been committed:
        files that the catalog knows stay."""
        staged = [fragment for message in messages_of(messages) for fragment in message.staged]
        if staged:
            remove_staged(open_store(self._options.store, self.store_id).context, files_of(staged))

    def _find(self, store: Store) -> TableInfo:
        table = table_to_write(store.context, self.table_id)
        if table is None:
            raise self.changed()
        return table

    def changed(self) -> TableChanged:
        return TableChanged(
            f"table {self._options.table!r} was dropped while rows were written to it; nothing was committed",
            table=self._options.table,
        )


class ElasticScanStreamWriter(DataSourceStreamArrowWriter):
    """Writer of micro-batches: upserts the rows of each, or replaces the table (output mode complete)."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._writer = ElasticScanWriter(options, schema, overwrite)
        self._checkpoint = options.checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of a task. They are invisible until `commit`."""
        return self._writer.write(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:
        """Publish a micro-batch unless it was published before. An empty append makes no commit.

        Raises:
            ContinuationKeyError: a micro-batch of this number was published before, but with other offsets.
            TableChanged: the table was dropped since the stream began, and perhaps created again.
        """
        sent = messages_of(messages)
        place = (self._writer.store_id, self._writer.table_id)
        if any((message.store_id, message.table_id) != place for message in sent):
            raise self._writer.changed()
        tasks = [message.staged for message in sent]
        if any(tasks) or self._writer.replaces:
            txn = IdempotencyKey(self._name(sent), batchId, batch_end(self._checkpoint, batchId))
            # A batch that replaces all rows may follow a table that was created again.
            self._writer.publish(tasks, txn, follows=not self._writer.replaces)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Remove staged files that no commit refers to."""
        self._writer.abort(messages)

    def _name(self, messages: Iterable[StagedMessage]) -> str:
        """Return the name of the stream, which is the same after a restart."""
        for message in messages:
            if message.query:
                return f"stream:{message.query}"
        raise InvalidCall("Spark did not name the stream of a micro-batch; use foreachBatch with 'txnAppId'")


def messages_of(messages: Iterable[Any]) -> list[StagedMessage]:
    """Return the messages of finished tasks; Spark sends None for others."""
    return [message for message in messages if isinstance(message, StagedMessage)]


def _table(store: Store, options: Options, rows: pa.Schema) -> TableInfo:
    """Return the table to write to. Reserves a missing table if the options name its primary key; the commit
    of its first rows creates it, so a failed write leaves no table."""
    try:
        table = store.table(options.table).definition
    except NotFound as error:
        if options.primary_key is None:
            raise NotFound(
                f"{error.message}; create it, or set the option 'primaryKey'",
                table=options.table,
                kind="table",
            ) from error
        if deletions := deletions_of(options.delete_column, rows):
            rows = deletions.stored
        shard_key = None if options.shard_key is None else spell(options.shard_key, rows)
        try:
            keys = spell(options.primary_key, rows)
            return reserve_table(store.context, options.table, rows, keys, shard_key, options.compression)
        except AlreadyExists:
            table = store.table(options.table).definition  # another write has just created it
    for name, chosen, actual in (
        ("primaryKey", options.primary_key, table.primary_key),
        ("shardKey", options.shard_key, table.shard_key),
    ):
        if chosen is not None and [key.lower() for key in chosen] != [key.lower() for key in actual]:
            raise InvalidOption(
                f"option {name!r}={','.join(chosen)!r}, but table {table.name!r} has {','.join(actual)!r}; "
                "leave the option out, or write to another table",
                option=name,
            )
    return table


def _with_columns(store: Store, table: TableInfo, rows: pa.Schema, options: Options) -> TableInfo:
    """Check the columns of the rows, then add new ones to the table with `mergeSchema`. Return the table."""
    merge, lacking = options.merge_schema, options.merge_schema or options.partial_update
    known, given = set(table.schema.names), set(rows.names)
    unknown = [field for field in rows if field.name not in known]
    absent = [field for field in table.schema if field.nullable and field.name not in given]
    for what, fields, may_be, option in (
        ("have new columns,", unknown, merge, "mergeSchema"),
        ("lack the columns", absent, lacking, "partialUpdate"),
    ):
        if fields and not may_be:
            names = ", ".join(field.name for field in fields)
            raise SchemaMismatch(
                f"the rows for table {table.name!r} {what} {names}; set the option {option!r}",
                missing=[field.name for field in absent],
                unknown=[field.name for field in unknown],
            )
    new = [field.with_nullable(True) for field in unknown]
    from_spark(pa.RecordBatch.from_pylist([], rows), pa.schema([*table.schema, *new]), lacking)
    if not new:
        return table
    handle = store.table(table.name)
    handle.add_columns(new)
    return handle.definition


def batch_end(checkpoint: str | None, number: int) -> str | None:
    """Return a digest of the offsets at which a micro-batch ends, from Spark's log of offsets.

    Returns None if the option `checkpointLocation` is missing, or if the driver cannot read the checkpoint,
    which is logged. Then only the number identifies a micro-batch.
    """
    if checkpoint is None:
        return None
    try:
        text = _read(checkpoint, f"offsets/{number}")
    except (OSError, ValueError, pa.ArrowException, ElasticScanError) as error:
        text = "the checkpoint %s cannot be read in the driver (%s); batches are known by number alone"
        if checkpoint not in _unreadable:  # warn once, not for each batch
            _unreadable.add(checkpoint)
            _log.warning(text, shown(checkpoint), without(error, checkpoint))
        return None
    # The lines are: the log's version, metadata of the planning such as its time, one offset per source.
    offsets = text.split("\n", 2)[2:]
    return hashlib.sha256(offsets[0].strip().encode()).hexdigest()[:32] if offsets else None


def _read(checkpoint: str, name: str) -> str:
    """Read a file of a checkpoint, whose location is written as Hadoop writes paths."""
    if checkpoint.lower().startswith(OBJECT_SCHEMES):
        file = open_disk(checkpoint).open(name)
        return str(file.read_at(0, file.size).to_pybytes(), "utf-8")
    checkpoint = re.sub("^file:(//[^/]*)?", "", checkpoint, flags=re.IGNORECASE)
    if "://" in checkpoint:
        files, place = pafs.FileSystem.from_uri(checkpoint)
        with files.open_input_stream(f"{place.rstrip('/')}/{name}") as log:
            return str(log.read(), "utf-8")
    return Path(checkpoint, name).read_text(encoding="utf-8")  # such a path has no %-escapes, also in `file:`
