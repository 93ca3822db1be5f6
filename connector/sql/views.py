"""The temporary views of a store's tables in a session, one for each table.

Other processes make and drop tables, too. `look` compares the views with the catalog, which costs one small
query unless something was committed since.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import SchemaMismatch
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.open_stores import open_store
from elasticscan.connector.sql.tokens import quoted
from elasticscan.metadata import TableInfo

FORMAT = "elasticscan"
# The (store, table) that each view shows which was made here, of every session.
_made: WeakKeyDictionary[SparkSession, dict[str, tuple[str, str]]] = WeakKeyDictionary()


class TableViews:
    """The views of one store, whose names begin with a prefix."""

    def __init__(self, spark: SparkSession, uri: str, prefix: str) -> None:
        self._spark, self._uri, self._prefix = spark, uri, prefix
        self._tables: dict[str, TableInfo] = {}
        self._unseen: dict[str, int] = {}  # tables without a view, about which a warning was given
        self._versions: tuple[int, int] | None = None
        self.look(replacing=True)

    @property
    def tables(self) -> Mapping[str, str]:
        """Return the table of each view."""
        return {view: info.name for view, info in self._tables.items()}

    def look(self, *, replacing: bool = False) -> frozenset[str]:
        """Make views of new tables, and drop the views of dropped tables.

        Args:
            replacing: a new table's view replaces another view of its name, which else hides the table.

        Returns:
            The views that were dropped.
        """
        backend = open_store(self._uri).backend
        versions = backend.versions()
        if versions == self._versions:
            return frozenset()
        there = {self._prefix + info.name: info for info in backend.tables()[0]}
        gone = frozenset(self._tables.keys() - there.keys())
        is_one_hidden = False
        for view in gone:
            self.drop(view)
        for view, info in there.items():
            known = self._tables.get(view)
            if known is not None and known.id == info.id:
                continue
            if not self._fits_spark(info):
                if known is not None:
                    self.drop(view)
                continue
            if known is None and not replacing and self._has_another(view, info):
                is_one_hidden = True
                continue
            # A new dict, since other threads may go through the old one.
            self._tables = {**self._tables, view: info}
            try:
                self.make([view])
            except PySparkException:
                if info.id in {each.id for each in backend.tables()[0]}:
                    raise
                self.drop(view)  # it was dropped just now
        self._versions = None if is_one_hidden else versions  # its name may be free the next time
        return gone

    def make(self, views: Iterable[str]) -> None:
        """Make views again, so that they show the newest rows; other views of their names are replaced."""
        for view in views:
            info = self._tables.get(view)
            if info is None:
                continue  # another thread found that it is gone
            # Through the reader and not as SQL text: so no uri has to be quoted. An event log has a view's
            # options, and hides that of this name.
            reader = self._spark.read.format(FORMAT).options(url=self._uri, table=info.name)
            reader.load().createOrReplaceTempView(f"`{view}`")
            self._own()[view] = (self._uri, info.name)

    def drop(self, view: str) -> DataFrame:
        """Drop the view of a table that is gone."""
        self._tables = {name: info for name, info in self._tables.items() if name != view}
        self._own().pop(view, None)
        return self._spark.sql(f"DROP VIEW IF EXISTS {quoted(view)}")

    def _own(self) -> dict[str, tuple[str, str]]:
        return _made.setdefault(self._spark, {})

    def _fits_spark(self, info: TableInfo) -> bool:
        try:
            spark_schema(info.schema)
        except SchemaMismatch as error:
            self._warn(info, error.message)
            return False
        return True

    def _has_another(self, view: str, info: TableInfo) -> bool:
        """Return True if the session has a view of this name that was not made here."""
        if self._own().get(view) == (self._uri, info.name):
            return False
        try:
            self._spark.table(quoted(view)).schema  # noqa: B018 - over Spark Connect nothing is asked before
        except AnalysisException as error:
            if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
                return False
        self._warn(info, f"the session has another view {view!r}; drop it, or attach with a prefix")
        return True

    def _warn(self, info: TableInfo, why: str) -> None:
        if self._unseen.get(info.name) != info.id:
            self._unseen[info.name] = info.id
            warnings.warn(f"table {info.name!r} gets no view: {why}", stacklevel=5)
