"""Small reads in the driver, where they end before a task would begin.

Spark needs a Python worker for each task, and ends the worker when a query has enough rows. So the driver
makes a read that is estimated to be small: by the same scan, at the same snapshot and with the same placement
checks as a task. Spark gets the rows as a local relation. A read of aggregates, or of the first rows of an
order, may scan more rows, since it returns few.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from elasticscan.base.errors import ElasticScanError
from elasticscan.connector.conversion import ToSpark
from elasticscan.connector.options import Options
from elasticscan.connector.partitions import PartialRows
from elasticscan.connector.reading import chosen_columns, offered_schema, request_of
from elasticscan.connector.sql.limits import RowLimit
from elasticscan.connector.store_cache import open_store
from elasticscan.filters import Fold
from elasticscan.metadata import TableInfo
from elasticscan.store import Scan, Store, known_count

# The largest result of a read in the driver.
FEW_ROWS, FEW_BYTES = 20_000, 4 << 20
# The most rows or entries that are scanned for a LIMIT, if few of them meet the condition.
MOST_SCANNED = 100_000
# The most rows that are folded or sorted, by estimate: it takes about as long as the start of tasks.
MOST_FOLDED = 2_000_000


@dataclass(frozen=True, slots=True)
class FewRows:
    """Rows that the driver has read, in the Arrow types of Spark's schema."""

    rows: pa.Table
    schema: StructType


def read_few(options: Options, limit: RowLimit | None = None) -> FewRows | None:
    """Return the rows or partial rows of a read, in the order of a limit; None if there may be too many.

    Also returns None if the read fails: then the tasks raise the error when an action runs.
    """
    if options.metadata or options.explain or options.feed:
        return None
    try:
        store = open_store(options.store)
        table = store.table(options.table).definition
        if options.partial is not None:
            partial = PartialRows.of(table.name, table.schema, options.partial)
            return _folded(store, table, options, partial)
        return _read(store, table, options, limit)
    except ElasticScanError:
        return None


def _read(store: Store, table: TableInfo, options: Options, limit: RowLimit | None) -> FewRows | None:
    if limit is not None and limit.rows > FEW_ROWS:
        return None
    columns, schema = chosen_columns(table, options), offered_schema(table, options)
    order, rows_limit = (None, None) if limit is None else (list(limit.order) or None, limit.rows)
    page = (options.batch_rows,) if order else (FEW_ROWS, FEW_BYTES)  # an order may need many rows
    read = request_of(options, columns, *page)
    with store.backend.table(table.name).scan(read, order_by=order, limit=rows_limit) as scan:
        sorts = order is not None and not scan.standing.merged  # no index has the order
        if (limit is None or sorts) and _rows_scanned(scan) > (MOST_FOLDED if sorts else FEW_ROWS):
            return None
        convert, batches, rows, size = ToSpark(scan.schema, columns, schema), list[pa.RecordBatch](), 0, 0
        for each in scan:
            rows, size = rows + each.rows.num_rows, size + each.rows.nbytes
            if rows > FEW_ROWS or size > FEW_BYTES or (not sorts and scan.stats.scanned > MOST_SCANNED):
                return None
            batches.append(convert(each.rows))
    # One chunk, even if it is empty: Spark fails on nested columns without a chunk.
    whole = pa.concat_batches([pa.RecordBatch.from_pylist([], convert.target), *batches])
    return FewRows(pa.Table.from_batches([whole]), schema)


def _folded(store: Store, table: TableInfo, options: Options, partial: PartialRows) -> FewRows | None:
    schema = offered_schema(table, options)
    read = request_of(options, partial.columns(table.primary_key), options.batch_rows)
    with store.backend.table(table.name).scan(read) as scan:
        if scan.standing.definition != table.definition:
            return None  # its columns have just been changed
        known = known_count(store.context, scan.standing) if partial.counts_rows else None
        if known is None:
            if _rows_scanned(scan) > MOST_FOLDED:
                return None
            fold = Fold(partial.values, partial.by, scan.schema)
            for page in scan.batches():
                fold.add(page)
                if fold.size > FEW_ROWS:
                    return None
            whole = fold.partial_rows()
            if whole.num_rows > FEW_ROWS or whole.nbytes > FEW_BYTES:
                return None
            columns = [column.combine_chunks() for column in whole.columns]
            rows = pa.RecordBatch.from_arrays(columns, schema=partial.schema)
        else:
            rows = partial.of_count(known)
    convert = ToSpark(partial.schema, partial.schema.names, schema)
    return FewRows(pa.Table.from_batches([convert(rows)]), schema)


def _rows_scanned(scan: Scan) -> float:
    assert scan.choice is not None, "a scan that begins has chosen"
    return scan.choice.candidate.rows_scanned
