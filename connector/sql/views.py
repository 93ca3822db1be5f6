"""The temporary views of a store's tables in a session, one for each table.

Other processes make and drop tables, too. `look` compares the views with the catalog, which costs one small
query unless something was committed since.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import SchemaMismatch
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.sql.tokens import quoted
from elasticscan.connector.store_cache import open_store
from elasticscan.metadata import TableInfo

FORMAT = "elasticscan"


class TableViews:
    """The views of one store, whose names begin with a prefix."""

    def __init__(self, spark: SparkSession, uri: str, prefix: str) -> None:
        self._spark, self._uri, self._prefix = spark, uri, prefix
        self._tables: dict[str, TableInfo] = {}
        self._versions: tuple[int, int] | None = None
        self.look()

    @property
    def tables(self) -> Mapping[str, str]:
        """Return the table of each view."""
        return {view: info.name for view, info in self._tables.items()}

    def look(self) -> None:
        """Make views of new tables, which replace others of their names; drop those of dropped tables."""
        backend = open_store(self._uri).backend
        versions = backend.versions()
        if versions == self._versions:
            return
        there = {self._prefix + info.name: info for info in backend.tables()[0] if _fits_spark(info)}
        for view in self._tables.keys() - there.keys():
            self.drop(view)
        for view, info in there.items():
            known = self._tables.get(view)
            if known is not None and known.id == info.id:
                continue
            # A new dict, since other threads may go through the old one.
            self._tables = {**self._tables, view: info}
            try:
                self.make([view])
            except PySparkException:
                if info.id in {each.id for each in backend.tables()[0]}:
                    raise
                self.drop(view)  # it was dropped just now
        self._versions = versions

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

    def drop(self, view: str) -> DataFrame:
        """Drop the view of a table that is gone."""
        self._tables = {name: info for name, info in self._tables.items() if name != view}
        return self._spark.sql(f"DROP VIEW IF EXISTS {quoted(view)}")


def _fits_spark(info: TableInfo) -> bool:
    try:
        spark_schema(info.schema)
    except SchemaMismatch as error:
        warnings.warn(f"table {info.name!r} gets no view: {error.message}", stacklevel=4)
        return False
    return True
