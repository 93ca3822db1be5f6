"""DELETE, UPDATE and MERGE carried out: each one commit, as of one snapshot.

What the store evaluates alone is done alongside the driver. All else is a query whose rows Spark writes,
under the requirement that none of their keys was written since the query's snapshot; where one was, the
query is run again at a newer snapshot, a few times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
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
from elasticscan.base.errors import (
    ColumnNotFound,
    ElasticScanError,
    FilterError,
    InvalidKey,
    KeysExist,
    RowsChanged,
    SchemaMismatch,
    UnsupportedType,
    WriteConflict,
)
from elasticscan.base.suggestions import suggest
from elasticscan.connector.conversion import spark_type
from elasticscan.connector.sql.changing import ACTION, DELETE, INSERT, OWN, UPDATE, RowChange
from elasticscan.connector.sql.plan import QueryPlan
from elasticscan.connector.sql.query import Session
from elasticscan.connector.sql.tokens import quoted
from elasticscan.filters import parse_value
from elasticscan.store import MOST_ATTEMPTS, Selection, Store, delete_rows, update_rows

_OWN_ERROR = re.compile(r"elasticscan\.base\.errors\.(?P<kind>\w+): \[ES_\w+\] (?P<message>.*)")
_PLACE = re.compile(r"; line \d+ pos \d+.*", re.DOTALL)  # and the plan behind it
_QUOTED = re.compile(r"\s*== (?:SQL|DataFrame)\b.*", re.DOTALL)  # a query that was run, and the place in it
_NAME_PART = re.compile(r"`((?:[^`]|``)*)`")
_MOST_NAMED = 20  # columns in an error
_DELETES = f"{OWN}deletes"
_TIMES = (DateType, TimestampType, TimestampNTZType)


@dataclass(frozen=True, slots=True)
class Queries:
    """Ways to run queries over the store.

    Attributes:
        plan: what a query reads, and the newest snapshot.
        run: a planned query at a snapshot.
        session: the settings of the session.
        uri: the store's, as it was given: `env:NAME` keeps a password out of Spark's plans.
    """

    plan: Callable[[str], tuple[QueryPlan, int]]
    run: Callable[[QueryPlan, int], DataFrame]
    session: Session
    uri: str


def change_rows(store: Store, table: str, kind: str, change: RowChange, queries: Queries) -> Counter[str]:
    """Carry a statement out; returns how many rows were deleted, updated and inserted.

    Raises:
        UnreadableError: its query cannot be taken apart for certain; nothing was done.
        InvalidKey: a key would be written twice, or is null.
        KeysExist: it would insert keys that are there.
        WriteConflict: others wrote some of its rows each time that they were read.
    """
    plan, _ = queries.plan(change.query)
    if kind != "MERGE" and len(plan.scans) == 1 and plan.scans[0].complete:
        said = {"statement": kind}
        selection = Selection(
            store.context,
            lambda tx: store.context.table(tx, table),
            plan.scans[0].filter,
            user_metadata=said,
        )
        if change.set is None:
            return Counter({DELETE: delete_rows(selection).rows})
        schema = store.table(table).schema
        if queries.session.utc and queries.session.ansi and _are_stored(change.set, schema):
            try:
                return Counter({UPDATE: update_rows(selection, change.set).rows})
            except (FilterError, ColumnNotFound):
                pass  # a function, say, that only Spark knows; or an error that it words better
    for _ in range(MOST_ATTEMPTS):
        try:
            return _write(store, table, kind, change, queries)
        except PySparkException as error:
            names = store.table(table).schema.names
            ours = (
                own_error(error)
                or _of_analysis(error, kind, change, names)
                or _of_values(error, kind, change)
            )
            if ours is None:
                raise
            if isinstance(ours, InvalidKey) and kind == "MERGE":
                raise InvalidKey(
                    f"{ours.message}. MERGE takes one row of its source for a row of the table; "
                    "nothing was written",
                    **ours.fields,
                ) from None
            if not isinstance(ours, RowsChanged):
                raise ours from None
    raise WriteConflict(
        f"rows of table {table!r} that {kind} changes were written by others each of the {MOST_ATTEMPTS} "
        "times that they were read; nothing was written: try again, or change fewer",
        table=table,
    )


def own_error(error: PySparkException) -> ElasticScanError | None:
    """The error of this package that a task met: only its text survives between Spark's processes."""
    met = _OWN_ERROR.search(str(error))
    kind = getattr(errors, met["kind"], None) if met else None
    return kind(met["message"]) if met and kind else None


def _of_analysis(
    error: PySparkException, kind: str, change: RowChange, columns: Sequence[str]
) -> Exception | None:
    """Spark's error about the query of a statement in words about the statement; None for one at run time.

    The query is none that a user wrote, so a place in it, its plan and its columns say nothing to them.
    """
    if not isinstance(error, AnalysisException):
        return None
    condition, reported = error.getCondition() or "", error.getMessageParameters() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        return _no_such_column(reported, kind, change, columns)
    text = _PLACE.sub("", str(error)).removeprefix(f"[{condition}]").strip()
    return AnalysisException(f"{text}. {kind} did nothing", condition or None, reported)


def _of_values(error: PySparkException, kind: str, change: RowChange) -> Exception | None:
    """Spark's error about values that a statement meets, with the part of it that did; None for another one.

    Behind its text stands the query, which is none that a user wrote.
    """
    text, contexts = str(error), error.getQueryContext()
    if not contexts:
        return None
    part = contexts[0].fragment().strip()
    part = "" if OWN in part else part
    assigned = [
        f"{column} = {value.strip()}" for column, value in (change.set or {}).items() if part in value
    ]
    met = assigned[0] if part and assigned else part
    reported = f" (in {met})" if met else ""
    condition = error.getCondition()
    said = _QUOTED.sub("", text).strip().removeprefix(f"[{condition}]").strip()
    kinds = [each for each in type(error).__mro__ if each.__module__ == PySparkException.__module__]
    told_as: type[PySparkException] = kinds[0]
    return told_as(f"{said}{reported}. {kind} did nothing", condition, error.getMessageParameters())


def _no_such_column(
    reported: Mapping[str, str], kind: str, change: RowChange, columns: Sequence[str]
) -> ColumnNotFound:
    """A column that a statement names and that is not there; those that are, without our own."""
    parts = _NAME_PART.findall(reported.get("objectName", ""))
    is_qualified = len(parts) > 1 or kind == "MERGE"
    own = [f"{change.alias}.{column}" if is_qualified else column for column in columns]
    # Those of other tables, which Spark suggests; of the table it has those alone that are read.
    others = [_NAME_PART.findall(name) for name in reported.get("proposal", "").split(", ")]
    theirs = [
        ".".join(name[-2:] if is_qualified else name[-1:]) for name in others if name and OWN not in name[-1]
    ]
    known = list(dict.fromkeys([*theirs, *own]))
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    hint = suggest(".".join(parts), known)
    if kind == "MERGE" and parts and parts[-1] in columns:
        hint = "; SET * and INSERT * take all columns of the table from the source: name those that it has"
    return ColumnNotFound(
        f"{kind} finds no column {'.'.join(parts)}; there are {', '.join(known[:_MOST_NAMED])}{more}{hint}. "
        "Nothing was done",
        column=".".join(parts),
    )


@contextmanager
def telling_own_errors() -> Iterator[None]:
    """Raise this package's own error in place of Spark's about it, which begins with a traceback."""
    try:
        yield
    except PySparkException as error:
        ours = own_error(error)
        if ours is None:
            raise
        raise ours from None


def change_counts(spark: SparkSession, kind: str, done: Counter[str]) -> DataFrame:
    """The result of a statement: the numbers of rows that it changed."""
    counts = {"num_affected_rows": sum(done.values())}
    if kind == "MERGE":
        counts |= {f"num_{action}_rows": done[action] for action in (UPDATE, DELETE, INSERT)}
    return spark.createDataFrame([tuple(counts.values())], ", ".join(f"{name} BIGINT" for name in counts))


def _write(store: Store, table: str, kind: str, change: RowChange, queries: Queries) -> Counter[str]:
    plan, snapshot = queries.plan(change.query)
    rows = queries.run(plan, snapshot).where(col(ACTION).isNotNull())
    definition = store.table(table).definition
    types = {field.name: field.type for field in definition.schema}
    columns = [
        _stored(field, types[field.name], field.name in definition.primary_key, table, queries.session)
        for field in rows.schema
        if field.name != ACTION
    ]
    if not change.inserts_absent:
        _check_absent(rows, table, definition.primary_key, change, plan, queries)
    counts, names = Observation(), [f"n{number}" for number in range(len(change.actions))]
    counted = rows.observe(
        counts, *(count_if(col(ACTION) == number).alias(name) for number, name in enumerate(names))
    )
    deletes = [number for number, action in enumerate(change.actions) if action == DELETE]
    options = {"ifUnchangedSince": str(snapshot), "userMetadata": f'{{"statement": "{kind}"}}'}
    if deletes:
        columns.append(col(ACTION).isin(deletes).alias(_DELETES))
        options["deleteColumn"] = _DELETES
    written = counted.select(*columns).write.format("elasticscan").mode("append")
    written.options(url=queries.uri, table=table, **options).save()
    done: Counter[str] = Counter()
    for action, name in zip(change.actions, names, strict=True):
        done[action] += counts.get[name]
    return done


def _stored(field: StructField, stored: pa.DataType, is_key: bool, table: str, session: Session) -> Column:
    """A column of the rows as the table's type, where Spark would store it; but no fraction is cut off, and
    no key becomes that of another row."""
    column, given, kind = col(quoted(field.name)), field.dataType, spark_type(field.name, stored)
    if given.simpleString() == kind.simpleString():
        return column
    # Without ANSI rules a cast beyond a type's bounds gives another number, and no error.
    if not isinstance(given, NullType) and not (session.ansi and _is_stored(given, kind, is_key)):
        instead = f"CAST(… AS {kind.simpleString().upper()})"
        if isinstance(given, StringType) and isinstance(kind, _TIMES):
            instead = f"{'DATE' if isinstance(kind, DateType) else 'TIMESTAMP'} '…', or {instead}"
        raise SchemaMismatch(
            f"column {field.name!r} of table {table!r} is {kind.simpleString()}, and would be given "
            f"{given.simpleString()} values; nothing was done: write {instead}",
            column=field.name,
        )
    return column.cast(kind).alias(field.name)


def _is_stored(given: DataType, kind: DataType, is_key: bool = False) -> bool:
    """True if Spark's ANSI rules store such values in such a column, and no fraction is cut off."""
    if isinstance(given, IntegralType) and isinstance(kind, IntegralType):
        return True
    cut = isinstance(kind, IntegralType)
    return not is_key and (
        (isinstance(given, NumericType) and isinstance(kind, NumericType) and not cut)
        or (isinstance(given, _TIMES) and isinstance(kind, _TIMES))
        or (isinstance(given, AtomicType) and isinstance(kind, StringType))
    )


def _are_stored(new: Mapping[str, str], schema: pa.Schema) -> bool:
    """True if the store may evaluate these values: it would take some that Spark does not store."""
    try:
        given = {name: spark_type(name, parse_value(text, schema).type) for name, text in new.items()}
    except (FilterError, ColumnNotFound, UnsupportedType):
        return False
    kinds = {name: spark_type(name, schema.field(name).type) for name in new}
    return all(
        isinstance(given[name], NullType)
        or given[name] == kinds[name]
        or _is_stored(given[name], kinds[name])
        for name in new
    )


def _check_absent(
    rows: DataFrame, table: str, key: tuple[str, ...], change: RowChange, plan: QueryPlan, queries: Queries
) -> None:
    """Raise if a row would be inserted whose key the table has."""
    inserts = [number for number, action in enumerate(change.actions) if action == INSERT]
    names = [quoted(name) for name in key]
    inserted = rows.where(col(ACTION).isin(inserts)).select(*names)
    present = queries.run(*queries.plan(f"SELECT {', '.join(names)} FROM {quoted(plan.scans[0].view)}"))
    there = inserted.join(present, list(key)).limit(1).collect()
    if there:
        values = ", ".join(f"{name} = {there[0][name]!r}" for name in key)
        raise KeysExist(
            f"MERGE would insert a row of table {table!r} whose primary key is there ({values}); nothing was "
            "written: compare the whole primary key, and nothing else, in ON, or leave such rows out of the "
            "source",
            table=table,
        )
