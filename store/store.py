"""`Store`: a handle of a store, through which its tables, shards and upkeep are reached."""

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
from elasticscan.store.arguments import Columns, Names, Said, Shards
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
        """Make a store and open it.

        Args:
            uri: a directory, or the URL of a database for the catalog.
            shards: names of the first shards, or names with the roots of their storage (a
                directory or `s3://BUCKET/PREFIX`; needed when `uri` is a database).
            tablets: how many tablets to cut the slots into at the start.
            slots: hash buckets, 1 to 65,536; they cannot be changed later.
            hash: "spark", the one that there is: Murmur3 as in Spark's `hash()`.
            retention_seconds: how long snapshots stay readable without a lease.
            clock, disks: the time, and the disk for a root; for tests and simulations.
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
        only SELECT), the store is open for reading alone: writes raise `ReadOnlyStore`, and scans take no
        leases, so only retention keeps their snapshots.

        Args:
            uri: a directory, a database's URL, or `env:NAME` for one that an environment variable holds.
            clock, disks: as in `create`.
            read_only: write nothing, even if that would be possible.
            upkeep: "auto": after a commit, this process merges too many fragments, as far as bounded work
                allows; "off": it does not, because keepers do (`elasticscan keep`).

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
        """The reason why the store is open for reading alone; None when it can be written."""
        return self.context.catalog.read_only

    @property
    def backend(self) -> EmbeddedBackend:
        """The store as Spark and the terminal need it, beyond the methods here."""
        return EmbeddedBackend(self.context)

    @property
    def context(self) -> Context:
        """The state that the parts of an open store share, for the layers above."""
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
        """Make a table, empty or with its first rows.

        Args:
            name: 1 to 64 of a-z, 0-9 and _.
            schema: columns of any Arrow type that Spark can read; or rows as for `Table.upsert`, of which the
                table is made, or not at all.
            primary_key: columns of type bool, integer, decimal, date, timestamp, string or binary.
            shard_key: the prefix of the primary key that decides a row's slot; all of it by default.
            compression: None, "lz4" or "zstd".

        Raises:
            InvalidOption, SchemaMismatch: mend the call.
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
        """Return a table by its name. Raises `NotFound`, with a suggestion."""
        return Table(self.context, self.context.state().table_named(arguments.text("name", name)))

    def tables(self) -> tuple[Table, ...]:
        """List all tables by name. Raises `ShardMismatch` if the shards know newer ones."""
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
        user_metadata: Said = None,
    ) -> Loaded:
        """Load files into a table; one commit over all of them, or one for each under the name of a job.

        Args:
            table: its name; it is made with the columns of the first file, if there is none and a primary
                key is given, and is not there when the load fails.
            source: a file, a directory (with all below it; `year=2024` in a directory's name is a column), a
                pattern such as `in/**/*.parquet`, or an address as `s3://bucket/in/`; or a list of these.
            primary_key, shard_key, compression: as in `create_table`.
            mode: "upsert", "insert" (refuse keys that are there), or "overwrite" (replace all rows).
            format: "csv", "json" (an object a line), "parquet", "arrow" or "orc"; by the names of files if
                left out.
            nulls: what stands for null in CSV alongside a field with nothing in it.
            types: Arrow's types of columns of a new table, instead of inferred ones.
            delimiter: the character between fields of CSV.
            column_names: the columns of CSV that has no first line of names.
            job: a name, under which the load can be stopped, killed and called again: each file is a commit
                then, and files that the job has committed before are skipped, unless they changed since.
            if_unchanged_since, user_metadata: as in `Table.upsert`.

        Raises `InvalidOption`, `NotFound` or `SchemaMismatch`: mend the call. `AlreadyExists` and
        `RowsChanged`: as in `Table.insert` and `Table.upsert`.

        Example:
            >>> store.load("flights", "flights/*.csv", primary_key="id", nulls=["NA"])
            Loaded(table='flights', rows=336776, commit=2, created=True, skipped=0)
        """
        form = None if format is None else arguments.choice("format", format, FORMATS)
        columns = arguments.columns("column_names", column_names)
        rules = TextRules(
            arguments.names("nulls", nulls), arguments.types("types", types), delimiter, columns
        )
        made = {
            "primary_key": arguments.columns("primary_key", primary_key),
            "shard_key": arguments.columns("shard_key", shard_key),
            "compression": compression,
        }
        how = arguments.choice("mode", mode, MODES)
        once = None if job is None else arguments.application("job", job)
        since = arguments.whole_or_none("if_unchanged_since", if_unchanged_since)
        said = arguments.user_metadata(user_metadata)
        name, files = arguments.text("table", table), find_files(arguments.places("source", source), form)
        return load_files(self.context, name, files, how, rules, made, once, since, said)

    # Reading

    def resume(self, key: str) -> Scan:
        """Continue a scan from a page's key, in any process that can open the store.

        Raises `ContinuationKeyError` if the key is not one of this store, or was cut or altered;
        `SnapshotExpired` if it was given out too long ago; `SnapshotExpired` or `TableChanged` if its
        snapshot or table is gone: start a new scan.
        """
        return resume_scan(self.context, key)

    def rotate_secret(self, *, revoke: bool = False) -> int:
        """Replace the secrets of continuation keys and of streams' offsets; return the first one's number.

        Old keys go on until their time is up (30 days, or as long as snapshots are kept if that is longer);
        then the old secret is deleted. Other processes use the new secrets at once.

        With `revoke` the old secrets are deleted at once, as after a leak. Old keys, planned Spark reads and
        checkpoints of streams then end with `ContinuationKeyError`.
        """
        return rotate_secrets(self.context.catalog, revoke)

    # Elasticity

    def expand(self, shards: Shards) -> Topology:
        """Add the shards that are not there yet, and move the fewest tablets that balance them all."""
        names, roots = arguments.shards(shards)
        self.context.catalog.check_writable()
        with new_roots(self.context, names, roots) as new:
            return elasticity.expand(self.context, new)

    def contract(self, shard: str) -> Topology:
        """Move all tablets off a shard and remove it."""
        return elasticity.contract(self.context, arguments.text("shard", shard))

    def rebalance(self) -> Topology:
        """Move the fewest tablets that balance the shards, as after some were moved by hand."""
        return elasticity.expand(self.context, ())

    def move(self, tablet: int, shard: str) -> Topology:
        """Move one tablet to a shard."""
        tablet, shard = arguments.whole_number("tablet", tablet), arguments.text("shard", shard)
        return elasticity.move(self.context, tablet, shard)

    def split(self, tablet: int, at: int | None = None) -> Topology:
        """Cut a tablet in two at a slot (the middle by default)."""
        return elasticity.split(
            self.context, arguments.whole_number("tablet", tablet), arguments.whole_or_none("at", at)
        )

    def join(self, left: int, right: int) -> Topology:
        """Join two neighbouring tablets of one shard."""
        return elasticity.join(
            self.context, arguments.whole_number("left", left), arguments.whole_number("right", right)
        )

    def resume_moves(self) -> int:
        """Finish moves of processes that died; return how many there were."""
        return elasticity.resume(self.context)

    @property
    def topology(self) -> Topology:
        """Return the newest published topology, the base of scans that begin now."""
        return self.context.ask(newest_topology)

    def topology_history(self, limit: int | None = None) -> tuple[TopologyEntry, ...]:
        """List the newest `limit` kept topologies, or all, oldest first.

        The last one is not published while a plan moves tablets. `collect_garbage` deletes those that were
        replaced longer ago than the store's retention.
        """
        most = arguments.whole_or_none("limit", limit)
        return self.context.ask(lambda tx: topology_entries(tx, most))

    def slot_map(self, limit: int = 100) -> SlotMap:
        """Draw where the slots were: slots across, time down, a colour for each shard.

        It has the newest `limit` topologies (1 to 1,000), as far as they are kept. A notebook shows it;
        `slot_map().svg` is the text of an SVG file.
        """
        most = arguments.whole_number("limit", limit, 1, 1_000)
        return self.context.ask(lambda tx: slot_map(tx, most))

    def _repr_html_(self) -> str:
        """Return the picture that notebooks show."""
        return self.slot_map(40).svg

    # Upkeep

    def compact(self) -> int:
        """Merge fragments of every table; return how many were removed, less those added."""
        return sum(table.compact() for table in self.tables())

    def keep(self) -> RoundDone:
        """Do all pending upkeep, as `elasticscan keep --once`; return what was done.

        Merges fragments, splits, joins and moves tablets, and collects garbage. Any number of processes may
        do so at once: each step has one owner. Scans, writes and moves go on.

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
        """Remove files that nothing has needed for the grace period, as far as that is proven.

        These are dropped files (of compactions, moves, dropped tables), and orphans, which the catalog does
        not know (of a writer that died). A write that takes longer than `orphan_seconds` may lose its staged
        files; its commit is then refused.

        Args:
            grace_seconds: spare what was needed so recently.
            dry_run: change nothing; return what would be done, and why.
            orphan_seconds: spare orphans that were changed so recently.
            share: most of a shard's files (0 to 1) that may go because the catalog does not know them.

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
        """Copy the whole store at one moment, with all snapshots that it keeps, to a place where nothing is.

        Each file is read back and compared with its checksums. Writers, moves and merges go on meanwhile.
        What was interrupted is no backup: remove it, and make another one. It has all rows and secrets of the
        store, so the place needs the same protection.

        Args:
            target: a directory that is empty or not there yet, or such an `s3://BUCKET/PREFIX`.

        Raises `InvalidOption` if the place is not empty; `FragmentDamaged` or `StoreDamaged` if the store is
        not whole: there is no backup.
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
        """Make a store of a backup, and open it: another copy than the original, with its own roots.

        Continuation keys and stream offsets of the original are refused. Moves that had begun are
        resumed or undone as after a crash.

        Args:
            backup: its place.
            uri: the new store's directory, or the URL of a database for its catalog.
            roots: of shards, by name; those left out lie in the store's directory.
            clock, disks: as in `create`.

        Raises `NotFound` if there is no backup; `AlreadyExists` or `InvalidOption` if the new place is
        taken; `FragmentDamaged` or `StoreDamaged` if the backup is not as it was written: nothing was made.
        """
        clock, place = clock or SystemClock(), arguments.place("uri", uri)
        own = arguments.roots("roots", roots)
        restore_backup(arguments.place("backup", backup), place, own, clock, disks)
        store = cls.open(place, clock, disks)
        store.context.roots.note_newest(store.context.shard_names())  # else no root knows a copy of it
        return store

    def adopt(self) -> Adopted:
        """Make this catalog the owner of its shards, though it is an older copy, or a copy of another one.

        Commits that this catalog does not know are lost, all earlier continuation keys and stream offsets are
        refused, and other copies cannot write to these shards any more.

        Raises `ShardUnavailable` if a shard cannot be reached, `ShardMismatch` if a root is another store's
        or shard's, and `StoreDamaged` if the catalog is not as it was written.
        """
        return self.context.roots.adopt()

    def verify(self) -> list[verifying.Finding]:
        """Check the catalog, every root's marker and every file; return the findings."""
        return list(verifying.verify(self.context))

    def status(self) -> dict[str, Any]:
        """Return shards, tablets, tables, moves, leases, scans and the newest snapshot as plain values.

        No data is read: a table's `rows` is an upper bound, and exact if `rows_exact`.
        """
        return status_of(self.context)
