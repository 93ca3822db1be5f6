"""`Store`: what users open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticscan.base.clock import Clock, SystemClock
from elasticscan.base.errors import InvalidOption, StoreNotFound
from elasticscan.base.hashing import HASHES
from elasticscan.base.limits import (
    DEFAULT_PAGE_BYTES,
    DEFAULT_PAGE_ROWS,
    DEFAULT_SLOTS,
    DEFAULT_TABLETS,
    GC_GRACE_SECONDS,
    GC_SHARE,
    MAX_PAGE_ROWS,
    MAX_SLOTS,
    RETENTION_SECONDS,
    TRASH_SECONDS,
    check_name,
)
from elasticscan.base.redaction import shown
from elasticscan.catalog import KEYS, Catalog, Commit, NewStore
from elasticscan.filters import Predicate
from elasticscan.metadata import SORTED, IndexInfo, TableInfo
from elasticscan.protocol import ContinuationKey
from elasticscan.storage import Disk, open_disk
from elasticscan.store import arguments, upkeep, writer
from elasticscan.store.access_paths import AUTO, Wish
from elasticscan.store.adoption import Adopted, adopt, settle_copy
from elasticscan.store.arguments import MAX_ID, MAX_NUMBER, MAX_PAGE_BYTES, MAX_PARALLEL
from elasticscan.store.changes import ChangeScan, check_kept
from elasticscan.store.collector import Collected, collect_garbage
from elasticscan.store.context import Context
from elasticscan.store.definitions import define_table
from elasticscan.store.disks import disk_at, read_only_disk
from elasticscan.store.elasticity import Elasticity, OnProgress
from elasticscan.store.garbage import Rules
from elasticscan.store.indexing import OnIndexed, create_index, define_index
from elasticscan.store.location import Location
from elasticscan.store.making import make_store, new_roots
from elasticscan.store.scan import Scan, begin_scan, columns_of, resume_scan
from elasticscan.store.schema_changes import add_columns
from elasticscan.store.status import status_of
from elasticscan.topology import SlotSet, Topology, initial_placement


class Store:
    """A sharded, elastic table store.

    Any number of processes may have one open, read, write and move at once; so may several threads.

    Example:
        >>> store = Store.create("flights.store", shards=["s1", "s2"])
        >>> store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.float64())]), ["id"])
        >>> store.write("t", pa.table({"id": [1, 2], "v": [0.5, 0.25]}))
        2
        >>> store.scan("t").to_table().num_rows
        2
    """

    def __init__(self, context: Context, location: Location, disks: Callable[[str], Disk]) -> None:
        self._context = context
        self._location = location
        self._disks = disks

    # Opening

    @classmethod
    def create(
        cls,
        uri: str | Path,
        shards: Sequence[str] | Mapping[str, str],
        tablets: int = DEFAULT_TABLETS,
        slots: int = DEFAULT_SLOTS,
        hash: str = "spark",  # noqa: A002 - the word users know
        retention_seconds: float = RETENTION_SECONDS,
        clock: Clock | None = None,
        disks: Callable[[str], Disk] = open_disk,
    ) -> Store:
        """Make a store and open it.

        Args:
            uri: a directory, or a SQLAlchemy URL of the database that shall hold the catalog.
            shards: names of the first shards, or names with the roots of their storage (a
                directory or a `pyarrow.fs` URI; needed when `uri` is a database).
            tablets: how many tablets to cut the slots into at the start.
            slots: hash buckets, 1 to 65,536; fixed for ever.
            hash: "spark" (Murmur3 as in Spark's `hash()`) or "java" (`hashCode`).
            retention_seconds: how long snapshots stay readable without a lease.
            clock, disks: the time, and the disk for a root; tests and simulations hand in others.

        Raises:
            AlreadyExists: there is a store at `uri`.
            InvalidOption, InvalidName: an argument is out of bounds.
        """
        clock = clock or SystemClock()
        location = Location.of(arguments.place("uri", uri))
        names, given = arguments.shards(shards)
        for name in names:
            check_name("shard", name)
        slots = arguments.whole_number("slots", slots, 1, MAX_SLOTS)
        tablets = arguments.whole_number("tablets", tablets, 1, MAX_SLOTS)
        kept = arguments.seconds("retention_seconds", retention_seconds)
        if arguments.text("hash", hash) not in HASHES:
            raise InvalidOption(f"hash={hash!r} must be one of {', '.join(HASHES)}", option="hash")
        placement = initial_placement(slots, tablets, range(1, len(names) + 1))
        roots = tuple((name, location.stored_root(name, given.get(name))) for name in names)
        make_store(location, disks, clock, NewStore(roots, placement, hash, kept))
        return cls.open(uri, clock, disks)

    @classmethod
    def open(
        cls,
        uri: str | Path,
        clock: Clock | None = None,
        disks: Callable[[str], Disk] = open_disk,
        read_only: bool = False,
    ) -> Store:
        """Open a store.

        Where the catalog cannot be written (a read-only mount, another user's store, a database user who may
        only SELECT), the store is open for reading alone: writes of any kind raise `ReadOnlyStore`, and
        scans take no leases, so their snapshots stay for as long as retention keeps them.

        Args:
            uri: a directory, a SQLAlchemy URL, or `env:NAME` for one that an environment variable holds.
            clock, disks: as in `create`.
            read_only: write nothing, also where that would be possible.

        Raises:
            StoreNotFound: there is none.
            StoreTooNew: a newer release made it.
        """
        clock = clock or SystemClock()
        location = Location.of(arguments.place("uri", uri))
        if not location.exists():
            location.check_not_bereft()
            raise StoreNotFound(
                f"{shown(uri)} holds no elasticscan store; create one with Store.create or "
                "`elasticscan create`",
                uri=shown(uri),
            )
        location.check_not_empty()
        location.warn_of_readers()
        catalog = Catalog(location.catalog_url, clock, shown(uri), arguments.flag("read_only", read_only))

        def open_root(root: str) -> Disk:
            disk = disk_at(disks, root)
            return disk if catalog.read_only is None else read_only_disk(disk, catalog.check_writable)

        context = Context(catalog, clock, location, open_root)
        catalog.when_copied = lambda: settle_copy(context)
        catalog.before_writing = context.look_at_marks
        catalog.after_writing = lambda: context.note_newest(context.local_shards())
        return cls(context, location, disks)

    def close(self) -> None:
        """Let go of database connections."""
        self._context.catalog.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def uri(self) -> str:
        return self._location.uri

    @property
    def read_only(self) -> str | None:
        """Why the store is open for reading alone; None when it can be written."""
        return self._context.catalog.read_only

    @property
    def context(self) -> Context:
        """For the layers above: what the parts of an open store share."""
        return self._context

    # Tables

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        primary_key: Sequence[str],
        shard_key: Sequence[str] | None = None,
        compression: str | None = None,
    ) -> TableInfo:
        """Make a table.

        Args:
            name: 1 to 64 of a-z, 0-9 and _.
            schema: columns; any Arrow type that Spark can read, nested ones too, as value columns.
            primary_key: columns of type bool, integer, decimal, date, timestamp, string or binary.
            shard_key: the prefix of the primary key that decides a row's slot; all of it by default.
                In a store with hash "java", one column of type bool, integer or string.
            compression: None, "lz4" or "zstd".

        Raises:
            InvalidName, InvalidOption, SchemaMismatch, UnsupportedType: mend the call.
            LimitExceeded: the definition is too large, or nested too deep.
            AlreadyExists: there is a table of this name.
        """
        info = define_table(self._context, name, schema, primary_key, shard_key, compression)
        with self._context.catalog.writing() as tx:
            return tx.create_table(name, info)

    def add_columns(self, name: str, fields: pa.Schema | Sequence[pa.Field]) -> TableInfo:
        """Append columns to a table, while others write, scan and move.

        Rows that are there already are null in them, in every snapshot; nothing is written anew. Scans
        that have begun go on with the columns that they began with. A column that the table has
        already, of the same type, is passed over.

        Args:
            name: the table.
            fields: columns of any type that `create_table` takes; all of them nullable.

        Returns:
            The table's new definition.

        Raises:
            TableNotFound, UnsupportedType, InvalidOption: mend the call.
            AlreadyExists: there is a column whose name differs in case alone.
            SchemaMismatch: there is one of another type, or a name is given twice or taken by the store.
        """
        return add_columns(self._context, arguments.text("name", name), fields)

    def drop_table(self, name: str) -> None:
        """Drop a table; its files are removed by a later `collect_garbage`."""
        name = arguments.text("name", name)
        with self._context.catalog.writing() as tx:
            tx.drop_table(name)

    def table(self, name: str) -> TableInfo:
        """A table's definition. Raises `TableNotFound`, naming the nearest."""
        name = arguments.text("name", name)
        with self._context.catalog.reading() as tx:
            return tx.table(name)

    def tables(self) -> tuple[TableInfo, ...]:
        with self._context.catalog.reading() as tx:
            return tx.tables()

    def commits(self, name: str) -> tuple[Commit, ...]:
        """The commits of a table, oldest first. Raises `CatalogOutdated` when the shards know newer ones."""
        name = arguments.text("name", name)
        self._context.check_newest()
        with self._context.catalog.reading() as tx:
            return tx.commits(tx.table(name).id)

    # Writing

    def write(self, name: str, data: Any, txn: tuple[str, int] | None = None) -> int:
        """Upsert rows by primary key; returns the commit number. All or nothing over all shards.

        Args:
            name: the table.
            data: a pyarrow Table, RecordBatch, RecordBatchReader, or anything that offers an Arrow
                stream. A reader may be larger than memory.
            txn: (application, version): a write that was committed under this pair before is not
                done again; the number of that commit is returned.

        Raises:
            SchemaMismatch, InvalidKey: the rows do not fit; nothing was written.
            DiskFull, ShardUnavailable: a shard's disk; nothing was written.
        """
        return writer.write(self._context, self.table(name), data, txn=arguments.transaction(txn))

    def overwrite(self, name: str, data: Any, txn: tuple[str, int] | None = None) -> int:
        """Replace all rows by these in one commit. Older snapshots keep the old ones."""
        once = arguments.transaction(txn)
        return writer.write(self._context, self.table(name), data, kind="overwrite", txn=once)

    def delete(self, name: str, keys: Any) -> int:
        """Delete rows by primary key; `keys` holds the key columns. Returns the commit number."""
        return writer.delete(self._context, self.table(name), keys)

    # Reading

    def scan(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the word users know
        index: str = AUTO,
        snapshot: int | None = None,
        page_rows: int = DEFAULT_PAGE_ROWS,
        page_bytes: int = DEFAULT_PAGE_BYTES,
        order: str | None = None,
        descending: bool = False,
    ) -> Scan:
        """Read every row of a snapshot exactly once.

        Args:
            name: the table.
            columns: which, in which order; all by default.
            filter: a SQL condition; rows for which it is true are returned.
            index: "auto" for the cheapest access path, "none" for a direct scan, or an index's name.
            snapshot: a commit number; the newest by default.
            page_rows: most rows of a page, 1 to 16,777,216 (before the filter).
            page_bytes: most bytes of a page, up to 1 TiB, unless a single row is larger.
            order: "index" for all rows in the order of the named sorted index, then of the primary
                key, over all shards. Nulls come first, NaN above all numbers, as in Spark.
            descending: turns the order of the named index round.

        Raises:
            TableNotFound, ColumnNotFound, IndexNotFound, FilterError, InvalidOption: mend the call.
            IndexNotReady: the named index is still being built.
            SnapshotNotFound, SnapshotExpired: there is no such snapshot, or not any more.
            CatalogOutdated: the newest is asked for, and the catalog is older than its shards.
        """
        name, filter = arguments.text("name", name), arguments.text_or_none("filter", filter)  # noqa: A001
        page_rows = arguments.whole_number("page_rows", page_rows, 1, MAX_PAGE_ROWS)
        page_bytes = arguments.whole_number("page_bytes", page_bytes, 1, MAX_PAGE_BYTES)
        if snapshot is not None:
            snapshot = arguments.whole_number("snapshot", snapshot, 0, MAX_NUMBER)
        listed = None if columns is None else arguments.names("columns", columns)
        wish = Wish(
            arguments.text("index", index),
            arguments.text_or_none("order", order),
            arguments.flag("descending", descending),
        )
        wish.check()
        return begin_scan(self._context, name, listed, filter, snapshot, (page_rows, page_bytes), wish)

    def changes(
        self,
        name: str,
        after: int,
        upto: int | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the word users know
        feed: bool = True,
        page_rows: int = DEFAULT_PAGE_ROWS,
        page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> ChangeScan:
        """Read what commits did, each change exactly once, while tablets move.

        Args:
            name: the table.
            after, upto: commits in (after, upto]; up to the newest by default.
            columns: which, in which order; all by default.
            filter: a SQL condition on the rows before and after.
            feed: True for all changes with `_change_type` (insert, update_preimage,
                update_postimage, delete), `_commit_version` and `_commit_timestamp`; False for the
                new rows of inserts and updates alone.
            page_rows, page_bytes: as in `scan`.

        Raises:
            ChangesExpired: some of the changes are no longer kept.
            CatalogOutdated: the newest is asked for, and the catalog is older than its shards.
            TableNotFound, ColumnNotFound, FilterError, InvalidOption: mend the call.
        """
        name, filter = arguments.text("name", name), arguments.text_or_none("filter", filter)  # noqa: A001
        page_rows = arguments.whole_number("page_rows", page_rows, 1, MAX_PAGE_ROWS)
        page_bytes = arguments.whole_number("page_bytes", page_bytes, 1, MAX_PAGE_BYTES)
        feed = arguments.flag("feed", feed)
        after = arguments.whole_number("after", after, 0, MAX_NUMBER)
        if upto is not None:
            upto = arguments.whole_number("upto", upto, 0, MAX_NUMBER)
        listed = None if columns is None else arguments.names("columns", columns)
        if upto is None:
            self._context.check_newest()
        with self._context.catalog.reading() as tx:
            table, newest = tx.table(name), tx.versions()[1]
            check_kept(tx, table, after)
        predicate = None if filter is None else Predicate.parse(filter, table.schema)
        commits = (after, newest if upto is None else min(upto, newest))
        everything = SlotSet.span(0, self._context.info.slots)
        wanted, limits = columns_of(table, listed), (page_rows, page_bytes)
        return ChangeScan(self._context, table, wanted, commits, everything, feed, predicate, limits)

    def set_retention(self, name: str, seconds: float | None) -> None:
        """How long a table's snapshots and changes stay readable without a lease.

        None for the store's own retention period. A shorter one also ends the time of scans that
        have begun and took no lease because they relied on the longer one.
        """
        kept = None if seconds is None else arguments.seconds("seconds", seconds)
        with self._context.catalog.writing() as tx:
            tx.set_retention(tx.table(arguments.text("name", name)).id, kept)

    def resume(self, key: str) -> Scan:
        """Go on with a scan from a page's key, here or anywhere the store can be opened.

        Raises:
            ContinuationKeyError: the key is not one of this store, or was cut or altered.
            ContinuationKeyExpired: it was given out too long ago.
            SnapshotExpired, TableChanged: what it continues is gone; start a new scan.
        """
        return self.resume_part(self._context.sealer.open(key))

    def resume_part(self, key: ContinuationKey, ends_lease: bool = True) -> Scan:
        """As `resume`, for a key that was opened already."""
        return resume_scan(self._context, key, ends_lease)

    def rotate_secret(self, revoke: bool = False) -> int:
        """Replace the secret that seals continuation keys; returns its number.

        Keys that were given out go on until their time is up (30 days, or as long as snapshots are kept where
        that is longer); then the old secret is deleted. Other processes seal with the new one within a
        minute. Checkpoints of streams are signed with another secret, which stays.

        Args:
            revoke: delete the old secrets at once, as when somebody may have read them. Keys that were
                given out before, and Spark reads that were planned, then end with
                `ContinuationKeyError`; elsewhere within a minute.
        """
        revoke = arguments.flag("revoke", revoke)
        with self._context.catalog.writing() as tx:
            number = tx.add_secrets(KEYS)
            tx.forget_secrets(revoke)
        self._context.sealer.forget()
        return number

    # Indexes

    def create_index(
        self,
        name: str,
        index: str,
        columns: Sequence[str],
        kind: str = SORTED,
        include: Sequence[str] = (),
        on_progress: OnIndexed | None = None,
    ) -> IndexInfo:
        """Make a secondary index of a table, while others write, scan and move.

        Returns when scans use it. When the process that builds is killed, scans do not use the
        index, and the same call again goes on where the build ended (`drop_index` cleans up). Calling
        it for an index that is there already, of the same definition, does nothing.

        Args:
            name: the table.
            index: the index's name, 1 to 64 of a-z, 0-9 and _.
            columns: what to index, the most significant first. Nulls are indexed too.
            kind: "sorted", for equality, ranges and order; or "hash", for equality alone.
            include: more columns to carry, so that queries of these need not fetch rows.
            on_progress: called with (rows done, rows in all).

        Raises:
            TableNotFound, ColumnNotFound, UnsupportedType, InvalidOption: mend the call.
            AlreadyExists: there is an index of that name and another definition.
        """
        table = self.table(name)
        columns = arguments.names("columns", columns)
        include = arguments.names("include", include) if include else []
        kind = arguments.text("kind", kind)
        wanted = define_index(table, arguments.text("index", index), columns, kind, include)
        return create_index(self._context, table, wanted, on_progress)

    def drop_index(self, name: str, index: str) -> None:
        """Remove an index. Scans that read it end with `IndexChanged`."""
        table = self.table(name)
        with self._context.catalog.writing() as tx:
            tx.drop_indexes(table.id, arguments.text("index", index))

    def indexes(self, name: str) -> tuple[IndexInfo, ...]:
        """A table's indexes; those with `ready=False` are being built, or their build was killed."""
        return self._context.indexes(self.table(name).id)

    # Elasticity

    def elasticity(
        self,
        bytes_per_second: float | None = None,
        on_progress: OnProgress | None = None,
        parallel: int = 2,
    ) -> Elasticity:
        """Topology changes with a bound on copying, with progress, or with more moves at a time."""
        most = arguments.speed("bytes_per_second", bytes_per_second)
        at_once = arguments.whole_number("parallel", parallel, 1, MAX_PARALLEL)
        return Elasticity(self._context, most, on_progress, at_once)

    def expand(self, shards: Sequence[str] | Mapping[str, str]) -> Topology:
        """Add shards and move the fewest tablets that balance; returns when all have moved."""
        names, roots = arguments.shards(shards)
        return self.expand_with(self.elasticity(), names, roots)

    def expand_with(self, how: Elasticity, names: Sequence[str], roots: Mapping[str, str]) -> Topology:
        """As `expand`, carried out by an `elasticity(...)`."""
        names, _ = arguments.shards(names)
        for name in names:
            check_name("shard", name)
        self._context.catalog.check_writable()
        new = [(name, self._location.stored_root(name, roots.get(name))) for name in names]
        with new_roots(self._context, self._disks, new):
            return how.expand(new)

    def contract(self, shard: str) -> Topology:
        """Move all tablets off a shard and remove it."""
        return self.elasticity().contract(arguments.text("shard", shard))

    def move(self, tablet: int, shard: str) -> Topology:
        """Move one tablet to a shard."""
        return self.elasticity().move(_tablet("tablet", tablet), arguments.text("shard", shard))

    def split(self, tablet: int, at: int | None = None) -> Topology:
        """Cut a tablet in two at a slot (the middle by default)."""
        slot = None if at is None else arguments.whole_number("at", at, 0, MAX_SLOTS)
        return self.elasticity().split(_tablet("tablet", tablet), slot)

    def join(self, left: int, right: int) -> Topology:
        """Join two neighbouring tablets of one shard."""
        return self.elasticity().join(_tablet("left", left), _tablet("right", right))

    def resume_moves(self) -> int:
        """Finish moves of processes that died; returns how many there were."""
        return self.elasticity().resume()

    @property
    def topology(self) -> Topology:
        """The newest published topology."""
        with self._context.catalog.reading() as tx:
            return tx.newest_topology()

    def topology_history(self) -> tuple[Topology, ...]:
        """All published topologies, oldest first."""
        with self._context.catalog.reading() as tx:
            return tx.topologies()

    # Upkeep

    def compact(self, name: str | None = None) -> int:
        """Merge fragments of a table, or of all; returns how many went away."""
        self._context.catalog.check_writable()
        tables = self.tables() if name is None else (self.table(name),)
        return sum(upkeep.compact(self._context, table) for table in tables)

    def collect_garbage(
        self,
        grace_seconds: float = GC_GRACE_SECONDS,
        dry_run: bool = False,
        trash_seconds: float = TRASH_SECONDS,
        share: float = GC_SHARE,
    ) -> Collected:
        """Remove files that nothing has needed for the grace period, as far as that is proven.

        Files that were dropped (by compactions, moves, dropped tables) are deleted; files that the catalog
        does not know (left by a writer that died) are moved to the trash of their shard and deleted later.
        With a grace period shorter than the longest running write, files that it has staged are
        removed too; its commit is then refused and must be tried again.

        Args:
            grace_seconds: spare what was needed so recently.
            dry_run: change nothing, and tell what would be done, and why.
            trash_seconds: how long files stay in the trash; with 0 they do not get there.
            share: most of a shard's files (0 to 1) that may go because the catalog does not know them.

        Raises:
            StoreDamaged, CatalogOutdated, WrongRoot, StoreCopied, GarbageRefused: nothing was removed.
        """
        rules = Rules(
            arguments.seconds("grace_seconds", grace_seconds),
            arguments.seconds("trash_seconds", trash_seconds),
            arguments.share("share", share),
        )
        collected = collect_garbage(self._context, rules, arguments.flag("dry_run", dry_run))
        if not collected.dry_run:
            with self._context.catalog.writing() as tx:
                tx.forget_secrets()
        return collected

    def adopt(self) -> Adopted:
        """Make this catalog the owner of its shards, though it is an older copy, or a copy of another one.

        For after a backup of the catalog was put back, or where a copied store shall take over shards that
        it shares with the original. Commits that this catalog does not know are lost, all continuation keys
        and stream offsets from before are refused, and other copies cannot write to these shards any more.

        Raises:
            ShardUnavailable: a shard is away.
            WrongRoot: a root is another store's, or another shard's.
            StoreDamaged: the catalog is not as it was written.
        """
        return adopt(self._context)

    def verify(self) -> list[str]:
        """Look at every root's marker, and read every file; returns what is wrong, one text each."""
        return [str(error) for error in upkeep.verify(self._context)]

    def status(self) -> dict[str, Any]:
        """Shards, tablets, tables, moves, leases and the newest snapshot, as plain values."""
        return status_of(self._context)


def _tablet(option: str, value: int) -> int:
    return arguments.whole_number(option, value, 0, MAX_ID)
