"""`Table`: a handle of one table, through which its rows are written, read and indexed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import MAX_NUMBER
from elasticscan.catalog import IdempotencyKey, retry_interrupted
from elasticscan.metadata import SORTED, IndexEvent, IndexInfo, TableInfo
from elasticscan.store import arguments
from elasticscan.store.arguments import Condition
from elasticscan.store.readable import ReadableTable
from elasticscan.store.rows.keys import arrow_keys
from elasticscan.store.rows.typed import arrow_rows
from elasticscan.store.upkeep import compaction
from elasticscan.store.writing import preconditions, writer
from elasticscan.store.writing.by_condition import Selection, delete_rows, update_rows
from elasticscan.store.writing.indexing import OnIndexed, create_index, define_index
from elasticscan.store.writing.merging import (
    INSERT,
    UPDATE,
    WHEN_MATCHED,
    WHEN_NOT_MATCHED,
    Clauses,
    merge_rows,
)
from elasticscan.store.writing.preconditions import KeyCheck
from elasticscan.store.writing.publishing import CommitNumber
from elasticscan.store.writing.replacing import replace_rows
from elasticscan.store.writing.restoring import restore


class Table(ReadableTable):
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
    ) -> CommitNumber:
        """Write rows; those whose primary key is there are replaced. All or nothing over all shards.

        Args:
            rows: a pyarrow Table, RecordBatch, RecordBatchReader, or anything that offers an Arrow
                stream (a Polars or pandas frame, a DuckDB relation, a scan), which may be larger than
                memory; or, for a few rows that were typed, a list of dicts with every column, or a dict
                of columns.
            txn: (application, version): a write that was committed under this pair before is not
                done again; the number of that commit is returned.
            if_unchanged_since: a commit, such as the `snapshot` of the scan that the rows were read with:
                write only if none of these keys was written or deleted by a later one.
            user_metadata: a small dict of texts that stands alongside the commit in `history`.

        Returns:
            The commit's number, a snapshot that `scan` takes; its `rows` is how many rows were written.

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
    ) -> CommitNumber:
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
        where: Condition | None = None,
        parameters: Mapping[str, Any] | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> CommitNumber:
        """Replace all rows, or those that meet a condition, in one commit. Older snapshots keep the old ones.

        Args:
            rows, txn, user_metadata: as in `upsert`.
            where: a SQL condition. Rows that meet it at the newest snapshot make room for the new ones, which
                have to meet it as well; when others write some of their keys before the commit, it is done
                again at a newer snapshot. A new row replaces one with its key that does not meet it, too.
            parameters: as in `delete`.

        Raises:
            InvalidOption: a new row does not meet `where`; nothing was written.
            FilterError, ColumnNotFound, SchemaMismatch, InvalidKey: mend the call.
            WriteConflict: others wrote some of the keys whenever they were read again.
        """
        once, said = arguments.transaction(txn), arguments.user_metadata(user_metadata)
        table = self.definition
        data, where = (
            arrow_rows(rows, table),
            arguments.condition("where", where, parameters, lambda: self.schema),
        )
        if where is not None:
            return replace_rows(self._selection(where, None, once, said), table, data)
        return writer.write(self._context, table, data, "overwrite", once, user_metadata=said)

    def delete(
        self,
        keys: Any = None,
        *,
        where: Condition | None = None,
        parameters: Mapping[str, Any] | None = None,
        if_unchanged_since: int | None = None,
        txn: tuple[str, int] | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> CommitNumber:
        """Delete rows by primary key, or those that meet a condition; one commit.

        Args:
            keys: the key columns as Arrow, or a list of keys: values (an array or a series of them, too), or
                tuples or dicts where the key has several columns. Keys that are not there are no error.
            where: in place of keys a SQL condition, evaluated at the newest snapshot; "true" for all rows.
            parameters: values of the condition's `:name`, as in `scan`.
            if_unchanged_since, txn, user_metadata: as in `upsert`.

        Returns:
            The commit's number; its `rows` is how many rows were deleted, and where keys were given how many
            these were, whether there were rows or not.

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
        where = arguments.condition("where", where, parameters, lambda: self.schema)
        if where is not None:
            return delete_rows(self._selection(where, if_unchanged_since, once, said))
        table = self.definition
        keys = arrow_keys(keys, table, ". To delete by a condition: delete(where='a > 1')")
        with self._unchanged(table, if_unchanged_since, once) as check:
            return writer.delete(self._context, table, keys, once, check, said)

    def update(
        self,
        set: Mapping[str, Any],  # noqa: A002 - the word users know
        where: Condition | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        if_unchanged_since: int | None = None,
        txn: tuple[str, int] | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> CommitNumber:
        """Give columns new values in the rows that meet a condition; one commit.

        The rows are read at one snapshot; when others change some of them before the commit, all is done
        again at a newer one. So `update({"n": "n + 1"}, "id = 7")` counts each call, whoever else counts.

        Args:
            set: for each column SQL text over the row as it was, in the language of filters ("km * 2",
                "'Oslo'", "NULL"), or a Python value that is no text. Columns of the primary key stay.
            where: a SQL condition; all rows by default.
            parameters: values of the condition's `:name`, as in `scan`.
            if_unchanged_since: change nothing, and do not try again, if one of the rows was written or
                deleted by a later commit than this.
            txn: as in `upsert`: without it a call whose answer was lost must not be repeated blindly.
            user_metadata: as in `upsert`.

        Returns:
            The commit's number; its `rows` is how many rows were changed.

        Raises:
            InvalidOption, ColumnNotFound, FilterError, SchemaMismatch: mend the call. An overflow, a division
                by zero or a value that its column cannot hold as it is are such errors, too.
            RowsChanged, ChangesExpired: as in `upsert`.
            WriteConflict: others changed some of the rows whenever they were read again.
        """
        once, said = arguments.transaction(txn), arguments.user_metadata(user_metadata)
        where = arguments.condition("where", where, parameters, lambda: self.schema)
        return update_rows(self._selection(where, if_unchanged_since, once, said), set)

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
    ) -> CommitNumber:
        """Merge rows into those that have the same primary keys; one commit.

        The table is read at one snapshot; when others write some of the keys before the commit, all is done
        again at a newer one. Memory is bounded, however many rows there are.

        Args:
            rows: as for `upsert`. A stream is kept in a temporary file, since it may have to be read again.
            columns: those to write alongside the primary key; the rows may have others, which are left out.
                Rows that are updated keep their other columns, those that are inserted are null in them.
                All by default, and then the rows must have exactly these.
            when_matched: of a row whose key is there: "update" it, "delete" it, or "ignore" the new one.
            when_not_matched: of a row whose key is not there: "insert" it, or "ignore" it.
            if_unchanged_since: read the table as of this commit, and write only if none of the keys that are
                written was written or deleted by a later one; do not try again.
            txn, user_metadata: as in `upsert`.

        Returns:
            The commit's number; its `rows` is how many rows were changed.

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
        clauses = Clauses(matched, not_matched, arguments.or_none(arguments.columns, "columns", columns))
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
            to: a commit number, a tag, or a time with its zone, also as text: the newest then.
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
        if since is not None:
            since = arguments.whole_number("if_unchanged_since", since, 0, MAX_NUMBER)
        return Selection(self._context, self._find, where, since, txn, user_metadata)

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
            columns: what to index, the most significant first, or the name of one. Nulls are indexed too.
            kind: "sorted", for equality, ranges and order; or "hash", for equality alone.
            include: more columns to carry, so that queries of these need not fetch rows.
            on_progress: called with (rows done, rows in all).

        Raises:
            TableNotFound, ColumnNotFound, UnsupportedType, InvalidOption: mend the call.
            AlreadyExists: there is an index of that name and another definition.
        """
        table = self.definition
        arguments.callback("on_progress", on_progress)
        columns = arguments.columns("columns", columns)
        include = [] if include is None else arguments.columns("include", include)
        kind = arguments.text("kind", kind)
        asked = define_index(table, arguments.text("index", index), columns, kind, include)
        return create_index(self._context, table, asked, on_progress)

    @retry_interrupted
    def drop_index(self, index: str) -> None:
        """Remove an index. Scans that read it end with `IndexChanged`."""
        name = arguments.text("index", index)
        with self._context.catalog.writing() as tx:
            tx.transition_index(tx.index(self._find(tx)[0].id, name), IndexEvent.DROPPED)

    @retry_interrupted
    def indexes(self) -> tuple[IndexInfo, ...]:
        """The indexes; those with `ready=False` are being built, or their build was killed."""
        with self._context.catalog.reading() as tx:
            return self._find(tx)[1]

    # Upkeep

    def compact(self) -> int:
        """Merge fragments; returns how many went away."""
        self._context.catalog.check_writable()
        return compaction.compact(self._context, self.definition)
