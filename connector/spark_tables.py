"""Tables of Spark's own catalog: why writes that would make one are refused, and how they are known.

`saveAsTable`, `writeTo(...).create()` and a stream's `toTable` enter a table into Spark's catalog and then
hand the rows over, with the options. Spark does not hand these options over again when the table is read,
and no name either, so it could never be read: the rows would be in the store, under the name in the
option `table`, and the table in Spark would be broken.

Spark tells a source none of this. What shows it is where the tasks run: Spark writes the rows of a table
that it makes by a query inside a query, and every other write by the query itself. Inside `foreachBatch`
all queries are such, so there it does not show. `spark-sql` wraps each statement in a query, so there it
does not show either, and need not: Spark hands a `CREATE TABLE ... AS SELECT` no options, so no store.
"""

from __future__ import annotations

from pyspark import TaskContext

from elasticscan.base.errors import InvalidOption

_QUERY, _OUTERMOST = "spark.sql.execution.id", "spark.sql.execution.root.id"
# What `spark-sql` and Spark's Thrift server set, and no other session.
_SQL_SHELL = "spark.sql.hive.version"
_STREAM, _CALLED = "sql.streaming.queryId", "callSite.long"


def check_not_for_a_spark_table() -> None:
    """Check in a task, before it stages anything.

    Raises:
        InvalidOption: the rows are for a table of Spark's catalog, which could not be read.
    """
    task = TaskContext.get()
    if task is None:
        return
    if task.getLocalProperty(_STREAM):
        if ".toTable(" in (task.getLocalProperty(_CALLED) or "").split("\n")[0]:
            raise _refusal(
                "toTable",
                "df.writeStream.format('elasticscan').option('checkpointLocation', '...').start('uri/table')",
            )
        return
    query, outermost = task.getLocalProperty(_QUERY), task.getLocalProperty(_OUTERMOST)
    if query and outermost and query != outermost and not task.getLocalProperty(_SQL_SHELL):
        raise _refusal(
            "saveAsTable, writeTo(...).create() and CREATE TABLE ... AS SELECT",
            "df.write.format('elasticscan').option('primaryKey', '...').mode('append').save('uri/table')",
        )


def _refusal(statement: str, instead: str) -> InvalidOption:
    return InvalidOption(
        f"{statement} would make an unreadable table in Spark's catalog; nothing was written: use {instead}",
        option="table",
    )
