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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from threading import RLock
from typing import Any

import msgpack

from elasticscan.base.errors import (
    CatalogOutdated,
    CatalogUnavailable,
    CommitUnknown,
    ElasticScanError,
    StoreDamaged,
    StoreNotFound,
)
from elasticscan.catalog.log import checkpoints, tables
from elasticscan.catalog.log.checks import check
from elasticscan.catalog.log.codec import pack_value
from elasticscan.catalog.log.entries import (
    GENESIS,
    ROWS,
    STATISTICS,
    TOPOLOGY,
    VALUE,
    LogEntry,
    LogRow,
    Part,
    chained,
    check_chain,
    check_part,
    damaged_log,
    entry_of,
    is_sealed,
    linked_entry,
    record_of,
    row_of,
)
from elasticscan.catalog.log.home import LogHome, Row, Transaction, retry
from elasticscan.catalog.log.leases import LogLease, end_lease, take_lease
from elasticscan.catalog.log.state import InlineCommit, StoreState, TableState, apply
from elasticscan.catalog.log.topologies import topology_row
from elasticscan.metadata import (
    MAX_FILES,
    STORE,
    Record,
    RowsCommitted,
    StoreCreated,
    split_statistics,
    table_of,
)

INLINE_BYTES = 64 << 10  # the rows of a larger commit are written to files
TAIL_BYTES, TAIL_RECORDS = 64 << 10, 500  # a longer tail is folded into a checkpoint
_DROPPED_AT_ONCE = 500
_CHECKPOINT_MICROSECONDS = 600 * 1_000_000  # after so long its writer is presumed dead


@dataclass(frozen=True, slots=True)
class Appended:
    """An append that went through.

    Attributes:
        number, time: of its entry, which is an older one where an application has made the commit before.
        rows: that its entry counts.
    """

    number: int
    time: int
    rows: int


@dataclass(frozen=True, slots=True)
class Append:
    """A record on its way into the log.

    Attributes:
        rows: of a small commit, as a record batch message.
        app: (application, version) under which it is committed once.
        metadata: by the user, as JSON.
    """

    record: Record
    rows: bytes | None = None
    app: tuple[str, int] | None = None
    metadata: str | None = None

    def divided(self) -> tuple[Record, dict[Part, bytes]]:
        """Return the record without statistics, and the parts that are kept apart from its entry."""
        record, statistics = split_statistics(self.record)
        table = table_of(record)
        parts = {(table, VALUE): pack_value(record)}
        if self.rows is not None:
            parts[table, ROWS] = self.rows
        if statistics:
            parts[table, STATISTICS] = msgpack.packb(statistics)
        return record, parts


class Log:
    """The log of a store. Safe to use from several threads, and after a fork."""

    def __init__(self, home: LogHome) -> None:
        self.home = home
        self._state: StoreState | None = None
        self._lock, self._process = RLock(), os.getpid()
        self._tail_bytes = self._tail_records = 0  # that were folded since the newest checkpoint
        self._checkpointed = 0  # the number of that, as far as this process knows

    @classmethod
    def create(cls, home: LogHome, record: StoreCreated) -> Log:
        """Begin a log with its first record."""
        log = cls(home)
        log.append(Append(record))
        return log

    # Follow

    @property
    def state(self) -> StoreState:
        """The state as this process knows it; `follow` brings it up to date."""
        return self._state or self.follow()

    def follow(self) -> StoreState:
        """Return the state as of the head.

        Raises:
            CatalogOutdated: an older copy of the log was put back.
            StoreDamaged: the log is not what was appended.
        """
        with self._locked():
            return retry(self.home, self._followed)

    def _followed(self) -> StoreState:
        # Checkpoints are read before the log is: one that is newer than what is seen of it would be a riddle.
        if self._state is None:
            self._state = checkpoints.newest_state(self.home)
            self._checkpointed = 0 if self._state is None else self._state.number
        try:
            with self.home.reading() as transaction:
                return self._fold_rest(transaction)
        except _Trimmed:
            self._state = self._from_checkpoint()
        try:
            with self.home.reading() as transaction:
                return self._fold_rest(transaction)
        except _Trimmed as gap:
            raise damaged_log(f"the value of record {gap} is missing") from None

    def layout(self) -> int:
        """Return the newest number that changed the layout: the placement check of a page."""
        rows = self.home.execute(tables.LAYOUT)
        if len(rows) != 1 or not isinstance(rows[0][0], int):
            raise damaged_log("its head is not what was written")
        return int(rows[0][0])

    def _locked(self) -> RLock:
        if self._process != os.getpid():  # the lock may be one that another thread of the parent held
            self._lock, self._process = RLock(), os.getpid()
        return self._lock

    def _fold_rest(self, transaction: Transaction) -> StoreState:
        """Fold the entries beyond the state that is known."""
        number, digest, at, layout = _head(transaction)
        state = self._state
        if state is None or (number, digest) != (state.number, state.digest):
            state = self._folded_rest(transaction, state, number, digest)
        if (at, layout) != (state.time, state.layout):
            raise damaged_log(f"its head is not that of record {number}")
        self._state = state
        return state

    def _folded_rest(
        self, transaction: Transaction, state: StoreState | None, number: int, digest: bytes
    ) -> StoreState:
        self._check_newer(transaction, state, number)
        rows = transaction.execute(tables.TAIL, {"after": 0 if state is None else state.number})
        entries = [entry_of(row) for row in rows]
        check_chain(GENESIS if state is None else state.digest, entries)
        if not entries or (entries[-1].number, entries[-1].digest) != (number, digest):
            raise damaged_log(f"its head is {number}, and its entries end elsewhere")
        for entry, row in zip(entries, rows, strict=True):
            if row[-1] is None:
                raise _Trimmed(entry.number)
            state = apply(state, entry, record_of(entry, row[-1]))
            self._tail_bytes, self._tail_records = self._tail_bytes + len(row[-1]), self._tail_records + 1
        assert state is not None
        return state

    def _check_newer(self, transaction: Transaction, state: StoreState | None, number: int) -> None:
        """Raise unless the state that is known lies on the log's way to its head."""
        if state is None:
            if number == 0 and not transaction.execute(tables.DIGEST, {"number": 1}):
                raise StoreNotFound("the log has no record yet; create the store again")
            return
        logged = transaction.execute(tables.DIGEST, {"number": state.number})
        if logged != [(state.digest,)]:
            raise CatalogOutdated(
                f"record {state.number} was seen, and the log ends with {number} or has another in its "
                "place; put the newest log back, or run `elasticscan adopt`",
                known=state.number,
                found=number,
            )

    def _from_checkpoint(self) -> StoreState | None:
        """Return the newest checkpoint, for a process that has slept past the values of its tail."""
        known, state = self._state, checkpoints.newest_state(self.home)
        if state is None or (known is not None and state.number <= known.number):
            raise damaged_log("values are missing that no checkpoint covers")
        self._tail_bytes = self._tail_records = 0
        self._checkpointed = state.number
        return state

    # Append

    def append(self, what: Append, check_also: Callable[[StoreState], None] | None = None) -> Appended:
        """Append a record, once the state as of the head allows it.

        Args:
            what: the record with its parts.
            check_also: is called with that state, under the log's lock; raises to refuse.

        Raises:
            CommitUnknown: the answer was lost, and the log cannot be asked.
            TableChanged, WriteConflict, …: it was refused; see `checks`.
        """
        assert what.rows is None or len(what.rows) <= INLINE_BYTES, "larger commits are written to files"
        record, parts = what.divided()
        what = replace(what, record=record)
        row = row_of(os.urandom(16), record, parts, what.app, what.metadata)
        with self._locked():
            base = 0 if self._state is None else self._state.number
            lost: CommitUnknown | None = None

            def attempt() -> Appended:
                nonlocal lost
                try:
                    appended = None if lost is None else self._found(row, base)
                except CatalogUnavailable:
                    assert lost is not None
                    raise lost from None
                lost = None
                try:
                    if appended is None and check_also is None:
                        appended = self._append_inline(what, row, parts)
                    return appended or self._append(what, row, parts, check_also)
                except CommitUnknown as unknown:
                    lost = unknown
                    raise

            try:
                return retry(self.home, attempt)
            except _Trimmed:
                self._state = self._from_checkpoint()
            return retry(self.home, attempt)

    def _append(
        self,
        what: Append,
        row: LogRow,
        parts: Mapping[Part, bytes],
        check_also: Callable[[StoreState], None] | None,
    ) -> Appended:
        record = what.record
        with self.home.writing() as transaction:
            number, digest, newest, _ = _head(transaction)
            state = None
            if not (isinstance(record, StoreCreated) and number == 0):
                state = self._fold_rest(transaction)
                earlier = self._earlier(transaction, what)
                if earlier is not None:
                    return earlier
                check(state, record)
                if check_also is not None:
                    check_also(state)
            clock = self.home.now()
            number, at = number + 1, max(clock, newest + 1)
            topology = topology_row(transaction, state, record, at)
            if topology is not None:
                parts = {**parts, (STORE, TOPOLOGY): topology[1]}
            row = row_of(row.id, record, parts, what.app, what.metadata, clock)
            entry = LogEntry(number, at, row, chained(digest, number, at, row.seal))
            after = apply(state, entry, record)
            transaction.execute(tables.INSERT_ENTRY, _values(entry))
            for (table, part), content in parts.items():
                if part != TOPOLOGY:
                    own = {"number": number, "table": table, "part": part, "bytes": content}
                    transaction.execute(tables.INSERT_PART, own)
            if topology is not None:
                own = {"number": number, "whole": int(topology[0]), "bytes": topology[1]}
                transaction.execute(tables.INSERT_TOPOLOGY, own)
            head = {"number": number, "digest": entry.digest, "time": at, "layout": after.layout}
            transaction.execute(tables.MOVE_HEAD, head | {"before": digest})
        self._advance(after, parts)
        return Appended(number, at, row.rows)

    def _earlier(self, transaction: Transaction, what: Append) -> Appended | None:
        """Return the commit that an application has made under the same version."""
        if what.app is None:
            return None
        asked = {"table": table_of(what.record), "app_id": what.app[0], "app_version": what.app[1]}
        found = transaction.execute(tables.BY_APP, asked)
        if not found:
            return None
        ((number, at, rows),) = found
        return Appended(number, at, rows)

    def _append_inline(self, what: Append, row: LogRow, parts: Mapping[Part, bytes]) -> Appended | None:
        """Append a small commit that has read nothing, by one statement; None if that cannot be done."""
        record, state = what.record, self._state
        if not isinstance(record, RowsCommitted) or what.rows is None or what.app is not None:
            return None
        if state is None or record.based_on:
            return None
        try:
            check(state, record)  # all that it depends on is the layout
        except ElasticScanError:  # the state may be an old one
            return None
        values = _row_values(row) | {"layout": state.layout, "seal": row.seal}
        values |= {"parts": [(table, part, content) for (table, part), content in parts.items()]}
        answer = self.home.append_inline(values)
        if answer is None:
            return None
        number, at, digest = answer
        entry = LogEntry(number, at, row, digest)
        if number == state.number + 1 and entry.follows(state.digest):
            self._advance(apply(state, entry, record), parts)  # others append meanwhile: who reads follows
        return Appended(number, at, row.rows)

    def _advance(self, state: StoreState, parts: Mapping[Part, bytes]) -> None:
        self._state = state
        self._tail_bytes += sum(len(content) for (_, part), content in parts.items() if part == VALUE)
        self._tail_records += 1

    def _found(self, row: LogRow, base: int) -> Appended | None:
        """Return the append whose answer was lost, if it is in the log; the lock waits for one under way."""
        with self.home.writing() as transaction:
            found = transaction.execute(tables.BY_ID, {"after": base, "id": row.id})
        if not found:
            return None
        (entry,) = self.entries(found[0][0], found[0][0])
        return Appended(entry.number, entry.time, entry.row.rows)

    # Read

    def entries(self, first: int, last: int) -> list[LogEntry]:
        """Return entries by their numbers, ascending, both ends included."""
        rows = self.home.execute(tables.ENTRIES, {"first": first, "last": last})
        return [linked_entry(row) for row in rows]

    def history(self, table: int, first: int, last: int, most: int) -> list[LogEntry]:
        """Return the newest entries about a table, the newest first."""
        asked = {"table": table, "first": first, "last": last, "most": most}
        return [linked_entry(row) for row in self.home.execute(tables.ENTRIES_OF_TABLE, asked)]

    def number_of_app(self, table: int, app: tuple[str, int]) -> int | None:
        """Return the number of the commit that an application made under a version."""
        asked = {"table": table, "app_id": app[0], "app_version": app[1]}
        rows = self.home.execute(tables.BY_APP, asked)
        return int(rows[0][0]) if rows else None

    def newest_before(self, time: int) -> int:
        """Return the newest number that was appended at or before a time; 0 if there is none."""
        ((number,),) = self.home.execute(tables.BEFORE_TIME, {"time": time})
        return 0 if number is None else int(number)

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
        found, covered = dict[int, bytes](), 0
        for manifest in checkpoints.manifests(self.home)[:1]:
            if any(file // MAX_FILES <= manifest.number for file in ids):
                with suppress(StoreDamaged):
                    found, covered = checkpoints.statistics_in(self.home, manifest, table), manifest.number
        for number in sorted({file // MAX_FILES for file in ids}):
            if number > covered:
                with suppress(StoreDamaged):
                    found |= self._statistics_brought(number)
        return {file: body for file, body in found.items() if file in ids}

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

    # Checkpoints

    def checkpoint_if_long(self) -> bool:
        """Write a checkpoint if folding the tail would take a process some 20 ms; for after an append."""
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
        owner, now = token_hex(16), self.home.now()
        lease = LogLease("checkpoint", "step", owner, b"", now + _CHECKPOINT_MICROSECONDS)
        if not take_lease(self.home, lease, now):
            return False
        try:
            state = self.follow()
            statistics = {
                number: self.statistics_of(number, _file_ids(table)) for number, table in state.tables.items()
            }
            checkpoints.write(self.home, state, statistics)
            self._checkpointed = state.number
        finally:
            end_lease(self.home, lease.id, owner)
        return True

    def drop_payloads(self, older_than: int) -> int:
        """Drop values, and rows that lie in files, which checkpoints cover; returns how many parts.

        `older_than` is a time in microseconds. All kept checkpoints, the newest of which is older, must
        cover what is dropped: should one be damaged, the other still leads to the state. A process that has
        slept since folds from a checkpoint.
        """
        manifests = checkpoints.manifests(self.home)[: checkpoints.KEPT]
        if len(manifests) < checkpoints.KEPT:
            return 0
        newest = self.entries(manifests[0].number, manifests[0].number)
        if not newest or newest[0].time >= older_than:
            return 0
        *_, state = (checkpoints.read_state(self.home, manifest) for manifest in manifests)
        kept = {(commit.number, own) for own, table in state.tables.items() for commit in table.memory}
        dropped, after = 0, 0
        while True:
            asked = {"after": after, "upto": state.number, "most": _DROPPED_AT_ONCE}
            some = self.home.execute(tables.DROPPABLE, asked)
            if not some:
                return dropped
            going = [part for part in some if part[2] != ROWS or (part[0], part[1]) not in kept]
            retry(self.home, partial(self._delete, going))
            dropped, after = dropped + len(going), some[-1][0]

    def _delete(self, parts: Sequence[Row]) -> None:
        with self.home.writing() as transaction:
            for number, table, part in parts:
                transaction.execute(tables.DELETE_PART, {"number": number, "table": table, "part": part})


class _Trimmed(Exception):
    """The value of a record was dropped: a checkpoint covers it."""


def _head(transaction: Transaction) -> tuple[int, bytes, int, int]:
    rows = transaction.execute(tables.HEAD)
    if len(rows) != 1:
        raise damaged_log(f"it has {len(rows)} heads")
    number, digest, at, layout = rows[0]
    return number, digest, at, layout


def _row_values(row: LogRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in LogRow.__slots__}
    return values


def _values(entry: LogEntry) -> dict[str, Any]:
    return _row_values(entry.row) | {"number": entry.number, "time": entry.time, "digest": entry.digest}


def _file_ids(table: TableState) -> set[int]:
    return {file for files in (table.fragments, table.runs) for file in files.merged()["id"].to_pylist()}
