"""The temporary views of a store's tables in a session, one for each table.

Other processes create and drop tables, too. `look` compares the views with the catalog. This takes two small
queries if no table was changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from elasticscan.base.errors import SchemaMismatch
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.sql.tokens import quoted
from elasticscan.connector.store_cache import open_store
from elasticscan.metadata import TableInfo

FORMAT = "elasticscan"


class TableViews:
    """The views of one store by name, which begins with a prefix; `tables` has the table of each."""

    def __init__(self, spark: SparkSession, uri: str, prefix: str) -> None:
        self._spark, self._uri, self._prefix = spark, uri, prefix
        self.tables: Mapping[str, TableInfo] = {}
        self._seen: tuple[TableInfo, ...] | None = None
        self.look()

    def look(self) -> tuple[Mapping[str, TableInfo], int]:
        """Create views of new tables, replacing views of these names; drop views of dropped tables.

        Returns:
            the tables by view, and the newest snapshot, both from one state of the catalog.
        """
        backend = open_store(self._uri).backend
        backend.newest()
        infos, snapshot = backend.tables()
        if infos != self._seen:
            tables = {self._prefix + info.name: info for info in infos if _fits_spark(info)}
            known = {view: info.id for view, info in self.tables.items()}
            for view in known.keys() - tables.keys():
                self._spark.sql(f"DROP VIEW IF EXISTS {quoted(view)}")
            self.make([view for view, info in tables.items() if known.get(view) != info.id])
            self.tables, self._seen = tables, infos  # a new dict: other threads may iterate over the old one
        return self.tables, snapshot

    def make(self, views: Iterable[str]) -> None:
        """Create or replace views, so that they show the newest rows."""
        for view in views:
            # With a reader, not as SQL text, where the URI would need quotes. Event logs contain the options
            # of a view, but hide the value of `url`.
            table = view.removeprefix(self._prefix)
            reader = self._spark.read.format(FORMAT).options(url=self._uri, table=table)
            reader.load().createOrReplaceTempView(f"`{view}`")


def _fits_spark(info: TableInfo) -> bool:
    try:
        spark_schema(info.schema)
    except SchemaMismatch as error:
        warnings.warn(f"table {info.name!r} gets no view: {error.message}", stacklevel=4)
        return False
    return True
