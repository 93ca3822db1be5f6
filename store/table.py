"""`Table`: a handle of one table, with methods that write, read and index its rows."""

# ruff: noqa: A002 - `filter`, `set` and `type` are the words that users know

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Unpack

import pyarrow as pa

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS, MAX_NUMBER
from elasticscan.base.redaction import shown
from elasticscan.catalog import Commit, Tag, Tx
from elasticscan.metadata import AUTO, SORTED, IndexInfo, TableInfo
from elasticscan.protocol import ReadRequest
from elasticscan.store import arguments
from elasticscan.store.arguments import Columns, Condition, Names, Note, Parameters, Reading, Snapshot, Txn
from elasticscan.store.context import Context
from elasticscan.store.context.tags import add_tag, drop_tag, tags_of
from elasticscan.store.reading.aggregating import aggregate_rows
from elasticscan.store.reading.changes import history
from elasticscan.store.reading.exporting import COMPRESSIONS, FILE_BYTES, Exported, export_scan
from elasticscan.store.reading.rows_by_key import get_rows
from elasticscan.store.reading.scan import Scan, begin_changes, begin_scan
from elasticscan.store.rows.conversion import arrow_keys, arrow_rows
from elasticscan.store.upkeep.compaction import compact, flush
from elasticscan.store.writing import definitions, merging
from elasticscan.store.writing.indexing import create_index, drop_index
from elasticscan.store.writing.merging import INSERT, UPDATE, Clauses
from elasticscan.store.writing.publishing import CommitNumber
from elasticscan.store.writing.transactions import (
    WriteTransaction,
    delete_rows,
    replace_rows,
    restore,
    update_rows,
)


class Table:
    """A table of an open store.

    A handle stores no rows and no definition: each call looks the table up, so it sees columns and indexes
    that were added since. It refers to one table, not to a name: after that table is dropped, every call
    raises `NotFound`, or `TableChanged` if another table has the name.

    Every write is one commit over all shards, or changes nothing. It returns the commit's number, which is a
    snapshot; its attribute `rows` is the number of changed rows. Methods that read the newest snapshot raise
    `ShardMismatch` if a shard has seen a newer commit than the catalog has. Arguments of several methods:

    - `rows`: anything with an Arrow stream (a pyarrow, Polars or pandas frame, a DuckDB relation, a scan),
      which may be larger than memory; or a list of dicts with every column, or a dict of columns.
    - `txn`: (application, version). If a write with this pair was committed before, nothing is written, and
      the number of that commit is returned.
    - `if_unchanged_since`: a commit, such as the `snapshot` of the scan that read the rows. The write raises
      `RowsChanged` if a later commit wrote or deleted one of its keys; the error's `fields` name some `keys`
      and the `newest` commit. It raises `SnapshotExpired` if the changes since then are no longer kept.
    - `user_metadata`: a small dict of texts that `history` shows with the commit.
    - `filter`, `where`: a SQL condition.
    - `parameters`: values of the condition's `:name`: "city IN :cities", {"cities": ["Oslo", "Lima"]}.
    - `snapshot`: a commit number, a tag, or a time with its zone (the newest commit at that time); numbers
      and times also as text. The newest by default. Raises `NotFound` or `SnapshotExpired`.

    Example:
        >>> trips.upsert(pa.table({"id": [1, 2], "km": [0.5, 0.25]}))
        2
        >>> trips.scan(columns=["id"], filter="km > 0.3").to_table().num_rows
        1
    """

    def __init__(self, context: Context, info: TableInfo) -> None:
        self._opened, self._id, self._name = context, info.id, info.name

    @property
    def _context(self) -> Context:
        return self._opened.here()

    def __reduce__(self) -> NoReturn:
        raise InvalidOption(
            "a Table cannot be pickled; send store.uri and table.name, and open the table there", kind="Table"
        )

    def __repr__(self) -> str:
        return f"<elasticscan.Table {self._name!r} of {shown(self._opened.location.uri)}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def schema(self) -> pa.Schema:
        return self.definition.schema

    @property
    def primary_key(self) -> tuple[str, ...]:
        return self.definition.primary_key

    @property
    def shard_key(self) -> tuple[str, ...]:
        """The prefix of the primary key that decides a row's slot."""
        return self.definition.shard_key

    @property
    def definition(self) -> TableInfo:
        """The table's entry in the catalog."""
        return self._context.ask(self._find)[0]

    def _find(self, tx: Tx) -> tuple[TableInfo, tuple[IndexInfo, ...]]:
        """Return the table and its indexes as a transaction sees them."""
        return self._context.table(tx, self._name, self._id)

    def upsert(
        self, rows: Any, txn: Txn = None, *, if_unchanged_since: int | None = None, user_metadata: Note = None
    ) -> CommitNumber:
        """Write rows; a row replaces the row with the same primary key.

        Raises `SchemaMismatch` if the rows do not match the table, `LimitExceeded` if one is too large,
        `DiskFull` or `ShardUnavailable` if a shard cannot be written. Nothing is written then.
        """
        transaction = self._transaction(txn, user_metadata, if_unchanged_since)
        table = self.definition
        return transaction.write(table, arrow_rows(rows, table))

    def insert(self, rows: Any, txn: Txn = None, *, user_metadata: Note = None) -> CommitNumber:
        """Write rows with new primary keys. Raises `AlreadyExists`; its `fields` name some existing keys."""
        transaction = self._transaction(txn, user_metadata)
        table = self.definition
        return transaction.write(table, arrow_rows(rows, table), is_insert=True)

    def overwrite(
        self,
        rows: Any,
        txn: Txn = None,
        *,
        where: Condition = None,
        parameters: Parameters = None,
        user_metadata: Note = None,
    ) -> CommitNumber:
        """Replace all rows, or the rows that match a condition. Older snapshots keep the old rows.

        With `where`, raises `InvalidOption` if a new row does not match it. A new row replaces the row with
        its key in any case. Raises `Busy` if other writers changed some keys during every attempt.
        """
        transaction = self._transaction(txn, user_metadata, None, where, parameters)
        table = self.definition
        data = arrow_rows(rows, table)
        if transaction.where is not None:
            return replace_rows(transaction, table, data)
        return transaction.write(table, data, "overwrite")

    def delete(
        self,
        keys: Any = None,
        *,
        where: Condition = None,
        parameters: Parameters = None,
        if_unchanged_since: int | None = None,
        txn: Txn = None,
        user_metadata: Note = None,
    ) -> CommitNumber:
        """Delete rows by primary key, or the rows that match a condition ("true" for all).

        Keys are the key columns as Arrow data, or a list of values; of tuples or dicts if the key has several
        columns. Keys that do not exist are ignored. Raises `SchemaMismatch` or `FilterError` if an argument
        is wrong, `Busy` if other writers changed some of the rows during every attempt.
        """
        transaction = self._transaction(txn, user_metadata, if_unchanged_since, where, parameters)
        if (keys is None) == (where is None):
            raise InvalidOption("delete takes either keys or where=condition; give one", option="where")
        if where is not None:
            return delete_rows(transaction)
        table = self.definition
        keys = arrow_keys(keys, table, ". To delete by a condition: delete(where='a > 1')")
        return transaction.write(table, keys, "delete")

    def update(
        self,
        set: Mapping[str, Any],
        where: Condition = None,
        *,
        parameters: Parameters = None,
        if_unchanged_since: int | None = None,
        txn: Txn = None,
        user_metadata: Note = None,
    ) -> CommitNumber:
        """Set columns to new values in the rows that match a condition, or in all rows.

        The rows are read at one snapshot. If another writer changes some of them before the commit, the
        update starts again at a newer snapshot. So `update({"n": "n + 1"}, "id = 7")` counts every call.

        Args:
            set: for each column an SQL expression over the old row ("km * 2", "'Oslo'", "NULL"), or a Python
                value other than text. Columns of the primary key cannot be set.

        Raises as `delete`; an overflow or a division by zero is a `FilterError` or `SchemaMismatch`.
        """
        return update_rows(self._transaction(txn, user_metadata, if_unchanged_since, where, parameters), set)

    def merge(
        self,
        rows: Any,
        *,
        columns: Columns = None,
        when_matched: str = UPDATE,
        when_not_matched: str = INSERT,
        if_unchanged_since: int | None = None,
        txn: Txn = None,
        user_metadata: Note = None,
    ) -> CommitNumber:
        """Merge rows into the rows with the same primary keys, in bounded memory.

        Args:
            columns: the columns to write besides the primary key, by default all. Updated rows keep their
                other columns, inserted rows are null in them. Other columns of `rows` are ignored.
            when_matched: if the key exists: "update" or "delete" the old row, or "ignore" the new one.
            when_not_matched: if the key does not exist: "insert" or "ignore" the new row.
        """
        transaction = self._transaction(txn, user_metadata, if_unchanged_since)
        matched = arguments.choice("when_matched", when_matched, merging.WHEN_MATCHED)
        not_matched = arguments.choice("when_not_matched", when_not_matched, merging.WHEN_NOT_MATCHED)
        clauses = Clauses(matched, not_matched, arguments.columns("columns", columns))
        return merging.merge_rows(transaction, partial(self._context.known_table, self._find), rows, clauses)

    def restore(self, to: int | str | datetime, *, user_metadata: Note = None) -> int:
        """Restore the rows of an older snapshot, `to`, in a new commit; columns that were added since stay.

        The commit's `user_metadata` has `restored_to`. Raises `Busy` if others committed meanwhile.
        """
        return restore(self._transaction(None, user_metadata), arguments.past("to", to))

    def _transaction(
        self,
        txn: Txn,
        user_metadata: Note,
        since: int | None = None,
        where: Condition = None,
        parameters: Parameters = None,
    ) -> WriteTransaction:
        """Check the arguments of a write, and return its transaction."""
        condition = arguments.condition("where", where, parameters)
        since, key = arguments.whole_or_none("if_unchanged_since", since), arguments.transaction(txn)
        metadata = arguments.user_metadata(user_metadata)
        return WriteTransaction(self._context, self._find, condition, since, key, metadata)

    def scan(
        self,
        columns: Columns = None,
        filter: Condition = None,
        *,
        parameters: Parameters = None,
        index: str = AUTO,
        order_by: Columns = None,
        limit: int | None = None,
        snapshot: Snapshot = None,
        page_rows: int = DEFAULT_PAGE_ROWS,
        page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> Scan:
        """Read every row of a snapshot exactly once.

        Args:
            columns: names in the order of the result, or the name of one column; all by default.
            index: "auto" for the cheapest access path, "none" for a direct scan, "key" for reads by primary
                key, or an index's name.
            order_by: a column or several, each optionally followed by DESC: "km DESC". The order must be a
                prefix of a sorted index's columns. With a limit of up to 10,000 rows any order is possible,
                and all rows are in one page. Nulls sort first, NaN above all numbers, as in Spark.
            limit: maximum number of rows.
            page_rows: maximum rows of a page before the filter, 1 to 16,777,216.
            page_bytes: maximum bytes of a page, up to 1 TiB; a single row may be larger.
        """
        read = ReadRequest(
            arguments.columns("columns", columns),
            arguments.condition("filter", filter, parameters),
            *arguments.page_limits(page_rows, page_bytes),
            index=arguments.text("index", index),
            snapshot=arguments.snapshot("snapshot", snapshot),
        )
        return begin_scan(self._context, self._find, read, order_by, arguments.whole_or_none("limit", limit))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the Arrow PyCapsule stream of the newest snapshot."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def to_reader(
        self, columns: Columns = None, filter: Condition = None, **how: Unpack[Reading]
    ) -> pa.RecordBatchReader:
        """Read the rows of a snapshot as a stream of record batches; arguments and errors as for `scan`."""
        return self.scan(columns, filter, **how).to_reader()

    def to_arrow(self, columns: Columns = None, filter: Condition = None, **how: Unpack[Reading]) -> pa.Table:
        """Read all rows of a snapshot as an Arrow table; arguments and errors as for `scan`."""
        return self.scan(columns, filter, **how).to_table()

    def to_pandas(self, columns: Columns = None, filter: Condition = None, **how: Unpack[Reading]) -> Any:
        """Read all rows of a snapshot as `Scan.to_pandas` does; arguments and errors as for `scan`."""
        return self.scan(columns, filter, **how).to_pandas()

    def to_polars(self, columns: Columns = None, filter: Condition = None, **how: Unpack[Reading]) -> Any:
        """Read all rows of a snapshot as a Polars frame; arguments and errors as for `scan`."""
        return self.scan(columns, filter, **how).to_polars()

    def export(
        self,
        path: str | Path,
        columns: Columns = None,
        filter: Condition = None,
        *,
        file_bytes: int = FILE_BYTES,
        compression: str = "zstd",
        **how: Unpack[Reading],
    ) -> Exported:
        """Write the rows of a snapshot to files, page by page; arguments and errors as for `scan`.

        A path that ends in `.parquet`, `.csv` or `.arrow` is one file, which appears when it is complete. Any
        other path is a directory of Parquet files of about `file_bytes`, and an empty `_SUCCESS` at the end.
        The path may be a URI such as `s3://bucket/out`. `Store.load` reads the files. Parquet's compression
        is "zstd", "snappy", "lz4", "gzip" or "none". Raises `InvalidOption` if the file exists, the directory
        is not empty, or the path cannot be written.
        """
        place = arguments.place("path", path)
        most = arguments.whole_number("file_bytes", file_bytes, 1, MAX_NUMBER)
        packed = arguments.choice("compression", compression, COMPRESSIONS)
        with self.scan(columns, filter, **how) as scan:
            return export_scan(scan, self.definition, place, most, packed)

    def aggregate(
        self,
        values: Names,
        group_by: Names = (),
        filter: Condition = None,
        snapshot: Snapshot = None,
        *,
        parameters: Parameters = None,
    ) -> pa.Table:
        """Compute aggregates over all rows of a snapshot, with the result types of Spark in ANSI mode.

        Args:
            values: one or several of "count(*)", "count(x)", "count(DISTINCT x)", "sum(x)", "min(x)",
                "max(x)" and "avg(x)", where x is a column; "sum(x) AS total" names the result's column.
            group_by: a column or several; one row if there are none. Memory grows with the number of groups.
        """
        aggregates, groups = arguments.names("values", values), arguments.names("group_by", group_by)
        where = arguments.condition("filter", filter, parameters)
        read = ReadRequest(None, where, snapshot=arguments.snapshot("snapshot", snapshot))
        return aggregate_rows(self._context, self._find, aggregates, groups, read)

    def get(
        self, keys: Any, columns: Columns = None, snapshot: Snapshot = None, *, keep_missing: bool = False
    ) -> pa.Table:
        """Read rows by their primary keys, in the order of the keys. Keys are given as for `delete`.

        With `keep_missing`, a key that does not exist gives a row of nulls, so row i belongs to key i.
        """
        at = arguments.snapshot("snapshot", snapshot)
        names = arguments.columns("columns", columns)
        if not isinstance(at, int):
            self._context.check_newest()
        state = self._context.known_table(self._find)
        return get_rows(self._context, state, keys, names, at, keep_missing)

    def changes(
        self,
        after: Snapshot = None,
        upto: Snapshot = None,
        columns: Columns = None,
        filter: Condition = None,
        *,
        parameters: Parameters = None,
        feed: bool = True,
        page_rows: int = DEFAULT_PAGE_ROWS,
        page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> Scan:
        """Read the changes that commits made, each exactly once, even while tablets move.

        Args:
            after, upto: read the commits in (after, upto], each bound a number, a tag or a time. By default
                all commits whose changes are kept. The scan's `snapshot` is the `after` of the next call.
            filter: a condition on the rows before and after the change.
            feed: True for all changes with `_change_type` (insert, update_preimage, update_postimage,
                delete), `_commit_version` and `_commit_timestamp`; False for the new rows alone.

        Raises `SnapshotExpired` if some of the changes are no longer kept; other errors as `scan`.
        """
        commits = arguments.snapshot("after", after), arguments.snapshot("upto", upto)
        read = ReadRequest(
            arguments.columns("columns", columns),
            arguments.condition("filter", filter, parameters),
            *arguments.page_limits(page_rows, page_bytes),
            feed=feed,
        )
        return begin_changes(self._context, self._find, commits, read)

    def create_index(
        self, index: str, columns: Names, kind: str = SORTED, include: Columns = ()
    ) -> IndexInfo:
        """Create a secondary index, while writes, scans and moves continue; return when scans can use it.

        If the process is killed, the same call continues the build; `drop_index` removes it.

        Args:
            columns: the columns to index, the most significant first, or the name of one. Nulls are indexed.
            kind: "sorted", for equality, ranges and order; or "hash", for equality alone.
            include: further columns to store in the index, so that queries of these need not fetch rows.
        """
        columns, include = arguments.names("columns", columns), arguments.columns("include", include)
        return create_index(self._context, self._find, index, columns, kind, include or ())

    def drop_index(self, index: str) -> None:
        """Drop an index. Scans that read it raise `TableChanged`."""
        drop_index(self._context, self._find, arguments.text("index", index))

    def indexes(self) -> tuple[IndexInfo, ...]:
        """List the indexes; `ready` is False for one that is being built, or whose build was killed."""
        return self._context.ask(self._find)[1]

    def add_columns(self, fields: definitions.Fields) -> pa.Schema:
        """Append nullable columns and return the new schema; columns that exist with this type are skipped.

        `fields` may be a dict of names and types, such as `{"note": "string"}`. Existing rows are null in the
        new columns. Raises `SchemaMismatch` if the name exists in another case or with another type.
        """
        return definitions.add_columns(self._context, self._find, fields).schema

    def drop_columns(self, names: Names) -> pa.Schema:
        """Drop columns in one step and return the new schema; no file is rewritten.

        Scans that have begun still return them. Merges remove the values when no older snapshot is kept.
        Raises `InvalidOption` if a key or an index uses a column; drop the index first.
        """
        return definitions.drop_columns(self._context, self._find, names).schema

    def rename_column(self, old: str, new: str) -> pa.Schema:
        """Rename a column in every snapshot and return the new schema; no file is rewritten.

        Raises `InvalidOption` if a key or an index uses the column, `LimitExceeded` after too many renames.
        """
        return definitions.rename_column(self._context, self._find, old, new).schema

    def widen_column(self, name: str, type: pa.DataType | str) -> pa.Schema:
        """Change a column to a wider type of the same kind and return the new schema; no file is rewritten.

        Allowed are wider integers (int8 to int64, uint8 to uint64), wider floats (float16 to float64), and
        decimals with more digits and the same scale. Raises `InvalidOption` if a key or an index uses it.
        """
        return definitions.widen_column(self._context, self._find, name, type).schema

    def history(self, limit: int | None = None) -> tuple[Commit, ...]:
        """List the newest `limit` commits, or all, oldest first. Raises `ShardMismatch`."""
        return history(self._context, self._find, arguments.whole_or_none("limit", limit))

    def tag(self, name: str, snapshot: Snapshot = None) -> Tag:
        """Name a snapshot; it and all later ones stay readable until the tag is dropped.

        The name is 1 to 64 of a-z, 0-9 and _, not a number. `AlreadyExists`: another snapshot has it.
        """
        return add_tag(self._context, self._find, name, arguments.snapshot("snapshot", snapshot))

    def tags(self) -> tuple[Tag, ...]:
        """List the tags, the oldest snapshot first. Raises `ShardMismatch`."""
        return tags_of(self._context, self._find)

    def drop_tag(self, name: str) -> None:
        """Drop a tag; retention and leases still keep its snapshot. Raises `NotFound`."""
        drop_tag(self._context, self._find, arguments.text("name", name))

    def set_retention(self, period: timedelta | str | None) -> None:
        """Set how long snapshots and changes stay readable without a lease; running scans are included.

        The period is "7d", "12h", "90m" or "30s", a timedelta, or None for the store's own retention period.
        """
        definitions.redefine(self._context, self._find, retention_seconds=arguments.period("period", period))

    def set_compression(self, compression: str | None) -> None:
        """Set the compression of new files: None, "lz4" or "zstd"; `compact` rewrites old files."""
        definitions.redefine(
            self._context, self._find, compression=arguments.file_form("compression", compression)
        )

    def compact(self) -> int:
        """Merge fragments; return the number removed minus the number added (which may be larger)."""
        self._context.catalog.check_writable()
        flush(self._context, self.definition.id)
        return compact(self._context, self.definition)

    def drop(self) -> None:
        """Drop the table; a later `Store.collect_garbage` removes its files."""
        definitions.drop_table(self._context, self._find)
