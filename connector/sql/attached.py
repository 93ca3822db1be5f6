"""The tables of a store inside a Spark session: views, queries that read little, and a builder.

    shop = attach(spark, "/data/shop.store")
    shop.sql("SELECT origin, count(*) FROM flights WHERE dep_delay > 60 GROUP BY origin")
    shop.table("flights").where("dep_delay > 60").select("origin", "dest").load()

Spark hands a Python source no columns and, safely, no filters. `sql` finds both in the query's
text, before Spark does, and gives each reference of a table a relation of its own with the options
`columns` and `filter`. The conditions stay in the query, so the rows are those of the plain views.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import InvalidOption, TableNotFound
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.open_stores import open_store
from elasticscan.connector.options import parse_options
from elasticscan.connector.reading import check_snapshot
from elasticscan.connector.sql.changing import CHANGES, Target, read_change
from elasticscan.connector.sql.creating import Creation, create, read_creation
from elasticscan.connector.sql.explain import explain_plan, left_alone
from elasticscan.connector.sql.few_rows import FewRows, ending_by_itself, few_as_relation
from elasticscan.connector.sql.foreign import foreign_statement, words_of_others
from elasticscan.connector.sql.inserting import insert, insertions
from elasticscan.connector.sql.limits import RowLimit
from elasticscan.connector.sql.maintaining import maintain, nothing
from elasticscan.connector.sql.parameters import Arguments, some_literals, with_literals
from elasticscan.connector.sql.plan import QueryPlan, TableShape, plan_query
from elasticscan.connector.sql.query import AsOf, Session, UnreadableError
from elasticscan.connector.sql.quiet import without_log_of_errors
from elasticscan.connector.sql.reads import Read, Reads, options_of
from elasticscan.connector.sql.row_changes import Queries, change_counts, change_rows, telling_own_errors
from elasticscan.connector.sql.statements import (
    Statement,
    check_no_times_past,
    check_not_hidden,
    other_format,
    other_name,
    other_words,
    statement_about,
    tables_there,
    unknown_table,
)
from elasticscan.connector.sql.table_read import TableRead
from elasticscan.connector.sql.tokens import NotUnderstoodError
from elasticscan.connector.sql.views import FORMAT, TableViews

# Settings that change how Spark reads a text, each with the only value that is supported here.
_USUAL = {
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.legacy.setopsPrecedence.enabled": "false",
    "spark.sql.groupByOrdinal": "true",
    # These give numbers that are written in a query other types.
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
}
_UTC = ("UTC", "Etc/UTC")


class AttachedStore(Sequence[str]):
    """The views that `attach` made, in a session; as a sequence, their names.

    Made by `attach`. Every query reads the newest snapshot, the same for all of its tables. Each call of
    `sql` finds the tables that there are then, whoever made or dropped them.
    """

    def __init__(self, spark: SparkSession, uri: str, prefix: str = "") -> None:
        """`prefix` is what views begin with."""
        # Absolute, since a session's directory may change.
        uri = parse_options({"store": uri, "table": "any"}).store
        self._spark, self._uri, self._prefix = spark, uri, prefix
        self._views = TableViews(spark, uri, prefix)

    @property
    def _tables(self) -> Mapping[str, str]:
        """The table of each view."""
        return self._views.tables

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: Any) -> str | list[str]:
        found: str | list[str] = list(self._tables)[at]
        return found

    def __len__(self) -> int:
        return len(self._tables)

    def __eq__(self, other: object) -> bool:
        return (
            list(self) == list(other) if isinstance(other, list | tuple | AttachedStore) else NotImplemented
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    @property
    def tables(self) -> tuple[str, ...]:
        """The store's tables as the last statement found them, without a prefix; a tuple."""
        return tuple(self._tables.values())

    def table(self, name: str) -> TableRead:
        """Begin a read of a table: `catalog.table("t").where("x > 1").select("id").load()`.

        Raises:
            TableNotFound: the store has no such table; with a suggestion.
        """
        info = open_store(self._uri).table(name)
        return TableRead(self._spark, self._uri, info.name, info.schema)

    def sql(self, text: str, args: dict[str, Any] | list[Any] | None = None) -> DataFrame:
        """Run a query whose tables send up only the columns and rows that it may need.

        The result is always that of `spark.sql(text, args)` over views of the newest snapshot. Text
        that is no query, or that cannot be taken apart for certain, goes to Spark as it is, after
        the views it mentions were made again. Values for parameters (`args`: a dict for `:name`, a list
        for `?`) limit what is read like literals, as far as a literal of their type can be written.

        `INSERT INTO` upserts, and `INSERT OVERWRITE` replaces all rows. `DELETE`, `UPDATE` and `MERGE INTO`
        are one commit each, as of one snapshot, and give the numbers of rows that they changed. `DROP TABLE`
        drops a table of the store with its view, `DROP VIEW` the view alone. `ALTER TABLE`, `TRUNCATE TABLE`,
        `RESTORE TABLE`, `DESCRIBE HISTORY`, `OPTIMIZE` and `VACUUM` mean what users of other formats expect.

        Raises:
            UnsupportedStatement: another statement would change a table of the store, or asks for a snapshot
                or changes in words that only other formats know; nothing was done.
            WriteConflict: others wrote the rows to be changed each time that they were read.
            KeysExist: a MERGE would insert a row that is there.
            TableNotFound: a table to be dropped is gone already.
        """
        if not isinstance(text, str):
            raise InvalidOption(f"sql takes SQL text, and no {type(text).__name__}", option="text")
        with without_log_of_errors():
            return self._sql(text, args)

    def _sql(self, text: str, args: dict[str, Any] | list[Any] | None) -> DataFrame:
        session = _session(self._spark)
        gone = self._views.look()
        statement = statement_about(text, [*self._tables, *gone], session)
        if statement is not None and statement.view in gone and not statement.if_exists:
            raise TableNotFound(
                f"{statement.kind} of {statement.view!r}: the table was dropped", table=statement.view
            )
        if statement is not None:
            return self._execute(statement, text, args, session)
        check_not_hidden(text, self._views.hidden, session)
        try:
            plan, snapshot = self._plan(text, args, session)
        except UnreadableError as why:
            check_no_times_past(text, self._tables, session, str(why))
            return self._run_unchanged(text, args)
        if not plan.scans:
            return self._run_unchanged(text, args)
        try:
            return self._run(*self._relations(plan, snapshot), plan.arguments)
        except AnalysisException:
            # Spark's message quotes the text that it ran: it should be the user's, not the rewritten one.
            if not plan.names_snapshots:
                return self._run_unchanged(text, args, {scan.view for scan in plan.scans})
        # Views have no snapshots: Spark would refuse these first, whatever else is wrong.
        try:
            return self._run(*self._relations(plan.unfolded(whole=True), snapshot), plan.arguments)
        except AnalysisException as error:
            reported = self._told(text, error)
            if reported is error:
                raise
            raise reported from error

    def _execute(
        self, statement: Statement, text: str, args: Arguments | None, session: Session
    ) -> DataFrame:
        try:
            if statement.kind == "DROP TABLE":
                return self._drop(statement)
            if statement.kind == "CREATE TABLE":
                return self._create(read_creation(statement.reader))
            if statement.kind in CHANGES:
                return self._change(statement, text, args, session)
            store = open_store(self._uri)
            done = maintain(self._spark, store, self._tables[statement.view], statement)
        except (NotUnderstoodError, UnreadableError) as why:
            reported = words_of_others(text, self._tables, session)
            raise statement.refused(f"{why}; {reported}" if reported else str(why)) from None
        self._views.make([statement.view])
        return done

    def _change(self, statement: Statement, text: str, args: Arguments | None, session: Session) -> DataFrame:
        if args:
            complete = with_literals(text, args, for_change=True)
            again = None if complete is None else statement_about(complete, self._tables, session)
            if again is None:
                raise NotUnderstoodError(
                    "its text has backslashes, or a parameter has no value or one that is no number, string, "
                    "date, moment with a zone, boolean, bytes or None: write it into the text"
                )
            statement = again
        store, table = open_store(self._uri), self._tables[statement.view]
        definition = store.table(table).definition
        names = tuple(definition.schema.names)
        target = Target(statement.view, names, tuple(definition.primary_key), session)
        change = read_change(statement.kind, statement.reader, target)
        queries = Queries(
            lambda query: self._plan(query, None, session),
            lambda plan, snapshot: self._run(*self._relations(plan, snapshot)),
            session,
            self._uri,
        )
        try:
            done = change_rows(store, table, statement.kind, change, queries)
        except AnalysisException as error:
            _note_tables(error, self._tables)
            raise
        self._views.make([statement.view])
        return change_counts(self._spark, statement.kind, done)

    def _create(self, made: Creation) -> DataFrame:
        view, table = made.name, made.name.removeprefix(self._prefix)
        if not view.startswith(self._prefix):
            raise NotUnderstoodError(f"views of this store begin with {self._prefix}, and so has its name to")
        create(self._spark, self._uri, table, made, self.sql)
        self._views.look(replacing=True)
        return nothing(self._spark)

    def _drop(self, drop: Statement) -> DataFrame:
        drop.reader.takes("PURGE")
        drop.reader.expect_end()
        try:
            if drop.view in self._tables:
                open_store(self._uri).table(self._tables[drop.view]).drop()
        except TableNotFound:
            if not drop.if_exists:
                raise
        return self._views.drop(drop.view)

    def explain(self, text: str, args: dict[str, Any] | list[Any] | None = None) -> str:
        """Explain what `sql` would read for a query, and what it leaves to Spark and why.

        Raises:
            UnsupportedStatement: the query asks for another snapshot in SQL's words.
        """
        session = _session(self._spark)
        self._views.look()
        try:
            plan, snapshot = self._plan(text, args, session)
        except UnreadableError as why:
            check_no_times_past(text, self._tables, session, str(why))
            return left_alone(text, str(why))
        totals = {view: len(shape.schema) for view, shape in plan.shapes.items()}
        reads = self._reads(plan, snapshot).of(plan)
        read_here = [None if read.few is None else _shown(read.few) for read in reads]
        plan = replace(plan, scans=tuple(read.scan for read in reads))
        return explain_plan(plan, snapshot, totals, read_here)

    def _plan(self, text: str, args: Arguments | None, session: Session) -> tuple[QueryPlan, int]:
        complete, left = some_literals(text, args) if args else (text, None)
        shapes, snapshot = self._shapes()
        plan = plan_query(complete, shapes, session)
        if left is None:
            return plan, snapshot
        if not plan.names_snapshots:
            raise UnreadableError("it has parameters whose values cannot be written as literals")
        return replace(plan.unfolded(), arguments=left), snapshot

    def _shapes(self) -> tuple[dict[str, TableShape], int]:
        """The tables as they are now, and the newest snapshot, from one look at the catalog."""
        context = open_store(self._uri).context
        context.check_newest()
        tables, snapshot = context.tables()
        by_name = {table.name: table for table in tables}
        return {
            view: TableShape(by_name[name].schema, by_name[name].primary_key[0], by_name[name].primary_key)
            for view, name in self._tables.items()
            if name in by_name
        }, snapshot

    def _relations(self, plan: QueryPlan, snapshot: int) -> tuple[str, dict[str, DataFrame]]:
        """The query over relations, and the relation of each name; equal scans share one."""
        unique = f"elasticscan_{uuid.uuid4().hex}"
        names: dict[tuple[object, ...], str] = {}
        made: dict[str, DataFrame] = {}
        for scan in plan.scans:
            if scan.as_of is not None:
                texts = {"store": self._uri, "table": self._tables[scan.view]}
                check_snapshot(parse_options(texts | options_of(None, None, scan.as_of)))
        reads = self._reads(plan, snapshot)
        found = reads.of(plan)
        for read in found:
            if read.identity not in names:
                name = names[read.identity] = f"{unique}_{len(names)}"
                made[name] = self._relation(read, reads, snapshot)
        places = [names[read.identity] for read in found]
        return replace(plan, scans=tuple(read.scan for read in found)).rewritten(places), made

    def _reads(self, plan: QueryPlan, snapshot: int) -> Reads:
        context = getattr(self._spark, "sparkContext", None)  # a Connect session has none
        cores = None if context is None else int(context.defaultParallelism)
        return Reads(self._uri, self._tables, plan.shapes, snapshot, cores)

    def _relation(self, read: Read, reads: Reads, snapshot: int) -> DataFrame:
        """The rows themselves where they are few, else a relation that tasks read."""
        scan, table = read.scan, self._tables[read.scan.view]
        if read.few is not None:
            return few_as_relation(self._spark, read.few)
        if scan.aggregates is not None:
            options = reads.options_of_fold(scan, scan.aggregates)
            return self._spark.read.format(FORMAT).options(**options).load()
        limit = scan.limit
        if limit is None or (limit.order and not reads.are_first_kept(scan)):
            return self._load(table, scan.columns, scan.filter, scan.as_of or snapshot)
        relation = self._load(table, scan.columns, scan.filter, scan.as_of or snapshot, limit)
        # Tasks that sort read everything; others Spark would leave early.
        return relation if limit.order else ending_by_itself(relation, limit.rows)

    def _run(
        self, text: str, relations: Mapping[str, DataFrame], arguments: Arguments | None = None
    ) -> DataFrame:
        """A query over these relations.

        They are handed to Spark alongside the text, under names for this query alone: a Connect session
        analyses a query again with each action, when temporary views would be gone.
        """
        text = text.replace("{", "{{").replace("}", "}}")  # Spark formats the text
        for name in relations:
            text = text.replace(f"`{name}`", f"`{{{name}}}`")
        frames: dict[str, Any] = dict(relations)
        return self._spark.sql(text, arguments, **frames)  # type: ignore[arg-type]

    def _load(
        self,
        table: str,
        columns: Sequence[str] | None,
        condition: str | None,
        snapshot: int | AsOf | None,
        limit: RowLimit | None = None,
    ) -> DataFrame:
        most, order = (None, ()) if limit is None else (limit.rows, limit.order)
        options = options_of(columns, condition, snapshot, most, order)
        return self._spark.read.format(FORMAT).options(url=self._uri, table=table, **options).load()

    def _run_unchanged(
        self,
        text: str,
        args: dict[str, Any] | list[Any] | None = None,
        views: Collection[str] | None = None,
    ) -> DataFrame:
        """Spark's own answer, over the newest rows of these views, or of all that the text may mention."""
        words, (live, _) = text.lower(), self._shapes()
        mentioned = [view for view in live if (view.lower() in words if views is None else view in views)]
        self._views.make(mentioned)
        session = _session(self._spark)
        found = insertions(text, {view: live[view].schema.names for view in mentioned}, session)
        try:
            with telling_own_errors():
                if not found:
                    return self._spark.sql(text, args)

                def target(view: str, names: Sequence[str]) -> DataFrame | None:
                    return self._target(view, live[view].schema, {session.folded(name) for name in names})

                return insert(self._spark, text, args, found, target, lambda: self._views.make(mentioned))
        except (AnalysisException, UnsupportedOperationException) as error:
            reported = self._told(text, error)
            if reported is error:
                raise
            raise reported from error
        except Py4JJavaError as error:
            refused = other_format(text, str(error.java_exception))
            if refused is None:
                raise
            raise refused from None

    def _target(self, view: str, schema: pa.Schema, names: Collection[str]) -> DataFrame | None:
        """Some columns of a table, to be written into; None where they are all, or one is none of it."""
        folded = _session(self._spark).folded
        fields = [field for field in schema if folded(field.name) in names]
        if len(fields) != len(names) or len(fields) == len(schema):
            return None
        options = {"url": self._uri, "table": self._tables[view], "partialUpdate": "true"}
        reader = self._spark.read.format(FORMAT).schema(spark_schema(pa.schema(fields)))
        return reader.options(**options).load()

    def _told(self, text: str, error: PySparkException) -> Exception:
        """Spark's error, or one that says how its statement is written for tables of the store."""
        session, condition, name = _session(self._spark), error.getCondition() or "", _name_in(error)
        _note_tables(error, self._tables)
        return (
            unknown_table(text, self._tables, session)
            or other_words(text, self._tables, session)
            or other_name(condition, name, self._tables, session)
            or foreign_statement(text, condition, self._tables, session)
            or error
        )


def _note_tables(error: PySparkException, views: Collection[str]) -> None:
    """Note alongside Spark's error about a table that is nowhere which tables there are."""
    note = tables_there(error.getCondition() or "", _name_in(error), views)
    if note is not None:
        error.add_note(note)


def _name_in(error: PySparkException) -> str:
    """The table, or the kind of source, that Spark's error is about."""
    said = error.getMessageParameters() or {}
    return next((said[name] for name in ("relationName", "relationId", "dataSourceType") if name in said), "")


def _shown(few: FewRows) -> str:
    if few.is_known:
        return "nothing: statistics of fragments tell it"
    return f"alongside the driver: {few.rows.num_rows:,} rows"


def _session(spark: SparkSession) -> Session:
    def setting(name: str, usual: str) -> str:
        return str(spark.conf.get(name, usual)).strip()

    unusual = [name for name, usual in _USUAL.items() if setting(name, usual).lower() != usual]
    zoned = setting("spark.sql.timestampType", "TIMESTAMP_LTZ").upper() == "TIMESTAMP_LTZ"
    return Session(
        # Spark always has a time zone, and `get` would refuse an empty default.
        utc=zoned and str(spark.conf.get("spark.sql.session.timeZone")).strip() in _UTC,
        ansi=setting("spark.sql.ansi.enabled", "true").lower() == "true",
        case_sensitive=setting("spark.sql.caseSensitive", "false").lower() == "true",
        unusual=unusual[0] if unusual else None,
    )
