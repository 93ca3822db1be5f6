"""The catalog: opens transactions over the log of a store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import finalize

from elasticscan.base.clock import Clock
from elasticscan.base.errors import (
    CatalogOutdated,
    ElasticScanError,
    NotFound,
    ReadOnlyStore,
    TableChanged,
)
from elasticscan.catalog import tables
from elasticscan.catalog.appending import Append
from elasticscan.catalog.database import LogHome, micros
from elasticscan.catalog.log import Log
from elasticscan.catalog.opening import make_home, open_home
from elasticscan.catalog.pool import in_transaction
from elasticscan.catalog.replay import replay_newest
from elasticscan.catalog.retrying import retry, retry_interrupted
from elasticscan.catalog.secrets import KEYS, OFFSETS, new_secret
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.topology_history import first_topology
from elasticscan.catalog.transaction import Identity, Tx, identity_of
from elasticscan.metadata import ShardDefined, StoreCreated
from elasticscan.topology import Placement, Shard


@dataclass(frozen=True, slots=True)
class NewStore:
    """The first contents of a store."""

    shards: tuple[tuple[str, str], ...]  # (name, root); they get the ids 1, 2, …
    placement: Placement
    hash: str
    retention_seconds: float


class Catalog:
    """Opens transactions. Safe to use from several threads and after a fork.

    Everything raises `CatalogOutdated` when the log has become older than this object has seen it.

    Attributes:
        read_only: why nothing can be written through it, or None.
        follows_progress: true unless it is a standby of a database server, which may show less than was seen.
        clock: what ends with time ends by it: the one handed in, or the server's.
        before_writing: called before every transaction that writes, with `is_small`. It returns a check,
            which the transaction calls with its identity, and which raises when that cannot be the newest.
        when_missing: is called before `NotFound` errors are raised, and raises where the
            log may be an older one that does not know it.
        after_writing: is called after every such transaction that changed the versions, with what it made
            of the identity, with the shards at which it entered files, and with `is_small`.
    """

    def __init__(self, url: str | Path, clock: Clock, where: str, read_only: bool = False) -> None:
        self._home: LogHome = open_home(url, clock, where, read_only)
        self._log = Log(self._home)
        finalize(self, self._home.close).atexit = False
        self.read_only = self._home.why_read_only
        self.follows_progress = not self._home.is_follower
        self.clock = self._home.clock
        self._store_id = self._log.follow().store_id
        self.before_writing: Callable[[bool], Callable[[Identity], None]] = lambda _: lambda _: None
        self.when_missing: Callable[[], None] = lambda: None
        self.after_writing: Callable[[Identity, frozenset[int], bool], None] = lambda _, __, ___: None

    @staticmethod
    def create(
        url: str | Path,
        clock: Clock,
        where: str,
        new: NewStore,
        prepare: Callable[[Tx], None] = lambda _: None,
    ) -> None:
        """Make the tables and the first records, or nothing; refuses a log that is there already.

        `prepare` is called before the commit; when it raises, there is no store.
        """
        with make_home(url, clock, where) as home:
            now = home.clock.now()
            first = StoreCreated(
                secrets.token_hex(16),
                new.placement.slot_count,
                new.hash,
                new.retention_seconds,
                tuple(Shard(number, *named) for number, named in enumerate(new.shards, 1)),
                new.placement.tablets,
                secrets.token_hex(16),
                now,
                (new_secret(1, OFFSETS, now), new_secret(2, KEYS, now)),
            )
            with Log(home).beginning() as tx:
                tx.append(Append(first, topology=first_topology(first)))
                prepare(tx)

    @staticmethod
    def create_from(
        url: str | Path,
        clock: Clock,
        where: str,
        copied: tables.Dump,
        roots: Mapping[int, str],
        prepare: Callable[[Tx], None],
    ) -> None:
        """As `create`, with what another log held, and roots for its shards by their ids.

        It has the identity of the other one until `prepare` gives it its own.

        Raises:
            StoreDamaged: it is not what that log held.
        """
        with make_home(url, clock, where) as home, Log(home).beginning(copied) as tx:
            for shard in tx.state.all_shards:
                is_removed = shard.id in tx.state.removed_shards
                tx.append(ShardDefined(replace(shard, root=roots[shard.id]), is_removed))
            prepare(tx)

    def dump(self) -> tuple[tables.Dump, Tx]:
        """Return the rows of all tables but the leases, and a transaction that sees just that."""
        known = self._log.known
        with self._doubting_what_is_missing(), self._home.reading():
            state = replay_newest(self._home, known).state
            rows = {
                name: list(map(list, self._home.execute(every))) for name, every in tables.EVERYTHING.items()
            }
            return rows, self._log.at(state)

    def close(self) -> None:
        self._home.close()

    # Transactions

    def _state(self) -> StoreState:
        """Return the newest state; to a thread that is in a transaction, that with which it began."""
        known = self._log.known if self._home.in_transaction else None
        return self._checked(known or self._log.follow())

    def _checked(self, state: StoreState) -> StoreState:
        """Return a state; raises `TableChanged` if it is that of another store in the place of this one."""
        if state.store_id != self._store_id:
            raise TableChanged(
                "the store that was opened here is gone, and another one is in its place; open it again",
                kind="store",
            )
        return state

    @contextmanager
    def reading(self) -> Iterator[Tx]:
        """Begin a transaction that sees one state of the log and changes nothing."""
        with self._doubting_what_is_missing():
            yield self.at()

    @contextmanager
    def writing(self, is_small: bool = False) -> Iterator[Tx]:
        """Begin the writing transaction, one at a time over all processes.

        One that `is_small` enters no file, so that what is done before and after it can be done less often.

        Ends in a commit, or in nothing at all when the block raises. A copy of the store's, or an older one
        that was put back, is noticed before anything is changed.

        Raises:
            ReadOnlyStore: the log cannot be written.
            WrongRoot: it has two names, or is a copy.
        """
        self.check_writable()
        check = self.before_writing(is_small)  # outside of the transaction: it reads at the shards
        with self.leasing() as tx:
            before = tx.identity()
            check(before)
            yield tx
        after = tx.identity()
        if after != before:
            self.after_writing(after, tx.files_at, is_small)
        self._checkpoint_if_long()

    def append_at_once(self, commit: Callable[[Tx], Append | None]) -> int | None:
        """Append a small commit that has read nothing by one statement, if the log is at a server.

        `commit` returns it as of the state that is known, or None if it needs a transaction.

        Returns its number. None, and nothing was done, if it needs a transaction, or the layout has changed.

        Raises:
            CommitUnknown: the answer was lost, and the server cannot be asked.
        """
        state = self.known
        if state is None or not self.is_far or self.read_only is not None or in_transaction():
            return None
        what = commit(self._log.at(state))
        if what is None:
            return None
        check, identity = self.before_writing(True), identity_of(state)
        try:
            check(identity)
        except CatalogOutdated:  # others may have gone beyond what is known here
            check(identity_of(self._state()))
        appended = self._log.append_at_once(what, state)
        if appended is None:
            return None
        self.after_writing(replace(identity, last_commit=appended), frozenset(), True)
        self._checkpoint_if_long()
        return appended

    def _checkpoint_if_long(self) -> None:
        with suppress(ElasticScanError):  # what was committed stays so
            self._log.checkpoint_if_long()

    @contextmanager
    def leasing(self, at_once: bool = False) -> Iterator[Tx]:
        """As `writing`, without reading the shards: for leases, and for a copy that becomes the owner.

        Raises:
            CatalogUnavailable: another transaction writes, and this one was to begin `at_once`.
        """
        self.check_writable()
        with self._doubting_what_is_missing(), self._log.writing(at_once) as tx:
            self._checked(tx.state)
            yield tx
            if not tx.tail_bytes:  # records say what time it is
                tx.observe_time()

    @contextmanager
    def _doubting_what_is_missing(self) -> Iterator[None]:
        """Ask `when_missing` of what a transaction does not find: this log alone may not know it."""
        try:
            yield
        except NotFound:
            self.when_missing()
            raise

    # What was seen

    @property
    def known(self) -> StoreState | None:
        """The newest state that was seen; in a writing transaction, that with which it began."""
        return self._log.known

    def at(self, layout: int | None = None) -> Tx:
        """Return a transaction that reads; the log is not read again if `layout` is the known state's."""
        known = self.known
        state = known if known is not None and known.layout == layout else self._state()
        return self._log.at(state)

    def forget_progress(self) -> None:
        """Take the log as it is, also where it is older than it was: the user decided so."""
        self._log.forget()

    def versions(self) -> tuple[int, int]:
        """(layout, last commit), the cheapest look at whether anything changed."""
        return self._state().versions

    @retry_interrupted
    def check_whole(self) -> None:
        """Raise unless the log is as it was written (`StoreDamaged`), and not older than it was."""
        self._home.close()  # connections have pages in memory, which may be damaged on the disk
        self._state()
        self._home.check_sound()
        self._log.check_whole()

    def drop_values(self, grace_seconds: float) -> None:
        """Drop what records said, where checkpoints older than a grace period say the same.

        Entries stay, so the history does; a process that has slept for longer reads a checkpoint.
        """
        older_than = micros(self.clock.now() - grace_seconds)
        retry(self._home, lambda: self._log.drop_payloads(older_than))

    def check_writable(self) -> None:
        """Raise `ReadOnlyStore` when nothing can be written; to be asked before work is begun."""
        if self.read_only is not None:
            raise ReadOnlyStore(
                f"the store is open for reading alone: {self.read_only}; nothing was changed, do this where "
                "the catalog can be written",
                why=self.read_only,
            )

    # The log's place

    @property
    def is_far(self) -> bool:
        """True if each look waits for a server's answer."""
        return self._home.file is None

    @property
    def file(self) -> Path | None:
        """The log's file; None at a server."""
        return self._home.file
