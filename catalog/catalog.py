"""The catalog of a store: follow its log, append to it, checkpoint it.

**Follow.** A process holds one state and folds what came since (`replay`). (number, digest) of the head says
whether anything did.

**Append.** Under the log's lock: fold the rest, check, insert, move the head. So there is no retry loop, and
each writer in the queue gets its turn. An append has three outcomes: it is in the log; it was refused, and
nothing of it is there; or the answer was lost. The last is settled by asking the log for the append's id, and
remains `CommitUnknown` if that cannot be asked either. Files that were staged for an append may be deleted
only after it was refused.

A small commit that has read nothing is one statement where the home has one (`LogHome.append_inline`): the
database gives it number, time and digest.

**Checkpoint.** Who appends each hundredth record writes one, so that no tail is long (`TAIL_RECORDS`).
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

TAIL_RECORDS = 100  # who appends the last of so many writes a checkpoint
_DROPPED_AT_ONCE = 500


class Catalog:
    """The log of a store, and transactions over it. For several threads; a child opens its own.

    Everything raises `ShardMismatch` when the log has become older than this object has seen it.

    Attributes:
        home: the database that keeps the log.
        known: the newest state that was seen; in a writing transaction, that with which it began.
        read_only: why nothing can be written through it, or None.
        file: the log's file; None at a server, whose answers take a while.
        before_writing: called before every transaction that writes, with `is_small`. It returns a check,
            which the transaction calls with its state, and which raises when that cannot be the newest.
        after_writing: is called after every such transaction that changed the versions, with the state that
            it made, with the shards at which it entered files, and with `is_small`. `append_at_once` gives
            the state before it, of which `commit` alone is replaced.
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
        """Return the transaction that begins an empty log, with what another one held if that is given.

        Raises:
            AlreadyExists: the log has records.
            StoreDamaged: what was copied is not what a log held.
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
        """Return the state as of the head; of a standby, which may fall behind what was seen, what it has.

        Raises:
            ShardMismatch: an older copy of the log was put back.
            StoreDamaged: the log is not what was appended.
            TableChanged: it is the log of another store.
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
        """Take the log as it is next time, also where it is older than it was."""
        with self._lock:
            self.known = None

    def _advance(self, state: StoreState) -> StoreState:
        """Go on from a state that was committed, unless a newer one is known; returns it."""
        with self._lock:
            if self.known is None or state.number > self.known.number:
                self.known = state
        return state

    def state(self) -> StoreState:
        """Return the newest state; a thread that is in a transaction sees that with which it began."""
        known = self.known
        return known if known is not None and self.home.in_transaction else self.follow()

    def seen(self) -> StoreState:
        """Return the newest state that was seen, without asking the log."""
        return self.known or self.state()

    def newest(self) -> Tx:
        """Return a transaction that reads the newest state."""
        return Tx(self.home, self.state())

    # Transactions

    @contextmanager
    def writing(self, is_small: bool = False) -> Iterator[Tx]:
        """Begin the writing transaction, one at a time over all processes.

        One that `is_small` enters no file, so that what is done before and after it can be done less often.

        Ends in a commit, or in nothing at all when the block raises. A copy of the store's, or an older one
        that was put back, is noticed before anything is changed.

        Raises:
            ReadOnlyStore: the log cannot be written.
            ShardMismatch: it has two names, or is a copy.
        """
        self.check_writable()
        verify = self.before_writing(is_small)  # outside of the transaction: it reads at the shards
        with self.leasing() as tx:
            before = tx.state
            verify(before)
            yield tx
        if tx.state.versions != before.versions:
            self.after_writing(tx.state, tx.files_at, is_small)
        self._checkpoint_after(before.number, tx.state.number)

    @contextmanager
    def leasing(self) -> Iterator[Tx]:
        """As `writing`, without reading the shards: for leases, and for a copy that becomes the owner."""
        self.check_writable()
        with self.appending() as tx:
            yield tx
            tx.observe_time()

    @contextmanager
    def appending(self) -> Iterator[Tx]:
        """Return a transaction that sees the head and appends to it; others wait until it ends.

        Raises:
            CommitUnknown: the answer was lost, and the log cannot be asked.
            Interrupted: nothing was done, and all may begin again.
            CatalogUnavailable: another one has had the lock for too long.
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
            with self.home.writing():  # one under way is waited for
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
        """Raise `ReadOnlyStore` when nothing can be written; to be asked before work is begun."""
        if self.read_only is not None:
            raise ReadOnlyStore(
                f"the store is open for reading alone: {self.read_only}; nothing was changed, do this where "
                "the catalog can be written",
                why=self.read_only,
            )

    # Small commits at a server

    def append_at_once(self, commit: Callable[[Tx], Append | None]) -> int | None:
        """Append a small commit that has read nothing by one statement, where the home has one.

        `commit` returns it as of the state that is known, or None if it needs a transaction. An attempt whose
        answer was lost cannot take effect after another layout, since layouts only grow.

        Returns its number. None, and nothing was done, if it needs a transaction, or the layout has changed.

        Raises:
            CommitUnknown: the answer was lost, and the server cannot be asked.
        """
        state, lost = self.known, list[CommitUnknown]()
        if state is None or not self.home.appends_inline or self.read_only is not None or in_transaction():
            return None
        what = commit(Tx(self.home, state))
        if what is None or (isinstance(what.record, RowsCommitted) and what.record.based_on):
            return None  # the statement compares the layout, not the newest commit of the table
        verify = self.before_writing(True)
        try:
            verify(state)
        except ShardMismatch:  # others may have gone beyond what is known here
            verify(self.follow())
        try:
            check(state, what.record)  # all that it depends on is the layout
        except ElasticScanError:  # the state may be an old one
            return None
        row, parts = drafted(what, 0)
        values = row._asdict() | {"layout": state.layout, "seal": row_digest(row), "parts": parts}

        def attempt() -> int | None:
            found = self._found(row.id, state.number) if lost else None
            if found is not None:
                return found
            try:
                answer = self.home.append_inline(values)
            except CommitUnknown as error:
                lost.append(error)
                raise
            if answer is None:
                return None
            number, at, digest = answer
            entry = LogEntry(number, at, row, digest)
            if number == state.number + 1 and entry.follows(state.digest):  # else readers follow
                self._advance(apply(state, entry, what.record))
            return int(number)

        try:
            appended = retry(self.home, attempt)
        except CatalogUnavailable as error:  # it cannot be asked whether it is there
            raise lost[-1] if lost else error from None
        if appended is not None:
            self.after_writing(replace(state, commit=appended), frozenset(), True)
            self._checkpoint_after(appended - 1, appended)
        return appended

    def _found(self, id: bytes, base: int) -> int | None:  # noqa: A002
        """Return the append whose answer was lost, if it is in the log; the lock waits for one under way."""
        with self.home.writing():
            found = self.home.execute(tables.BY_ID, {"after": base, "id": id})
        return int(found[0][0]) if found else None

    # The whole log

    @retry_interrupted
    def check_whole(self) -> None:
        """Raise unless the log is as it was written (`StoreDamaged`), and not older than it was."""
        self.home.close()  # connections have pages in memory, which may be damaged on the disk
        self.newest()
        self.home.check_sound()
        verifying.check_log(self.home)

    def dump(self) -> tuple[tables.Dump, Tx]:
        """Return the rows of all tables but the leases, and a transaction that sees just that."""
        with self.home.reading():
            state = replay_newest(self.home, self.known)
            rows = {
                name: list(map(list, self.home.execute(every))) for name, every in tables.EVERYTHING.items()
            }
            return rows, Tx(self.home, state)

    # Checkpoints

    def _checkpoint_after(self, before: int, number: int) -> None:
        """Write a checkpoint after an append, if it has the next record with a round number."""
        if before // TAIL_RECORDS < number // TAIL_RECORDS:
            with suppress(ElasticScanError):  # what was committed stays so
                self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the state as of the head; the log goes on meanwhile."""
        checkpoints.write(self.home, self.follow())

    def drop_payloads(self, older_than: float) -> int:
        """Drop what records said that checkpoints cover, if the newest of these is older than a time.

        All checkpoints that are kept must cover it: should one be damaged, the other leads to the state.
        Entries stay, so the history does; so do rows and statistics of rows that lie in the log, and of files
        that are in use. Returns how many parts were dropped.
        """
        kept = checkpoints.all_checkpoints(self.home)[: checkpoints.KEPT]
        states = [checkpoints.read_state(self.home, checkpoint) for checkpoint in kept]
        if len(states) < checkpoints.KEPT or states[0].time >= micros(older_than):
            return 0
        memory = {commit.number for table in states[-1].tables.values() for commit in table.memory}
        files = {id // MAX_FILES for table in states[-1].tables.values() for id in table.fragments.by_id}  # noqa: A001
        needed, dropped = {ROWS: memory, STATISTICS: files}, 0
        asked = {"after": -1, "upto": states[-1].number, "most": _DROPPED_AT_ONCE}
        while some := self.home.execute(tables.DROPPABLE, asked):
            going = [{"number": n, "part": part} for n, part in some if n not in needed.get(part, ())]
            change(self.home, [(tables.DELETE_PART, key) for key in going])
            dropped, asked["after"] = dropped + len(going), some[-1][0]
        return dropped
