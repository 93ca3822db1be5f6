"""A new store from the files of a damaged one. The damaged store is only read.

If the catalog is intact, of the same store, and not older than the files, it names the files of each table
and has the rows of its log. Otherwise the manifests of the files replace it (`plan.py`). Of a damaged file
the readable record batches are copied, and the report names the losses.

The new store has the newest state of each table: rows, definitions, indexes. Older snapshots, commits, the
topology history, leases and the sealing secrets are lost.
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

# The state of a catalog, and the rows in its log as fragments by table id.
Known: TypeAlias = tuple[StoreState, Mapping[int, Sequence[Fragment]]]


@dataclass(slots=True)
class RepairReport:
    """The result of a repair, as plain values.

    Attributes:
        tables: number of rows of each new table, by name.
        lost: data that could not be read, as sentences with file, table, slots and rows.
        doubts: facts that the files do not prove, as sentences.
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
    """Make a new store from the files of another one, whose catalog need not be readable.

    Args:
        uri: the damaged store; it is only read.
        into: directory of the new store; it must not exist.
        roots: the roots of the damaged store's shards, if they are not all in its directory.
        disks: returns the disk for a root; for tests.

    Raises:
        StoreDamaged: there are no files of a store.
        AlreadyExists: `into` exists.
        InvalidOption: no shard is found.
        ShardUnavailable: a root cannot be read.
    """
    new_place = Location.of(into)
    directory = new_place.directory
    if directory is None or directory.exists() or directory.is_symlink():
        raise AlreadyExists(
            f"{shown(into)} already exists, or is not a directory; name a directory that does not exist yet",
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
    """Yield a temporary path next to a directory, and rename it to the directory's name after the block."""
    aside = directory.with_name(f"{directory.name[:50]}.unfinished-{secrets.token_hex(4)}")
    try:
        yield aside
        aside.rename(directory)
        flush_directory(directory.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _read_catalog(uri: str | Path, disks: Callable[[str], Disk]) -> Known | str:
    """Return the contents of a store's catalog, or the reason why it cannot be read. Writes nothing."""
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
    """Return the roots in a store's directory and other roots that its catalog names."""
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
    """Plan the new store by the catalog, or by the files. Raises `StoreDamaged` if there are no files."""
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
    """Return why a catalog does not match the files; None if it does."""
    unknown = files.keys() - {path for _, path in state.known_paths()}
    if files and len(unknown) == len(files):
        return "it knows none of the files"
    newest = newest_commit_of(state.store_id, ((disks[files[path]], path) for path in unknown))
    for disk in disks.values():
        with suppress(ShardMismatch):  # a damaged marker
            marker = Root("", disk).marker()
            newest = max(newest, marker.commit if marker else 0)
    if newest > state.commit:
        return f"it is older than the files: they know commit {newest}, it ends with {state.commit}"
    return None


def _make_table(
    context: Context, plan: TablePlan, slots: int, disks: Mapping[int, Disk], report: RepairReport
) -> None:
    """Make a planned table in the new store and write its rows as one commit."""
    info = plan.info or _definition_in_files(plan, disks)
    if info is None:
        report.lost.append(f"table {plan.name!r}: no file of it can be read, so its columns are not known")
        return
    new = replace(info, name=plan.name, definition=1, columns=(), created_commit=0, oldest_snapshot=0)
    table = enter_table(context, new)
    reader = pa.RecordBatchReader.from_batches(info.schema, _rows_of(plan, info, slots, disks, report))
    filling = WriteTransaction(context, partial(context.table, name=plan.name))
    report.tables[plan.name] = filling.write(table, reader).rows
    for index in plan.indexes:
        try:
            create_index(context, filling.find, index.name, index.columns, index.kind, index.include)
        except ElasticScanError as error:
            report.doubts.append(f"index {index.name!r} of table {plan.name!r} was not made: {error}")


def _definition_in_files(plan: TablePlan, disks: Mapping[int, Disk]) -> TableInfo | None:
    """Return the newest definition of the table that a file has; None if no file is readable."""
    for file in plan.files:
        manifest = file.manifest
        with suppress(OperatorNeeded):
            schema, columns = described_columns(disks[file.root], manifest.path, file.seal)
            keys = manifest.primary_key, manifest.shard_key
            info = TableInfo(0, plan.name, schema, *keys, manifest.compression, 0, 0)
            return replace(info, definition=manifest.definition, columns=columns)
    return None


def _rows_of(
    plan: TablePlan, info: TableInfo, slots: int, disks: Mapping[int, Disk], report: RepairReport
) -> Iterator[pa.RecordBatch]:
    """Yield the readable rows of a planned table in its newest state, in pages."""
    cache, damaged = BatchCache(), dict[int, set[int]]()  # unreadable batches by fragment id

    def open_fragment(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        disk, without = disks[fragment.shard], frozenset(damaged.get(fragment.id, ()))
        return FragmentReader(disk, fragment.path, columns, fragment.seal, info, cache, without=without)

    def is_readable(fragment: Fragment) -> bool:
        """Find a fragment's unreadable batches and report them; return False if no batch is readable."""
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
