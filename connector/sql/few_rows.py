"""Reads that are over before a task would have begun, made alongside the driver.

Spark needs a worker of Python for each task, and ends the worker if a query has enough rows before the task's
end. So where a reference is certain to read little, its rows are read here: by the same scan, at the same
snapshot, with the same second placement check as in a task. Spark gets them as a local relation.

So are aggregates whose pages are folded sooner than tasks would have begun: Spark gets their partial rows.
How soon that will be is seen from the first pages; what would take longer is left to tasks after all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from elasticscan.base.errors import ElasticScanError
from elasticscan.connector.conversion import ToSpark
from elasticscan.connector.open_stores import open_store
from elasticscan.connector.options import Options
from elasticscan.connector.partial_rows import PartialRows
from elasticscan.connector.reading import begin_chosen, chosen_columns, offered_schema, snapshot_chosen
from elasticscan.connector.sql.limits import RowLimit
from elasticscan.filters import Fold, Predicate
from elasticscan.store import FirstRows, Scan

# A read is made here if it gives no more than this, in all; more is for tasks.
FEW_ROWS, FEW_BYTES = 20_000, 4 << 20
# Of a LIMIT, which is read to its end, so many times more rows, if they fit into these bytes.
LIMITED_TIMES = 5
# Rows of a LIMIT that tasks give are exchanged up to so many bytes of each task, at so many of a column.
EXCHANGED_BYTES, COLUMN_BYTES = 64 << 20, 32
# Rows or entries that are looked at before it is given up, where few rows meet a condition.
MOST_SCANNED = 100_000
# Folding is given up here if tasks would be done sooner, by what its first part took. They begin so much
# later, and then take so many times its time, each core its share of it: as measured on two cores.
TASKS_BEGIN_SECONDS, TASKS_TAKE = 0.13, 1.3
LEAST_CORES, USUAL_CORES = 2, 4  # USUAL_CORES if the number of cores is unknown
# Of wall time, in which a busy machine is slow to begin tasks, too, so many times as much.
BUSY_TIMES = 4
TRIED = 0.2
# So are rows of one side of a join, whose keys spare reading the other: that takes tasks much longer.
JOINED_THREAD_SECONDS, JOINED_WALL_SECONDS = 0.5, 2.0
MOST_KEYS, JOINED_BYTES = 50_000, 8 << 20
# Rows that are not even tried: no machine folds them in that time.
MOST_FOLDED = 100_000_000


@dataclass(frozen=True, slots=True)
class FewRows:
    """Rows that were read alongside the driver, in the Arrow types that belong to Spark's schema.

    Attributes:
        is_known: True if they come from statistics of fragments, and no row was read.
    """

    schema: StructType
    rows: pa.Table
    is_known: bool = False


def read_few(options: Options, limit: RowLimit | None) -> FewRows | None:
    """Return the rows of a read within its limit, in order; None if they are not certainly few.

    None, too, if the read fails: the tasks raise the error when an action runs.
    """
    if options.metadata or options.explain or options.changes.feed:
        return None
    most = FEW_ROWS if limit is None else LIMITED_TIMES * FEW_ROWS
    if limit is not None and limit.rows > most:
        return None
    try:
        store = open_store(options.store)
        table = store.table(options.table).definition
        columns, schema = chosen_columns(table, options), offered_schema(table, options)
        order = list(limit.order) if limit is not None and limit.order else None
        rows = None if limit is None else limit.rows
        page = (FEW_ROWS, FEW_BYTES)
        with begin_chosen(store, options, columns, page, order_by=order, limit=rows) as scan:
            if limit is None and not _seems_small(scan):
                return None
            few = _read(scan, columns, schema, most)
            if few is None or limit is None:
                return few
            return replace(few, rows=few.rows.slice(0, limit.rows))
    except ElasticScanError:
        return None


def read_joined(options: Options) -> FewRows | None:
    """Return one side of a join, if it is read soon and small enough to read the other side by key."""
    try:
        store = open_store(options.store)
        table = store.table(options.table).definition
        columns, schema = chosen_columns(table, options), offered_schema(table, options)
        with begin_chosen(store, options, columns) as scan:
            return _read_soon(scan, columns, schema)
    except ElasticScanError:
        return None


def read_parts(parts: Sequence[Options]) -> FewRows | None:
    """Return the rows of reads of a table that have none in common; None if they are not certainly few."""
    if not parts:
        return None
    try:
        store = open_store(parts[0].store)
        table = store.table(parts[0].table).definition
        columns, schema = chosen_columns(table, parts[0]), offered_schema(table, parts[0])
        batches, rows, size = list[pa.RecordBatch](), 0, 0
        for options in parts:
            with begin_chosen(store, options, columns) as scan:
                if (
                    _rows_scanned(scan) * len(parts) > MOST_KEYS
                    or scan.standing.definition != table.definition
                ):
                    return None
                convert = ToSpark(scan.schema, columns, schema)
                batches.append(pa.RecordBatch.from_pylist([], convert.target))
                for page in scan.batches():
                    batches.append(convert(page))
                    rows, size = rows + page.num_rows, size + page.nbytes
                    if rows > MOST_KEYS or size > JOINED_BYTES or scan.stats.scanned > MOST_SCANNED:
                        return None
        return FewRows(schema, pa.Table.from_batches([pa.concat_batches(batches)]))
    except ElasticScanError:
        return None


def read_keys(options: Options, column: str, keys: pa.Array) -> FewRows | None:
    """Return the rows with some primary keys that meet the filter; None if they are many, or it fails.

    Args:
        options: of a read.
        column: the whole primary key.
        keys: each once, without null.
    """
    if len(keys) > MOST_KEYS:
        return None
    try:
        store = open_store(options.store)
        table = store.table(options.table)
        definition = table.definition
        columns, schema = chosen_columns(definition, options), offered_schema(definition, options)
        condition = None if options.filter is None else Predicate.parse(options.filter, definition.schema)
        needed = columns if condition is None else list(dict.fromkeys([*columns, *sorted(condition.columns)]))
        found = table.get(pa.table({column: keys}), needed, snapshot_chosen(store, options))
        if table.definition != definition:
            return None
        whole = found.combine_chunks()
        rows = whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], whole.schema)
        if condition is not None:
            rows = rows.filter(condition.mask(rows))
        if rows.nbytes > JOINED_BYTES:
            return None
        chosen = rows.select(columns)
        convert = ToSpark(chosen.schema, columns, schema)
        return FewRows(schema, pa.Table.from_batches([convert(chosen)]))
    except ElasticScanError:
        return None


def fold_few(options: Options, cores: int | None) -> FewRows | None:
    """Return the partial rows of a read; None if they are many or slow, or the read fails.

    Args:
        options: of a read of partial rows.
        cores: those of Spark's tasks, None if they are not known.
    """
    assert options.partial is not None, "a fold has aggregates"
    try:
        store = open_store(options.store)
        table = store.table(options.table).definition
        partial = PartialRows.of(table.name, table.schema, options.partial)
        schema = offered_schema(table, options)
        with begin_chosen(store, options, partial.columns(table.primary_key)) as scan:
            if scan.standing.definition != table.definition:
                return None  # its columns were changed just now
            known = None if partial.by else store.backend.known_values(scan.standing, partial.values)
            rows = _fold(scan, partial, cores) if known is None else partial.of_values(known)
            if rows is None:
                return None
            convert = ToSpark(partial.schema, partial.schema.names, schema)
            whole = pa.Table.from_batches([convert(rows)])
            return FewRows(schema, whole, is_known=known is not None)
    except ElasticScanError:
        return None


def first_few(options: Options, limit: RowLimit, cores: int | None) -> FewRows | None:
    """Return the first rows of an order without an index; None if tasks are faster, or the read fails.

    `cores` as for `fold_few`.
    """
    if limit.rows > FEW_ROWS:
        return None
    try:
        store = open_store(options.store)
        table = store.table(options.table).definition
        columns, schema = chosen_columns(table, options), offered_schema(table, options)
        with begin_chosen(store, options, columns) as scan:
            first = FirstRows(limit.order, limit.rows, scan.schema)
            pace = _TimeOfReading.until_tasks_are_done(scan, cores)
            for rows in scan.batches():
                first.add(rows)
                if pace.is_too_slow():
                    return None
            rows = first.rows().combine_chunks()
            if rows.nbytes > FEW_BYTES:
                return None
            convert = ToSpark(scan.schema, columns, schema)
            batches = rows.to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
            return FewRows(schema, pa.Table.from_batches([convert(batch) for batch in batches]))
    except ElasticScanError:
        return None


class _TimeOfReading:
    """Tells when reading alongside the driver takes longer than it may.

    The first page says nothing of the others: files are opened for it.

    Args:
        thread_seconds, wall_seconds: of this thread, and of everybody.
    """

    def __init__(self, scan: Scan, thread_seconds: float, wall_seconds: float) -> None:
        self._scan, self._expected = scan, _rows_scanned(scan)
        self._thread_seconds, self._wall_seconds = thread_seconds, wall_seconds
        self._began: tuple[float, float] | None = None

    @classmethod
    def until_tasks_are_done(cls, scan: Scan, cores: int | None) -> _TimeOfReading:
        seconds = _seconds_of_tasks(cores)
        return cls(scan, seconds, BUSY_TIMES * seconds)

    def is_too_slow(self, spent: float = 0.0) -> bool:
        """Return True if it should stop; called after each page. `spent` is the part of other bounds."""
        if self._began is None:
            self._began = time.monotonic(), time.thread_time()
        else:
            wall, busy = self._began
            spent = max(
                spent,
                (time.thread_time() - busy) / self._thread_seconds,
                (time.monotonic() - wall) / self._wall_seconds,
            )
        share = min(self._scan.stats.scanned / max(self._expected, 1), 1)
        return self._expected > MOST_FOLDED or (spent > TRIED and spent > share)


def _seconds_of_tasks(cores: int | None) -> float:
    """Return the time of a thread that folds in which tasks on so many cores would be done with the same."""
    share = TASKS_TAKE / max(cores or USUAL_CORES, LEAST_CORES)
    return TASKS_BEGIN_SECONDS / (1 - share)


def _fold(scan: Scan, partial: PartialRows, cores: int | None) -> pa.RecordBatch | None:
    fold = Fold(partial.values, partial.by, scan.schema)
    pace = _TimeOfReading.until_tasks_are_done(scan, cores)
    for rows in scan.batches():
        fold.add(rows)
        if fold.size > FEW_ROWS or pace.is_too_slow():
            return None
    whole = fold.partial_rows()
    if whole.num_rows > FEW_ROWS or whole.nbytes > FEW_BYTES:
        return None
    return pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in whole.columns], schema=partial.schema
    )


def _read_soon(scan: Scan, columns: list[str], schema: StructType) -> FewRows | None:
    """Return the rows of a scan, unless its first part shows that they are too many or take too long."""
    convert = ToSpark(scan.schema, columns, schema)
    pace = _TimeOfReading(scan, JOINED_THREAD_SECONDS, JOINED_WALL_SECONDS)
    batches, rows, size = [pa.RecordBatch.from_pylist([], convert.target)], 0, 0
    for page in scan.batches():
        batches.append(convert(page))
        rows, size = rows + page.num_rows, size + page.nbytes
        if rows > MOST_KEYS or pace.is_too_slow(max(rows / max(MOST_KEYS, 1), size / JOINED_BYTES)):
            return None
    return FewRows(schema, pa.Table.from_batches([pa.concat_batches(batches)]))


def few_as_relation(spark: SparkSession, few: FewRows) -> DataFrame:
    """Return the rows as a local relation: no worker, and no job for it alone."""
    return spark.createDataFrame(few.rows, few.schema)


def ending_by_itself(frame: DataFrame, most: int) -> DataFrame:
    """Return a relation of tasks that give so many rows each, read to their ends where that is no great deal.

    A worker whose task Spark leaves before its end is killed, and the next query imports everything again.
    What lies before an exchange is read to its end.
    """
    return frame.repartition(1) if most * COLUMN_BYTES * len(frame.columns) <= EXCHANGED_BYTES else frame


def _seems_small(scan: Scan) -> bool:
    return _rows_scanned(scan) <= FEW_ROWS


def _rows_scanned(scan: Scan) -> float:
    assert scan.choice is not None, "a scan that begins has chosen"
    return scan.choice.candidate.rows_scanned


def _read(scan: Scan, columns: list[str], schema: StructType, most: int) -> FewRows | None:
    convert = ToSpark(scan.schema, columns, schema)
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for page in scan:
        rows, size = rows + page.rows.num_rows, size + page.rows.nbytes
        if rows > most or size > FEW_BYTES or scan.stats.scanned > MOST_SCANNED:
            return None
        if page.rows.num_rows:
            batches.append(convert(page.rows))
    # In one chunk, even if that is empty: Spark makes nothing of nested columns in none.
    whole = pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], convert.target)
    return FewRows(schema, pa.Table.from_batches([whole]))
