"""`Table`: a handle of one table, through which its rows are written, read and indexed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, TableChanged
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS, MAX_NUMBER
from elasticscan.catalog import Commit, IdempotencyKey, Tag, Tx, begun_again
from elasticscan.metadata import AUTO, SORTED, IndexEvent, IndexInfo, TableInfo
from elasticscan.store import arguments, compaction, preconditions, writer
from elasticscan.store.beginning import begin_changes, begin_scan
from elasticscan.store.by_condition import Selection, delete_rows, update_rows
from elasticscan.store.context import Context
from elasticscan.store.getting import get_rows
from elasticscan.store.indexing import OnIndexed, create_index, define_index
from elasticscan.store.lookups import CurrentTable
from elasticscan.store.names import Named
from elasticscan.store.preconditions import KeyCheck
from elasticscan.store.restoring import restore
from elasticscan.store.scan import Scan
from elasticscan.store.schema_changes import add_columns, drop_columns, rename_column, widen_column
from elasticscan.store.tags import add_tag, drop_tag
from elasticscan.store.typed import arrow_keys, arrow_rows


class Table(Named):
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

    def __init__(self, context: Context, info: TableInfo) -> None:
        self._context, self._id, self._name = context, info.id, info.name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, int]:
        return self._context.info.store_id, self._id

    def __repr__(self) -> str:
        return f"<elasticscan.Table {self._name!r} of {self._context.location.uri}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """The columns, with those that were added by now."""
        return self.definition.schema

    @property
    def primary_key(self) -> tuple[str, ...]:
        return self.definition.primary_key

    @property
    def shard_key(self) -> tuple[str, ...]:
        """The beginning of the primary key that decides a row's slot."""
        return self.definition.shard_key

    @property
    def definition(self) -> TableInfo:
        """All that the catalog says of the table."""
        return self._mine(self._context.table_now(self._name))

    def _find(self, tx: Tx) -> tuple[TableInfo, tuple[IndexInfo, ...]]:
        """The table and its indexes, as a transaction sees them."""
        info, indexes = self._context.table(tx, self._name)
        return self._mine(info), indexes

    def _mine(self, info: TableInfo) -> TableInfo:
        """Raises `TableChanged` unless the table that has the name is this one."""
        if info.id != self._id:
            raise TableChanged(
                f"table {self._name!r} was dropped and made again since this handle of it was taken; take "
                f"another with store.table({self._name!r})",
                table=self._name,
            )
        return info

    @begun_again
    def drop(self) -> None:
        """Drop the table; its files are removed by a later `Store.collect_garbage`."""
        with self._context.catalog.writing() as tx:
            tx.drop_table(self._find(tx)[0].name)

    def add_columns(self, fields: pa.Schema | Sequence[pa.Field]) -> pa.Schema:
        """Append columns, while others write, scan and move.

        Rows that are there already are null in them, in every snapshot; nothing is written anew. Scans
        that have begun go on with the columns that they began with. A column that the table has
        already, of the same type, is skipped.

        Args:
            fields: columns of any type that `Store.create_table` takes; all of them nullable.

        Returns:
            The table's new schema.

        Raises:
            TableNotFound, UnsupportedType, InvalidOption: mend the call.
            AlreadyExists: there is a column whose name differs in case alone.
            SchemaMismatch: there is one of another type, or a name is given twice or taken by the store.
        """
        return add_columns(self._context, self._find, fields).schema

    def drop_columns(self, names: Sequence[str]) -> pa.Schema:
        """Drop columns, all of them or none, while others write, scan and move; nothing is written anew.

        No snapshot has them from then on, for whoever begins to read. Scans that have begun go on with them.
        Their values leave the files when these are merged, once no snapshot from before can be read any more.
        Returns the new schema.

        Raises:
            TableNotFound, ColumnNotFound: there is none.
            InvalidOption: a key or an index is made of one; drop the index first.
        """
        return drop_columns(self._context, self._find, arguments.names("names", names)).schema

    def rename_column(self, old: str, new: str) -> pa.Schema:
        """Give a column another name, while others write, scan and move; nothing is written anew.

        Every snapshot has it by the new name, for whoever begins to read. Returns the new schema.

        Raises:
            TableNotFound, ColumnNotFound: there is none.
            AlreadyExists: another column has the name, or one that differs in case alone.
            InvalidOption: a key or an index is made of it; drop the index first.
            SchemaMismatch, LimitExceeded: no column may have such a name.
        """
        old, new = arguments.text("old", old), arguments.text("new", new)
        return rename_column(self._context, self._find, old, new).schema

    def widen_column(self, name: str, type: pa.DataType) -> pa.Schema:  # noqa: A002 - Arrow's word
        """Give a column a wider type of the same kind, while others write, scan and move.

        Nothing is written anew. Allowed are int8 to int16, int32 or int64 and so on, likewise uint8 to uint64
        and float16 to float64, and decimals to more digits of the same scale. A column that has the type
        already is left as it is. Returns the new schema.

        Raises:
            TableNotFound, ColumnNotFound: there is none.
            InvalidOption: a key or an index is made of it; drop the index first.
            SchemaMismatch: the type does not hold all values of the present one, or is of another kind.
        """
        return widen_column(self._context, self._find, arguments.text("name", name), type).schema

    @begun_again
    def set_retention(self, seconds: float | None) -> None:
        """Say how long snapshots and changes stay readable without a lease.

        None for the store's own retention period. A shorter one also ends the time of scans that
        have begun and took no lease because they relied on the longer one.
        """
        retention = arguments.or_none(arguments.seconds, "seconds", seconds)
        with self._context.catalog.writing() as tx:
            tx.set_retention(self._find(tx)[0].id, retention)

    @begun_again
    def history(self, limit: int | None = None) -> tuple[Commit, ...]:
        """The commits, oldest first: number, kind, rows, bytes, time and what their writers said.

        Args:
            limit: the newest so many; all by default.

        Raises:
            CatalogOutdated: the shards know newer ones.
        """
        most = arguments.or_none(arguments.whole_number, "limit", limit, 0, MAX_NUMBER)
        self._context.check_newest()
        with self._context.catalog.reading() as tx:
            table = self._find(tx)[0].id
            return tx.commits(table) if most is None else tx.newest_commits(table, most)

    def tag(self, name: str, snapshot: int | str | datetime | None = None) -> Tag:
        """Name a snapshot, and keep it readable until the tag is dropped, whatever is merged or moved.

        Keeping it keeps what was written since, too: every later snapshot can be read for as long. A name
        that stands for this very snapshot already is left as it is.

        Args:
            name: 1 to 64 of a-z, 0-9 and _, not digits alone.
            snapshot: a commit number, another tag, or a time, also as text; the newest by default.

        Raises:
            InvalidName, LimitExceeded: mend the call.
            AlreadyExists: the name stands for another snapshot.
            SnapshotNotFound, SnapshotExpired, TagNotFound: there is no such snapshot, or not any more.
        """
        return add_tag(self._context, self._find, name, arguments.snapshot(snapshot))

    @begun_again
    def tags(self) -> tuple[Tag, ...]:
        """The tags, the oldest snapshot first."""
        with self._context.catalog.reading() as tx:
            return tx.tags(self._find(tx)[0].id)

    def drop_tag(self, name: str) -> None:
        """Let go of a tag; its snapshot stays for as long as retention and leases keep it.

        Raises:
            TagNotFound: there is none of this name; the nearest is told.
        """
        drop_tag(self._context, self._find, arguments.text("name", name))

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
        user_metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Replace all rows by these in one commit. Older snapshots keep the old ones."""
        once, said = arguments.transaction(txn), arguments.user_metadata(user_metadata)
        table = self.definition
        data = arrow_rows(rows, table)
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
