"""Options of other sources that people type: of Delta, Iceberg, Kafka, Cassandra, MongoDB, JDBC and files.

Each with the option that says it here, or with why there is none.
"""

from __future__ import annotations

import re

_SNAPSHOT = "'versionAsOf' takes a commit number or a tag"
_FEED = "'startingVersion' and 'endingVersion' choose the commits of a change feed"
_TIME = "'timestampAsOf' takes a time"
_TRIGGER = "'maxRowsPerTrigger' and 'maxBytesPerTrigger' bound a micro-batch"
_ORDER = "leave it out: rows have no order but that of DataFrame.orderBy or catalog.sql"
_BY_ITSELF = "leave it out: files are written and merged by themselves, each row at the place of its key"
_KEPT = "changes are kept of every table; 'readChangeFeed' reads them"
_START = "'startingVersion' takes a commit, 'earliest' or 'latest'"
_STORE = "'store' names the store, a directory or a URL, and 'table' a table of it; load('store/table') both"
_EXPIRY = "rows stay until they are deleted: a write with 'deleteColumn', or catalog.sql(\"DELETE FROM …\")"
_ABSENT = "'insertOnly' = 'true' refuses the write if a key of it is there already"
_KEYS = "'primaryKey' names the columns of a new table's key, and 'shardKey' the first of them"
_WHOLE = "leave it out: every read is of one snapshot, and every write one commit, all or nothing"
_MODE = "DataFrameWriter.mode says it: 'append', which upserts by primary key, or 'overwrite'"
_URL = (
    "the URL of a catalog at a server has it, as postgresql://user:password@host/database: 'url' or 'store'"
)
_COLUMNS = "'columns' names them, with commas between"
_SPREAD = "leave it out: rows are spread by a hash of the shard key, over slots that a store has"
_OF_ANOTHER = "an option of another connector does nothing here: leave it out"
_LEAVE = "leave it out; options of a read and a write are in docs/options.md"
_FILES = (
    "header", "delimiter", "sep", "multiline", "pathglobfilter", "recursivefilelookup", "modifiedafter",
    "modifiedbefore", "basepath", "encoding", "nullvalue", "dateformat", "timestampformat", "quote",
    "excluderegex",
)  # fmt: skip
# Of JDBC, files and other sources: words for what a source evaluates in place of Spark.
_PUSHED = (
    "pushdown", "pushdowns", "pushdownpredicate", "pushdownpredicates", "pushdownfilter", "pushdownfilters",
    "predicatepushdown", "filterpushdown", "pushfilters", "pushedfilters", "pushpredicates", "filters",
    "pushdownaggregate", "pushdownaggregates", "pushdownlimit", "pushdownoffset", "pushdowntablesample",
    "pushdowncolumns", "pushdownjoin",
)  # fmt: skip
_ELSEWHERE = {
    **dict.fromkeys(
        ("maxfilespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"), _TRIGGER
    ),
    **dict.fromkeys(("streaming-max-files-per-micro-batch", "streaming-max-rows-per-micro-batch"), _TRIGGER),
    **dict.fromkeys(("order", "orderby", "sort", "descending"), _ORDER),
    **dict.fromkeys(("optimizewrite", "autocompact", "autooptimize", "datachange", "clusterby"), _BY_ITSELF),
    **dict.fromkeys(("zorderby", "fanout-enabled", "write-format", "format", "file-format"), _BY_ITSELF),
    **dict.fromkeys(("target-file-size-bytes", "maxrecordsperfile", "distribution-mode"), _BY_ITSELF),
    **dict.fromkeys(("enablechangedatafeed", "delta.enablechangedatafeed", "cdc"), _KEPT),
    **dict.fromkeys(
        ("startingoffsets", "startingposition", "auto.offset.reset", "earliest", "latest"), _START
    ),
    **dict.fromkeys(("offset", "offsets", "sinceversion", "fromversion", "replay"), _START),
    "endingoffsets": "'endingVersion' takes a commit",
    "startingoffsetsbytimestamp": "'startingTimestamp' takes a time, as '2026-01-31T12:00:00Z'",
    "startingoffsetsbytimestampstrategy": "leave it out: 'startingTimestamp' takes the next commit there is",
    "endingoffsetsbytimestamp": "'endingTimestamp' takes a time, as '2026-01-31T12:00:00Z'",
    **dict.fromkeys(
        ("subscribe", "assign", "topic", "topics"), "'table' names the table, of which all rows are followed"
    ),
    "subscribepattern": "'table' names one table: begin a stream for each",
    **dict.fromkeys(
        ("kafka.group.id", "group.id", "groupid", "groupidprefix", "consumergroup", "consumer.group"),
        "'checkpointLocation' of the sink keeps how far a stream is, and 'streamName' what it still needs",
    ),
    **dict.fromkeys(
        ("trigger", "triggeronce", "availablenow", "processingtime"),
        "DataStreamWriter.trigger says it, as trigger(availableNow=True)",
    ),
    "outputmode": "DataStreamWriter.outputMode says it",
    "includeheaders": "'readChangeFeed' = 'true' gives the commit and the kind of each change",
    "checkpoint": "'checkpointLocation' of the sink keeps how far a stream is",
    **dict.fromkeys(("keyspace", "database", "namespace", "cluster"), _STORE),
    **dict.fromkeys(
        ("collection", "dbcollection"), "'table' names it, alongside 'store'; load('store/table') both"
    ),
    **dict.fromkeys(("uri", "connection.uri", "connection.host", "host", "servers"), _STORE),
    **dict.fromkeys(("ttl", "output.ttl", "writetime", "expireafterseconds"), _EXPIRY),
    **dict.fromkeys(("ifnotexists", "output.ifnotexists"), _ABSENT),
    **dict.fromkeys(
        ("partitionkey", "partition_key", "clusteringkey", "clustering_key", "idfieldlist", "idfield"), _KEYS
    ),
    **dict.fromkeys(("key", "keys", "ids", "idcolumn", "keycolumns", "recordkey", "upsertkey"), _KEYS),
    **dict.fromkeys(
        ("consistency", "consistencylevel", "output.consistency.level", "input.consistency.level"), _WHOLE
    ),
    **dict.fromkeys(
        ("writeconcern.w", "writeconcern", "readconcern", "readpreference.name", "ordered"), _WHOLE
    ),
    **dict.fromkeys(
        ("upsert", "upsertdocument", "operationtype", "replacedocument"),
        "mode append upserts by primary key; 'insertOnly' refuses keys that are there, and 'partialUpdate' "
        "keeps the columns that a write lacks",
    ),
    "confirm.truncate": "mode overwrite replaces the rows in one commit: leave it out",
    **dict.fromkeys(
        ("pipeline", "aggregation.pipeline"), "'filter' and 'columns' choose, and catalog.sql aggregates"
    ),
    **dict.fromkeys(
        ("partitioner", "samplesize", "partitioncolumn", "lowerbound", "upperbound", "input.split.sizeinmb"),
        "tasks follow the slots by themselves; 'splitSize' and 'numPartitions' bound them",
    ),
    **dict.fromkeys(("fetchsize", "input.fetch.sizeinrows"), "'batchSize' says how many rows a batch has"),
    **dict.fromkeys(("output.batch.size.rows", "output.batch.size.bytes"), _BY_ITSELF),
    **dict.fromkeys(("directjoinsetting", "hint", "convertjson", "allowfiltering"), "leave it out"),
    "retention": "table.set_retention(period) or `elasticscan set-retention` says it",
    **dict.fromkeys(("cols", "select", "project"), _COLUMNS),
    "schema": "DataFrameReader.schema takes it, or 'columns' names them",
    **dict.fromkeys(("snapshot", "commit", "asof"), _SNAPSHOT),
    "stream-from-timestamp": "'startingTimestamp' takes a time",
    **dict.fromkeys(
        ("schematrackinglocation", "schemalocation", "allowsourcecolumnrename", "allowsourcecolumndrop"),
        "leave it out: a stream goes on with the columns that it began with, and one that is started again "
        "has those of then",
    ),
    "witheventtimeorder": "leave it out: the changes of a key come in their order",
    "isolation-level": "leave it out: 'ifUnchangedSince' and 'insertOnly' say what a write relies on",
    "mode": _MODE,
    **dict.fromkeys(
        ("replaceusing", "replaceon"),
        "mode append replaces rows with the same primary key, overwrite those of 'replaceWhere', a condition",
    ),
    **dict.fromkeys(("append", "overwrite", "savemode", "writemode", "operation"), _MODE),
    **dict.fromkeys(("user", "username", "password", "port", "driver", "dsn"), _URL),
    **dict.fromkeys(("db", "catalog", "warehouse", "dir", "directory", "root", "storepath"), _STORE),
    **dict.fromkeys(("name", "tbl"), "'table' names the table, and 'streamName' a stream"),
    **dict.fromkeys(("field", "fields", "projection", "attributes"), _COLUMNS),
    **dict.fromkeys(
        ("pk", "mergekey", "idcolumns", "keyfields", "hoodie.datasource.write.recordkey.field"), _KEYS
    ),
    **dict.fromkeys(("bucket", "buckets", "numbuckets", "bucketby"), _SPREAD),
    **dict.fromkeys(
        ("parallelism", "maxparallelism", "maxpartitions", "maxrecordsperpartition", "rowspertask"),
        "'numPartitions' and 'splitSize' bound the tasks of a read",
    ),
    **dict.fromkeys(("pagerows", "pagesize", "rowsperbatch"), "'batchSize' says how many rows a batch has"),
    **dict.fromkeys(("changes", "cdf", "cdcenabled", "changedatacapture", "readcdc", "incremental"), _KEPT),
    **dict.fromkeys(("tagname", "attag", "timetravel", "at", "asofinstant"), f"{_SNAPSHOT}, {_TIME}"),
    **dict.fromkeys(
        ("streaming-skip-delete-snapshots", "streaming-skip-overwrite-snapshots", "skipdeletes"),
        "'skipChangeCommits' leaves out commits that delete, or replace the table",
    ),
    **dict.fromkeys(
        ("ignoremissingfiles", "ignorecorruptfiles"),
        "leave it out: a row that is missing or damaged is an error, and no row less",
    ),
    **dict.fromkeys(
        ("vectorization-enabled", "lookback", "file-open-cost", "locality", "aggregate-push-down-enabled"),
        "leave it out: pages are read as Arrow batches, and catalog.sql aggregates at the source",
    ),
    **dict.fromkeys(("codec", "compressioncodec"), "'compression' of a table that a write makes"),
    **dict.fromkeys(
        ("rowkind", "op", "deletefield", "isdeleted"),
        "'deleteColumn' names the column that says which rows delete",
    ),
    **dict.fromkeys(
        ("timezone", "tz"), "leave it out: a time says its zone, and is in UTC where it says none"
    ),
    **dict.fromkeys(("top", "maxrows", "rows"), "use DataFrame.limit, or catalog.sql"),
    **dict.fromkeys(
        ("schemaevolution", "evolveschema", "addcolumns"),
        "'mergeSchema' = 'true' adds the columns that the table lacks",
    ),
    **dict.fromkeys(
        ("cache", "cachemode", "persist"),
        "DataFrame.cache keeps rows; a DataFrame is one snapshot in any case",
    ),
    **dict.fromkeys(("readonly", "casesensitive", "customschema", "timeout", "querytimeout"), _LEAVE),
    **dict.fromkeys(("watermark", "eventtime"), "DataFrame.withWatermark says it"),
    "consumer": "'streamName' keeps what a stream still needs",
    "version": _SNAPSHOT,
    "timestamp": _TIME,
    "branch": "there are no branches; " + _SNAPSHOT,
    "tag": _SNAPSHOT,
    "snapshot-id": _SNAPSHOT,
    "as-of-version": _SNAPSHOT,
    "as-of-timestamp": _TIME,
    "start-snapshot-id": _FEED,
    "end-snapshot-id": _FEED,
    **dict.fromkeys(
        ("ignorechanges", "ignoredeletes"),
        "leave it out: a stream gives new rows and new values, and skips deletes without an error; "
        "'readChangeFeed' = 'true' tells them, too, and 'skipChangeCommits' leaves out commits that delete",
    ),
    "inferschema": "a table has its columns",
    **dict.fromkeys(_FILES, "leave it out: a table is no file; store.load(table, files) brings files in"),
    "limit": "use DataFrame.limit, or catalog.sql",
    "overwriteschema": "'mergeSchema' adds columns; others are changed in Python, by the table's methods",
    "partitionby": "rows are spread by the shard key: 'shardKey' of a new table",
    **dict.fromkeys(_PUSHED, "'filter' and 'columns' say what the source reads; catalog.sql finds both out"),
    "partitionoverwritemode": "'replaceWhere' says which rows an overwrite replaces",
    **dict.fromkeys(
        ("where", "predicate", "predicates", "condition", "rowfilter", "row_filter", "row-filter"),
        "'filter' takes a SQL condition",
    ),
    **dict.fromkeys(("query", "sql"), "the catalog that 'attach' gives runs queries by its sql"),
    **dict.fromkeys(
        ("dbtable", "tablename"), "'table' names it, alongside 'store'; load('store/table') both"
    ),
}
# What options of connectors begin with, before the names above.
_PREFIXES = (
    "spark.cassandra.", "spark.mongodb.read.", "spark.mongodb.write.", "spark.mongodb.", "spark.kafka.",
    "change.stream.", "spark.",
)  # fmt: skip
_OF_CONSUMERS = ("kafka.", "kafkaconsumer.", "fetchoffset.")
# Of tables that others make: Delta's and Iceberg's properties, and what Hudi and Parquet take.
_OF_OTHERS = ("delta.", "hoodie.", "parquet.", "write.", "read.", "iceberg.", "hive.", "snowflake.", "hudi.")
_JOINTS = re.compile(r"[-_.]")
_PLAIN = {_JOINTS.sub("", name): message for name, message in _ELSEWHERE.items()}


def plain(option: str) -> str:
    """An option's name in lower case and without what joins its words: `snapshot-id` as `snapshotid`."""
    return _JOINTS.sub("", option.lower())


def told_instead(option: str) -> str | None:
    """The hint about an option that there is not, however its words are joined; None for an unknown one."""
    lower = option.lower()
    if plain(lower) in _PLAIN:
        return _PLAIN[plain(lower)]
    for prefix in _PREFIXES:
        if lower.startswith(prefix):
            return _PLAIN.get(plain(lower.removeprefix(prefix)), _OF_ANOTHER)
    if lower.startswith("snapshot-property."):
        return "'userMetadata' takes a JSON object of texts that stands alongside the commit"
    if lower.startswith(_OF_CONSUMERS):
        return (
            "there are no brokers: 'store' names the store, a directory or a URL, and 'table' a table of it"
        )
    return _OF_ANOTHER if lower.startswith(_OF_OTHERS) else None
