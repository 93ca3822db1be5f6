"""The log of a store: follow it, append to it, checkpoint it.

**Follow.** A process holds one state and folds what came since (`replay`). (number, digest) of the head says
whether anything did.

**Append.** Under the log's lock: fold the rest, check, insert, move the head. So there is no retry loop, and
each writer in the queue gets its turn. An append has three outcomes: it is in the log; it was refused, and
nothing of it is there; or the answer was lost. The last is settled by asking the log for the append's id, and
remains `CommitUnknown` if that cannot be asked either. Files that were staged for an append may be deleted
only after it was refused.

A small commit that has read nothing is one statement where the home has one (`LogHome.append_inline`): the
database gives it number, time and digest.

**Checkpoint.** The process that appends writes one when the tail has grown too large to fold at once
(`TAIL_BYTES`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex
from threading import RLock

import msgpack

from elasticscan.base.errors import (
    AlreadyExists,
    CatalogOutdated,
    CatalogUnavailable,
    CommitUnknown,
    ElasticScanError,
    StoreDamaged,
)
from elasticscan.catalog import checkpoints, tables, verifying
from elasticscan.catalog.appending import Append, Draft, row_values
from elasticscan.catalog.checks import check
from elasticscan.catalog.database import Interrupted, LogHome, head_in
from elasticscan.catalog.entries import (
    ROWS,
    STATISTICS,
    LogEntry,
    check_part,
    damaged_log,
    is_sealed,
    linked_entry,
)
from elasticscan.catalog.fold import apply
from elasticscan.catalog.replay import Replayed, replay_newest
from elasticscan.catalog.retrying import retry
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.table_state import InlineCommit, TableState
from elasticscan.catalog.transaction import Tx
from elasticscan.metadata import MAX_FILES, RowsCommitted

TAIL_BYTES = 32 << 10  # a longer tail is folded into a checkpoint
_CHECKPOINT_SECONDS = 600.0  # after so long its writer is presumed dead


@dataclass(frozen=True, slots=True)
class CheckpointWriter:
    """The process that writes a checkpoint, in a lease."""

    id: str


class Log:
    """The log of a store. Safe to use from several threads, and after a fork.

    Attributes:
        known: the newest state that was seen.
    """

    def __init__(self, home: LogHome) -> None:
        self.home = home
        self.known: StoreState | None = None
        self._lock, self._process = RLock(), os.getpid()
        self._tail_bytes = 0  # that were folded since the newest checkpoint
        self._checkpointed = 0  # the number of that, as far as this process knows

    @contextmanager
    def beginning(self, copied: tables.Dump | None = None) -> Iterator[Tx]:
        """Return the transaction that begins an empty log, with what another one held if that is given.

        Raises:
            AlreadyExists: the log has records.
            StoreDamaged: what was copied is not what a log held.
        """

        def begin() -> Tx:
            if head_in(self.home.execute(tables.HEAD))[0] != -1:
                raise AlreadyExists("the log has records already; open it")
            if copied is None:
                return self.at(None)
            for statement in tables.filling(copied):
                self.home.execute(*statement)
            return self.at(replay_newest(self.home, None).state)

        with self._transaction(begin) as transaction:
            yield transaction

    # Follow

    @property
    def state(self) -> StoreState:
        """The state as this process knows it; `follow` brings it up to date."""
        return self.known or self.follow()

    def follow(self) -> StoreState:
        """Return the state as of the head; of a standby, which may fall behind what was seen, what it has.

        Raises:
            CatalogOutdated: an older copy of the log was put back.
            StoreDamaged: the log is not what was appended.
        """
        return retry(self.home, self._followed)

    def _followed(self) -> StoreState:
        known = self.known
        try:
            return self._advance(replay_newest(self.home, known))
        except CatalogOutdated:
            found = replay_newest(self.home, None)
            assert known is not None, "nothing is older than nothing"
            is_same = (known.store_id, known.incarnation) == (found.state.store_id, found.state.incarnation)
            if is_same and not self.home.is_follower:
                raise
            self.forget()  # it is another store, or another copy
            return self._advance(found)

    def forget(self) -> None:
        """Read everything again next time: what was read may be damaged by now, or another log."""
        with self._locked():
            self.known = None

    def _locked(self) -> RLock:
        if self._process != os.getpid():  # the lock may be one that another thread of the parent held
            self._lock, self._process = RLock(), os.getpid()
        return self._lock

    def _advance(self, found: Replayed) -> StoreState:
        """Go on from a state that was committed, unless a newer one is known; returns it."""
        with self._locked():
            if found.checkpoint is not None:
                self._tail_bytes, self._checkpointed = 0, found.checkpoint
            if self.known is None or found.state.number > self.known.number:
                self.known = found.state
                self._tail_bytes += found.tail_bytes  # else another thread has counted them
        return found.state

    def at(self, state: StoreState | None) -> Tx:
        """Return a transaction that begins with a state."""
        return Tx(self, state, self.home.clock.now())

    # Append

    @contextmanager
    def writing(self, at_once: bool = False) -> Iterator[Tx]:
        """Return a transaction that sees the head and appends to it; others wait until it ends.

        Raises:
            CommitUnknown: the answer was lost, and the log cannot be asked.
            Interrupted: nothing was done, and all may begin again.
            CatalogUnavailable: it has to begin `at_once`, and another one has the lock.
        """
        known = self.follow()

        def begin() -> Tx:
            return self.at(self._advance(replay_newest(self.home, known)))

        with self._transaction(begin, at_once) as transaction:
            yield transaction
        self._advance(Replayed(transaction.state, transaction.tail_bytes))

    @contextmanager
    def _transaction(self, begin: Callable[[], Tx], at_once: bool = False) -> Iterator[Tx]:
        transaction = None
        try:
            with self.home.writing(at_once):
                transaction = begin()
                yield transaction
                transaction.finish()
        except CommitUnknown as lost:
            if transaction is None or not self._is_done(transaction, lost):
                raise Interrupted("the log was lost, and nothing was done; try again") from lost

    def _is_done(self, transaction: Tx, lost: CommitUnknown) -> bool:
        """Return whether a transaction whose answer was lost is in the log; one under way is waited for."""

        def look() -> bool:
            with self.home.writing():
                return transaction.is_there()

        try:
            return retry(self.home, look)
        except CatalogUnavailable:
            raise lost from None

    def append_at_once(self, what: Append, state: StoreState) -> int | None:
        """Append a small commit that has read nothing by one statement, if the layout is that of a state.

        Otherwise, or where the database has no such statement, return None; nothing is done then. An attempt
        whose answer was lost cannot take effect later either, since layouts only grow.

        Raises:
            CommitUnknown: the answer was lost, and the log cannot be asked.
        """
        draft, lost = Draft.of(what), list[CommitUnknown]()

        def attempt() -> int | None:
            try:
                found = self._found(draft, state.number) if lost else None
                return self._inserted(draft, state) if found is None else found
            except CommitUnknown as error:
                lost.append(error)
                raise

        try:
            return retry(self.home, attempt)
        except CatalogUnavailable:  # it cannot be asked whether it is there
            if lost:
                raise lost[-1] from None
            raise

    def _inserted(self, draft: Draft, state: StoreState) -> int | None:
        """Append a small commit that has read nothing, by one statement, or return None."""
        what = draft.what
        record = what.record
        if not isinstance(record, RowsCommitted) or what.rows is None or what.app is not None:
            return None
        if record.based_on:
            return None
        try:
            check(state, record)  # all that it depends on is the layout
        except ElasticScanError:  # the state may be an old one
            return None
        row = draft.row(0)
        values = row_values(row) | {"layout": state.layout, "seal": row.seal}
        values |= {"parts": [(table, part, content) for (table, part), content in draft.parts.items()]}
        answer = self.home.append_inline(values)
        if answer is None:
            return None
        number, at, digest = answer
        entry = LogEntry(number, at, row, digest)
        if number == state.number + 1 and entry.follows(state.digest):
            self._advance(Replayed(apply(state, entry, record), draft.tail_bytes))  # else readers follow
        return int(number)

    def _found(self, draft: Draft, base: int) -> int | None:
        """Return the append whose answer was lost, if it is in the log; the lock waits for one under way."""
        with self.home.writing():
            found = self.home.execute(tables.BY_ID, {"after": base, "id": draft.id})
        return int(found[0][0]) if found else None

    # Read

    def entries(self, first: int, last: int) -> list[LogEntry]:
        """Return entries by their numbers, ascending, both ends included."""
        rows = self.home.execute(tables.ENTRIES, {"first": first, "last": last})
        return [linked_entry(row) for row in rows]

    def rows_of(self, table: int, commits: Iterable[InlineCommit]) -> dict[int, bytes]:
        """Return the rows of small commits of a state, as they were appended, by number.

        A number is missing if its rows were dropped since they lie in files: follow the log, and ask again.
        """
        digests = {commit.number: commit.digest for commit in commits}
        if not digests:
            return {}
        asked = {"table": table, "part": ROWS, "after": min(digests) - 1}
        rows = self.home.execute(tables.PARTS, asked)
        found = {number: content for number, content in rows if number in digests}
        for number, content in found.items():
            if not is_sealed(content, digests[number]):
                raise damaged_log(f"the rows of record {number} are not what was written")
        return found

    def statistics_of(self, table: int, ids: Collection[int]) -> dict[int, bytes]:
        """Return what is known of the values in files; damaged or missing statistics are left out."""
        newest = checkpoints.manifests(self.home)[:1]
        known = checkpoints.statistics_in(self.home, newest[0], table) if newest else None
        covered = -1 if known is None else newest[0].number
        found = known or {}
        for number in sorted({file // MAX_FILES for file in ids if file // MAX_FILES > covered}):
            with suppress(StoreDamaged):
                found |= self._statistics_brought(number)
        return {file: found[file] for file in found.keys() & set(ids)}

    def _statistics_brought(self, number: int) -> dict[int, bytes]:
        """Return the statistics that a record brought, by the files' ids."""
        for entry in self.entries(number, number):
            part = (entry.row.table, STATISTICS)
            asked = {"number": number, "table": part[0], "part": part[1]}
            for (content,) in self.home.execute(tables.PART, asked):
                check_part(entry, part, content)
                bodies = msgpack.unpackb(content, strict_map_key=False)
                return {number * MAX_FILES + ordinal: body for ordinal, body in bodies.items()}
        return {}

    def check_whole(self) -> None:
        """Raise `StoreDamaged` unless all that the log has is what was written, and leads to one state."""
        verifying.check_log(self.home)

    # Checkpoints

    def checkpoint_if_long(self) -> bool:
        """Write a checkpoint if folding the tail would take a process some 10 ms; for after an append."""
        with self._locked():
            if self._tail_bytes < TAIL_BYTES:
                return False
            self._tail_bytes = 0
        newest = max((manifest.number for manifest in checkpoints.manifests(self.home)), default=0)
        is_written, self._checkpointed = newest > self._checkpointed, newest
        return not is_written and self.write_checkpoint()

    def write_checkpoint(self) -> bool:
        """Write a checkpoint of the state as of the head; False if another process is writing one.

        The log goes on meanwhile.
        """
        me = CheckpointWriter(token_hex(16))
        with self.writing() as tx:
            other = tx.lease(CheckpointWriter, "")
            if other is not None and tx.lasts(other):
                return False
            tx.put_lease("", me, _CHECKPOINT_SECONDS)
        try:
            state = self.follow()
            of_tables = {n: self.statistics_of(n, _file_ids(table)) for n, table in state.tables.items()}
            checkpoints.write(self.home, state, of_tables)
            self._checkpointed = state.number
        finally:
            with self.writing() as tx:
                own = tx.lease(CheckpointWriter, "")
                if own is not None and own.value == me:
                    tx.remove_lease(CheckpointWriter, "")
        return True

    def drop_payloads(self, older_than: int) -> int:
        """Drop what checkpoints cover, if the newest is older than a time in microseconds.

        Returns how many parts. A process that has slept since folds from a checkpoint.
        """
        manifests = checkpoints.manifests(self.home)[:1]
        newest = [entry for each in manifests for entry in self.entries(each.number, each.number)]
        return checkpoints.drop_covered(self.home) if newest and newest[0].time < older_than else 0


def _file_ids(table: TableState) -> set[int]:
    return {file for files in (table.fragments, table.runs) for file in files.merged()["id"].to_pylist()}
