"""The Spark data source: `spark.read.format("elasticscan")`, streams, SQL and writes.

    frame = spark.read.format("elasticscan").load("/data/my.store/flights")
    frame.write.format("elasticscan").mode("append").save("/data/my.store/flights")
    attach(spark, "/data/my.store")          # a temporary view of every table

The promise:

- A DataFrame is a snapshot. Its first action plans the read and fixes the snapshot. Every action returns each
  row of the snapshot exactly once, also while tablets move. When the snapshot is no longer kept, a typed
  error asks to load it again. Tasks that Spark retries or runs twice return the same rows.
- A write is one commit over all shards, or nothing. Tasks only stage files. The driver checks that no two
  tasks staged the same key, and commits the files of the tasks that Spark reports as successful. With
  `txnAppId` and `txnVersion` a write is committed once; a micro-batch is, by its stream and number.
- A stream reads a snapshot in bounded micro-batches, and then every commit after it. Two offsets alone
  decide the rows between them, so a replayed micro-batch has the same rows.
- Rows cross as whole Arrow batches in both directions, in exactly the types that Spark expects.

docs/architecture.md describes how a read works; the scan protocol is in `elasticscan.reader`.

Limits of Spark 4.3, found by experiments:

- **No filter or column reaches the source from the plan.** All scans of one loaded relation share one plan,
  and the filters that Spark pushes last win: two queries over one DataFrame would get each other's rows.
  Spark never pushes columns. Therefore `filter` and `columns` are options, and `.schema(...)` may name a
  subset; `catalog.sql` sets both for each table of a query.
- **A relation is planned once**, by its first action; views and later actions reuse that plan. To read newer
  rows, call `load()` or `attach` again.
- **`CREATE TABLE ... USING elasticscan OPTIONS (...)` loses its options** when the table is read.
  Use temporary views, or `SELECT ... FROM t WITH (store = '...', table = '...')`.
- **Only the modes append and overwrite**; Spark refuses the others. A view with `filter` or a fixed
  snapshot is refused as a target.
- **No statistics** reach the planner: wrap small tables in `broadcast()`.
- Only the text of an error survives between Spark's processes, so each begins with its code.

Timestamps of nanoseconds are cut to microseconds on the way to Spark; no other value changes. A column of a
type that Spark lacks is an error. Spark refuses times of day in aggregates unless
`spark.sql.timeType.enabled` is set.

The modules, from the bottom up:

options         parses and checks options
conversion      converts between the types of Arrow and of Spark
store_cache     keeps stores open in the processes of tasks
splits          cuts a scan into few and large parts
partitions      reads a part in a task: rows, or partial rows for Spark to add up
reading         batch reads, and the option `explain`
deletions       separates rows that delete from rows that upsert
writing         batch writes and micro-batches, one commit each
streams         the source of Structured Streaming
source          the entry: returns schemas, readers and writers to Spark
sql             queries that read few rows and columns, and statements about tables of a store
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from elasticscan.connector.source import ElasticScanSource, attach, register

if TYPE_CHECKING:  # tasks do not need the SQL modules, which are slow to import
    from elasticscan.connector.sql.attached import AttachedStore
    from elasticscan.connector.sql.table_read import TableRead

# Spark looks for this name in modules called `pyspark_...`.
DefaultSource = ElasticScanSource

__all__ = ["AttachedStore", "DefaultSource", "ElasticScanSource", "TableRead", "attach", "register"]


if not TYPE_CHECKING:  # with this function, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in ("AttachedStore", "TableRead"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        return getattr(import_module("elasticscan.connector.sql.attached"), name)
