"""The catalog of a store: follow its log, append to it, checkpoint it.

**Follow.** A process keeps one state and applies the records that were appended since (`replay`). If (number,
digest) of the head equals that of the state, there are none.

**Append.** Under the log's lock: apply the records since, check the new one, insert it, move the head. So
there is no retry loop, and each writer in the queue gets its turn. An append has three outcomes: it is in the
log; it was refused, and the log is unchanged; or the answer was lost. After a lost answer, the log is
searched for the append's id. If that fails, too, the outcome is `CommitUnknown`. Files that were staged for
an append may be deleted only after it was refused.

A small commit that does not depend on rows is one statement if the home has one (`LogHome.append_inline`):
the database assigns number, time and digest.

**Checkpoint.** The process that appends each hundredth record writes a checkpoint, so that the tail of
records after the newest checkpoint stays short (`TAIL_RECORDS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import RLock

from elasticscan.base.errors import (
    AlreadyExists,
    CatalogUnavailable,
    CommitUnknown,
    ElasticScanError,
    ReadOnlyStore,
    ShardMismatch,
    TableChanged,
)
from elasticscan.catalog import checkpoints, tables, verifying
from elasticscan.catalog.checkpoints import replay_newest
from elasticscan.catalog.checks import check
from elasticscan.catalog.database import LogHome, in_transaction, micros
from elasticscan.catalog.entries import ROWS, STATISTICS, Append, LogEntry, drafted, row_digest
from elasticscan.catalog.failures import Interrupted, change, retry, retry_interrupted
from elasticscan.catalog.fold import apply
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.transaction import Tx
from elasticscan.metadata import MAX_FILES, RowsCommitted

TAIL_RECORDS = 100  # records between two checkpoints
_DROPPED_AT_ONCE = 500


class Catalog:
    """The log of a store, and transactions over it. Safe for several threads; a forked child opens its own.

    Each method raises `ShardMismatch` if the log is older than a state that this object has seen.

    Attributes:
        home: the database that stores the log.
        known: the newest state that was seen; in a writing transaction, the state with which it began.
        read_only: the reason why nothing can be written, or None.
        file: the log's file; None for a log at a server.
        before_writing: called before every writing transaction, with `is_small`. It returns a check that the
            transaction calls with its state; the check raises if a shard knows of a newer state.
        after_writing: called after every writing transaction that changed the versions, with the new state,
            the shards at which it entered files, and `is_small`. `append_inline` passes the state before it
            with only `commit` replaced.
    """

    def __init__(self, home: LogHome) -> None:
        self.home, self.file = home, home.file
        self.read_only = home.why_read_only
        self.known: StoreState | None = None
        self.before_writing: Callable[[bool], Callable[[StoreState], None]] = lambda _: lambda _: None
        self.after_writing: Callable[[StoreState, frozenset[int], bool], None] = lambda _, __, ___: None
        self._store_id = ""
        self._lock = RLock()

    def close(self) -> None:
        self.home.close()

    @contextmanager
    def beginning(self, copied: tables.Dump | None = None) -> Iterator[Tx]:
        """Return the first transaction of an empty log; if `copied` is given, the log starts with its rows.

        Raises:
            AlreadyExists: the log has records.
            StoreDamaged: `copied` is not a valid log.
        """

        def begin() -> Tx:
            if self.home.is_begun():
                raise AlreadyExists("there is a store already; open it, or choose another place")
            if copied is None:
                return Tx(self.home, None)
            for statement in tables.filling(copied):
                self.home.execute(*statement)
            return Tx(self.home, replay_newest(self.home, None))

        with self._committed(begin) as transaction:
            yield transaction

    # Follow

    def follow(self) -> StoreState:
        """Return the state as of the head. At a standby, it may be older than one that was returned before.

        Raises the errors of `replay`, and `TableChanged` if the log is now that of another store.
        """
        state = retry(self.home, self._followed)
        self._store_id = self._store_id or state.store_id
        if state.store_id != self._store_id:
            raise TableChanged(
                "the store that was opened here is gone, and another one is in its place; open it again",
                kind="store",
            )
        return state

    def _followed(self) -> StoreState:
        known = self.known
        try:
            return self._advance(replay_newest(self.home, known))
        except ShardMismatch:
            found = replay_newest(self.home, None)
            assert known is not None, "nothing is older than nothing"
            is_same = (known.store_id, known.incarnation) == (found.store_id, found.incarnation)
            if is_same and not self.home.is_follower:
                raise
            self.forget()  # it is another store, or another copy
            return self._advance(found)

    def forget(self) -> None:
        """Accept the log as it is at the next read, even if it is older than the known state."""
        with self._lock:
            self.known = None

    def _advance(self, state: StoreState) -> StoreState:
        """Remember a committed state unless a newer one is known; return the given state."""
        with self._lock:
            if self.known is None or state.number > self.known.number:
                self.known = state
        return state

    def state(self) -> StoreState:
        """Return the newest state; within a transaction of this thread, the state with which it began."""
        known = self.known
        return known if known is not None and self.home.in_transaction else self.follow()

    def seen(self) -> StoreState:
        """Return the newest state that was seen, without reading the log if there is one."""
        return self.known or self.state()

    def newest(self) -> Tx:
        """Return a transaction that reads the newest state."""
        return Tx(self.home, self.state())

    # Transactions

    @contextmanager
    def writing(self, is_small: bool = False) -> Iterator[Tx]:
        """Begin a writing transaction; only one runs at a time over all processes.

        It commits at the end of the block, or changes nothing if the block raises. A copied store, or an
        older log that was put back, is detected before anything is changed.

        Args:
            is_small: the transaction enters no files, so the shards' markers are read and raised less often.

        Raises:
            ReadOnlyStore: the log cannot be written.
            ShardMismatch: the log's file has two names, or the store is a copy.
        """
        self.check_writable()
        verify = self.before_writing(is_small)  # before the transaction: it reads files at the shards
        with self.leasing() as tx:
            before = tx.state
            verify(before)
            yield tx
        if tx.state.versions != before.versions:
            self.after_writing(tx.state, tx.files_at, is_small)
        self._checkpoint_after(before.number, tx.state.number)

    @contextmanager
    def leasing(self) -> Iterator[Tx]:
        """Begin a transaction like `writing`, without reading the shards: for leases and `adopt`."""
        self.check_writable()
        with self.appending() as tx:
            yield tx
            tx.observe_time()

    @contextmanager
    def appending(self) -> Iterator[Tx]:
        """Return a transaction that begins at the head of the log; other writers wait until it ends.

        Raises:
            CommitUnknown: the answer was lost, and the log cannot be searched for the commit.
            Interrupted: nothing was changed; the caller may repeat the whole transaction.
            CatalogUnavailable: another writer has held the lock for too long.
        """
        known = self.follow()

        def begin() -> Tx:
            return Tx(self.home, self._advance(replay_newest(self.home, known)))

        with self._committed(begin) as transaction:
            yield transaction
        self._advance(transaction.state)

    @contextmanager
    def _committed(self, begin: Callable[[], Tx]) -> Iterator[Tx]:
        transaction: Tx | None = None

        def is_there() -> bool:
            with self.home.writing():  # waits for a commit that is still running
                return transaction is not None and transaction.was_committed()

        try:
            with self.home.writing():
                transaction = begin()
                yield transaction
                transaction.finish()
        except CommitUnknown as lost:
            try:
                is_done = retry(self.home, is_there)
            except CatalogUnavailable:
                raise lost from None
            if not is_done:
                raise Interrupted("the log was lost, and nothing was done; try again") from lost

    def check_writable(self) -> None:
        """Raise `ReadOnlyStore` if nothing can be written. Callers check this before they start work."""
        if self.read_only is not None:
            raise ReadOnlyStore(
                f"the store is open read-only: {self.read_only}; nothing was changed: open it where the "
                "catalog can be written",
                why=self.read_only,
            )

    # Small commits at a server

    def append_inline(self, commit: Callable[[Tx], Append | None]) -> int | None:
        """Append a small commit that does not depend on rows, in one statement, if the home has one.

        `commit` makes the append for the known state, or returns None if it needs a transaction. The
        statement compares only the layout. Layouts only grow, so an attempt whose answer was lost cannot
        take effect after a change of the layout.

        Returns the commit's number; None if nothing was appended and the caller must use a transaction.
        Raises `CommitUnknown` if the answer was lost and the server cannot be searched for the commit.
        """
        state, lost = self.known, list[CommitUnknown]()
        if state is None or not self.home.appends_inline or self.read_only is not None or in_transaction():
            return None
        append = commit(Tx(self.home, state))
        if append is None or (isinstance(append.record, RowsCommitted) and append.record.based_on):
            return None  # the statement compares the layout, not the newest commit of the table
        verify = self.before_writing(True)
        try:
            verify(state)
        except ShardMismatch:  # other processes may have committed since
            verify(self.follow())
        try:
            check(state, append.record)  # depends only on the layout, which the statement compares
        except ElasticScanError:  # the known state may be too old
            return None
        row, parts = drafted(append, 0)
        columns = row._asdict() | {"layout": state.layout, "seal": row_digest(row), "parts": parts}

        def attempt() -> int | None:
            found = self._found(row.id, state.number) if lost else None
            if found is not None:
                return found
            try:
                answer = self.home.append_inline(columns)
            except CommitUnknown as error:
                lost.append(error)
                raise
            if answer is None:
                return None
            number, at, digest = answer
            entry = LogEntry(number, at, row, digest)
            if number == state.number + 1 and entry.follows(state.digest):  # else the next read follows
                self._advance(apply(state, entry, append.record))
            return int(number)

        try:
            appended = retry(self.home, attempt)
        except CatalogUnavailable as error:  # the log cannot be searched for the commit
            raise lost[-1] if lost else error from None
        if appended is not None:
            self.after_writing(replace(state, commit=appended), frozenset(), True)
            self._checkpoint_after(appended - 1, appended)
        return appended

    def _found(self, id: bytes, base: int) -> int | None:  # noqa: A002
        """Return the number of the append with an id; waits for one that is still running."""
        with self.home.writing():
            found = self.home.execute(tables.BY_ID, {"after": base, "id": id})
        return int(found[0][0]) if found else None

    # The whole log

    @retry_interrupted
    def check_whole(self) -> None:
        """Raise `StoreDamaged` if the log is damaged, `ShardMismatch` if an older one is back."""
        self.home.close()  # open connections cache pages that may be damaged on the disk
        self.newest()
        self.home.check_sound()
        verifying.check_log(self.home)

    def dump(self) -> tuple[tables.Dump, Tx]:
        """Return the rows of all tables except leases, and a transaction over the same snapshot."""
        with self.home.reading():
            state = replay_newest(self.home, self.known)
            rows = {
                name: list(map(list, self.home.execute(select))) for name, select in tables.EVERYTHING.items()
            }
            return rows, Tx(self.home, state)

    # Checkpoints

    def _checkpoint_after(self, before: int, number: int) -> None:
        """Write a checkpoint if (before, number] contains a multiple of `TAIL_RECORDS`."""
        if before // TAIL_RECORDS < number // TAIL_RECORDS:
            with suppress(ElasticScanError):  # the commit succeeded, whatever happens here
                self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the newest state, without holding the log's lock."""
        checkpoints.write(self.home, self.follow())

    def drop_payloads(self, older_than: float) -> int:
        """Drop the parts of records that all kept checkpoints cover; return the number of dropped parts.

        Nothing is dropped if the newest checkpoint is younger than `older_than`. All kept checkpoints must
        cover a part, so that the older one still leads to the newest state if the newer one is damaged.
        Entries stay, and with them the history. Rows of unflushed commits and statistics of files in use
        stay, too.
        """
        kept = checkpoints.all_checkpoints(self.home)[: checkpoints.KEPT]
        states = [checkpoints.read_state(self.home, checkpoint) for checkpoint in kept]
        if len(states) < checkpoints.KEPT or states[0].time >= micros(older_than):
            return 0
        memory = {commit.number for table in states[-1].tables.values() for commit in table.memory}
        files = {id // MAX_FILES for table in states[-1].tables.values() for id in table.fragments.by_id}  # noqa: A001
        needed, dropped = {ROWS: memory, STATISTICS: files}, 0
        values = {"after": -1, "upto": states[-1].number, "most": _DROPPED_AT_ONCE}
        while batch := self.home.execute(tables.DROPPABLE, values):
            droppable = [{"number": n, "part": part} for n, part in batch if n not in needed.get(part, ())]
            change(self.home, [(tables.DELETE_PART, key) for key in droppable])
            dropped, values["after"] = dropped + len(droppable), batch[-1][0]
        return dropped
