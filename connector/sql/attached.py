"""The tables of a store inside a Spark session: views, queries that read little, and a builder.

    shop = attach(spark, "/data/shop.store")
    shop.sql("SELECT origin, count(*) FROM flights WHERE dep_delay > 60 GROUP BY origin")
    shop.table("flights").where("dep_delay > 60").select("origin", "dest").load()

Spark gives a Python source no columns, and filters in an unsafe way only. `sql` finds both in the text of the
query before Spark reads it, and replaces each reference of a table by a relation with the options `columns`
and `filter`. The conditions stay in the query too, so the result is that of the plain views.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import InvalidCall
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.options import URL, parse_options
from elasticscan.connector.reading import check_snapshot
from elasticscan.connector.sql.changing import CHANGES, read_change
from elasticscan.connector.sql.definitions import create, maintain, nothing
from elasticscan.connector.sql.driver_reads import FewRows, read_few
from elasticscan.connector.sql.parameters import with_literals
from elasticscan.connector.sql.plan import QueryPlan, plan_query
from elasticscan.connector.sql.query import Session
from elasticscan.connector.sql.row_changes import (
    change_counts,
    changed_in_store,
    own_errors_raised,
    write_changes,
)
from elasticscan.connector.sql.statements import Statement, insertion, statement_about
from elasticscan.connector.sql.table_read import TableRead
from elasticscan.connector.sql.tokens import NotUnderstoodError
from elasticscan.connector.sql.views import FORMAT, TableViews
from elasticscan.connector.store_cache import open_store
from elasticscan.store import Store, Table, until_unchanged

# Settings that change how Spark parses a text, each with the only value that is supported here.
_USUAL = {
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.legacy.setopsPrecedence.enabled": "false",
    # These change the types of number literals.
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    # This changes the meaning of a parameter in ORDER BY.
    "spark.sql.legacy.parameterSubstitution.constantsOnly": "false",
}
_CASE = "spark.sql.caseSensitive"
_UTC = ("UTC", "Etc/UTC")

_Read = tuple[str, dict[str, str], FewRows | None]  # its name, its options, and its rows if they are few


class AttachedStore:
    """The tables of a store in a session, made by `attach`.

    Every query reads the newest snapshot, the same one for all of its tables. Each call of `sql` finds tables
    that other processes have created or dropped.
    """

    def __init__(self, spark: SparkSession, uri: str, prefix: str = "") -> None:
        """Create the views; `prefix` is the beginning of their names."""
        # Absolute, since the working directory may change.
        uri = parse_options({"store": uri, "table": "any"}).store
        self._spark, self._uri, self._prefix = spark, uri, prefix
        self._views = TableViews(spark, uri, prefix)

    def __repr__(self) -> str:
        return f"<elasticscan.AttachedStore of the views {', '.join(self._views.tables)}>"

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the store's tables at the last statement, without the prefix."""
        return tuple(table.name for table in self._views.tables.values())

    def table(self, name: str) -> TableRead:
        """Begin a read of a table: `catalog.table("t").where("x > 1").select("id").load()`.

        Raises:
            NotFound: the store has no such table.
        """
        return TableRead(self._spark, self._uri, open_store(self._uri).table(name).definition)

    def sql(self, text: str, args: dict[str, Any] | list[Any] | None = None) -> DataFrame:
        """Run a query that reads only the columns and rows that it may need.

        The result is that of `spark.sql(text, args)` over views of the newest snapshot. Queries that are not
        understood with certainty, and other statements, go to Spark unchanged, after their views were
        updated. `args` has the values of parameters: a dict for `:name`, a list for `?`. Like literals they
        limit the rows that are read.

        `INSERT INTO` upserts, and `INSERT OVERWRITE` replaces all rows. `DELETE`, `UPDATE` and `MERGE INTO`
        are one commit each, as of one snapshot, and return the numbers of changed rows. `DROP TABLE`
        drops a table of the store with its view, `DROP VIEW` the view alone.

        Raises:
            InvalidCall: the store cannot execute the statement; nothing was done.
            Busy: other writers changed the rows at each attempt.
        """
        session = _session(self._spark)
        tables, snapshot = self._views.look()
        statement = statement_about(text, tables)
        try:
            complete = with_literals(text, args)
            if statement is not None:
                return self._execute(statement.with_text(complete), session)
            plan = plan_query(complete, tables, session)
        except NotUnderstoodError as why:
            if statement is not None:
                raise statement.refused(str(why)) from None
            return self._run_unchanged(text, args)
        try:
            return self._run_plan(plan, snapshot)
        except AnalysisException:
            if any(scan.reference.as_of is not None for scan in plan.scans):
                raise  # over views Spark would complain of the snapshots, and hide this error
        # Spark's message quotes the text that it ran: it should be the user's text, not the rewritten one.
        return self._run_unchanged(text, args)

    def _execute(self, statement: Statement, session: Session) -> DataFrame:
        view, store = statement.view, open_store(self._uri)
        if statement.kind == "CREATE TABLE":
            if not view.startswith(self._prefix):
                raise NotUnderstoodError(
                    f"the name must begin with {self._prefix}, as all views of this store"
                )
            create(self._uri, view.removeprefix(self._prefix), statement, self.sql)
            self._views.look()
            return nothing(self._spark)
        table = store.table(self._views.tables[view].name)
        if statement.kind in CHANGES:
            done = self._change(statement, store, table, session)
        else:
            done = maintain(self._spark, table, statement)
        if view in self._views.look()[0]:
            self._views.make([view])
        return done

    def _change(self, statement: Statement, store: Store, table: Table, session: Session) -> DataFrame:
        kind, change = statement.kind, read_change(statement, table.definition)

        def attempt() -> Counter[str]:
            tables, snapshot = self._views.look()
            plan, info = plan_query(change.query, tables, session), table.definition
            with own_errors_raised():
                rows = self._run_plan(plan, snapshot)
                return write_changes(rows, self._uri, info, kind, change, snapshot, session.ansi)

        plan = plan_query(change.query, self._views.tables, session)
        done = changed_in_store(store, table, kind, change, plan, session)
        if done is None:
            rows = f"rows of table {table.name!r}"
            done = until_unchanged(store.context, attempt, rows, f"repeat the {kind}")
        return change_counts(self._spark, kind, done)

    def explain(self, text: str, args: dict[str, Any] | list[Any] | None = None) -> str:
        """Explain which rows and columns `sql` reads for a query, and why Spark tests other conditions."""
        session = _session(self._spark)
        tables, snapshot = self._views.look()
        try:
            plan = plan_query(with_literals(text, args), tables, session)
        except NotUnderstoodError as why:
            return f"given to Spark as it is, over the plain views: {why}\n\n{text.strip()}"
        few = [rows for _, _, rows in self._reads(plan, snapshot)]
        return plan.explained(snapshot, [None if rows is None else rows.rows.num_rows for rows in few])

    def _reads(self, plan: QueryPlan, snapshot: int) -> list[_Read]:
        """Return the read of each scan of a plan. Equal reads are made once and have one name."""
        query, reads = uuid.uuid4().hex, dict[tuple[object, ...], _Read]()
        keys = []
        for scan in plan.scans:
            options = {URL: self._uri, "table": scan.table.name, **scan.options(snapshot)}
            keys.append(tuple(options.items()))
            if keys[-1] not in reads:
                parsed = parse_options(options)
                if scan.reference.as_of is not None:
                    check_snapshot(parsed)
                reads[keys[-1]] = f"elasticscan_{query}_{len(reads)}", options, read_few(parsed, scan.limit)
        return [reads[key] for key in keys]

    def _run_plan(self, plan: QueryPlan, snapshot: int) -> DataFrame:
        """Run a query over local relations of few rows, and over relations that tasks read.

        Spark gets the relations as arguments: a Connect session analyses a query again with each action, when
        temporary views would be gone.
        """
        reads = self._reads(plan, snapshot)
        text = plan.rewritten([name for name, _, _ in reads], [few is not None for _, _, few in reads])
        text = text.replace("{", "{{").replace("}", "}}")  # Spark formats the text
        frames: dict[str, Any] = {}
        for name, options, few in reads:
            if name not in frames:
                text = text.replace(f"`{name}`", f"`{{{name}}}`")
                if few is None:
                    frames[name] = self._spark.read.format(FORMAT).options(**options).load()
                else:
                    frames[name] = self._spark.createDataFrame(few.rows, few.schema)
        return self._spark.sql(text, **frames)

    def _run_unchanged(self, text: str, args: dict[str, Any] | list[Any] | None) -> DataFrame:
        """Run the text in Spark after updating the views that it may mention."""
        (tables, _), name = self._views.look(), f"elasticscan_{uuid.uuid4().hex}"
        mentioned = [view for view in tables if view.lower() in text.lower()]
        partial_insert = insertion(text, {view: tables[view].schema.names for view in mentioned}, name)
        if partial_insert is None:
            self._views.make(mentioned)
            with own_errors_raised():
                return self._spark.sql(text, args)
        view, columns, new = partial_insert
        options = {URL: self._uri, "table": tables[view].name, "partialUpdate": "true"}
        fields = pa.schema([tables[view].schema.field(column) for column in columns])

        def insert() -> DataFrame:
            self._views.make(mentioned)
            with own_errors_raised():
                target = self._spark.read.format(FORMAT).schema(spark_schema(fields))
                target.options(**options).load().createOrReplaceTempView(name)
                return self._spark.sql(new, args)

        try:
            context = open_store(self._uri).context
            return until_unchanged(context, insert, f"rows of table {view!r}", "repeat the INSERT")
        finally:
            self._spark.sql(f"DROP VIEW IF EXISTS {name}")


def _session(spark: SparkSession) -> Session:
    def setting(name: str, usual: str) -> str:
        return str(spark.conf.get(name, usual)).strip()

    if setting(_CASE, "false").lower() == "true":
        raise InvalidCall(
            f"{_CASE}=true is not supported in SQL over a store; set it to false", setting=_CASE
        )
    unusual = [name for name, usual in _USUAL.items() if setting(name, usual).lower() != usual]
    zoned = setting("spark.sql.timestampType", "TIMESTAMP_LTZ").upper() == "TIMESTAMP_LTZ"
    return Session(
        # This setting always has a value, and `get` refuses an empty default.
        utc=zoned and str(spark.conf.get("spark.sql.session.timeZone")).strip() in _UTC,
        ansi=setting("spark.sql.ansi.enabled", "true").lower() == "true",
        unusual=unusual[0] if unusual else None,
    )
