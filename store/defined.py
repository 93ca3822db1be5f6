"""`DefinedTable`: what a table is, apart from its rows: columns, keys, history, tags and retention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import pyarrow as pa

from elasticscan.base.drawing import code, listing
from elasticscan.base.errors import TableChanged
from elasticscan.base.limits import MAX_NUMBER
from elasticscan.base.redaction import shown
from elasticscan.catalog import Tag, Tx, retry_interrupted
from elasticscan.metadata import IndexInfo, TableInfo
from elasticscan.store import arguments
from elasticscan.store.context import Context
from elasticscan.store.context.tags import add_tag, drop_tag
from elasticscan.store.names import Named
from elasticscan.store.notebooks import History
from elasticscan.store.schema_changes import add_columns, drop_columns, rename_column, widen_column

_SHOWN_COMMITS = 10


class DefinedTable(Named, shown_as="Table"):
    """A table by its definition, looked up again by each call."""

    def __init__(self, context: Context, info: TableInfo) -> None:
        self._opened, self._id, self._name = context, info.id, info.name

    @property
    def _context(self) -> Context:
        return self._opened.per_process.get()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DefinedTable):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, int]:
        return self._context.info.store_id, self._id

    def __repr__(self) -> str:
        return f"<elasticscan.Table {self._name!r} of {shown(self._opened.location.uri)}>"

    def _repr_html_(self) -> str:
        """The columns and the newest commits, as notebooks show them."""
        info = self.definition
        columns = [
            (field.name, field.type, "primary key" if field.name in info.primary_key else "")
            for field in info.schema
        ]
        newest = self.history(_SHOWN_COMMITS)._repr_html_()
        return f"{code(repr(self))}<br/>{listing(('column', 'type', ''), columns)}<br/>{newest}"

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

    @retry_interrupted
    def drop(self) -> None:
        """Drop the table; its files are removed by a later `Store.collect_garbage`."""
        with self._context.catalog.writing() as tx:
            tx.drop_table(self._find(tx)[0].name)

    def add_columns(
        self, fields: pa.Schema | Sequence[pa.Field] | Mapping[str, pa.DataType | str]
    ) -> pa.Schema:
        """Append columns, while others write, scan and move.

        Rows that are there already are null in them, in every snapshot; nothing is written again. Scans
        that have begun go on with the columns that they began with. A column that the table has
        already, of the same type, is skipped.

        Args:
            fields: columns of any type that `Store.create_table` takes, all of them nullable; or a dict of
                their names and types, as `{"note": "string"}`.

        Returns:
            The table's new schema.

        Raises:
            TableNotFound, UnsupportedType, InvalidOption: mend the call.
            AlreadyExists: there is a column whose name differs in case alone.
            SchemaMismatch: there is one of another type, or a name is given twice or taken by the store.
        """
        return add_columns(self._context, self._find, fields).schema

    def drop_columns(self, names: Sequence[str]) -> pa.Schema:
        """Drop columns, all of them or none, while others write, scan and move; nothing is written again.

        No snapshot has them from then on, for whoever begins to read. Scans that have begun go on with them.
        Their values leave the files when these are merged, once no snapshot from before can be read any more.
        Returns the new schema.

        Raises:
            TableNotFound, ColumnNotFound: there is none.
            InvalidOption: a key or an index is made of one; drop the index first.
        """
        return drop_columns(self._context, self._find, arguments.columns("names", names)).schema

    def rename_column(self, old: str, new: str) -> pa.Schema:
        """Give a column another name, while others write, scan and move; nothing is written again.

        Every snapshot has it by the new name, for whoever begins to read. Returns the new schema.

        Raises:
            TableNotFound, ColumnNotFound: there is none.
            AlreadyExists: another column has the name, or one that differs in case alone.
            InvalidOption: a key or an index is made of it; drop the index first.
            SchemaMismatch, LimitExceeded: no column may have such a name.
        """
        old, new = arguments.text("old", old), arguments.text("new", new)
        return rename_column(self._context, self._find, old, new).schema

    def widen_column(self, name: str, type: pa.DataType | str) -> pa.Schema:  # noqa: A002 - Arrow's word
        """Give a column a wider type of the same kind, while others write, scan and move.

        Nothing is written again. Allowed are int8 to int16, int32 or int64 and so on, likewise uint8 to
        uint64 and float16 to float64, and decimals to more digits of the same scale. A column that has the
        type already is left as it is. Returns the new schema.

        Raises:
            TableNotFound, ColumnNotFound: there is none.
            InvalidOption: a key or an index is made of it; drop the index first.
            SchemaMismatch: the type does not hold all values of the present one, or is of another kind.
        """
        return widen_column(self._context, self._find, arguments.text("name", name), type).schema

    @retry_interrupted
    def set_retention(self, period: timedelta | str | None) -> None:
        """Say how long snapshots and changes stay readable without a lease.

        A shorter period also ends the time of scans that have begun and took no lease because they relied on
        the longer one.

        Args:
            period: "7d", "12h", "90m" or "30s", a timedelta, or None for the store's own retention period.
        """
        retention = arguments.or_none(arguments.period, "period", period)
        with self._context.catalog.writing() as tx:
            tx.set_retention(self._find(tx)[0].id, retention)

    @retry_interrupted
    def set_compression(self, compression: str | None) -> None:
        """Say how files are written from now on, by commits, merges and moves: None, "lz4" or "zstd".

        Files that are there stay as they are, and are read so, until a merge takes part in them;
        `Table.compact` writes all of them again at once.
        """
        form = arguments.file_form("compression", compression)
        with self._context.catalog.writing() as tx:
            tx.set_compression(self._find(tx)[0].id, form)

    @retry_interrupted
    def history(self, limit: int | None = None) -> History:
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
            return History(tx.commits(table) if most is None else tx.newest_commits(table, most))

    def tag(self, name: str, snapshot: int | str | datetime | None = None) -> Tag:
        """Name a snapshot, and keep it readable until the tag is dropped, whatever is merged or moved.

        Keeping it keeps what was written since, too: every later snapshot can be read for as long. A name
        that stands for this very snapshot already is left as it is.

        Args:
            name: 1 to 64 of a-z, 0-9 and _, not digits alone.
            snapshot: a commit number, another tag, or a time with its zone; the newest by default.

        Raises:
            InvalidName, LimitExceeded: mend the call.
            AlreadyExists: the name stands for another snapshot.
            SnapshotNotFound, SnapshotExpired, TagNotFound: there is no such snapshot, or not any more.
        """
        return add_tag(self._context, self._find, name, arguments.snapshot(snapshot))

    @retry_interrupted
    def tags(self) -> tuple[Tag, ...]:
        """The tags, the oldest snapshot first. Raises `CatalogOutdated`: the shards know newer ones."""
        self._context.check_newest()
        with self._context.catalog.reading() as tx:
            return tx.tags(self._find(tx)[0].id)

    def drop_tag(self, name: str) -> None:
        """Let go of a tag; its snapshot stays for as long as retention and leases keep it.

        Raises:
            TagNotFound: there is none of this name; the nearest is told.
        """
        drop_tag(self._context, self._find, arguments.text("name", name))
