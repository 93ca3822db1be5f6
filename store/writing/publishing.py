"""Staging and publishing: rows are staged in files that no record names, and one commit makes them visible.

A few rows are staged in memory. If all rows of a commit together are few, they go into the log itself, and no
file is written. Otherwise they are written to files like larger parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

import pyarrow as pa

from elasticscan.base import limits
from elasticscan.base.errors import CommitUnknown, ElasticScanError
from elasticscan.base.limits import MEMORY_STORE_BYTES, MEMORY_TABLE_BYTES, WRITE_BUFFER_BYTES
from elasticscan.catalog import Append, IdempotencyKey, StoreState, Tx, retry_interrupted
from elasticscan.metadata import (
    FileChanges,
    RowsCommitted,
    StagedFragment,
    TableDefined,
    TableInfo,
)
from elasticscan.storage import (
    SMALL_FRAGMENT_BYTES,
    File,
    StagedInMemory,
    arrange,
    check_entries,
    check_keys_differ,
    files_of,
    joined,
    pack_rows,
    remove_files,
    stage_rows,
    staged_source,
)
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import live_table
from elasticscan.store.writing.indexing import missing_runs, with_runs
from elasticscan.store.writing.preconditions import KeyCheck, unchanged
from elasticscan.topology import Placement, SlotSet

# If tablets have moved during so many attempts to commit, the next attempt stages their rows again while it
# holds the catalog's write lock, so that endless moves cannot starve a writer.
ATTEMPTS_WITHOUT_LOCK = 5
# At a server, one of so many small commits uses a transaction, which finds pending upkeep.
TRANSACTION_EVERY = 64


def fits_in_log(state: StoreState, table: TableInfo, rows: StagedInMemory, size: int) -> bool:
    """Return whether the rows of a commit, packed in `size` bytes, may go into the log.

    Raises `LimitExceeded` if a key is too long for an index: after the commit, a flush could not refuse it.
    """
    now = state.info(table.id) or table
    if now.definition != rows.table.definition or not has_room(state, table.id, size):
        return False
    for index in state.indexes(table.id):
        check_entries(rows.table, index, rows.content)
    return True


def has_room(state: StoreState, table: int, more: int) -> bool:
    """Return whether table and store may have `more` bytes of rows in the log."""
    size = {number: known.memory_bytes for number, known in state.tables.items()}
    fits = size.get(table, 0) + more <= MEMORY_TABLE_BYTES
    return fits and sum(size.values()) + more <= MEMORY_STORE_BYTES


def stage(
    context: Context,
    table: TableInfo,
    batches: Iterable[pa.RecordBatch],
    kind: str = "write",
) -> list[StagedFragment]:
    """Stage rows of the table's schema; nothing is visible yet. Removes its files after an error.

    A few rows are staged in memory if the log has room for them. Others are staged in files at the shards of
    their slots; large fragments get their index runs here.
    """
    state = context.known  # may be old by now; the commit checks again
    origin, disk_of = context.origin(kind, state=state), context.staging_disk
    most = limits.INLINE_BYTES if has_room(state, table.id, 0) else 0
    with context.noticing_collection():
        staged = stage_rows(table, batches, state.placement, disk_of, origin, WRITE_BUFFER_BYTES, most)
        # Small fragments get their runs in `publish`, which may first merge them with those of other tasks.
        small = [fragment for fragment in staged if fragment.bytes < SMALL_FRAGMENT_BYTES]
        large = [fragment for fragment in staged if fragment.bytes >= SMALL_FRAGMENT_BYTES]
        with removed_on_error(context, files_of(staged)):
            return [*small, *with_runs(context, table, state, large)]


@contextmanager
def removed_on_error(context: Context, files: Set[File]) -> Iterator[None]:
    """Remove staged files if the block fails, unless they may have been committed.

    After an interrupt (a `BaseException`) they stay, too: it may come before the answer of the catalog.
    """
    try:
        yield
    except CommitUnknown:
        raise
    except Exception:
        with suppress(ElasticScanError):  # garbage collection removes them later
            remove_staged(context, files)
        raise


def remove_staged(context: Context, files: Set[File]) -> None:
    """Remove staged files, except those that the log names: they were committed after all."""
    remove_files(files - context.state().known_paths(), context.disk_of)


def check_no_key_twice(context: Context, table: TableInfo, staged: Sequence[StagedFragment]) -> None:
    """Raise `SchemaMismatch` if two tasks of one write staged the same key."""
    with context.noticing_collection():
        check_keys_differ(staged_source(table, staged, context.disk_of))


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """The properties and preconditions of a commit.

    Attributes:
        kind: its name in the table's history.
        txn: the idempotency key.
        since: if given, no later commit than this may have written one of its keys.
        is_insert: no row may have one of its keys.
        user_metadata: the writer's metadata, part of the history.
        based_on: the number of the state whose rows the write has read; no later commit may have written any
            row of the table. 0 for no such condition.
    """

    kind: str = "write"
    txn: IdempotencyKey | None = None
    since: int | None = None
    is_insert: bool = False
    user_metadata: Mapping[str, str] | None = None
    based_on: int = 0


def commit_of(
    state: StoreState,
    table: int,
    staged: Sequence[StagedFragment],
    request: CommitRequest,
    packed: bytes | None = None,
) -> Append:
    """Return the commit that makes staged fragments visible.

    If `packed` is given, these rows go into the log; `staged` then gives only their slots and numbers.
    """
    kind, txn = request.kind, request.txn
    size = sum(part.bytes + sum(run.bytes for run in part.runs) for part in staged)
    rows, tombstones = sum(part.rows for part in staged), sum(part.tombstones for part in staged)
    if kind == "write" and tombstones:
        kind = "delete" if tombstones == rows else "merge"
    record = RowsCommitted(
        table,
        kind,
        state.tables[table].info.definition,
        rows,
        size if packed is None else len(packed),
        tombstones,
        slots=SlotSet.union(part.slots for part in staged if packed is not None),
        overwrites=kind == "overwrite",
        based_on=request.based_on,
        files=FileChanges(tuple(staged) if packed is None else ()),
    )
    metadata = {"content": None if txn is None else txn.content, "user": dict(request.user_metadata or {})}
    packed_metadata = json.dumps(metadata, sort_keys=True) if any(metadata.values()) else None
    return Append(record, packed, None if txn is None else txn[:2], packed_metadata)


class CommitNumber(int):
    """A commit's number, which is also its snapshot for `scan`, with the number of `rows` that it wrote.

    Deleted rows count, too. A delete by keys counts its keys, whether they had rows or not. `rows` is 0 if a
    write with the same `txn` was committed before.
    """

    rows: int

    def __new__(cls, commit: int, rows: int = 0) -> CommitNumber:
        number = super().__new__(cls, commit)
        number.rows = rows
        return number


def write(
    context: Context,
    table: TableInfo,
    batches: Iterable[pa.RecordBatch],
    request: CommitRequest,
    before: Sequence[StagedFragment] = (),
) -> CommitNumber:
    """Stage rows, and commit them together with the fragments `before`.

    After an error, the fragments `before` stay staged. Raises the errors of `publish`.
    """
    with unchanged(context, table, request.since, request.txn, request.is_insert) as check:
        versions = None if before else context.known.versions
        staged = stage(context, table, batches, request.kind)
        with removed_on_error(context, files_of(staged)):
            return _Publication(context, table, [*before, *staged], request, check, versions).commit()


def publish(
    context: Context,
    table: TableInfo,
    staged: Sequence[StagedFragment],
    request: CommitRequest = CommitRequest(),
) -> CommitNumber:
    """Commit staged fragments; after an error they stay staged.

    Small fragments that several tasks staged at one shard are merged first, so a commit leaves few files. The
    commit requires that each fragment is at the shard of its slots and has runs of all indexes. If a tablet
    moved meanwhile, its rows are staged again; if an index was created, its runs are built. Then the commit
    is tried again. The same transaction creates a reserved table.

    Raises:
        RowsChanged, AlreadyExists, NotFound, SnapshotExpired: a precondition of the request does not hold.
        AlreadyExists: also if another table has taken the name of a reserved one.
        ContinuationKeyError: `txn` was committed before with other content.
        TableChanged: the table was dropped.
    """
    with unchanged(context, table, request.since, request.txn, request.is_insert) as check:
        return _Publication(context, table, staged, request, check).commit()


def earlier_commit(context: Context, table_id: int, txn: IdempotencyKey | None) -> int | None:
    """Return the commit of an earlier write with this idempotency key, or None."""
    return None if txn is None else context.ask(lambda tx: tx.commit_of_txn(table_id, txn))


class _Publication:
    """One commit in progress: its staged files, and files that replace them after moves or merges.

    At the end, each file that was written here is part of the commit or was deleted. After `CommitUnknown` or
    an interrupt all files stay; garbage collection removes those that are not part of the commit.
    """

    def __init__(
        self,
        context: Context,
        table: TableInfo,
        staged: Sequence[StagedFragment],
        request: CommitRequest,
        check: KeyCheck | None,
        versions: tuple[int, int] | None = None,
    ) -> None:
        self._context, self._table, self._request, self._check = context, table, request, check
        self._versions = versions  # of the catalog, read before anything was staged
        self._staged = tuple(staged)
        self._made = set[File]()
        self._fragments = list(staged)  # the fragments that the commit will name
        self._rows: bytes | None = None  # the packed rows, if they go into the log
        self._state: StoreState | None = None  # after the commit, if a transaction made it

    def commit(self) -> CommitNumber:
        context = self._context
        context.sync_point("rows staged")
        with removed_on_error(context, self._made), context.noticing_collection():
            if earlier_commit(context, self._table.id, self._request.txn) is None:
                self._prepare()
            number, committed = self._commit()
        remove_files((files_of(self._staged) | self._made) - committed, context.disk_of)
        context.upkeep.after_commit(self._state, self._table.id, self._fragments)
        # Not by `_fragments`: after a move, one of them may contain rows that another one serves.
        return CommitNumber(number, sum(fragment.rows for fragment in self._staged) if committed else 0)

    def _prepare(self) -> None:
        """Decide whether the rows go into the log or into files."""
        parts = [part for part in self._staged if isinstance(part, StagedInMemory)]
        if len(parts) > 1 and len({part.table.definition for part in parts}) == 1:
            self._fragments = [part for part in self._staged if not isinstance(part, StagedInMemory)]
            self._fragments.append(joined(parts))
        match self._fragments:
            case [StagedInMemory() as one] if len(rows := pack_rows(one.content)) <= limits.INLINE_BYTES:
                self._rows = rows
            case _:
                self._settle(self._context.state())

    def _settle(self, state: StoreState) -> None:
        """Stage rows of moved slots again, merge small files of a shard, and build missing index runs."""
        context, table, self._rows = self._context, self._table, None
        origin, disk_of = context.origin(self._request.kind, state=state), context.staging_disk
        self._replace(arrange(table, self._fragments, state.placement, disk_of, origin))
        self._replace(with_runs(context, table, state, self._fragments))

    def _replace(self, fragments: Iterable[StagedFragment]) -> None:
        """Replace the fragments to commit; remember files that were written for them."""
        self._fragments, staged = [], files_of(self._staged)
        for fragment in fragments:
            self._fragments.append(fragment)
            self._made |= files_of([fragment]) - staged

    @retry_interrupted
    def _commit(self) -> tuple[int, set[File]]:
        """Return the commit's number, and those files of this write that it names."""
        context, table, check, txn = self._context, self._table, self._check, self._request.txn
        number = context.catalog.append_inline(self._small_commit)
        if number is not None:
            return number, files_of(self._fragments)
        for attempt in count():
            under_lock = attempt >= ATTEMPTS_WITHOUT_LOCK
            if check is not None and earlier_commit(context, table.id, txn) is None:
                check.compare(context.catalog.newest(), self._fragments)
                context.sync_point("keys compared")
            with context.catalog.writing(is_small=self._rows is not None and not under_lock) as tx:
                earlier = None if txn is None else tx.commit_of_txn(table.id, txn)
                if earlier is not None:  # perhaps with some of these files
                    return earlier, (files_of(self._staged) | self._made) & tx.state.known_paths()
                if table.id not in tx.state.reserved:
                    live_table(tx, table.id)
                if under_lock and not self._is_settled(tx):  # no tablet can move now
                    self._settle(tx.state)
                if self._is_settled(tx):
                    if check is not None:
                        check.compare(tx, self._fragments)
                    return self._enter(tx), files_of(self._fragments)
            self._settle(context.state())
        raise AssertionError("unreachable")

    def _small_commit(self, tx: Tx) -> Append | None:
        """Return the commit if it needs no transaction: it depends on nothing that was read.

        One of `TRANSACTION_EVERY` commits uses one anyway.
        """
        request, table = self._request, self._table
        if self._rows is None or self._check is not None or request.txn is not None:
            return None
        if tx.state.info(table.id) is None or not self._is_settled(tx):
            return None
        if len(tx.state.memory(table.id)) % TRANSACTION_EVERY == TRANSACTION_EVERY - 1:
            return None
        return commit_of(tx.state, self._table.id, self._fragments, self._request, self._rows)

    def _is_settled(self, tx: Tx) -> bool:
        match self._fragments:
            case [StagedInMemory() as one] if self._rows is not None:
                return fits_in_log(tx.state, self._table, one, len(self._rows))
        indexes = tx.state.indexes(self._table.id)
        return _in_place(tx.state.placement, self._fragments) and not missing_runs(indexes, self._fragments)

    def _enter(self, tx: Tx) -> int:
        """Append the commit, after the definition of a table that was only reserved."""
        if self._rows is None:
            self._context.check_not_collected(tx, self._fragments, self._versions)
        reserved = tx.state.reserved.get(self._table.id)
        if reserved is not None:  # readers see the table from here on
            tx.append(TableDefined(reserved, 0, "create"))
        number = tx.append(commit_of(tx.state, self._table.id, self._fragments, self._request, self._rows))
        self._state = tx.state
        return number


def _in_place(placement: Placement, staged: Sequence[StagedFragment]) -> bool:
    """Return True if each fragment is at the shard of its slots."""
    return all(fragment.slots <= placement.at(fragment.shard) for fragment in staged)
