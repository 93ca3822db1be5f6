"""The entry for Spark: `format("elasticscan")` returns a schema, readers and writers."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from elasticscan.base.errors import InvalidCall, InvalidOption
from elasticscan.connector.options import (
    FEED,
    READ,
    STREAM_WRITE,
    WRITE,
    Options,
    absolute,
    check_use,
    parse_options,
)
from elasticscan.connector.reading import ElasticScanReader, offered_schema
from elasticscan.connector.store_cache import open_backend
from elasticscan.connector.streams.reader import ElasticScanStreamReader
from elasticscan.connector.writing import ElasticScanStreamWriter, ElasticScanWriter
from elasticscan.filters import Predicate
from elasticscan.store import resolve

if TYPE_CHECKING:  # tasks do not need the SQL modules, which are slow to import
    from elasticscan.connector.sql.attached import AttachedStore


class ElasticScanSource(DataSource):
    """The data source. Spark makes one for each use and pickles it, so it has no state but the options."""

    @classmethod
    def name(cls) -> str:
        return "elasticscan"

    def schema(self) -> StructType:
        """Return the columns of the read. Spark calls it in `load()` if the user gives no schema."""
        options = self._options()
        table = open_backend(options).table(options.table)
        if options.filter is not None:
            # A wrong filter fails in load(), not in the first action.
            Predicate.parse(options.filter, table.schema)
        return offered_schema(table, options)

    def reader(self, schema: StructType) -> ElasticScanReader:
        options = self._options()
        return ElasticScanReader(check_use(options, FEED if options.feed else READ), schema)

    def streamReader(self, schema: StructType) -> ElasticScanStreamReader:
        return ElasticScanStreamReader(self._options("streams"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> ElasticScanWriter:
        options = check_use(self._options("writes"), WRITE, overwrite)
        return ElasticScanWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ElasticScanStreamWriter:
        options = check_use(self._options("writes"), STREAM_WRITE, overwrite)
        return ElasticScanStreamWriter(options, schema, overwrite)

    def _options(self, needed: str | None = None) -> Options:
        options = parse_options(self.options)
        # Replaces `env:NAME`: tasks may run without the variable. Plans show options, but not this value.
        options = replace(options, store=absolute(resolve(options.store)))
        if needed is not None and not options.is_embedded:
            raise InvalidCall(f"a Redis or Valkey cluster has no {needed}; read it by spark.read")
        return options


def register(spark: SparkSession) -> None:
    """Register `format("elasticscan")` in a session.

    Needed only if Spark does not find `pyspark_elasticscan`: in an editable installation, or when the source
    of another package fails to import. Spark's workers must run a Python that has this package: set
    PYSPARK_PYTHON if the driver's environment is not activated.
    """
    spark.dataSource.register(ElasticScanSource)


def attach(spark: SparkSession, uri: str | os.PathLike[str], prefix: str = "") -> AttachedStore:
    """Create a temporary view of every table of a store.

    A view shows one snapshot: the newest when it is first read. Another call replaces the views by newer
    ones; the method `sql` of the result finds new tables by itself. INSERT INTO and INSERT OVERWRITE work on
    the views. A table with a column that Spark has no type for gets a warning and no view; read it with the
    option `columns`.

    Args:
        uri: the store.
        prefix: the beginning of all names of views, as in `attach(spark, uri, "sales_")`.

    Returns:
        An object whose method `sql` reads only the rows and columns that a query needs.

    Raises:
        NotFound: there is no store at `uri`.
        InvalidOption: the prefix is not a possible beginning of a view's name.
    """
    if prefix and not prefix.replace("_", "a").isalnum():
        raise InvalidOption(f"prefix={prefix!r} must be letters, digits and underscores", option="prefix")
    register(spark)
    attached: type[AttachedStore] = import_module("elasticscan.connector.sql.attached").AttachedStore
    return attached(spark, os.fspath(uri), prefix)
