"""Spark's way in: `spark.read.format("elasticscan")`, its SQL, and writes.

    frame = spark.read.format("elasticscan").load("/data/my.store/flights")
    frame.write.format("elasticscan").mode("append").save("/data/my.store/flights")
    attach(spark, "/data/my.store")          # a temporary view of every table

What it promises:

- A DataFrame is a snapshot, fixed when its first action plans it. Every action returns each row
  of it exactly once, while tablets move, until the snapshot is no longer kept; then a typed error
  says to load it again. Tasks that are tried again or run twice return the same rows.
- A write is one commit over all shards, or nothing. Tasks only stage files; the driver checks that no key
  came from two tasks and commits what Spark names as successful. With `txnAppId` and `txnVersion` a write
  that was committed under this pair before is not done again; so is a micro-batch, by its stream and number.
- A stream reads a snapshot in bounded micro-batches, and then every commit after it. Two offsets alone
  decide the rows between them, so whatever Spark replays is the same again.
- Rows cross as whole Arrow batches in both directions, in exactly the types that Spark expects.

docs/architecture.md says how a read works; the scan protocol is in `elasticscan.reader`.

Limits that Spark 4.3 sets, found by trying:

- **No filter or column reaches the source from the plan.** All scans of one loaded
  relation share one plan, and the filters handed over last win, so two queries over one DataFrame
  get each other's rows. Columns are never handed over. Therefore `filter` and `columns` are
  options, and `.schema(...)` may name a subset; `catalog.sql` sets both for each table of a query.
- **A relation is planned once**, by its first action; views and later actions read that plan
  again. Newer rows need a new `load()`, or `attach` again.
- **`CREATE TABLE ... USING elasticscan OPTIONS (...)` loses its options** when the table is read.
  Use temporary views, or `SELECT ... FROM t WITH (store = '...', table = '...')`.
- **Only the modes append and overwrite**; Spark refuses the others. A view with `filter` or a fixed
  snapshot is refused as a target.
- **No statistics** reach the planner: wrap small tables in `broadcast()`.
- Only the text of an error survives between Spark's processes, so each begins with its code.

Timestamps of nanoseconds are cut to microseconds on the way to Spark; no other value changes. A
type that Spark lacks is an error that names the column; times of day pass, but Spark refuses them
in aggregates unless `spark.sql.timeType.enabled` is set.

The modules, from the bottom up:

options         options, parsed and checked
conversion      the types of Arrow and of Spark
store_cache     stores, kept open where tasks run
splits          a scan, cut into few and large parts
partitions      what tasks get of them: rows, or partial rows for Spark to add up
reading         batch reads, and the option `explain`
deletions       rows that delete, apart from rows that upsert
writing         batch writes, and micro-batches, each a commit
streams         Structured Streaming's source
source          the entry: what Spark asks for a schema, a reader, a writer
sql             conditions and columns, taken out of queries, and statements about tables of a store
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from elasticscan.connector.source import ElasticScanSource, attach, register

if TYPE_CHECKING:  # tasks read and write without it
    from elasticscan.connector.sql.attached import AttachedStore
    from elasticscan.connector.sql.table_read import TableRead

# The name under which Spark looks for a source in modules called `pyspark_...`.
DefaultSource = ElasticScanSource

__all__ = ["AttachedStore", "DefaultSource", "ElasticScanSource", "TableRead", "attach", "register"]


if not TYPE_CHECKING:  # type checkers would take any name, since this one takes all

    def __getattr__(name: str) -> Any:
        if name not in ("AttachedStore", "TableRead"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        return getattr(import_module("elasticscan.connector.sql.attached"), name)
