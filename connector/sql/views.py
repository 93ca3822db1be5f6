"""The temporary views of a store's tables in a session, one for each table.

Other processes make and drop tables, too. `look` compares the views with the catalog, which costs two small
queries unless a table was changed since.
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
    """The views of one store, whose names begin with a prefix.

    Attributes:
        tables: the table of each view.
    """

    def __init__(self, spark: SparkSession, uri: str, prefix: str) -> None:
        self._spark, self._uri, self._prefix = spark, uri, prefix
        self.tables: Mapping[str, TableInfo] = {}
        self._seen: tuple[TableInfo, ...] | None = None
        self.look()

    def look(self) -> tuple[Mapping[str, TableInfo], int]:
        """Make views of new tables, which replace others of their names; drop those of dropped tables.

        Returns:
            the tables by view, and the newest snapshot, from one look at the catalog.
        """
        backend = open_store(self._uri).backend
        backend.newest()
        infos, snapshot = backend.tables()
        if infos != self._seen:
            there = {self._prefix + info.name: info for info in infos if _fits_spark(info)}
            known = {view: info.id for view, info in self.tables.items()}
            for view in known.keys() - there.keys():
                self._spark.sql(f"DROP VIEW IF EXISTS {quoted(view)}")
            self.make([view for view, info in there.items() if known.get(view) != info.id])
            self.tables, self._seen = there, infos  # a new dict: other threads may go through the old one
        return self.tables, snapshot

    def make(self, views: Iterable[str]) -> None:
        """Make views again, so that they show the newest rows; other views of their names are replaced."""
        for view in views:
            # Through the reader and not as SQL text: so no uri has to be quoted. An event log has a view's
            # options, and hides that of this name.
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
