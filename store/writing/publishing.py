"""Publishing: what was staged becomes visible on all shards by one commit, or not at all.

Rows that were staged in memory become a commit in the log itself, if they are few in all. Otherwise they are
staged in files, as the rows of other tasks may be already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from elasticscan.base.errors import RowsChanged, WriteConflict
from elasticscan.catalog import Append, IdempotencyKey, StoreState, Tx, retry_interrupted
from elasticscan.metadata import StagedFragment, TableDefined, TableInfo
from elasticscan.storage import discard, gather, reroute
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import live_table
from elasticscan.store.writing.entering import commit_of
from elasticscan.store.writing.indexing import missing_runs, with_runs
from elasticscan.store.writing.preconditions import KeyCheck
from elasticscan.store.writing.staging import (
    SmallCommit,
    joined_in_memory,
    removed_on_error,
    small_commit,
)
from elasticscan.topology import Placement

# After so many commits that found some tablet elsewhere, the rows that moved are staged again
# while the catalog's write lock is held, so a write cannot starve alongside endless moves.
ATTEMPTS_WITHOUT_LOCK = 5
# Of the small commits at a server one in so many is a transaction.
TRANSACTION_EVERY = 64


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A request of a write for its commit.

    Attributes:
        kind: its name in the table's history.
        txn: (application, version); a write with the same pair is committed once.
        check: what it requires of its keys.
        user_metadata: what its writer says of it.
        versions: the catalog's, read before anything was staged.
        keep: paths that stay staged where the commit fails.
        newest: the newest commit that the table may have, if it may have no later one.
    """

    kind: str = "write"
    txn: IdempotencyKey | None = None
    check: KeyCheck | None = None
    user_metadata: Mapping[str, str] | None = None
    versions: tuple[int, int] | None = None
    keep: Collection[str] = ()
    newest: int | None = None


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


def publish(
    context: Context,
    table: TableInfo,
    staged: Sequence[StagedFragment],
    request: CommitRequest = CommitRequest(),
) -> CommitNumber:
    """Make staged fragments one commit.

    What several tasks staged at a shard is merged first, as far as it is small: a commit leaves few files.
    The commit requires that each fragment lies where its slots live and has runs of all indexes.
    If some moved meanwhile, their rows are staged again at the new place, and the commit is tried
    again; so it is when an index was made meanwhile. A table that was only reserved is entered with it.

    Where that fails, what was staged is removed, as by `removed_on_error`, but for what the request keeps.

    Raises:
        RowsChanged, AlreadyExists, SnapshotExpired: as the request's `check` says, or its `newest`.
        ContinuationKeyError: `txn` was committed before with other content.
        TableChanged: the table was dropped.
        WriteConflict: another table took the name of one that was reserved.
    """
    context.checkpoint("rows staged")
    publication = _Publication(context, table, staged, request)
    number = publication.commit()
    context.upkeep.after_commit(publication.pending, sum(fragment.bytes for fragment in staged))
    return number


def is_committed(context: Context, table_id: int, txn: IdempotencyKey) -> bool:
    """Return True if a write with this pair of names was committed before."""
    return context.ask(lambda tx: tx.commit_of_txn(table_id, txn)) is not None


class _Publication:
    """Files on their way into a commit: the staged ones, and files that take their place meanwhile.

    However it ends, each file is part of the commit, deleted, or kept for the caller.
    """

    def __init__(
        self, context: Context, table: TableInfo, staged: Sequence[StagedFragment], request: CommitRequest
    ) -> None:
        self._context, self._table, self._request = context, table, request
        self._staged = tuple(staged)
        self._all = [fragment for fragment in staged if fragment.path not in request.keep]
        self._fragments = list(staged)  # the commit is to refer to these, and to none of the others
        self._small: SmallCommit | None = None  # in place of files
        self.pending: Sequence[tuple[int, int]] = ()  # where upkeep has something to do after the commit

    def commit(self) -> CommitNumber:
        context, txn = self._context, self._request.txn
        with removed_on_error(context, self._all), context.noticing_collection():
            if txn is None or not is_committed(context, self._table.id, txn):
                self._prepare()
            number, committed = self._commit()
        paths = {fragment.path for fragment in committed}
        files = (*self._staged, *self._all)
        discard([fragment for fragment in files if fragment.path not in paths], context.disk_of)
        # Of what was staged: a file whose slots moved meanwhile has rows that other fragments serve.
        return CommitNumber(number, sum(fragment.rows for fragment in self._staged) if committed else 0)

    def _take(self, fragments: Sequence[StagedFragment]) -> None:
        """Go on with these, which may lie in other files, or have more runs."""
        self._fragments = list(fragments)
        self._all += [fragment for fragment in fragments if fragment.path not in self._request.keep]

    def _prepare(self) -> None:
        """Decide between the log and files; merge files that lie crowded, and make their runs."""
        context, table = self._context, self._table
        self._take(joined_in_memory(self._staged))
        self._small = small_commit(self._fragments)
        if self._small is not None:
            return
        state = context.state()
        self._reroute(state)
        origin = context.origin(self._request.kind, state=state)
        self._take(gather(table, self._fragments, context.staging_disk, origin))
        self._take(with_runs(context, table, state.indexes(table.id), self._fragments, state))

    def _settle(self, state: StoreState) -> None:
        """Make the next attempt possible: in files, where their slots are, with runs of all indexes.

        Slots that moved are copied, and rows in memory that the log cannot take.
        """
        self._reroute(state)
        indexes = state.indexes(self._table.id)
        self._take(with_runs(self._context, self._table, indexes, self._fragments, state))

    def _reroute(self, state: StoreState) -> None:
        context, self._small = self._context, None
        origin = context.origin(self._request.kind, state=state)
        self._take(reroute(self._table, self._fragments, state.placement, context.staging_disk, origin))

    @retry_interrupted
    def _commit(self) -> tuple[int, list[StagedFragment]]:
        """Return the commit's number, and those of the fragments that it refers to."""
        context, table, check, txn = self._context, self._table, self._request.check, self._request.txn
        at_once = context.catalog.append_at_once(self._small_commit)
        if at_once is not None:
            return at_once, self._fragments
        for attempt in count():
            at_last = attempt >= ATTEMPTS_WITHOUT_LOCK
            if check is not None and not (txn and is_committed(context, table.id, txn)):
                check.look(self._fragments)
            if check is not None or self._request.newest is not None:
                context.checkpoint("keys compared")
            with context.catalog.writing(is_small=self._small is not None and not at_last) as tx:
                earlier = self._made_before(tx)
                if earlier is not None:
                    return earlier
                if table.id not in tx.state.reserved:
                    live_table(tx, table.id)
                check_newest(tx, table, self._request.newest)
                if at_last and not self._is_settled(tx):  # nothing can change now
                    self._settle(tx.state)
                is_settled = self._is_settled(tx)
                if is_settled and (check is None or check.holds(tx, self._fragments, at_last)):
                    return self._enter(tx), self._fragments
            if not is_settled:
                self._settle(context.state())
        raise AssertionError("unreachable")

    def _small_commit(self, tx: Tx) -> Append | None:
        """Return the commit if it can be appended without a transaction: it relies on nothing that was read.

        Now and then it needs one all the same, which finds the maintenance that is due.
        """
        request, table, small = self._request, self._table, self._small
        relies = request.check is not None or request.newest is not None or request.txn is not None
        if small is None or relies:
            return None
        if tx.state.info(table.id) is None or not small.fits(tx.state, table):
            return None
        if len(tx.state.memory(table.id)) % TRANSACTION_EVERY == TRANSACTION_EVERY - 1:
            return None
        return self._record(tx)

    def _record(self, tx: Tx) -> Append:
        """Return the commit as it is appended."""
        request, rows = self._request, None if self._small is None else self._small.rows
        kind = _kind_of(request.kind, self._fragments)
        said = request.txn, request.user_metadata
        return commit_of(tx.state, self._table.id, kind, self._fragments, *said, rows)

    def _made_before(self, tx: Tx) -> tuple[int, list[StagedFragment]] | None:
        """Return the commit made under the same `txn`, to which these very files may have been handed in."""
        txn = self._request.txn
        earlier = None if txn is None else tx.commit_of_txn(self._table.id, txn)
        if earlier is None:
            return None
        known = tx.state.known_paths()
        return earlier, [
            fragment for fragment in (*self._staged, *self._all) if (fragment.shard, fragment.path) in known
        ]

    def _is_settled(self, tx: Tx) -> bool:
        if self._small is not None:
            return self._small.fits(tx.state, self._table)
        indexes = tx.state.indexes(self._table.id)
        return _in_place(tx.state.placement, self._fragments) and not missing_runs(indexes, self._fragments)

    def _enter(self, tx: Tx) -> int:
        """Make the commit."""
        if self._small is None:
            self._context.check_not_collected(tx, self._fragments, self._request.versions)
        if self._table.id in tx.state.reserved:
            self._enter_reserved(tx, tx.state.reserved[self._table.id])
        number = tx.append(self._record(tx))
        self.pending = self._context.upkeep.pending(tx, self._table.id, self._fragments)
        return number

    def _enter_reserved(self, tx: Tx, table: TableInfo) -> None:
        """Let a reserved table be seen from here on. Raises `WriteConflict`: another has taken its name."""
        if any(other.name == table.name for other in tx.state.infos()):
            raise WriteConflict(
                f"table {table.name!r} was made with another definition meanwhile; nothing was committed: "
                "write again into that table",
                table=table.name,
            )
        tx.append(TableDefined(table, 0, "create"))


def check_newest(tx: Tx, table: TableInfo, newest: int | None) -> None:
    """Raise `RowsChanged` if a table has a commit after the one that is to be its newest."""
    if newest is not None and tx.state.table(table.id).newest != newest:
        raise RowsChanged(
            f"table {table.name!r} has a commit after {newest}, and nothing was written",
            table=table.name,
            newest=tx.state.table(table.id).newest,
        )


def _in_place(placement: Placement, staged: Sequence[StagedFragment]) -> bool:
    """Return True if each fragment lies where its slots live."""
    return all(fragment.slots <= placement.at(fragment.shard) for fragment in staged)


def _kind_of(kind: str, staged: Sequence[StagedFragment]) -> str:
    """Return the name of a commit in the table's history: rows of a write may delete, too."""
    deletes = sum(fragment.tombstones for fragment in staged)
    if kind != "write" or not deletes:
        return kind
    return "delete" if deletes == sum(fragment.rows for fragment in staged) else "merge"
