"""Execution of DELETE, UPDATE and MERGE: one commit, which reads one snapshot.

If the store can evaluate the statement, it runs in the driver. Otherwise Spark runs a query and writes its
rows, under the condition that no key was written since the query's snapshot. If one was, the query is
repeated at a newer snapshot.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql.functions import col, count_if
from pyspark.sql.types import (
    AtomicType,
    DataType,
    DateType,
    IntegralType,
    NullType,
    NumericType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from elasticscan.base import errors
from elasticscan.base.errors import FilterError, NotFound, SchemaMismatch
from elasticscan.connector.conversion import mismatch, spark_type
from elasticscan.connector.sql.changing import ACTION, DELETE, INSERT, OWN, UPDATE, RowChange
from elasticscan.connector.sql.plan import QueryPlan
from elasticscan.connector.sql.query import Session
from elasticscan.connector.sql.tokens import quoted
from elasticscan.filters import parse_value
from elasticscan.metadata import TableInfo
from elasticscan.store import Store, Table, delete_rows, update_rows

_OWN_ERROR = re.compile(r"elasticscan\.base\.errors\.(?P<kind>\w+): \[ES_\w+\] (?P<message>.*)")
_DELETES = f"{OWN}deletes"
_TIMES = (DateType, TimestampType, TimestampNTZType)


def changed_in_store(
    store: Store, table: Table, kind: str, change: RowChange, plan: QueryPlan, session: Session
) -> Counter[str] | None:
    """Execute a DELETE or UPDATE in the store; return the numbers of changed rows, or None if it cannot."""
    if kind == "MERGE" or len(plan.scans) != 1 or not plan.scans[0].complete:
        return None
    selection = store.backend.selection(table.name, plan.scans[0].filter, {"statement": kind})
    if change.set is None:
        return Counter({DELETE: delete_rows(selection).rows})
    if session.utc and session.ansi:
        with suppress(FilterError, NotFound, SchemaMismatch):  # for example a function that only Spark has
            if _are_stored(change.set, table.schema):
                return Counter({UPDATE: update_rows(selection, change.set).rows})
    return None


@contextmanager
def own_errors_raised() -> Iterator[None]:
    """Raise this package's error instead of Spark's, whose text begins with a traceback."""
    try:
        yield
    except PySparkException as error:
        match = _OWN_ERROR.search(str(error))  # Spark's processes exchange only the text of an error
        kind = getattr(errors, match["kind"], None) if match else None
        if match is None or kind is None:
            raise
        raise kind(match["message"]) from None


def change_counts(spark: SparkSession, kind: str, done: Counter[str]) -> DataFrame:
    """Return the result of a statement: the numbers of changed rows."""
    counts = {"num_affected_rows": sum(done.values())}
    if kind == "MERGE":
        counts |= {f"num_{action}_rows": done[action] for action in (UPDATE, DELETE, INSERT)}
    return spark.createDataFrame([tuple(counts.values())], ", ".join(f"{name} BIGINT" for name in counts))


def write_changes(
    rows: DataFrame, uri: str, table: TableInfo, kind: str, change: RowChange, snapshot: int, ansi: bool
) -> Counter[str]:
    """Write the rows of a statement's query; return the numbers of deleted, updated and inserted rows.

    Args:
        uri: the store's URI as the user wrote it: `env:NAME` keeps a password out of Spark's plans.
        snapshot: the snapshot of the query.
        ansi: whether the session follows the ANSI rules.

    Raises:
        SchemaMismatch: a key occurs twice or is null.
        RowsChanged: a row was written since the snapshot.
    """
    rows = rows.where(col(ACTION).isNotNull())
    columns = [
        _stored(field, table.schema.field(field.name).type, field.name in table.primary_key, ansi)
        for field in rows.schema
        if field.name != ACTION
    ]
    rows_of = {
        action: col(ACTION).isin([number for number, each in enumerate(change.actions) if each == action])
        for action in change.actions
    }
    counts = Observation()
    counted = rows.observe(counts, *(count_if(its).alias(action) for action, its in rows_of.items()))
    options = {"ifUnchangedSince": str(snapshot), "userMetadata": f'{{"statement": "{kind}"}}'}
    if DELETE in rows_of:
        columns.append(rows_of[DELETE].alias(_DELETES))
        options["deleteColumn"] = _DELETES
    written = counted.select(*columns).write.format("elasticscan").mode("append")
    written.options(url=uri, table=table.name, **options).save()
    return Counter({action: counts.get[action] for action in rows_of})


def _stored(field: StructField, stored: pa.DataType, is_key: bool, ansi: bool) -> Column:
    """Cast a column to the table's type if Spark allows it in an INSERT. A cast must not cut a fraction off,
    change a key, or exchange fields of a struct."""
    column, given, kind = col(quoted(field.name)), field.dataType, spark_type(field.name, stored)
    if given.simpleString() == kind.simpleString():
        return column
    # Without ANSI rules a cast out of a type's range returns another number instead of an error.
    if not (_is_stored(given, kind, is_key) and (ansi or isinstance(given, NullType))):
        why = f"is {kind.simpleString()}, not {given.simpleString()}; nothing was done: CAST the value"
        raise mismatch(field.name, why)
    return column.cast(kind).alias(field.name)


def _is_stored(given: DataType, kind: DataType, is_key: bool = False) -> bool:
    """Return True if Spark's ANSI rules allow these values in such a column, and no fraction is cut off."""
    is_whole = isinstance(kind, IntegralType)
    if given == kind or isinstance(given, NullType) or (isinstance(given, IntegralType) and is_whole):
        return True
    return not is_key and (
        (isinstance(given, NumericType) and isinstance(kind, NumericType) and not is_whole)
        or (isinstance(given, _TIMES) and isinstance(kind, _TIMES))
        or (isinstance(given, AtomicType) and isinstance(kind, StringType))
    )


def _are_stored(new: Mapping[str, str], schema: pa.Schema) -> bool:
    """Return True if Spark allows these values in their columns: the store alone would accept more."""
    given = {name: spark_type(name, parse_value(text, schema).type) for name, text in new.items()}
    return all(_is_stored(given[name], spark_type(name, schema.field(name).type)) for name in new)
