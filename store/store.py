"""`Store`: a handle of a store, with methods for its tables, shards and upkeep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from elasticscan.base.clock import Clock, SystemClock
from elasticscan.base.errors import InvalidOption
from elasticscan.base.hashing import HASH
from elasticscan.base.limits import (
    DEFAULT_SLOTS,
    DEFAULT_TABLETS,
    GC_GRACE_SECONDS,
    GC_SHARE,
    ORPHAN_SECONDS,
    RETENTION_SECONDS,
)
from elasticscan.base.redaction import shown
from elasticscan.catalog import newest_topology, slot_map, topology_entries
from elasticscan.storage import open_disk
from elasticscan.store import arguments, verifying
from elasticscan.store.arguments import Columns, Names, Note, Shards
from elasticscan.store.backend import EmbeddedBackend
from elasticscan.store.context import Context
from elasticscan.store.context.high_water_marks import Adopted
from elasticscan.store.context.sealing import rotate_secrets
from elasticscan.store.copies.backup import BackedUp, back_up, restore_backup
from elasticscan.store.copies.creation import Disks, first_record, make_store, new_roots
from elasticscan.store.moves import elasticity
from elasticscan.store.opening import open_context
from elasticscan.store.reading.scan import Scan, resume_scan
from elasticscan.store.roots import Location
from elasticscan.store.rows.conversion import first_rows
from elasticscan.store.rows.files import FORMATS, TextRules, find_files
from elasticscan.store.status import status_of
from elasticscan.store.table import Table
from elasticscan.store.upkeep.collector import Collected, collect_garbage
from elasticscan.store.upkeep.executor import RoundDone, keep
from elasticscan.store.upkeep.garbage import GarbageRules
from elasticscan.store.writing.definitions import define_table, enter_table, reserve_table
from elasticscan.store.writing.loading import MODES, Loaded, load_files
from elasticscan.store.writing.transactions import WriteTransaction
from elasticscan.topology import SlotMap, Topology, TopologyEntry

AUTO, OFF = UPKEEP = "auto", "off"


class Store:
    """A sharded, elastic table store.

    Any number of processes and threads may read, write and move tablets at once.

    Example:
        >>> store = Store.create("flights.store", shards=["s1", "s2"])
        >>> trips = store.create_table("trips", pa.schema([("id", pa.int64()), ("km", pa.float64())]), ["id"])
        >>> trips.upsert(pa.table({"id": [1, 2], "km": [0.5, 0.25]}))
        2
        >>> trips.scan(filter="km > 0.3").to_table().num_rows
        1
    """

    def __init__(self, context: Context) -> None:
        self._opened = context

    def __reduce__(self) -> NoReturn:
        raise InvalidOption("a Store cannot be pickled; send store.uri and open it there", kind="Store")

    def __repr__(self) -> str:
        return f"<elasticscan.Store {shown(self.uri)}>"

    # Opening

    @classmethod
    def create(
        cls,
        uri: str | Path,
        shards: Shards,
        tablets: int = DEFAULT_TABLETS,
        slots: int = DEFAULT_SLOTS,
        *,
        hash: str = HASH,  # noqa: A002 - the word users know
        retention_seconds: float = RETENTION_SECONDS,
        clock: Clock | None = None,
        disks: Disks = open_disk,
        upkeep: str = AUTO,
    ) -> Store:
        """Create a store and open it.

        Args:
            uri: a directory, or the URL of a database for the catalog.
            shards: names of the first shards, or a dict of names and storage roots. A root is a directory or
                `s3://BUCKET/PREFIX`; it is required if `uri` is a database.
            tablets: number of tablets at the start.
            slots: number of hash buckets, 1 to 65,536; it cannot be changed later.
            hash: "spark", the only one: Murmur3 as in Spark's `hash()`.
            retention_seconds: how long snapshots stay readable without a lease.
            clock, disks: replace the system clock and the storage of a root, in tests and simulations.
            upkeep: as in `open`.

        Raises `AlreadyExists` if there is a store at `uri`, `InvalidOption` if an argument is out of bounds.
        """
        clock = clock or SystemClock()
        location = Location.of(arguments.place("uri", uri))
        upkeep = arguments.choice("upkeep", upkeep, UPKEEP)
        new = first_record(location, shards, tablets, slots, hash, retention_seconds)
        make_store(location, disks, clock, new)
        return cls.open(uri, clock, disks, upkeep=upkeep)

    @classmethod
    def open(
        cls,
        uri: str | Path,
        clock: Clock | None = None,
        disks: Disks = open_disk,
        *,
        read_only: bool = False,
        upkeep: str = AUTO,
    ) -> Store:
        """Open a store.

        If the catalog cannot be written (a read-only mount, another user's store, a database user who may
        only SELECT), the store is opened read-only: writes raise `ReadOnlyStore`, and scans have no leases,
        so only retention keeps their snapshots.

        Args:
            uri: a directory, a database's URL, or `env:NAME` to read either from an environment variable.
            clock, disks: as in `create`.
            read_only: write nothing, even if the catalog can be written.
            upkeep: "auto": after a commit, this process merges fragments if there are too many, with a bound
                on the work; "off": it does not, because keepers do (`elasticscan keep`).

        Raises `NotFound` if there is none, `StoreTooNew` if a newer release made it.
        """
        location = Location.of(arguments.place("uri", uri))
        follows = arguments.choice("upkeep", upkeep, UPKEEP) == AUTO
        return cls(open_context(location, clock or SystemClock(), disks, read_only, follows))

    def close(self) -> None:
        """Close database connections and open files."""
        self._opened.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def uri(self) -> str:
        return self._opened.location.uri

    @property
    def read_only(self) -> str | None:
        """The reason why the store is read-only; None if it can be written."""
        return self.context.catalog.read_only

    @property
    def backend(self) -> EmbeddedBackend:
        """The store behind the interface of all back ends, for Spark and the command line."""
        return EmbeddedBackend(self.context)

    @property
    def context(self) -> Context:
        """The shared state of the open store, for the layers above."""
        return self._opened.here()

    # Tables

    def create_table(
        self,
        name: str,
        schema: pa.Schema | Any,
        primary_key: Names,
        shard_key: Columns = None,
        compression: str | None = None,
    ) -> Table:
        """Create a table, empty or with its first rows.

        Args:
            name: 1 to 64 characters of a-z, 0-9 and _.
            schema: columns of any Arrow type that Spark can read; or rows as for `Table.upsert`, which define
                the columns and are the first commit. If that commit fails, there is no table.
            primary_key: columns of type bool, integer, decimal, date, timestamp, string or binary.
            shard_key: the prefix of the primary key that decides a row's slot; by default the whole key.
            compression: None, "lz4" or "zstd".

        Raises:
            InvalidOption, SchemaMismatch: an argument is wrong.
            LimitExceeded: the definition is too large, or nested too deep.
            AlreadyExists: there is a table of this name.
        """
        rows = None if isinstance(schema, pa.Schema) else first_rows(schema)
        if rows is None:
            info = define_table(name, schema, primary_key, shard_key, compression)
            return Table(self.context, enter_table(self.context, info))
        table = reserve_table(self.context, name, rows.schema, primary_key, shard_key, compression)
        WriteTransaction(self.context, partial(self.context.table, name=name)).write(table, rows)
        return self.table(name)

    def table(self, name: str) -> Table:
        """Return a table by its name. Raises `NotFound`, which suggests a similar name."""
        return Table(self.context, self.context.state().table_named(arguments.text("name", name)))

    def tables(self) -> tuple[Table, ...]:
        """List all tables by name. Raises `ShardMismatch` if a shard has seen a newer commit."""
        self.context.check_newest()
        return tuple(Table(self.context, info) for info in self.context.state().infos())

    def load(
        self,
        table: str,
        source: Any,
        *,
        primary_key: Columns = None,
        shard_key: Columns = None,
        compression: str | None = None,
        mode: str = "upsert",
        format: str | None = None,  # noqa: A002 - the word users know
        nulls: Sequence[str] = (),
        types: Mapping[str, pa.DataType | str] | None = None,
        delimiter: str = ",",
        column_names: Sequence[str] | None = None,
        job: str | None = None,
        if_unchanged_since: int | None = None,
        user_metadata: Note = None,
    ) -> Loaded:
        """Load files into a table: all files in one commit, or with `job` one commit per file.

        Args:
            table: the table's name. If there is no such table and `primary_key` is given, it is created with
                the columns of the first file; if the load fails, it is not created.
            source: a file, a directory (read recursively; `year=2024` in a directory's name is a column), a
                pattern such as `in/**/*.parquet`, or a URI such as `s3://bucket/in/`; or a list of these.
            primary_key, shard_key, compression: as in `create_table`.
            mode: "upsert", "insert" (refuse keys that exist), or "overwrite" (replace all rows).
            format: "csv", "json" (an object per line), "parquet", "arrow" or "orc"; by default the ending of
                each file decides.
            nulls: texts that mean null in CSV, in addition to an empty field.
            types: Arrow types of columns of a new table, instead of inferred ones.
            delimiter: the character between fields of CSV.
            column_names: names of the columns, for CSV without a header line.
            job: a name that makes the load resumable: each file is a commit, and a repeated call skips files
                that the job has committed, unless they changed since.
            if_unchanged_since, user_metadata: as in `Table.upsert`.

        Raises `InvalidOption`, `NotFound` or `SchemaMismatch` if an argument or a file is wrong;
        `AlreadyExists` as `Table.insert`, `RowsChanged` as `Table.upsert`.

        Example:
            >>> store.load("flights", "flights/*.csv", primary_key="id", nulls=["NA"])
            Loaded(table='flights', rows=336776, commit=2, created=True, skipped=0)
        """
        form = None if format is None else arguments.choice("format", format, FORMATS)
        columns = arguments.columns("column_names", column_names)
        rules = TextRules(
            arguments.names("nulls", nulls), arguments.types("types", types), delimiter, columns
        )
        definition = {
            "primary_key": arguments.columns("primary_key", primary_key),
            "shard_key": arguments.columns("shard_key", shard_key),
            "compression": compression,
        }
        mode = arguments.choice("mode", mode, MODES)
        job = None if job is None else arguments.application("job", job)
        since = arguments.whole_or_none("if_unchanged_since", if_unchanged_since)
        metadata = arguments.user_metadata(user_metadata)
        name, files = arguments.text("table", table), find_files(arguments.places("source", source), form)
        return load_files(self.context, name, files, mode, rules, definition, job, since, metadata)

    # Reading

    def resume(self, key: str) -> Scan:
        """Resume a scan from a page's key, in any process that can open the store.

        Raises `ContinuationKeyError` if the key is not from this store, or was truncated or altered;
        `SnapshotExpired` if the key is too old or its snapshot is gone, `TableChanged` if its table is gone:
        start a new scan.
        """
        return resume_scan(self.context, key)

    def rotate_secret(self, *, revoke: bool = False) -> int:
        """Replace the secrets of continuation keys and of stream offsets; return the number of the new ones.

        Keys sealed before stay valid until they expire (after 30 days, or the retention period if that is
        longer); then the old secret is deleted. Other processes use the new secrets from now on.

        With `revoke` the old secrets are deleted now, as after a leak. Keys, planned Spark reads and stream
        checkpoints from before then raise `ContinuationKeyError`.
        """
        return rotate_secrets(self.context.catalog, revoke)

    # Elasticity

    def expand(self, shards: Shards) -> Topology:
        """Add the shards that the store does not have yet, and move the fewest tablets that balance all."""
        names, roots = arguments.shards(shards)
        self.context.catalog.check_writable()
        with new_roots(self.context, names, roots) as new:
            return elasticity.expand(self.context, new)

    def contract(self, shard: str) -> Topology:
        """Move all tablets off a shard and remove it."""
        return elasticity.contract(self.context, arguments.text("shard", shard))

    def rebalance(self) -> Topology:
        """Move the fewest tablets that balance the shards, for example after moves by hand."""
        return elasticity.expand(self.context, ())

    def move(self, tablet: int, shard: str) -> Topology:
        """Move one tablet to a shard."""
        tablet, shard = arguments.whole_number("tablet", tablet), arguments.text("shard", shard)
        return elasticity.move(self.context, tablet, shard)

    def split(self, tablet: int, at: int | None = None) -> Topology:
        """Split a tablet at a slot, by default in the middle."""
        return elasticity.split(
            self.context, arguments.whole_number("tablet", tablet), arguments.whole_or_none("at", at)
        )

    def join(self, left: int, right: int) -> Topology:
        """Join two neighbouring tablets of one shard."""
        return elasticity.join(
            self.context, arguments.whole_number("left", left), arguments.whole_number("right", right)
        )

    def resume_moves(self) -> int:
        """Finish the moves of processes that died; return their number."""
        return elasticity.resume(self.context)

    @property
    def topology(self) -> Topology:
        """The newest published topology, the base of scans that begin now."""
        return self.context.ask(newest_topology)

    def topology_history(self, limit: int | None = None) -> tuple[TopologyEntry, ...]:
        """List the newest `limit` topologies of the history, or all, oldest first.

        While a plan moves tablets, the last one is not published yet. `collect_garbage` deletes topologies
        that were replaced before the store's retention period.
        """
        most = arguments.whole_or_none("limit", limit)
        return self.context.ask(lambda tx: topology_entries(tx, most))

    def slot_map(self, limit: int = 100) -> SlotMap:
        """Draw the topology history: slots from left to right, time downwards, a colour for each shard.

        Shows the newest `limit` topologies (1 to 1,000) that are kept. A notebook displays the result;
        `slot_map().svg` is the text of an SVG file.
        """
        most = arguments.whole_number("limit", limit, 1, 1_000)
        return self.context.ask(lambda tx: slot_map(tx, most))

    def _repr_html_(self) -> str:
        """Return the slot map, for notebooks."""
        return self.slot_map(40).svg

    # Upkeep

    def compact(self) -> int:
        """Merge fragments of every table; return the number removed minus the number added."""
        return sum(table.compact() for table in self.tables())

    def keep(self) -> RoundDone:
        """Do all pending upkeep, as `elasticscan keep --once`; return counts of the steps done.

        Merges fragments, splits, joins and moves tablets, and collects garbage. Any number of processes may
        call it in parallel: each step has one owner. Scans, writes and moves continue meanwhile.

        Raises `ReadOnlyStore` if the store cannot be written.
        """
        return keep(self.context)

    def collect_garbage(
        self,
        *,
        grace_seconds: float = GC_GRACE_SECONDS,
        dry_run: bool = False,
        orphan_seconds: float = ORPHAN_SECONDS,
        share: float = GC_SHARE,
    ) -> Collected:
        """Remove files that nothing has used for the grace period, if there is proof of that.

        These are dropped files (from compactions, moves, dropped tables), and orphans: files that the catalog
        does not know, such as those of a writer that died. A write that takes longer than `orphan_seconds`
        may lose its staged files; its commit is then refused.

        Args:
            grace_seconds: keep files that were in use within this time.
            dry_run: change nothing; return what would be removed, and why.
            orphan_seconds: keep orphans that were changed within this time.
            share: the largest share (0 to 1) of a shard's files that may be removed as orphans.

        Raises:
            StoreDamaged, ShardMismatch: nothing was removed.
        """
        rules = GarbageRules(
            arguments.number("grace_seconds", grace_seconds),
            arguments.number("orphan_seconds", orphan_seconds),
            arguments.number("share", share, most=1),
        )
        return collect_garbage(self.context, rules, dry_run)

    def backup(self, target: str | Path) -> BackedUp:
        """Copy the whole store as it is now, with all snapshots that it keeps, to an empty directory.

        Each copied file is read back and its checksum verified. Writes, moves and merges continue meanwhile.
        An interrupted backup cannot be used: remove it, and start again. A backup has all rows and secrets of
        the store, so it needs the same protection.

        Args:
            target: an empty or missing directory, or an `s3://BUCKET/PREFIX` without objects.

        Raises `InvalidOption` if the target is not empty; `FragmentDamaged` or `StoreDamaged` if the store is
        damaged. The backup cannot be used then.
        """
        return back_up(self.context, arguments.place("target", target))

    @classmethod
    def from_backup(
        cls,
        backup: str | Path,
        uri: str | Path,
        roots: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        disks: Disks = open_disk,
    ) -> Store:
        """Create a store from a backup, and open it. It is independent of the original, with its own roots.

        Continuation keys and stream offsets of the original are refused. Moves that had begun are
        resumed or undone as after a crash.

        Args:
            backup: the backup's directory or URI.
            uri: the new store's directory, or the URL of a database for its catalog.
            roots: roots of shards, by name; other shards get a root in the store's directory.
            clock, disks: as in `create`.

        Raises `NotFound` if there is no backup; `AlreadyExists` or `InvalidOption` if the new place is
        in use; `FragmentDamaged` or `StoreDamaged` if the backup is damaged. No store is created then.
        """
        clock, place = clock or SystemClock(), arguments.place("uri", uri)
        roots = arguments.roots("roots", roots)
        restore_backup(arguments.place("backup", backup), place, roots, clock, disks)
        store = cls.open(place, clock, disks)
        store.context.roots.note_newest(store.context.shard_names())  # or an older catalog is not noticed
        return store

    def adopt(self) -> Adopted:
        """Make this catalog the owner of its shards, even if it is an older version or a copy.

        Commits that this catalog does not have are lost, all earlier continuation keys and stream offsets are
        refused, and other copies of the catalog cannot write to these shards any more.

        Raises `ShardUnavailable` if a shard cannot be reached, `ShardMismatch` if a root belongs to another
        store or another shard, and `StoreDamaged` if the catalog is damaged.
        """
        return self.context.roots.adopt()

    def verify(self) -> list[verifying.Finding]:
        """Check the catalog, every root's marker and every file; return the findings."""
        return list(verifying.verify(self.context))

    def status(self) -> dict[str, Any]:
        """Return shards, tablets, tables, moves, leases, streams and the newest snapshot as plain values.

        Reads no data files. The `rows` of a table is an upper bound; it is exact if `rows_exact` is True.
        """
        return status_of(self.context)
