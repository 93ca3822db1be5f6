"""A store made again from its files, into another one. The damaged store is only read.

A catalog that is whole, of the same store, and not older than the files says which of them make up each
table, and has the rows of its log; else the manifests of the files take its place (`plan.py`).
Where a file is damaged, the record batches that can still be read are taken, and the report names the losses.

What comes back is the newest state of each table: rows, definitions, indexes. Older snapshots, commits, the
topology history, leases and the sealing secrets do not.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from elasticscan.base.errors import (
    AlreadyExists,
    ElasticScanError,
    InvalidOption,
    OperatorNeeded,
    ShardMismatch,
    ShardUnavailable,
    StoreDamaged,
)
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS, DEFAULT_TABLETS
from elasticscan.base.redaction import shown
from elasticscan.catalog import StoreState
from elasticscan.metadata import MEMORY, Fragment, TableInfo
from elasticscan.protocol import Cursor, PageRequest
from elasticscan.storage import (
    MEMORY_DISK,
    BatchCache,
    Disk,
    FragmentReader,
    PageSource,
    View,
    described_columns,
    find_seal,
    flush_directory,
    is_fragment_path,
    newest_commit_of,
    open_disk,
    read_page,
)
from elasticscan.store.context import Context
from elasticscan.store.repair.plan import (
    FoundFile,
    StorePlan,
    TablePlan,
    loss,
    plan_by_catalog,
    plan_by_files,
)
from elasticscan.store.roots import Location
from elasticscan.store.roots.markers import Root
from elasticscan.store.store import Store
from elasticscan.store.writing.definitions import enter_table
from elasticscan.store.writing.indexing import create_index
from elasticscan.store.writing.transactions import WriteTransaction
from elasticscan.topology import SlotSet

MOST_READERS = 256

# A catalog's state, and the rows in its log, as fragments by the ids of tables.
Known: TypeAlias = tuple[StoreState, Mapping[int, Sequence[Fragment]]]


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


def repair_store(
    uri: str | Path,
    into: str | Path,
    roots: Sequence[str] | None = None,
    disks: Callable[[str], Disk] = open_disk,
) -> RepairReport:
    """Make a store again from the files of another one, whose catalog need not be readable.

    Args:
        uri: the damaged store; it is only read.
        into: where the new store is made: a directory where there is none yet.
        roots: the roots of its shards, if they are not all in its directory.
        disks: the disk for a root; tests hand in others.

    Returns:
        The tables that were made, what is lost, and what could not be known.

    Raises:
        StoreDamaged: there is nothing to be taken.
        AlreadyExists: there is something at `into`.
        InvalidOption: no shard of it is found.
        ShardUnavailable: a root cannot be read.
    """
    new_place = Location.of(into)
    directory = new_place.directory
    if directory is None or directory.exists() or directory.is_symlink():
        raise AlreadyExists(
            f"{shown(into)} is there already, or is no directory; name a directory that is not there yet",
            uri=shown(into),
        )
    report, known = RepairReport(), _read_catalog(uri, disks)
    all_roots = list(roots) if roots is not None else _roots_in(uri, known, disks, report)
    opened = dict(enumerate(map(disks, all_roots), 1))
    plan = _plan(opened, known)
    report.lost += plan.lost
    report.doubts += plan.doubts
    shards, tablets = [f"s{number}" for number in opened], min(plan.slots, DEFAULT_TABLETS)
    with (
        _renamed_at_the_end(directory) as aside,
        Store.create(aside, shards, tablets=tablets, slots=plan.slots, hash=plan.hash) as new,
    ):
        for table in plan.tables:
            _make_table(new.context, table, plan.slots, opened | {MEMORY: MEMORY_DISK}, report)
    return report


@contextmanager
def _renamed_at_the_end(directory: Path) -> Iterator[Path]:
    """Give a new place next to a directory, which gets its name after the block: when it is whole."""
    aside = directory.with_name(f"{directory.name[:50]}.unfinished-{secrets.token_hex(4)}")
    try:
        yield aside
        aside.rename(directory)
        flush_directory(directory.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _read_catalog(uri: str | Path, disks: Callable[[str], Disk]) -> Known | str:
    """Return the contents of a store's catalog, or the reason why it cannot be read. Changes nothing."""
    try:
        with Store.open(uri, disks=disks, read_only=True) as old:
            old.context.catalog.check_whole()
            tx = old.context.catalog.newest()
            rows = {info.id: old.context.memory(tx, info).fragments for info in tx.state.infos()}
            return tx.state, rows
    except ElasticScanError as error:
        return error.message


def _roots_in(
    uri: str | Path, known: Known | str, disks: Callable[[str], Disk], report: RepairReport
) -> list[str]:
    """Return the roots in a store's directory, and those elsewhere that its catalog names."""
    place = Location.of(uri)
    inside = sorted(place.directory.glob("shards/*")) if place.directory else []
    roots = {str(path): path.name for path in inside if path.is_dir()}
    if not isinstance(known, str):
        roots |= {place.root(shard.root): shard.name for shard in known[0].shards.values()}
    for root, name in [*roots.items()]:
        try:
            disks(root).list()
        except ShardUnavailable as error:
            report.lost.append(f"shard {name!r}: all of it: {error.message}")
            del roots[root]
    if not roots:
        raise InvalidOption(
            f"{shown(uri)} has no shards below it; name the roots of its shards", option="roots"
        )
    return [*roots]


def _plan(disks: Mapping[int, Disk], known: Known | str) -> StorePlan:
    """Plan a store by its catalog, or by its files; raises `StoreDamaged` when there are none."""
    files = {
        path: root
        for root, disk in disks.items()
        for path, _ in disk.list()
        if is_fragment_path(path) and not path.endswith(".unfinished")
    }
    why_not = known if isinstance(known, str) else _why_not(known[0], files, disks)
    if why_not is None and not isinstance(known, str):
        return plan_by_catalog(*known, files)
    found, unreadable = list[FoundFile](), dict[str, str]()
    for path, root in files.items():
        try:
            found.append(FoundFile(root, *find_seal(disks[root], path)))
        except OperatorNeeded as error:
            unreadable[path] = error.message
    plan = plan_by_files(found, unreadable)
    if plan is None:
        raise StoreDamaged("there is no file of a store below these roots; name the roots of its shards")
    plan.doubts.insert(0, f"the catalog was not used: {why_not}")
    return plan


def _why_not(state: StoreState, files: Mapping[str, int], disks: Mapping[int, Disk]) -> str | None:
    """Return the reason why a catalog is not that of these files; None when it is."""
    unknown = files.keys() - {path for _, path in state.known_paths()}
    if files and len(unknown) == len(files):
        return "it knows none of the files"
    seen = newest_commit_of(state.store_id, ((disks[files[path]], path) for path in unknown))
    for disk in disks.values():
        with suppress(ShardMismatch):  # a marker that is damaged
            marker = Root("", disk).marker()
            seen = max(seen, marker.commit if marker else 0)
    if seen > state.commit:
        return f"it is older than the files: they know commit {seen}, it ends with {state.commit}"
    return None


def _make_table(
    context: Context, plan: TablePlan, slots: int, disks: Mapping[int, Disk], report: RepairReport
) -> None:
    """Make a planned table in a store that was just made for it, as one commit."""
    info = plan.info or _definition_in_files(plan, disks)
    if info is None:
        report.lost.append(f"table {plan.name!r}: no file of it can be read, so its columns are not known")
        return
    first = replace(info, definition=1, columns=(), created_commit=0, oldest_snapshot=0)  # as of a new table
    table = enter_table(context, replace(first, name=plan.name))
    reader = pa.RecordBatchReader.from_batches(info.schema, _rows_of(plan, info, slots, disks, report))
    filling = WriteTransaction(context, partial(context.table, name=plan.name))
    report.tables[plan.name] = filling.write(table, reader).rows
    for index in plan.indexes:
        try:
            create_index(context, filling.find, index.name, index.columns, index.kind, index.include)
        except ElasticScanError as error:
            report.doubts.append(f"index {index.name!r} of table {plan.name!r} was not made: {error}")


def _definition_in_files(plan: TablePlan, disks: Mapping[int, Disk]) -> TableInfo | None:
    """Return the table as the file of its newest definition knows it."""
    for file in plan.files:
        said = file.manifest
        with suppress(OperatorNeeded):
            schema, columns = described_columns(disks[file.root], said.path, file.seal)
            info = TableInfo(0, plan.name, schema, said.primary_key, said.shard_key, said.compression, 0, 0)
            return replace(info, definition=said.definition, columns=columns)
    return None


def _rows_of(
    plan: TablePlan, info: TableInfo, slots: int, disks: Mapping[int, Disk], report: RepairReport
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a planned table at its newest state, in pages, as far as its files can be read."""
    cache, damaged = BatchCache(), dict[int, set[int]]()  # by number of the fragment: unreadable batches

    def open_fragment(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        disk, without = disks[fragment.shard], frozenset(damaged.get(fragment.id, ()))
        return FragmentReader(disk, fragment.path, columns, fragment.seal, info, cache, without=without)

    def is_readable(fragment: Fragment) -> bool:
        """Note which of a fragment's batches cannot be read; false when none can."""
        try:
            reader = open_fragment(fragment, tuple(info.schema.names))
        except OperatorNeeded as error:
            report.lost.append(loss(plan.name, fragment, error.message))
            return False
        lost = damaged[fragment.id] = set()
        for number in range(reader.batch_count):
            try:
                reader.batch(number)
            except OperatorNeeded as error:
                lost.add(number)
                rows = int(reader.starts[number + 1] - reader.starts[number])
                first, last = reader.slot_ranges[number]
                what = f"{rows:,} rows in slots {first}-{last + 1}"
                report.lost.append(loss(plan.name, fragment, error.message, what))
        return len(lost) < reader.batch_count

    numbered = (replace(fragment, id=number) for number, fragment in enumerate(plan.fragments, 1))
    fragments = [fragment for fragment in numbered if is_readable(fragment)]
    source = PageSource(info, View(fragments), lru_cache(MOST_READERS)(open_fragment), plan.floor)
    newest = max((fragment.max_commit for fragment in fragments), default=0)
    everything, limits = (Cursor(SlotSet.span(0, slots)),), (DEFAULT_PAGE_ROWS, DEFAULT_PAGE_BYTES)
    request = PageRequest(info.id, 0, everything, newest, tuple(info.schema.names), *limits)
    while request.cursors:
        page = read_page(source, request)
        request = replace(request, cursors=page.after)
        if page.rows.num_rows:
            yield page.rows
