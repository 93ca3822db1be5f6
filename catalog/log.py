"""The log of a store: follow it, append to it, checkpoint it.

**Follow.** A process holds one state and folds what came since. (number, digest) of the head says whether
anything did; the digests of the entries, that they are the ones that were appended.

**Append.** Under the log's lock: fold the rest, check, insert, move the head. So there is no retry loop, and
whoever waits in the queue gets its turn. An append has three outcomes: it is in the log; it was refused, and
nothing of it is there; or the answer was lost. The last is settled by asking the log for the append's id, and
remains `CommitUnknown` if that cannot be asked either. Files that were staged for an append may be deleted
only after it was refused.

A small commit that has read nothing is one statement where the home has one (`LogHome.append_inline`): the
database gives it number, time and digest.

**Checkpoint.** Whoever appends writes one when the tail has grown too large to fold at once (`tail_bytes`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from threading import RLock
from typing import Any

from elasticscan.base.errors import (
    AlreadyExists,
    CatalogOutdated,
    CatalogUnavailable,
    CommitUnknown,
    ElasticScanError,
    StoreDamaged,
    StoreNotFound,
)
from elasticscan.catalog import checkpoints, tables, verifying
from elasticscan.catalog.appending import Append, Draft, LogTransaction, row_values
from elasticscan.catalog.checks import check
from elasticscan.catalog.copying import Dump, fill
from elasticscan.catalog.entries import (
    GENESIS,
    ROWS,
    STATISTICS,
    LogEntry,
    check_chain,
    check_part,
    damaged_log,
    entry_of,
    is_sealed,
    linked_entry,
    record_of,
)
from elasticscan.catalog.home import Interrupted, LogHome, Row, Transaction, head_in, micros
from elasticscan.catalog.leases import Lease, end_lease, take_lease
from elasticscan.catalog.retrying import retry
from elasticscan.catalog.state import StoreState, apply
from elasticscan.catalog.table_state import InlineCommit, TableState
from elasticscan.metadata import (
    MAX_FILES,
    RowsCommitted,
    StoreCreated,
)

_MOST_APPLICATIONS = 10_000  # are remembered
TAIL_BYTES, TAIL_RECORDS = 32 << 10, 100  # a longer tail is folded into a checkpoint
_CHECKPOINT_MICROSECONDS = 600 * 1_000_000  # after so long its writer is presumed dead


@dataclass(frozen=True, slots=True)
class CheckpointWriter:
    """The process that writes a checkpoint, in a lease."""

    id: str


class Log:
    """The log of a store. Safe to use from several threads, and after a fork."""

    def __init__(self, home: LogHome) -> None:
        self.home = home
        self._state: StoreState | None = None
        self._lock, self._process = RLock(), os.getpid()
        self._tail_bytes = self._tail_records = 0  # that were folded since the newest checkpoint
        self.applications = dict[tuple[int, str], tuple[int, int]]()
        self._checkpointed = 0  # the number of that, as far as this process knows

    @staticmethod
    @contextmanager
    def beginning(
        home: LogHome, record: StoreCreated, topology: tuple[int, bytes] | None = None
    ) -> Iterator[LogTransaction]:
        """Return the transaction that begins a log with its first record, and may append more."""
        with Log(home)._transaction(
            lambda sql: LogTransaction(home, sql, None, _digest_of_empty(sql))
        ) as first:
            first.append(Append(record, topology=topology))
            yield first

    @staticmethod
    @contextmanager
    def filled(home: LogHome, copied: Dump) -> Iterator[LogTransaction]:
        """Return the transaction that fills an empty log with what another one held, and may append more.

        Raises:
            StoreDamaged: it is not what that one held.
        """

        def begin(sql: Transaction) -> LogTransaction:
            _digest_of_empty(sql)
            fill(sql, copied)
            state, *_ = Log(home)._fold_rest(sql, checkpoints.newest_state(sql))
            return LogTransaction(home, sql, state, state.digest)

        with Log(home)._transaction(begin) as more:
            yield more

    def remember_application(self, of: tuple[int, str], upto: int, newest: int) -> None:
        """Remember, up to a number, the newest version under which an application wrote to a table."""
        if len(self.applications) >= _MOST_APPLICATIONS:
            self.applications.clear()
        self.applications[of] = upto, newest

    # Follow

    @property
    def state(self) -> StoreState:
        """The state as this process knows it; `follow` brings it up to date."""
        return self._state or self.follow()

    @property
    def known(self) -> StoreState | None:
        """The newest state that was seen."""
        return self._state

    def follow(self) -> StoreState:
        """Return the state as of the head.

        Raises:
            CatalogOutdated: an older copy of the log was put back.
            StoreDamaged: the log is not what was appended.
        """
        return retry(self.home, self._followed)

    def _followed(self) -> StoreState:
        known = self._state
        if known is not None and head_in(self.home.execute(tables.HEAD)) == _head_of(known):
            return known
        # Checkpoints are read before the log is: one that is newer than what is seen of it would be a riddle.
        if known is None:
            known = checkpoints.newest_state(self.home)
            self._checkpointed = 0 if known is None else known.number
        try:
            return self._fold(known)
        except _Trimmed:
            known = self._from_checkpoint(known)
        except CatalogOutdated as outdated:
            return self._other(known, outdated)
        try:
            return self._fold(known)
        except _Trimmed as gap:
            raise damaged_log(f"the value of record {gap} is missing") from None

    def _other(self, known: StoreState | None, outdated: CatalogOutdated) -> StoreState:
        """Return the state of a log that does not follow what was seen, if it is another store or copy."""
        with self.home.reading() as transaction:
            state, *_ = self._fold_rest(transaction, checkpoints.newest_state(transaction))
        if known is None or (state.store_id, state.incarnation) == (known.store_id, known.incarnation):
            raise outdated
        with self._locked():
            self._state = state
            self.applications.clear()
        return state

    def _fold(self, known: StoreState | None) -> StoreState:
        state, folded, records = self._folded_rest(self.home, known)  # one statement sees one snapshot
        self._advance(state, folded, records)
        return state

    def forget(self) -> None:
        """Read everything again at the next look: what was read may be damaged by now, or another log."""
        with self._locked():
            self._state = None
            self.applications.clear()

    def state_in(self, transaction: Transaction) -> StoreState:
        """Return the state as of the head that a transaction sees."""
        try:
            return self._fold_rest(transaction, self._state)[0]
        except _Trimmed:
            return self._fold_rest(transaction, checkpoints.newest_state(transaction))[0]

    def _locked(self) -> RLock:
        if self._process != os.getpid():  # the lock may be one that another thread of the parent held
            self._lock, self._process = RLock(), os.getpid()
        return self._lock

    def _fold_rest(self, transaction: Transaction, state: StoreState | None) -> tuple[StoreState, int, int]:
        """Return the state as of the head, and the bytes and the count of the records that lead to it."""
        if state is not None and head_in(transaction.execute(tables.HEAD)) == _head_of(state):
            return state, 0, 0
        return self._folded_rest(transaction, state)

    def _folded_rest(self, transaction: Transaction, state: StoreState | None) -> tuple[StoreState, int, int]:
        """As `_fold_rest`, by one statement: it gives the head, what is known of the log, and the rest."""
        rows = transaction.execute(tables.TAIL, {"known": -1 if state is None else state.number})
        head = head_in([row[:4] for row in rows[:1]])
        rows = [row[4:] for row in rows if row[4] is not None]
        if state is not None:
            self._check_same(state, [row[2] for row in rows[:1] if row[0] == state.number], head[0])
            rows = rows[1:]
        elif not rows and head[0] == -1:
            raise StoreNotFound("the log has no record yet; create the store again")
        entries = [entry_of(row) for row in rows]
        check_chain(GENESIS if state is None else state.digest, entries)
        for entry, row in zip(entries, rows, strict=True):
            if row[-1] is None:
                raise _Trimmed(entry.number)
            state = apply(state, entry, record_of(entry, row[-1]))
        if state is None or head != _head_of(state):
            raise damaged_log(f"its head is {head[0]}, and its entries end elsewhere")
        return state, sum(len(row[-1]) for row in rows), len(rows)

    def _check_same(self, state: StoreState, logged: Sequence[bytes], number: int) -> None:
        """Raise unless the digest of the state that is known is the one that the log has under its number."""
        if logged != [state.digest]:
            raise CatalogOutdated(
                f"record {state.number} was seen, and the log ends with {number} or has another in its "
                "place; put the newest log back, or run `elasticscan adopt`",
                known=state.number,
                found=number,
            )

    def _from_checkpoint(self, known: StoreState | None) -> StoreState:
        """Return the newest checkpoint, for a process that has slept past the values of its tail."""
        state = checkpoints.newest_state(self.home)
        if state is None or (known is not None and state.number <= known.number):
            raise damaged_log("values are missing that no checkpoint covers")
        with self._locked():
            self._tail_bytes = self._tail_records = 0
            self._checkpointed = state.number
        return state

    # Append

    @contextmanager
    def writing(self, at_once: bool = False) -> Iterator[LogTransaction]:
        """Return a transaction that sees the head and appends to it; others wait until it ends.

        Raises:
            CommitUnknown: the answer was lost, and the log cannot be asked.
            Interrupted: nothing was done, and all may begin again.
            CatalogUnavailable: it has to begin `at_once`, and another one has the lock.
        """
        known = self.follow()

        def begin(sql: Transaction) -> LogTransaction:
            state = self._seen(sql, known)
            return LogTransaction(self.home, sql, state, state.digest)

        with self._transaction(begin, at_once) as transaction:
            yield transaction
        self._advance(transaction.state, transaction.appended_bytes, transaction.appended)

    @contextmanager
    def _transaction(
        self, begin: Callable[[Transaction], LogTransaction], at_once: bool = False
    ) -> Iterator[LogTransaction]:
        transaction = None
        try:
            with self.home.writing(at_once) as sql:
                transaction = begin(sql)
                yield transaction
                transaction.finish()
        except CommitUnknown as lost:
            if transaction is None or not self._is_done(transaction, lost):
                raise Interrupted("the log was lost, and nothing was done; try again") from lost

    def _seen(self, sql: Transaction, known: StoreState) -> StoreState:
        """Return the state as of the head, as a transaction sees it."""
        try:
            return self._fold_rest(sql, known)[0]
        except _Trimmed:  # between the look before and this one
            raise Interrupted("values were dropped meanwhile; try again") from None

    def _is_done(self, transaction: LogTransaction, lost: CommitUnknown) -> bool:
        """Return whether a transaction whose answer was lost is in the log; one under way is waited for."""
        try:
            return retry(self.home, partial(self._is_there, transaction))
        except CatalogUnavailable:
            raise lost from None

    def _is_there(self, transaction: LogTransaction) -> bool:
        with self.home.writing() as sql:
            return transaction.is_there(sql)

    def append_at_once(self, draft: Draft, state: StoreState) -> int | None:
        """Append a small commit that has read nothing by one statement, if the layout is that of a state.

        Otherwise, or where the database has no such statement, it returns None, and nothing is done: not
        later, either, by an attempt whose answer was lost, since layouts only grow.

        Raises:
            CommitUnknown: the answer was lost, and the log cannot be asked.
        """
        lost: CommitUnknown | None = None

        def attempt() -> int | None:
            nonlocal lost
            found = None if lost is None else self._found(draft, state.number)
            if found is not None:
                return found
            try:
                return self._append_inline(draft, state)
            except CommitUnknown as error:
                lost = error
                raise

        try:
            return retry(self.home, attempt)
        except CatalogUnavailable:  # it cannot be asked whether it is there
            if lost is not None:
                raise lost from None
            raise

    def _append_inline(self, draft: Draft, state: StoreState) -> int | None:
        """Append a small commit that has read nothing, by one statement; None if that cannot be done."""
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
            self._advance(apply(state, entry, record), draft.value_bytes, 1)  # else who reads follows
        return int(number)

    def _advance(self, state: StoreState, value_bytes: int, records: int) -> None:
        """Go on from a state that was committed, unless a newer one is known."""
        with self._locked():
            if self._state is None or state.number > self._state.number:
                self._state = state
            self._tail_bytes += value_bytes
            self._tail_records += records

    def _found(self, draft: Draft, base: int) -> int | None:
        """Return the append whose answer was lost, if it is in the log; the lock waits for one under way."""
        with self.home.writing() as transaction:
            found = transaction.execute(tables.BY_ID, {"after": base, "id": draft.id})
        return int(found[0][0]) if found else None

    # Read

    def entries(self, first: int, last: int) -> list[LogEntry]:
        """Return entries by their numbers, ascending, both ends included."""
        rows = self.home.execute(tables.ENTRIES, {"first": first, "last": last})
        return [linked_entry(row) for row in rows]

    def rows_of(
        self,
        table: int,
        commits: Iterable[InlineCommit],
        execute: Callable[[str, Mapping[str, Any]], list[Row]] | None = None,
    ) -> dict[int, bytes]:
        """Return the rows of small commits of a state, as they were appended, by number.

        A number is missing if its rows were dropped since they lie in files: follow the log, and ask again.
        `execute` is that of a transaction.
        """
        digests = {commit.number: commit.digest for commit in commits}
        if not digests:
            return {}
        asked = {"table": table, "part": ROWS, "after": min(digests) - 1}
        rows = (execute or self.home.execute)(tables.PARTS, asked)
        found = {number: content for number, content in rows if number in digests}
        for number, content in found.items():
            if not is_sealed(content, digests[number]):
                raise damaged_log(f"the rows of record {number} are not what was written")
        return found

    def statistics_of(self, table: int, ids: Collection[int]) -> dict[int, bytes]:
        """Return what is known of the values in files; damaged or missing statistics are left out."""
        return self._statistics_of_all({table: ids})

    def _statistics_of_all(self, files: Mapping[int, Collection[int]]) -> dict[int, bytes]:
        """As `statistics_of`, of the files of several tables, which are given by table."""
        found, tail = dict[int, bytes](), set[int]()
        manifests = checkpoints.manifests(self.home)[:1]
        known = checkpoints.statistics_in(self.home, manifests[0], files) if manifests else {}
        for table, ids in files.items():
            found |= {file: body for file, body in known.get(table, {}).items() if file in ids}
            covered = manifests[0].number if table in known else -1
            tail |= {file // MAX_FILES for file in ids if file // MAX_FILES > covered}
        for number in sorted(tail):
            with suppress(StoreDamaged):
                found |= self._statistics_brought(number)
        every = {file for ids in files.values() for file in ids}
        return {file: body for file, body in found.items() if file in every}

    def _statistics_brought(self, number: int) -> dict[int, bytes]:
        """Return the statistics that a record brought, by the files' ids."""
        for entry in self.entries(number, number):
            part = (entry.row.table, STATISTICS)
            asked = {"number": number, "table": part[0], "part": part[1]}
            for (content,) in self.home.execute(tables.PART, asked):
                check_part(entry, part, content)
                bodies = checkpoints.unpack_statistics_part(content)
                return {number * MAX_FILES + ordinal: body for ordinal, body in bodies.items()}
        return {}

    def check_whole(self) -> None:
        """Raise `StoreDamaged` unless all that the log has is what was written, and leads to one state."""

        def fold(transaction: Transaction, state: StoreState | None) -> StoreState:
            try:
                return self._fold_rest(transaction, state)[0]
            except _Trimmed as gap:
                raise damaged_log(f"the value of record {gap} is missing") from None

        verifying.check_log(self.home, fold)

    # Checkpoints

    def checkpoint_if_long(self) -> bool:
        """Write a checkpoint if folding the tail would take a process some 10 ms; for after an append."""
        with self._locked():
            if self._tail_records < TAIL_RECORDS and self._tail_bytes < TAIL_BYTES:
                return False
            self._tail_bytes = self._tail_records = 0
            newest = max((manifest.number for manifest in checkpoints.manifests(self.home)), default=0)
            is_written, self._checkpointed = newest > self._checkpointed, newest
        return not is_written and self.write_checkpoint()

    def write_checkpoint(self) -> bool:
        """Write a checkpoint of the state as of the head; False if another process is writing one.

        The log goes on meanwhile.
        """
        now = micros(self.home.clock.now())
        lease = Lease("", CheckpointWriter(token_hex(16)), now + _CHECKPOINT_MICROSECONDS)
        if not take_lease(self.home, lease, now):
            return False
        try:
            state = self.follow()
            files = {number: _file_ids(table) for number, table in state.tables.items()}
            known = self._statistics_of_all(files)
            of_tables = {
                number: {file: known[file] for file in ids & known.keys()} for number, ids in files.items()
            }
            checkpoints.write(self.home, state, of_tables)
            self._checkpointed = state.number
        finally:
            end_lease(self.home, lease)
        return True

    def drop_payloads(self, older_than: int) -> int:
        """Drop what checkpoints cover, if the newest is older than a time in microseconds.

        Returns how many parts. A process that has slept since folds from a checkpoint.
        """
        manifests = checkpoints.manifests(self.home)[:1]
        newest = [entry for each in manifests for entry in self.entries(each.number, each.number)]
        return checkpoints.drop_covered(self.home) if newest and newest[0].time < older_than else 0


def _digest_of_empty(sql: Transaction) -> bytes:
    """Return the digest before the first record; raises `AlreadyExists` where there is one."""
    number, digest, *_ = head_in(sql.execute(tables.HEAD))
    if number != -1:
        raise AlreadyExists("the log has records already; open it")
    return bytes(digest)


class _Trimmed(Exception):
    """The value of a record was dropped: a checkpoint covers it."""


def _head_of(state: StoreState) -> Row:
    return state.number, state.digest, state.time, state.layout


def _file_ids(table: TableState) -> set[int]:
    return {file for files in (table.fragments, table.runs) for file in files.merged()["id"].to_pylist()}
