"""The sink of a stream: every micro-batch is committed exactly once.

After a crash between the sink's commit and its own record of it, Spark writes the micro-batch again,
under the same number, perhaps with its rows in other tasks. Each commit therefore has the name of
the stream and the batch's number; the catalog accepts such a pair once, and the files of a second
one are removed. This also separates two drivers that run one stream at the same time.

A number alone does not identify rows: a checkpoint that lost its newest files, or that was restored,
makes Spark plan the same numbers again, with other rows. So a commit also has a digest of the
offsets at which its micro-batch ends, from Spark's log, and a repetition that ends elsewhere is
refused.

The name is the id that Spark keeps in the stream's checkpoint. Spark gives it to tasks and not to the
driver's side of a Python sink, so it travels in the messages of the tasks.

A sink is made again for the tasks and for the commit of each micro-batch. The messages name the table
they were staged for, so a table that was dropped and made again in between is detected.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.base.redaction import shown, without
from elasticscan.connector.options import Options
from elasticscan.connector.writing import Messages, StagedMessage, TableWriter, messages_of
from elasticscan.storage import OBJECT_SCHEMES, open_disk
from elasticscan.store import IdempotencyKey

_QUERY_ID = "sql.streaming.queryId"
_log = logging.getLogger(__name__)
_unreadable = set[str]()


class ElasticScanStreamWriter(DataSourceStreamArrowWriter):
    """Upserts the rows of each micro-batch, or replaces the table by them (output mode complete)."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._writer = TableWriter(options, schema, overwrite)
        self._checkpoint, self._app_id = options.checkpoint, options.app_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage a task's rows; nothing of them is visible yet."""
        task = TaskContext.get()
        return self._writer.stage(iterator, None if task is None else task.getLocalProperty(_QUERY_ID))

    def commit(self, messages: Messages, batchId: int) -> None:
        """Publish a micro-batch, unless it was before. An append of nothing makes no commit.

        Raises:
            ContinuationKeyError: a micro-batch of this number was published before, but with another end.
            TableChanged: the table was dropped, perhaps made again, since the stream began to write.
        """
        sent = messages_of(messages)
        place = (self._writer.store_id, self._writer.table_id)
        if any((message.store_id, message.table_id) != place for message in sent):
            raise self._writer.changed()
        tasks = [message.staged for message in sent]
        if any(tasks) or self._writer.replaces:
            txn = IdempotencyKey(self._name(sent), batchId, batch_end(self._checkpoint, batchId))
            # A batch that replaces the table needs no earlier commit of the stream.
            self._writer.publish(tasks, txn, follows=not self._writer.replaces)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Remove what was staged; what a commit refers to stays."""
        self._writer.remove(messages)

    def _name(self, messages: Iterable[StagedMessage]) -> str:
        """Return the name under which the numbers of micro-batches count: the same after every restart."""
        for message in messages:
            if message.query:
                return f"stream:{message.query}"
        if self._checkpoint is not None:
            return f"stream:checkpoint:{hashlib.sha256(self._checkpoint.encode()).hexdigest()[:32]}"
        if self._app_id is not None:
            return f"stream:app:{self._app_id}"
        raise InvalidOption(
            "Spark did not name the stream; set its option 'checkpointLocation' or 'txnAppId'",
            option="txnAppId",
        )


def batch_end(checkpoint: str | None, number: int) -> str | None:
    """Return a digest of the offsets at which a micro-batch ends, from Spark's log of them.

    None where the stream was not given the option `checkpointLocation`, or has it at a place that
    cannot be read here, of which the log warns; then the number of a micro-batch is all that is known of it.
    """
    if checkpoint is None:
        return None
    try:
        text = _read(checkpoint, f"offsets/{number}")
    except (OSError, ValueError, pa.ArrowException, ElasticScanError) as error:
        text = "the checkpoint %s cannot be read in the driver (%s); batches are known by number alone"
        if checkpoint not in _unreadable:  # else each batch would say so
            _unreadable.add(checkpoint)
            _log.warning(text, shown(checkpoint), without(error, checkpoint))
        return None
    # The lines are: the log's version, facts of the planning such as its time, an offset for each source.
    offsets = text.split("\n", 2)[2:]
    return hashlib.sha256(offsets[0].strip().encode()).hexdigest()[:32] if offsets else None


def _read(checkpoint: str, name: str) -> str:
    """Return the text of a file of a checkpoint, which Spark named as Hadoop does."""
    if checkpoint.lower().startswith(OBJECT_SCHEMES):
        file = open_disk(checkpoint).open(name)
        return str(file.read_at(0, file.size).to_pybytes(), "utf-8")
    checkpoint = re.sub("^file:(//[^/]*)?", "", checkpoint, flags=re.IGNORECASE)
    if "://" in checkpoint:
        files, place = pafs.FileSystem.from_uri(checkpoint)
        with files.open_input_stream(f"{place.rstrip('/')}/{name}") as log:
            return str(log.read(), "utf-8")
    return Path(checkpoint, name).read_text(encoding="utf-8")  # nothing of it is encoded, also in `file:`
