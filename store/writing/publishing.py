"""Publishing: rows become files that nothing refers to, and these visible on all shards by one commit.

Few rows are staged in memory. If they are few in all, they become a commit in the log itself, and no file is
written. Otherwise they are staged in files, as the rows of other tasks may be already.
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

# After so many commits that found some tablet elsewhere, the rows that moved are staged again
# while the catalog's write lock is held, so a write cannot starve alongside endless moves.
ATTEMPTS_WITHOUT_LOCK = 5
# Of the small commits at a server one in so many is a transaction.
TRANSACTION_EVERY = 64


def fits_in_log(state: StoreState, table: TableInfo, rows: StagedInMemory, size: int) -> bool:
    """Return whether rows of a commit, of so many bytes, may be put into the log of a store in this state.

    Raises `LimitExceeded`: a key is too long for an index, and after the commit a flush could not refuse it.
    """
    now = state.info(table.id) or table
    if now.definition != rows.table.definition or not has_room(state, table.id, size):
        return False
    for index in state.indexes(table.id):
        check_entries(rows.table, index, rows.content)
    return True


def has_room(state: StoreState, table: int, more: int) -> bool:
    """Return whether a table, and the store, may have so many more bytes of rows in the log."""
    size = {number: known.memory_bytes for number, known in state.tables.items()}
    fits = size.get(table, 0) + more <= MEMORY_TABLE_BYTES
    return fits and sum(size.values()) + more <= MEMORY_STORE_BYTES


def stage(
    context: Context,
    table: TableInfo,
    batches: Iterable[pa.RecordBatch],
    kind: str = "write",
) -> list[StagedFragment]:
    """Stage rows of the table's schema; nothing is visible yet. Cleans up after an error.

    Few rows are staged in memory, as far as the log may keep them; more at the shards where they belong,
    large fragments with their runs of indexes.
    """
    state = context.known  # of when the table was looked up; the commit looks again
    origin, disk_of = context.origin(kind, state=state), context.staging_disk
    most = limits.INLINE_BYTES if has_room(state, table.id, 0) else 0
    with context.noticing_collection():
        staged = stage_rows(table, batches, state.placement, disk_of, origin, WRITE_BUFFER_BYTES, most)
        # Small ones get their runs when they are published, perhaps together with those of other tasks.
        small = [fragment for fragment in staged if fragment.bytes < SMALL_FRAGMENT_BYTES]
        large = [fragment for fragment in staged if fragment.bytes >= SMALL_FRAGMENT_BYTES]
        with removed_on_error(context, files_of(staged)):
            return [*small, *with_runs(context, table, state, large)]


@contextmanager
def removed_on_error(context: Context, files: Set[File]) -> Iterator[None]:
    """Remove staged files if the block fails, except where it is not known whether they were committed.

    An interrupt leaves them, too: it may come before the answer of the catalog.
    """
    try:
        yield
    except CommitUnknown:
        raise
    except Exception:
        with suppress(ElasticScanError):  # then they are garbage
            remove_staged(context, files)
        raise


def remove_staged(context: Context, files: Set[File]) -> None:
    """Remove files that were staged, except files in the log: their commit went through."""
    remove_files(files - context.state().known_paths(), context.disk_of)


def check_no_key_twice(context: Context, table: TableInfo, staged: Sequence[StagedFragment]) -> None:
    """For a write that several tasks staged: raises `SchemaMismatch` when two of them had the same key."""
    with context.noticing_collection():
        check_keys_differ(staged_source(table, staged, context.disk_of))


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A request of a write for its commit.

    Attributes:
        kind: its name in the table's history.
        txn: (application, version); a write with the same pair is committed once.
        since: the commit after which no other write may have written its keys; None for no such one.
        is_insert: whether no row may have one of its keys.
        user_metadata: what its writer says of it.
        based_on: the number of the state whose rows the write has read: no later commit may have written any
            row of the table. 0 where others may have.
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
    """Return the commit that makes staged fragments visible, all at once.

    With `packed` rows, these are kept in the log, and `staged` says of which slots they are, and how many.
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
    said = {"content": None if txn is None else txn.content, "user": dict(request.user_metadata or {})}
    metadata = json.dumps(said, sort_keys=True) if any(said.values()) else None
    return Append(record, packed, None if txn is None else txn[:2], metadata)


class CommitNumber(int):
    """A commit's number, a snapshot that `scan` takes, that also says how many `rows` it has written.

    Rows that it deleted count, too; of a delete by keys it is the keys, whether there was a row or not. It is
    0 for a write that was done before, under the same `txn`.
    """

    rows: int

    def __new__(cls, commit: int, rows: int = 0) -> CommitNumber:
        made = super().__new__(cls, commit)
        made.rows = rows
        return made


def write(
    context: Context,
    table: TableInfo,
    batches: Iterable[pa.RecordBatch],
    request: CommitRequest,
    before: Sequence[StagedFragment] = (),
) -> CommitNumber:
    """Stage rows, and make them one commit with what was staged `before`, which stays staged on an error.

    Raises as `publish`.
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
    """Make staged fragments one commit. Where that fails they stay staged.

    What several tasks staged at a shard is merged first, as far as it is small: a commit leaves few files.
    The commit requires that each fragment lies where its slots live and has runs of all indexes.
    If some moved meanwhile, their rows are staged again at the new place, and the commit is tried
    again; so it is when an index was made meanwhile. A table that was only reserved is entered with it.

    Raises:
        RowsChanged, AlreadyExists, NotFound, SnapshotExpired: its keys are not as the request says.
        AlreadyExists: or another table took the name of one that was reserved.
        ContinuationKeyError: `txn` was committed before with other content.
        TableChanged: the table was dropped.
    """
    with unchanged(context, table, request.since, request.txn, request.is_insert) as check:
        return _Publication(context, table, staged, request, check).commit()


def earlier_commit(context: Context, table_id: int, txn: IdempotencyKey | None) -> int | None:
    """Return the commit of an earlier write with this pair of names, if there is one."""
    return None if txn is None else context.ask(lambda tx: tx.commit_of_txn(table_id, txn))


class _Publication:
    """Files on their way into a commit: the staged ones, and files that take their place meanwhile.

    When it ends, each file that was made here is part of the commit or deleted. After `CommitUnknown`, or an
    interrupt, all stay: garbage collection removes those that are not part of it.
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
        self._versions = versions  # the catalog's, read before anything was staged
        self._staged = tuple(staged)
        self._made = set[File]()
        self._fragments = list(staged)  # the commit is to refer to these, and to none of the others
        self._rows: bytes | None = None  # of the only fragment, as the log keeps them in place of files
        self._state: StoreState | None = None  # as of the commit, where a transaction made it

    def commit(self) -> CommitNumber:
        context = self._context
        context.sync_point("rows staged")
        with removed_on_error(context, self._made), context.noticing_collection():
            if earlier_commit(context, self._table.id, self._request.txn) is None:
                self._prepare()
            number, committed = self._commit()
        remove_files((files_of(self._staged) | self._made) - committed, context.disk_of)
        context.upkeep.after_commit(self._state, self._table.id, self._fragments)
        # Of what was staged: a file whose slots moved meanwhile has rows that other fragments serve.
        return CommitNumber(number, sum(fragment.rows for fragment in self._staged) if committed else 0)

    def _prepare(self) -> None:
        """Decide between the log and files."""
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
        """Let files lie where their slots live, few at each shard, and make their runs."""
        context, table, self._rows = self._context, self._table, None
        origin, disk_of = context.origin(self._request.kind, state=state), context.staging_disk
        self._take(arrange(table, self._fragments, state.placement, disk_of, origin))
        self._take(with_runs(context, table, state, self._fragments))

    def _take(self, fragments: Iterable[StagedFragment]) -> None:
        """Go on with these, which may lie in other files, or have more runs."""
        self._fragments, staged = [], files_of(self._staged)
        for fragment in fragments:
            self._fragments.append(fragment)
            self._made |= files_of([fragment]) - staged

    @retry_interrupted
    def _commit(self) -> tuple[int, set[File]]:
        """Return the commit's number, and those of the files that it refers to."""
        context, table, check, txn = self._context, self._table, self._check, self._request.txn
        at_once = context.catalog.append_at_once(self._small_commit)
        if at_once is not None:
            return at_once, files_of(self._fragments)
        for attempt in count():
            at_last = attempt >= ATTEMPTS_WITHOUT_LOCK
            if check is not None and earlier_commit(context, table.id, txn) is None:
                check.compare(context.catalog.newest(), self._fragments)
                context.sync_point("keys compared")
            with context.catalog.writing(is_small=self._rows is not None and not at_last) as tx:
                earlier = None if txn is None else tx.commit_of_txn(table.id, txn)
                if earlier is not None:  # and these very files may have been handed in to it
                    return earlier, (files_of(self._staged) | self._made) & tx.state.known_paths()
                if table.id not in tx.state.reserved:
                    live_table(tx, table.id)
                if at_last and not self._is_settled(tx):  # nothing can change now
                    self._settle(tx.state)
                if self._is_settled(tx):
                    if check is not None:
                        check.compare(tx, self._fragments)
                    return self._enter(tx), files_of(self._fragments)
            self._settle(context.state())
        raise AssertionError("unreachable")

    def _small_commit(self, tx: Tx) -> Append | None:
        """Return the commit if it can be appended without a transaction: it relies on nothing that was read.

        Now and then it needs one all the same, which finds pending upkeep.
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
        """Make the commit."""
        if self._rows is None:
            self._context.check_not_collected(tx, self._fragments, self._versions)
        reserved = tx.state.reserved.get(self._table.id)
        if reserved is not None:  # it is seen from here on
            tx.append(TableDefined(reserved, 0, "create"))
        number = tx.append(commit_of(tx.state, self._table.id, self._fragments, self._request, self._rows))
        self._state = tx.state
        return number


def _in_place(placement: Placement, staged: Sequence[StagedFragment]) -> bool:
    """Return True if each fragment lies where its slots live."""
    return all(fragment.slots <= placement.at(fragment.shard) for fragment in staged)
