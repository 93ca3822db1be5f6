"""`Table`: a handle of one table, through which its rows are written, read and indexed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, TableChanged
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS, MAX_NUMBER
from elasticscan.catalog import IdempotencyKey, begun_again
from elasticscan.metadata import AUTO, SORTED, IndexEvent, IndexInfo, TableInfo
from elasticscan.store import arguments, compaction, preconditions, writer
from elasticscan.store.aggregating import Aggregation
from elasticscan.store.beginning import begin_changes, begin_scan
from elasticscan.store.by_condition import Selection, delete_rows, update_rows
from elasticscan.store.defined import DefinedTable
from elasticscan.store.getting import get_rows
from elasticscan.store.indexing import OnIndexed, create_index, define_index
from elasticscan.store.lookups import CurrentTable
from elasticscan.store.merging import INSERT, UPDATE, WHEN_MATCHED, WHEN_NOT_MATCHED, Clauses, merge_rows
from elasticscan.store.preconditions import KeyCheck
from elasticscan.store.replacing import replace_rows
from elasticscan.store.restoring import restore
from elasticscan.store.scan import Scan
from elasticscan.store.typed import arrow_keys, arrow_rows


class Table(DefinedTable):
    """A table of an open store.

    A handle holds no rows and no definition: each call looks the table up as it is then, so columns and
    indexes that others add meanwhile are there. It stands for one table, not for a name: once that is
    dropped, every call raises `TableNotFound`, or `TableChanged` where another table has got the name.

    Example:
        >>> trips = store.table("trips")
        >>> trips.upsert(pa.table({"id": [1, 2], "km": [0.5, 0.25]}))
        2
        >>> trips.scan(columns=["id"], filter="km > 0.3").to_table().num_rows
        1
    """

    # Writing

    def upsert(
        self,
        rows: Any,
        txn: tuple[str, int] | None = None,
        *,
        if_unchanged_since: int | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Write rows; those whose primary key is there are replaced. All or nothing over all shards.

        Args:
            rows: a pyarrow Table, RecordBatch, RecordBatchReader, or anything that offers an Arrow
                stream (a Polars or pandas frame, a DuckDB relation, a scan), which may be larger than
                memory; or a list of dicts with every column, for a few rows that were typed.
            txn: (application, version): a write that was committed under this pair before is not
                done again; the number of that commit is returned.
            if_unchanged_since: a commit, such as the `snapshot` of the scan that the rows were read with:
                write only if none of these keys was written or deleted by a later one.
            user_metadata: a small dict of texts that stands beside the commit in `history`.

        Returns:
            The commit's number: a snapshot that `scan` takes.

        Raises:
            SchemaMismatch, InvalidKey: the rows do not fit; nothing was written.
            RowsChanged: somebody wrote or deleted some of the keys since; nothing was written. Its `fields`
                name some `keys` and the `newest` commit: read again there.
            ChangesExpired: the changes since then are no longer kept; nothing was written.
            DiskFull, ShardUnavailable: a shard's disk; nothing was written.
        """
        once, said = arguments.transaction(txn), arguments.user_metadata(user_metadata)
        table = self.definition
        rows = arrow_rows(rows, table)
        with self._unchanged(table, if_unchanged_since, once) as check:
            return writer.write(self._context, table, rows, txn=once, check=check, user_metadata=said)

    def insert(
        self,
        rows: Any,
        txn: tuple[str, int] | None = None,
        *,
        user_metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Write rows whose primary keys are not there: all of them, or none. Else as `upsert`.

        Raises:
            KeysExist: some keys are there already; its `fields` name some. Nothing was written.
        """
        once, said = arguments.transaction(txn), arguments.user_metadata(user_metadata)
        table = self.definition
        rows, check = arrow_rows(rows, table), preconditions.absent(self._context, table, once)
        return writer.write(self._context, table, rows, txn=once, check=check, user_metadata=said)

    @contextmanager
    def _unchanged(
        self, table: TableInfo, since: int | None, txn: IdempotencyKey | None = None
    ) -> Iterator[KeyCheck | None]:
        """The check of a write that may have been given `if_unchanged_since`."""
        if since is None:
            yield None
            return
        since = arguments.whole_number("if_unchanged_since", since, 0, MAX_NUMBER)
        with preconditions.unchanged(self._context, table, since, txn) as check:
            yield check

    def overwrite(
        self,
        rows: Any,
        txn: tuple[str, int] | None = None,
        *,
        where: str | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Replace all rows, or those that meet a condition, in one commit. Older snapshots keep the old ones.

        Args:
            rows, txn, user_metadata: as in `upsert`.
            where: a SQL condition. Rows that meet it at the newest snapshot make room for the new ones, which
                have to meet it as well; when others write some of their keys before the commit, it is done
                again at a newer snapshot. A new row replaces one with its key that does not meet it, too.

        Raises:
            InvalidOption: a new row does not meet `where`; nothing was written.
            FilterError, ColumnNotFound, SchemaMismatch, InvalidKey: mend the call.
            WriteConflict: others wrote some of the keys whenever they were read again.
        """
        once, said = arguments.transaction(txn), arguments.user_metadata(user_metadata)
        table = self.definition
        data = arrow_rows(rows, table)
        if where is not None:
            return replace_rows(self._selection(where, None, once, said), table, data)
        return writer.write(self._context, table, data, "overwrite", once, user_metadata=said)

    def delete(
        self,
        keys: Any = None,
        *,
        where: str | None = None,
        if_unchanged_since: int | None = None,
        txn: tuple[str, int] | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Delete rows by primary key, or those that meet a condition; one commit.

        Args:
            keys: the key columns as Arrow, or a list of keys: values (an array or a series of them, too), or
                tuples or dicts where the key has several columns. Keys that are not there are no error.
            where: in place of keys a SQL condition, evaluated at the newest snapshot; "true" for all rows.
            if_unchanged_since, txn, user_metadata: as in `upsert`.

        Returns:
            The commit's number.

        Raises:
            SchemaMismatch, InvalidKey, InvalidOption, FilterError: mend the call; nothing was deleted.
            RowsChanged, ChangesExpired: as in `upsert`; nothing was deleted.
            WriteConflict: others changed rows that meet the condition, whenever they were read again.
        """
        once, said = arguments.transaction(txn), arguments.user_metadata(user_metadata)
        if (keys is None) == (where is None):
            raise InvalidOption(
                "delete takes either keys or where=condition; give one of them", option="where"
            )
        if where is not None:
            return delete_rows(self._selection(where, if_unchanged_since, once, said)).commit
        table = self.definition
        keys = arrow_keys(keys, table, ". To delete by a condition: delete(where='a > 1')")
        with self._unchanged(table, if_unchanged_since, once) as check:
            return writer.delete(self._context, table, keys, once, check, said)

    def update(
        self,
        set: Mapping[str, Any],  # noqa: A002 - the word users know
        where: str | None = None,
        *,
        if_unchanged_since: int | None = None,
        txn: tuple[str, int] | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Give columns new values in the rows that meet a condition; one commit.

        The rows are read at one snapshot; when others change some of them before the commit, all is done
        again at a newer one. So `update({"n": "n + 1"}, "id = 7")` counts each call, whoever else counts.

        Args:
            set: for each column SQL text over the row as it was, in the language of filters ("km * 2",
                "'Oslo'", "NULL"), or a Python value that is no text. Columns of the primary key stay.
            where: a SQL condition; all rows by default.
            if_unchanged_since: change nothing, and do not try again, if one of the rows was written or
                deleted by a later commit than this.
            txn: as in `upsert`: without it a call whose answer was lost must not be repeated blindly.
            user_metadata: as in `upsert`.

        Returns:
            The commit's number.

        Raises:
            InvalidOption, ColumnNotFound, FilterError, SchemaMismatch: mend the call. An overflow, a division
                by zero or a value that its column cannot hold as it is are such errors, too.
            RowsChanged, ChangesExpired: as in `upsert`.
            WriteConflict: others changed some of the rows whenever they were read again.
        """
        once, said = arguments.transaction(txn), arguments.user_metadata(user_metadata)
        return update_rows(self._selection(where, if_unchanged_since, once, said), set).commit

    def merge(
        self,
        rows: Any,
        *,
        columns: Sequence[str] | None = None,
        when_matched: str = UPDATE,
        when_not_matched: str = INSERT,
        if_unchanged_since: int | None = None,
        txn: tuple[str, int] | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Merge rows into those that have the same primary keys; one commit.

        The table is read at one snapshot; when others write some of the keys before the commit, all is done
        again at a newer one. Memory is bounded, however many rows there are.

        Args:
            rows: as for `upsert`. A stream is kept in a temporary file, since it may have to be read again.
            columns: those to write beside the primary key; the rows may have others, which are left out. Rows
                that are updated keep their other columns, those that are inserted are null in them.
                All by default, and then the rows must have exactly these.
            when_matched: of a row whose key is there: "update" it, "delete" it, or "ignore" the new one.
            when_not_matched: of a row whose key is not there: "insert" it, or "ignore" it.
            if_unchanged_since: read the table as of this commit, and write only if none of the keys that are
                written was written or deleted by a later one; do not try again.
            txn, user_metadata: as in `upsert`.

        Returns:
            The commit's number.

        Raises:
            SchemaMismatch, InvalidKey, InvalidOption, ColumnNotFound: mend the call; nothing was written.
            RowsChanged, ChangesExpired: as in `upsert`; nothing was written.
            WriteConflict: others wrote some of the keys whenever they were read again.

        Example:
            >>> trips.merge([{"id": 2, "km": 0.75}], columns=["km"], when_not_matched="ignore")
            3
        """
        once, said = arguments.transaction(txn), arguments.user_metadata(user_metadata)
        matched = arguments.choice("when_matched", when_matched, WHEN_MATCHED)
        not_matched = arguments.choice("when_not_matched", when_not_matched, WHEN_NOT_MATCHED)
        clauses = Clauses(matched, not_matched, arguments.or_none(arguments.names, "columns", columns))
        table = self.definition
        clauses.check(table)
        if clauses.is_upsert(table) and columns is None:
            return self.upsert(rows, txn, if_unchanged_since=if_unchanged_since, user_metadata=said)
        only = clauses.needed(table) if clauses.takes_others(table) else None
        rows = arrow_rows(rows, table, only)
        selection = self._selection(None, if_unchanged_since, once, said)
        return merge_rows(selection, self._look, rows, clauses)

    def restore(self, to: int | str | datetime, *, user_metadata: Mapping[str, str] | None = None) -> int:
        """Make the newest snapshot equal to an older one, by a new commit.

        Only rows that changed since are written, unless the table was overwritten meanwhile. Columns that
        were added since stay, null in what comes back. The history, indexes and tags stay as they are;
        the commit's `user_metadata` has `restored_to`.

        Args:
            to: a commit number, a tag, or a time, also as text (UTC without a zone): the newest then.
            user_metadata: as in `upsert`.

        Returns:
            The commit's number.

        Raises:
            SnapshotNotFound, SnapshotExpired, TagNotFound: there is no such snapshot, or not any more.
            WriteConflict: others wrote to the table each time that its changes were read.
        """
        said = arguments.user_metadata(user_metadata)
        return restore(self._context, self._find, arguments.past("to", to), said)

    def _selection(
        self,
        where: str | None,
        since: int | None,
        txn: IdempotencyKey | None,
        user_metadata: Mapping[str, str],
    ) -> Selection:
        condition = None if where is None else arguments.text("where", where)
        if since is not None:
            since = arguments.whole_number("if_unchanged_since", since, 0, MAX_NUMBER)
        return Selection(self._context, self._find, condition, since, txn, user_metadata)

    # Reading

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the word users know
        *,
        index: str = AUTO,
        order_by: str | Sequence[str] | None = None,
        limit: int | None = None,
        snapshot: int | str | datetime | None = None,
        page_rows: int = DEFAULT_PAGE_ROWS,
        page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> Scan:
        """Read every row of a snapshot exactly once.

        Args:
            columns: which, in which order; all by default.
            filter: a SQL condition; rows for which it is true are returned.
            index: "auto" for the cheapest access path, "none" for a direct scan, "key" for one by primary
                key, or an index's name.
            order_by: a column, or several, each with DESC after it if need be: "km DESC". Rows come in
                that order over all shards. It has to be the order of a sorted index, or its beginning;
                equal values come in the rest of that order, then in that of the primary key. Nulls come
                first, NaN above all numbers, as in Spark. Without it rows come in no particular order.
            limit: give so many rows and no more; the keys of pages know how many are left.
            snapshot: a commit number, a tag, or a time, also as text (UTC without a zone); else the newest.
            page_rows: most rows of a page, 1 to 16,777,216 (before the filter).
            page_bytes: most bytes of a page, up to 1 TiB, unless a single row is larger.

        Raises:
            TableNotFound, ColumnNotFound, FilterError, InvalidOption: mend the call.
            IndexNotFound: there is no index of that name, or none that gives the order.
            IndexNotReady: the index that this needs is still being built.
            SnapshotNotFound, SnapshotExpired, TagNotFound: there is no such snapshot, or not any more.
            CatalogOutdated: the newest is asked for, and the catalog is older than its shards.
        """
        return begin_scan(
            self._context,
            self._find,
            arguments.or_none(arguments.names, "columns", columns),
            arguments.or_none(arguments.text, "filter", filter),
            arguments.snapshot(snapshot),
            arguments.page_limits(page_rows, page_bytes),
            index=arguments.text("index", index),
            order_by=order_by,
            limit=arguments.or_none(arguments.whole_number, "limit", limit, 0, MAX_NUMBER),
        )

    def aggregate(
        self,
        values: str | Sequence[str],
        group_by: str | Sequence[str] = (),
        filter: str | None = None,  # noqa: A002 - the word users know
        snapshot: int | str | datetime | None = None,
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
            snapshot: a commit number, a tag, or a time, also as text (UTC without a zone); else the newest.

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
        return self._aggregation(values, group_by, filter, snapshot).compute()

    def explain_aggregate(
        self,
        values: str | Sequence[str],
        group_by: str | Sequence[str] = (),
        filter: str | None = None,  # noqa: A002 - the word users know
        snapshot: int | str | datetime | None = None,
    ) -> dict[str, Any]:
        """Explain how `aggregate` would read: as `Scan.explain`, with the aggregates and the groups."""
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
            arguments.keys("values", values),
            arguments.keys("group_by", group_by),
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
            snapshot: a commit number, a tag, or a time, also as text (UTC without a zone); else the newest.
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
        names = arguments.or_none(arguments.names, "columns", columns)
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
        after: int | str | datetime,
        upto: int | str | datetime | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the word users know
        *,
        feed: bool = True,
        page_rows: int = DEFAULT_PAGE_ROWS,
        page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> Scan:
        """Read what commits did, each change exactly once, while tablets move.

        Args:
            after, upto: commits in (after, upto], by number, tag or time; up to the newest by default.
            columns: which, in which order; all by default.
            filter: a SQL condition on the rows before and after.
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
        commits = arguments.past("after", after), arguments.or_none(arguments.past, "upto", upto)
        return begin_changes(
            self._context,
            self._find,
            commits,
            arguments.or_none(arguments.names, "columns", columns),
            arguments.or_none(arguments.text, "filter", filter),
            arguments.flag("feed", feed),
            arguments.page_limits(page_rows, page_bytes),
        )

    # Indexes

    def create_index(
        self,
        index: str,
        columns: Sequence[str],
        kind: str = SORTED,
        include: Sequence[str] = (),
        on_progress: OnIndexed | None = None,
    ) -> IndexInfo:
        """Make a secondary index, while others write, scan and move.

        Returns when scans use it. When the process that builds is killed, scans do not use the
        index, and the same call again goes on where the build ended (`drop_index` cleans up). Calling
        it for an index that is there already, of the same definition, does nothing.

        Args:
            index: the index's name, 1 to 64 of a-z, 0-9 and _.
            columns: what to index, the most significant first. Nulls are indexed too.
            kind: "sorted", for equality, ranges and order; or "hash", for equality alone.
            include: more columns to carry, so that queries of these need not fetch rows.
            on_progress: called with (rows done, rows in all).

        Raises:
            TableNotFound, ColumnNotFound, UnsupportedType, InvalidOption: mend the call.
            AlreadyExists: there is an index of that name and another definition.
        """
        table = self.definition
        arguments.callback("on_progress", on_progress)
        columns = arguments.names("columns", columns)
        include = arguments.names("include", include) if include else []
        kind = arguments.text("kind", kind)
        asked = define_index(table, arguments.text("index", index), columns, kind, include)
        return create_index(self._context, table, asked, on_progress)

    @begun_again
    def drop_index(self, index: str) -> None:
        """Remove an index. Scans that read it end with `IndexChanged`."""
        name = arguments.text("index", index)
        with self._context.catalog.writing() as tx:
            tx.transition_index(tx.index(self._find(tx)[0].id, name), IndexEvent.DROPPED)

    @begun_again
    def indexes(self) -> tuple[IndexInfo, ...]:
        """The indexes; those with `ready=False` are being built, or their build was killed."""
        with self._context.catalog.reading() as tx:
            return self._find(tx)[1]

    # Upkeep

    def compact(self) -> int:
        """Merge fragments; returns how many went away."""
        self._context.catalog.check_writable()
        return compaction.compact(self._context, self.definition)
