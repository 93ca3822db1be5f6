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
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import NotFound
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.open_stores import open_store
from elasticscan.connector.options import parse_options
from elasticscan.connector.reading import check_snapshot
from elasticscan.connector.sql.changing import CHANGES, Target, read_change
from elasticscan.connector.sql.creating import Creation, create, read_creation
from elasticscan.connector.sql.explain import explain_plan, left_alone
from elasticscan.connector.sql.few_rows import FewRows, ending_by_itself, few_as_relation
from elasticscan.connector.sql.inserting import insertions, into_some_columns, is_script
from elasticscan.connector.sql.limits import RowLimit
from elasticscan.connector.sql.maintaining import maintain, nothing
from elasticscan.connector.sql.parameters import Arguments, some_literals, with_literals
from elasticscan.connector.sql.plan import QueryPlan, TableShape, plan_query
from elasticscan.connector.sql.query import AsOf, Session, UnreadableError
from elasticscan.connector.sql.reads import Read, Reads, options_of
from elasticscan.connector.sql.row_changes import Queries, change_counts, change_rows, own_errors_raised
from elasticscan.connector.sql.statements import Statement, statement_about
from elasticscan.connector.sql.table_read import TableRead
from elasticscan.connector.sql.tokens import NotUnderstoodError
from elasticscan.connector.sql.views import FORMAT, TableViews
from elasticscan.store import until_unchanged

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
    `sql` finds tables that other processes made or dropped.
    """

    def __init__(self, spark: SparkSession, uri: str, prefix: str = "") -> None:
        """Make the views; `prefix` is the beginning of their names."""
        # Absolute, since a session's directory may change.
        uri = parse_options({"store": uri, "table": "any"}).store
        self._spark, self._uri, self._prefix = spark, uri, prefix
        self._views = TableViews(spark, uri, prefix)

    @property
    def _tables(self) -> Mapping[str, str]:
        """Return the table of each view."""
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
        """Return the store's tables as the last statement found them, without a prefix."""
        return tuple(self._tables.values())

    def table(self, name: str) -> TableRead:
        """Begin a read of a table: `catalog.table("t").where("x > 1").select("id").load()`.

        Raises:
            NotFound: the store has no such table; the nearest is named.
        """
        info = open_store(self._uri).table(name)
        return TableRead(self._spark, self._uri, info.name, info.schema)

    def sql(self, text: str, args: dict[str, Any] | list[Any] | None = None) -> DataFrame:
        """Run a query whose tables send up only the columns and rows that it may need.

        The result is always that of `spark.sql(text, args)` over views of the newest snapshot. Statements
        that are no query, or that cannot be analysed with certainty, go to Spark as they are, after
        the views that they mention were made again. Values for parameters (`args`: a dict for `:name`, a
        list for `?`) limit the rows that are read like literals, where a literal of their type exists.

        `INSERT INTO` upserts, and `INSERT OVERWRITE` replaces all rows. `DELETE`, `UPDATE` and `MERGE INTO`
        are one commit each, as of one snapshot, and return the numbers of changed rows. `DROP TABLE`
        drops a table of the store with its view, `DROP VIEW` the view alone. `ALTER TABLE`,
        `TRUNCATE TABLE`, `RESTORE TABLE`, `DESCRIBE HISTORY`, `OPTIMIZE` and `VACUUM` work as in Delta.

        Raises:
            NotSupported: the statement would change or hide a view and not its table, or is
                incomplete; nothing was done.
            WriteConflict: other writers changed the rows at each attempt.
            AlreadyExists: a MERGE would insert a row whose key exists.
            NotFound: a table to be changed was dropped.
        """
        session = _session(self._spark)
        gone = self._views.look()
        statement = statement_about(text, [*self._tables, *gone], session)
        if statement is not None and statement.view in gone and not statement.if_exists:
            raise NotFound(
                f"{statement.kind} of {statement.view!r}: the table was dropped",
                table=statement.view,
                kind="table",
            )
        if statement is not None:
            return self._execute(statement, text, args, session)
        try:
            plan, snapshot = self._plan(text, args, session)
        except UnreadableError:
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
        return self._run(*self._relations(plan.unfolded(whole=True), snapshot), plan.arguments)

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
            raise statement.refused(str(why)) from None
        self._views.make([statement.view])
        return done

    def _change(self, statement: Statement, text: str, args: Arguments | None, session: Session) -> DataFrame:
        if args:
            complete = with_literals(text, args, for_change=True)
            again = None if complete is None else statement_about(complete, self._tables, session)
            if again is None:
                raise NotUnderstoodError("a parameter has no literal here; write its value into the text")
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
        done = change_rows(store, table, statement.kind, change, queries)
        self._views.make([statement.view])
        return change_counts(self._spark, statement.kind, done)

    def _create(self, made: Creation) -> DataFrame:
        view, table = made.name, made.name.removeprefix(self._prefix)
        if not view.startswith(self._prefix):
            raise NotUnderstoodError(f"the name must begin with {self._prefix}, as all views of this store")
        create(self._uri, table, made, self.sql)
        self._views.look(replacing=True)
        return nothing(self._spark)

    def _drop(self, drop: Statement) -> DataFrame:
        drop.reader.takes("PURGE")
        drop.reader.expect_end()
        try:
            if drop.view in self._tables:
                open_store(self._uri).table(self._tables[drop.view]).drop()
        except NotFound:
            if not drop.if_exists:
                raise
        return self._views.drop(drop.view)

    def explain(self, text: str, args: dict[str, Any] | list[Any] | None = None) -> str:
        """Explain which rows and columns `sql` would read for a query, and why it leaves others to Spark."""
        session = _session(self._spark)
        self._views.look()
        try:
            plan, snapshot = self._plan(text, args, session)
        except UnreadableError as why:
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
        """Return the current tables and the newest snapshot, from one read of the catalog."""
        backend = open_store(self._uri).backend
        backend.newest()
        tables, snapshot = backend.tables()
        by_name = {table.name: table for table in tables}
        return {
            view: TableShape(by_name[name].schema, by_name[name].primary_key[0], by_name[name].primary_key)
            for view, name in self._tables.items()
            if name in by_name
        }, snapshot

    def _relations(self, plan: QueryPlan, snapshot: int) -> tuple[str, dict[str, DataFrame]]:
        """Return the query over relations, and the relations by name; equal scans share one."""
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
        """Return the rows themselves if they are few, else a relation that tasks read."""
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
        # Tasks that sort read everything; Spark would stop other tasks early.
        return relation if limit.order else ending_by_itself(relation, limit.rows)

    def _run(
        self, text: str, relations: Mapping[str, DataFrame], arguments: Arguments | None = None
    ) -> DataFrame:
        """Run a query over these relations.

        Spark gets them as arguments, under names for this query alone: a Connect session analyses a
        query again with each action, when temporary views would be gone.
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
        """Run the text in Spark over the newest rows of these views, or of all that it may mention."""
        words, (live, _) = text.lower(), self._shapes()
        mentioned = [view for view in live if (view.lower() in words if views is None else view in views)]
        session = _session(self._spark)
        found = insertions(text, {view: live[view].schema.names for view in mentioned}, session)

        def target(view: str, names: Sequence[str]) -> DataFrame | None:
            return self._target(view, live[view].schema, {session.folded(name) for name in names})

        def run() -> DataFrame:
            self._views.make(mentioned)
            with own_errors_raised(), into_some_columns(self._spark, text, args, found, target) as complete:
                return self._spark.sql(complete, args)

        if not found:
            return run()
        rows, is_final = f"rows of table {found[0].view!r}", is_script(text)  # of which parts may be done
        context = open_store(self._uri).context
        return until_unchanged(context, run, rows, "repeat the INSERT", is_final=is_final)

    def _target(self, view: str, schema: pa.Schema, names: Collection[str]) -> DataFrame | None:
        """Return some columns of a table as a target; None if they are all, or one is unknown."""
        folded = _session(self._spark).folded
        fields = [field for field in schema if folded(field.name) in names]
        if len(fields) != len(names) or len(fields) == len(schema):
            return None
        options = {"url": self._uri, "table": self._tables[view], "partialUpdate": "true"}
        reader = self._spark.read.format(FORMAT).schema(spark_schema(pa.schema(fields)))
        return reader.options(**options).load()


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
