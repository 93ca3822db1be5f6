"""A store made again from its files, into another one. The damaged store is only read.

The manifests of the files take the catalog's place; `plan.py` says by which rules, and what they cannot
tell. A catalog that is still whole answers that, and names the files that are gone (`catalog.py`).
Where a file is damaged, the record batches that can still be read are taken, and the report names the losses.

What comes back is the newest state of each table: rows, definitions, indexes. Older snapshots, commits, the
topology history, leases and the sealing secrets do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from elasticscan.base.errors import (
    AlreadyExists,
    ElasticScanError,
    FragmentDamaged,
    InvalidOption,
    OperatorNeeded,
    ShardUnavailable,
    StoreDamaged,
)
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS, DEFAULT_TABLETS
from elasticscan.base.redaction import shown
from elasticscan.metadata import FRAGMENT, Fragment, TableInfo
from elasticscan.protocol import Cursor, PageRequest
from elasticscan.storage import (
    BatchCache,
    Disk,
    FragmentReader,
    PageSource,
    View,
    described_columns,
    find_seal,
    is_fragment_path,
    open_disk,
    read_page,
)
from elasticscan.store.context import Context
from elasticscan.store.copies.making import check_no_store, staging_of
from elasticscan.store.repair.catalog import KnownStore, ask_catalog
from elasticscan.store.repair.plan import FoundFile, PlannedPiece, StorePlan, TablePlan, plan_repair
from elasticscan.store.repair.trash import with_trash
from elasticscan.store.roots import Location
from elasticscan.store.roots.aliases import place_of
from elasticscan.store.store import Store
from elasticscan.store.upkeep.garbage import trashed_places
from elasticscan.store.writing import writer
from elasticscan.store.writing.indexing import create_index, define_index
from elasticscan.topology import SlotSet

MOST_READERS = 256


@dataclass(slots=True)
class RepairReport:
    """The result of a repair, as plain values.

    Attributes:
        tables: name and rows of each table that was made again.
        lost: what could not be read: file, table, slots, rows.
        doubts: what the files could not tell, as sentences.
    """

    tables: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def find_files(disks: Sequence[Disk], unreadable: dict[str, str]) -> Iterator[FoundFile]:
    """Every whole file of a store below some roots; of the others, why they cannot be read."""
    for root, disk in enumerate(disks):
        for path, _ in disk.list():
            if not is_fragment_path(path) or path.endswith(".unfinished"):
                continue
            try:
                manifest, seal = find_seal(disk, path)
            except OperatorNeeded as error:
                unreadable[path] = error.message
            else:
                yield FoundFile(root, manifest, seal)


def plan_from_files(
    disks: Sequence[Disk], report: RepairReport, store: str | None, catalog: KnownStore | str
) -> StorePlan:
    """Plan a store from its files and its catalog; raises `StoreDamaged` when there are no files."""
    unreadable: dict[str, str] = {}
    files = list(find_files(disks, unreadable))
    known_store, why = (None, catalog) if isinstance(catalog, str) else (catalog, None)
    if known_store is not None:
        is_foreign = store not in (None, known_store.store)
        why = "it is of another store" if is_foreign else known_store.why_not_believed(files, disks)
    if known_store is None or why is not None:
        plan = plan_repair(files, store)
        report.lost += _describe_unreadable(unreadable, files)
        report.doubts += [
            f"the catalog was not used ({why}): files that are gone altogether are not noticed",
            "tables and indexes that were dropped shortly before may have come back",
            "writes count in the order in which they began",
            "rows that an overwrite by no rows replaced may have come back",
        ]
        trashed = sum(len(trashed_places(path for path, _ in disk.list())) for disk in disks)
        if trashed:
            report.doubts.append(
                f"{trashed} files lie in the trash of the shards and were left out: no catalog says whether "
                "they are garbage"
            )
    else:
        sifted = list(known_store.sift(files, report.doubts))
        plan = plan_repair(sifted, known_store.store, known_store.indexes)
        if plan is not None:
            tables = (known_store.complete(table) for table in plan.tables)
            plan = replace(plan, tables=tuple(tables))
        report.lost += known_store.lost({file.manifest.path for file in sifted}, unreadable)
        made = {file.manifest.table for file in sifted if file.manifest.kind == FRAGMENT}
        report.doubts += [
            f"table {table.name!r}: no file of it is there, so it was not made"
            for table in known_store.tables.values()
            if table.id not in made
        ]
    if plan is None:
        raise StoreDamaged(
            "there is no file of a store below these roots; name the roots of its shards"
            + (f" (looked for store {store})" if store else "")
        )
    if plan.foreign:
        report.doubts.append(f"{len(plan.foreign)} files are of another store and were left out")
    for table in plan.tables:
        report.doubts += table.doubts
    return plan


def _describe_unreadable(unreadable: Mapping[str, str], files: Sequence[FoundFile]) -> Iterator[str]:
    """Describe the losses by files of which nothing is known but their directory."""
    names = {f"t{file.manifest.table}": file.manifest.table_name for file in files}
    for path, why in sorted(unreadable.items()):
        directory = path.split("/")[0]
        name = repr(names[directory]) if directory in names else f"in {directory}, which no whole file names"
        yield f"table {name}: a file whose footer cannot be read, so its rows and slots are not known: {why}"


class TableRows:
    """The rows of one planned table at its newest state, in pages, as far as its files can be read."""

    def __init__(self, plan: TablePlan, disks: Sequence[Disk], slots: int, report: RepairReport) -> None:
        self._plan, self._disks, self._slots, self._report = plan, disks, slots, report
        self._cache = BatchCache()
        self._damaged: dict[int, frozenset[int]] = {}  # by number of the piece, its unreadable batches
        self.info = self._definition()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        fragments = [_fragment(number, piece) for number, piece in enumerate(self._plan.pieces)]
        fragments = [fragment for fragment in fragments if self._is_readable(fragment)]
        open_fragment = lru_cache(maxsize=MOST_READERS)(self._open)
        source = PageSource(self.info, View(fragments), open_fragment, self._plan.floor)
        request = PageRequest(
            self.info.id,
            shard=0,
            cursors=(Cursor(SlotSet.span(0, self._slots)),),
            snapshot=max((f.max_commit for f in fragments), default=0),
            columns=tuple(self.info.schema.names),
            page_rows=DEFAULT_PAGE_ROWS,
            page_bytes=DEFAULT_PAGE_BYTES,
        )
        while request.cursors:
            page = read_page(source, request)
            request = replace(request, cursors=page.after)
            if page.rows.num_rows:
                yield page.rows

    def _open(self, fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        without = self._damaged.get(fragment.id, frozenset())
        disk = self._disks[fragment.shard]
        return FragmentReader(
            disk, fragment.path, columns, fragment.seal, self.info, self._cache, without=without
        )

    def _is_readable(self, fragment: Fragment) -> bool:
        """Note which of a fragment's batches cannot be read; false when none can."""
        try:
            reader = self._open(fragment, tuple(self.info.schema.names))
        except OperatorNeeded as error:
            self._lose(fragment, f"all {fragment.rows:,} rows in slots {fragment.slots}", error)
            return False
        damaged = set()
        for number in range(reader.batch_count):
            try:
                reader.batch(number)
            except OperatorNeeded as error:
                damaged.add(number)
                rows = int(reader.starts[number + 1] - reader.starts[number])
                first, last = reader.slot_range(number)
                self._lose(fragment, f"{rows:,} rows in slots {first}-{last + 1}", error)
        self._damaged[fragment.id] = frozenset(damaged)
        return len(damaged) < reader.batch_count

    def _lose(self, fragment: Fragment, loss: str, error: OperatorNeeded) -> None:
        self._report.lost.append(
            f"table {self._plan.name!r}: {loss}, of commits {fragment.min_commit} to {fragment.max_commit} "
            f"(older versions of them may come back): {error.message}"
        )

    def _definition(self) -> TableInfo:
        """Return the table as a whole catalog knows it, else as the file of its newest definition does."""
        newest: TableInfo | None = None
        # Of one definition, too, the newest file says how the table is compressed by now.
        for piece in sorted(self._plan.pieces, key=_age, reverse=True):
            if newest is not None:
                break
            manifest = piece.file.manifest
            with suppress(OperatorNeeded):
                disk = self._disks[piece.file.root]
                schema, columns = described_columns(disk, manifest.path, piece.file.seal)
                newest = TableInfo(
                    0,
                    self._plan.name,
                    schema,
                    manifest.primary_key,
                    manifest.shard_key,
                    manifest.compression,
                    0,
                    0,
                    definition=manifest.definition,
                    columns=columns,
                )
        if newest is None:
            raise FragmentDamaged(
                f"no file of table {self._plan.name!r} can be read, so its columns are not known",
                table=self._plan.name,
            )
        known = self._plan.definition or newest
        return replace(
            newest,
            schema=known.schema,
            definition=known.definition,
            columns=known.columns,
            compression=known.compression,
        )


def _age(piece: PlannedPiece) -> tuple[int, int, float]:
    manifest = piece.file.manifest
    return manifest.definition, manifest.after_commit, manifest.began_at


def _fragment(number: int, piece: PlannedPiece) -> Fragment:
    """Return a piece as the reader of pages takes it; its root stands in for its shard."""
    manifest, seal = piece.file.manifest, piece.file.seal
    return Fragment(
        id=number,
        table=manifest.table,
        shard=piece.file.root,
        path=manifest.path,
        slots=piece.slots,
        rows=manifest.rows,
        bytes=seal.bytes,
        unique=manifest.unique,
        tombstones=manifest.tombstones,
        versioned=piece.min_commit < piece.max_commit,
        tail=seal.tail,
        digest=seal.digest,
        min_commit=piece.min_commit,
        max_commit=piece.max_commit,
    )


def repair_into(context: Context, plan: StorePlan, disks: Sequence[Disk], report: RepairReport) -> None:
    """Make the planned tables in a store that was just made for them, one commit each."""
    for planned in plan.tables:
        try:
            rows = TableRows(planned, disks, plan.slots, report)
        except FragmentDamaged as error:
            report.lost.append(f"table {planned.name!r}: {error.message}")
            continue
        with context.catalog.writing() as tx:
            # Its own files begin with a first definition.
            table = tx.create_table(planned.name, replace(rows.info, definition=1, columns=()))
        reader = pa.RecordBatchReader.from_batches(rows.info.schema, iter(rows))
        writer.write(context, table, reader)
        with context.catalog.reading() as tx:
            report.tables[planned.name] = sum(fragment.rows for fragment in tx.fragments(table=table.id))
        for index in planned.indexes:
            try:
                definition = define_index(table, index.name, index.columns, index.kind, index.include)
                create_index(context, table, definition)
            except ElasticScanError as error:
                report.doubts.append(f"index {index.name!r} of table {planned.name!r} was not made: {error}")


def repair_store(
    uri: str | Path,
    into: str | Path,
    roots: Sequence[str] | None = None,
    store_id: str | None = None,
    disks: Callable[[str], Disk] = open_disk,
) -> RepairReport:
    """Make a store again from the files of another one, whose catalog need not be readable.

    Args:
        uri: the damaged store; it is only read.
        into: where the new store is made: a directory where there is none yet.
        roots: the roots of its shards, if they are not all in its directory.
        store_id: which store, where the roots hold files of several; by default that of most files.
        disks: the disk for a root; tests hand in others.

    Returns:
        The tables that were made, what is lost, and what could not be known.

    Raises:
        StoreDamaged: there is nothing to be taken.
        AlreadyExists: there is a store at `into`.
        InvalidOption: `into` lies in the damaged store, or that in it.
        ShardUnavailable: a root cannot be read.
    """
    report, catalog = RepairReport(), ask_catalog(uri)
    all_roots = list(roots) if roots is not None else _roots_in(uri, catalog, disks, report)
    _check_apart(into, [uri, *all_roots])
    opened = [disks(root) for root in all_roots]
    if isinstance(catalog, KnownStore):
        opened = [with_trash(disk, catalog.live) for disk in opened]
    plan = plan_from_files(opened, report, store_id, catalog)
    names = [f"s{number}" for number in range(1, len(opened) + 1)]
    tablets = min(plan.slots, DEFAULT_TABLETS)
    new_place = Location.of(into)
    if new_place.directory is not None:
        check_no_store(new_place)
    with staging_of(new_place) as staging:
        if not staging.is_aside:
            raise InvalidOption(
                f"{shown(into)} is there already, or is none; name a directory that is not there yet",
                option="into",
            )
        with Store.create(staging.place.uri, names, tablets=tablets, slots=plan.slots, hash=plan.hash) as new:
            repair_into(new.context, plan, opened, report)
            with new.context.catalog.writing() as tx:
                staging.settle(tx)
    return report


def _roots_in(
    uri: str | Path, catalog: KnownStore | str, disks: Callable[[str], Disk], report: RepairReport
) -> list[str]:
    """Return the roots in a store's directory, and those elsewhere that its catalog names."""
    directory = Location.of(uri).directory
    roots = sorted(str(path) for path in directory.glob("shards/*") if path.is_dir()) if directory else []
    for name, root in {} if isinstance(catalog, str) else catalog.roots.items():
        if root not in roots:
            try:
                disks(root).list()
                roots.append(root)
            except ShardUnavailable as error:
                report.lost.append(f"shard {name!r}: all of it: {error.message}")
    if not roots:
        raise InvalidOption(
            f"{shown(uri)} has no shards below it; name the roots of its shards", option="roots"
        )
    return roots


def _check_apart(into: str | Path, sources: Sequence[str | Path]) -> None:
    """Raise if the new store and a damaged one lie in each other: they would be mixed up."""
    new = place_of(Location.of(into).uri)
    for source in sources:
        old = place_of(Location.of(source).uri)
        if new == old:
            raise AlreadyExists(
                f"{new} is the damaged store itself; name a directory next to it", uri=str(new)
            )
        if new.overlaps(old):
            raise InvalidOption(
                f"{new} and {old} overlap; name a directory outside of the store that is to be repaired",
                option="into",
            )
