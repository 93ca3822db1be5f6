"""`ReadableTable`: the rows of a table, scanned, aggregated, looked up, and handed to other libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pyarrow as pa

from elasticscan.base.errors import TableChanged
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS, MAX_NUMBER
from elasticscan.metadata import AUTO
from elasticscan.store import arguments
from elasticscan.store.arguments import Condition
from elasticscan.store.context.lookups import CurrentTable
from elasticscan.store.defined import DefinedTable
from elasticscan.store.notebooks import Explanation
from elasticscan.store.reading.aggregating import Aggregation
from elasticscan.store.reading.beginning import begin_changes, begin_scan
from elasticscan.store.reading.exporting import COMPRESSIONS, FILE_BYTES, Exported, OnExported, export_scan
from elasticscan.store.reading.getting import get_rows
from elasticscan.store.reading.scan import Scan


class Reading(TypedDict, total=False):
    """The arguments of `scan` that are given by name, as what calls it takes them, too."""

    parameters: Mapping[str, Any] | None
    index: str
    order_by: str | Sequence[str] | None
    limit: int | None
    snapshot: int | str | datetime | None
    timestamp: str | datetime | None
    page_rows: int
    page_bytes: int


class ReadableTable(DefinedTable, shown_as="Table"):
    """A table whose rows are read; each call looks its definition up again."""

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,  # noqa: A002 - the word users know
        *,
        parameters: Mapping[str, Any] | None = None,
        index: str = AUTO,
        order_by: str | Sequence[str] | None = None,
        limit: int | None = None,
        snapshot: int | str | datetime | None = None,
        timestamp: str | datetime | None = None,
        page_rows: int = DEFAULT_PAGE_ROWS,
        page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> Scan:
        """Read every row of a snapshot exactly once.

        Args:
            columns: which, in which order, or the name of one; all by default.
            filter: a SQL condition, or an expression of pyarrow's such as `pc.field("km") > 1`, where it can
                be said exactly; rows for which it is true are returned.
            parameters: values of the condition's `:name`, each as a literal: `filter="city IN :cities"`,
                `parameters={"cities": ["Oslo", "Lima"]}`.
            index: "auto" for the cheapest access path, "none" for a direct scan, "key" for one by primary
                key, or an index's name.
            order_by: a column, or several, each with DESC after it if need be: "km DESC". Rows come in
                that order over all shards. It has to be the order of a sorted index, or its beginning;
                equal values come in the rest of that order, then in that of the primary key. Nulls come
                first, NaN above all numbers, as in Spark. Without it rows come in no particular order.
                With a limit of up to 10,000 rows any order will do: where no index gives it, all rows are
                looked at, the first ones kept, and given as one page.
            limit: give so many rows and no more; the keys of pages know how many are left.
            snapshot: a commit number, a tag, or a time with its zone, also as text; else the newest.
            timestamp: in place of `snapshot` a time, for which the newest commit until then is read.
            page_rows: most rows of a page, 1 to 16,777,216 (before the filter).
            page_bytes: most bytes of a page, up to 1 TiB, unless a single row is larger.

        Raises:
            TableNotFound, ColumnNotFound, FilterError, InvalidOption: mend the call.
            IndexNotFound: there is no index of that name, or none that gives the order, which this needs.
            IndexNotReady: the index that this needs is still being built.
            SnapshotNotFound, SnapshotExpired, TagNotFound: there is no such snapshot, or not any more.
            CatalogOutdated: the newest is asked for, and the catalog is older than its shards.
        """
        return begin_scan(
            self._context,
            self._find,
            arguments.or_none(arguments.columns, "columns", columns),
            arguments.condition("filter", filter, parameters, lambda: self.schema),
            arguments.snapshot_or_time(snapshot, timestamp),
            arguments.page_limits(page_rows, page_bytes),
            index=arguments.text("index", index),
            order_by=order_by,
            limit=arguments.or_none(arguments.whole_number, "limit", limit, 0, MAX_NUMBER),
            may_sort=True,
        )

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The Arrow PyCapsule stream of the newest snapshot, by which other libraries read a table."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def to_reader(
        self,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,  # noqa: A002 - the word users know
        **how: Unpack[Reading],
    ) -> pa.RecordBatchReader:
        """Read the rows of a snapshot as a stream of record batches, of which memory holds a page.

        What reads a table by itself takes this in its place: errors are those of the scan, where an Arrow
        stream in C makes text of them. Arguments and errors as of `scan`; the stream's own as of
        `Scan.to_reader`.

        Example:
            >>> sum(batch.num_rows for batch in trips.to_reader(["id"]))
            2
        """
        return self.scan(columns, filter, **how).to_reader()

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,  # noqa: A002 - the word users know
        **how: Unpack[Reading],
    ) -> pa.Table:
        """Read all rows of a snapshot into memory as an Arrow table; arguments and errors as of `scan`."""
        return self.scan(columns, filter, **how).to_table()

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,  # noqa: A002 - the word users know
        **how: Unpack[Reading],
    ) -> Any:
        """Read all rows of a snapshot into a pandas frame, as `Scan.to_pandas`; arguments as of `scan`."""
        return self.scan(columns, filter, **how).to_pandas()

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,  # noqa: A002 - the word users know
        **how: Unpack[Reading],
    ) -> Any:
        """Read all rows of a snapshot into a Polars frame; arguments and errors as of `scan`."""
        return self.scan(columns, filter, **how).to_polars()

    def export(
        self,
        path: str | Path,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,  # noqa: A002 - the word users know
        *,
        file_bytes: int = FILE_BYTES,
        compression: str = "zstd",
        on_progress: OnExported | None = None,
        **how: Unpack[Reading],
    ) -> Exported:
        """Write the rows of a snapshot to files; memory holds a page, however many there are.

        In a directory they are Parquet: `part-00000.parquet` and so on, each a little larger than
        `file_bytes`, and at last, when all are complete, an empty `_SUCCESS`. A path that ends in `.parquet`,
        `.csv` or `.arrow` is one file of that kind, there once it is complete. `Store.load` reads them again.
        The metadata of Parquet and Arrow has the table, its snapshot and its primary key.

        Args:
            path: a file, or a directory that is empty or not there yet; or an address such as
                `s3://bucket/out`.
            columns, filter: as in `scan`, as all that is given by name alongside the following.
            file_bytes: in a directory, begin another file after so many.
            compression: of Parquet: "zstd", "snappy", "lz4", "gzip" or "none".
            on_progress: called with the rows written until now.

        Raises:
            InvalidOption: the file is there, the directory holds something, or it cannot be written.

        Example:
            >>> trips.export("trips-2026-06", filter="km > 0.3")
            Exported(path='trips-2026-06', table='trips', rows=1, files=1, snapshot=2)
        """
        place = arguments.place("path", path)
        most = arguments.whole_number("file_bytes", file_bytes, 1, MAX_NUMBER)
        packed = arguments.choice("compression", compression, COMPRESSIONS)
        arguments.callback("on_progress", on_progress)
        with self.scan(columns, filter, **how) as scan:
            table = self.definition
            return export_scan(scan, table, place, most, packed, on_progress)

    def aggregate(
        self,
        values: str | Sequence[str],
        group_by: str | Sequence[str] = (),
        filter: Condition | None = None,  # noqa: A002 - the word users know
        snapshot: int | str | datetime | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """Compute aggregates over every row of a snapshot, each row once, while tablets move.

        Types and values are those of Spark in ANSI mode: a sum of integers is BIGINT, avg of DECIMAL(p, s) is
        DECIMAL(p + 4, s + 4), nulls are left out and are a group of their own, NaN is above all numbers and
        equal to itself. Floats are added up in no particular order. Memory is bounded by the number
        of groups, and of distinct values that are counted.

        Args:
            values: "count(*)", "count(x)", "count(DISTINCT x)", "sum(x)", "min(x)", "max(x)", "avg(x)" of
                columns x, one or several; "sum(x) AS total" names a column of the result.
            group_by: a column, or several; without any there is one row, also where there are no rows.
            filter: a SQL condition; rows for which it is true count.
            parameters: as in `scan`.
            snapshot: a commit number, a tag, or a time with its zone, also as text; else the newest.

        Returns:
            A row for each group, in no particular order: the columns of `group_by`, then the values.

        Raises:
            InvalidOption, ColumnNotFound, FilterError: mend the call. A sum or an average that does not fit
                its type is such an error, too.
            TableNotFound, SnapshotNotFound, SnapshotExpired, TagNotFound, CatalogOutdated: as `scan`.

        Example:
            >>> trips.aggregate(["count(*)", "sum(km) AS km"]).to_pylist()
            [{'count(*)': 2, 'km': 0.75}]
        """
        filter = arguments.condition("filter", filter, parameters, lambda: self.schema)  # noqa: A001
        return self._aggregation(values, group_by, filter, snapshot).compute()

    def explain_aggregate(
        self,
        values: str | Sequence[str],
        group_by: str | Sequence[str] = (),
        filter: Condition | None = None,  # noqa: A002 - the word users know
        snapshot: int | str | datetime | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
    ) -> Explanation:
        """Explain how `aggregate` would read: as `Scan.explain`, with the aggregates and the groups."""
        filter = arguments.condition("filter", filter, parameters, lambda: self.schema)  # noqa: A001
        return self._aggregation(values, group_by, filter, snapshot).explain()

    def _aggregation(
        self,
        values: str | Sequence[str],
        group_by: str | Sequence[str],
        filter: str | None,  # noqa: A002 - the word users know
        snapshot: int | str | datetime | None,
    ) -> Aggregation:
        return Aggregation(
            self._context,
            self._find,
            arguments.aggregates("values", values),
            arguments.columns("group_by", group_by),
            arguments.or_none(arguments.text, "filter", filter),
            arguments.snapshot(snapshot),
        )

    def get(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        snapshot: int | str | datetime | None = None,
        *,
        keep_missing: bool = False,
    ) -> pa.Table:
        """Read the rows that have some primary keys: exact while tablets move, and quick for one as for many.

        Rows come in the order of the keys. A key that is given twice gives its row twice.

        Args:
            keys: as for `delete`: Arrow, or a list of values, tuples or dicts.
            columns: which, in which order; all by default.
            snapshot: a commit number, a tag, or a time with its zone, also as text; else the newest.
            keep_missing: False gives no row for a key that is not there. True gives one of nulls, so that row
                i is that of key i; the columns of the key are null in no other.

        Raises:
            SchemaMismatch, InvalidKey, InvalidOption: the keys do not fit, or one is null.
            TableNotFound, ColumnNotFound: mend the call.
            SnapshotNotFound, SnapshotExpired, TagNotFound: there is no such snapshot, or not any more.
            CatalogOutdated: the newest is asked for, and the catalog is older than its shards.

        Example:
            >>> trips.get([2, 7, 1], ["id", "km"]).to_pydict()
            {'id': [2, 1], 'km': [0.25, 0.5]}
            >>> trips.get([2, 7, 1], ["km"], keep_missing=True).to_pydict()
            {'km': [0.25, None, 0.5]}
        """
        asked = arguments.snapshot(snapshot)
        names = arguments.or_none(arguments.columns, "columns", columns)
        keep_missing = arguments.flag("keep_missing", keep_missing)
        if asked is None:
            self._context.check_newest()
        return get_rows(self._context, self._look(), keys, names, asked, keep_missing)

    def _look(self) -> CurrentTable:
        """The table as it is now, and where its slots are."""
        try:
            return self._context.look(self._id)
        except TableChanged:
            self._mine(self._context.table_now(self._name))  # says what became of it
            raise

    def changes(
        self,
        after: int | str | datetime | None = None,
        upto: int | str | datetime | None = None,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,  # noqa: A002 - the word users know
        *,
        parameters: Mapping[str, Any] | None = None,
        feed: bool = True,
        page_rows: int = DEFAULT_PAGE_ROWS,
        page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> Scan:
        """Read what commits did, each change exactly once, while tablets move.

        Args:
            after, upto: commits in (after, upto], by number, tag or time: from the oldest whose changes are
                kept, and up to the newest, by default.
            columns: which, in which order; all by default.
            filter: a SQL condition on the rows before and after.
            parameters: as in `scan`.
            feed: True for all changes with `_change_type` (insert, update_preimage,
                update_postimage, delete), `_commit_version` and `_commit_timestamp`; False for the
                new rows of inserts and updates alone.
            page_rows, page_bytes: as in `scan`.

        Raises:
            ChangesExpired: some of the changes are no longer kept.
            SnapshotNotFound: one of the commits is still to come.
            CatalogOutdated: the newest is asked for, and the catalog is older than its shards.
            TableNotFound, ColumnNotFound, FilterError, InvalidOption: mend the call.
        """
        commits = (
            arguments.or_none(arguments.past, "after", after),
            arguments.or_none(arguments.past, "upto", upto),
        )
        return begin_changes(
            self._context,
            self._find,
            commits,
            arguments.or_none(arguments.columns, "columns", columns),
            arguments.condition("filter", filter, parameters, lambda: self.schema),
            arguments.flag("feed", feed),
            arguments.page_limits(page_rows, page_bytes),
        )
