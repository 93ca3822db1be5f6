"""`format("elasticscan")`: what Spark asks for a schema, a reader, a writer."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.base.showing import brief
from elasticscan.connector.open_stores import store_of_table
from elasticscan.connector.options import (
    Options,
    check_for_batch,
    check_for_stream,
    check_for_write,
    parse_options,
    with_location,
)
from elasticscan.connector.reading import ElasticScanReader, offered_schema
from elasticscan.connector.refused_streams import RefusedStream
from elasticscan.connector.stream_writing import ElasticScanStreamWriter
from elasticscan.connector.streams.changes import ChangeFeedReader
from elasticscan.connector.streams.reader import ElasticScanStreamReader
from elasticscan.connector.workers import check_python_of
from elasticscan.connector.writing import ElasticScanWriter
from elasticscan.filters import Predicate

if TYPE_CHECKING:  # tasks need none of it
    from elasticscan.connector.sql.attached import AttachedStore


class ElasticScanSource(DataSource):
    """The data source.

    Spark makes one for each use and pickles it, so it holds the options and nothing else.
    """

    @classmethod
    def name(cls) -> str:
        return "elasticscan"

    def schema(self) -> StructType:
        """The table's columns; asked for by `load()` unless the user gave a schema."""
        options = self._options()
        table = store_of_table(options.store, options.table).table(options.table).definition
        if options.filter is not None:
            # Rather when the user loads than when the first action plans.
            Predicate.parse(options.filter, table.schema)
        return offered_schema(table, options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = check_for_batch(self._options())
        if options.changes.feed:
            return ChangeFeedReader(options, schema)
        return ElasticScanReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return ElasticScanStreamReader(check_for_stream(self._options()), schema)
        except ElasticScanError as error:
            return RefusedStream(error)  # Spark loses an error that is raised here

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return ElasticScanWriter(check_for_write(self._options()), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return ElasticScanStreamWriter(
            check_for_write(with_location(parse_options(self.options, stream_write=True))), schema, overwrite
        )

    def _options(self) -> Options:
        return with_location(parse_options(self.options))


def register(spark: SparkSession) -> None:
    """Make `format("elasticscan")` known to a session.

    Needed only where Spark's own look-up does not find `pyspark_elasticscan`, as in an editable
    installation or when another package's source fails to import. Or to be told which Python to set where
    `format("elasticscan")` is not found since the workers of the session run another one than this.

    Raises:
        InvalidOption: they run a Python without this package.
    """
    check_python_of(spark)
    spark.dataSource.register(ElasticScanSource)


def attach(spark: SparkSession, uri: str | os.PathLike[str] = "", prefix: str | None = None) -> AttachedStore:
    """Make a temporary view of every table of a store.

    A view shows one snapshot: the newest when it is first read. Calling again makes the views
    again, with newer snapshots and tables that came since; `sql` of what is returned finds new tables by
    itself. INSERT INTO and INSERT OVERWRITE work on the views. A table with columns that Spark has no type
    for gets none, with a warning; read it with the option `columns`.

    Args:
        uri: the store.
        prefix: put before the table's names, as in `attach(spark, uri, "sales_")`.

    Returns:
        The views: a sequence of their names, whose `sql` reads only what a query needs.

    Raises:
        StoreNotFound: there is no store at `uri`.
        InvalidOption: a view's name would not be one, or no session or store is given.
    """
    if not uri or isinstance(spark, str):
        raise InvalidOption("attach takes a Spark session and a store: attach(spark, 'uri')", option="uri")
    if isinstance(uri, os.PathLike):
        uri = os.fspath(uri)
    if not isinstance(uri, str):
        raise InvalidOption(
            f"uri={brief(uri)} ({type(uri).__name__}) must be text: attach(spark, store.uri)", option="uri"
        )
    if prefix is not None and not prefix.replace("_", "a").isalnum():
        raise InvalidOption(
            f"prefix={prefix!r} cannot begin the name of a view; use letters, digits and underscores",
            option="prefix",
        )
    register(spark)
    attached: type[AttachedStore] = import_module("elasticscan.connector.sql.attached").AttachedStore
    return attached(spark, uri, prefix or "")
