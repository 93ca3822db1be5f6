"""The catalog: transactions over the store's metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, get_ident
from typing import Any, Final
from weakref import finalize

from sqlalchemy import select, text

from elasticscan.base.clock import Clock
from elasticscan.base.errors import (
    AlreadyExists,
    NotFound,
    ReadOnlyStore,
    StoreDamaged,
    StoreNotFound,
    WrongRoot,
)
from elasticscan.catalog.compiled import make_tables
from elasticscan.catalog.connections import (
    Watch,
    close_idle,
    is_postgres,
    is_sqlite,
    transaction,
)
from elasticscan.catalog.dump import Dump, DumpTx
from elasticscan.catalog.engine import (
    check_format,
    file_of,
    make_engine,
    make_file,
    reading,
    why_read_only,
    writing,
)
from elasticscan.catalog.failures import damaged, decoding, is_there, replaced_file, translate_errors
from elasticscan.catalog.home import Home, check_one_name, home_of
from elasticscan.catalog.kept_logs import holds_anything, keep_log, kept_logs, log_of
from elasticscan.catalog.moves import MoveTx
from elasticscan.catalog.pipeline import Question
from elasticscan.catalog.readonly import why_not_writable
from elasticscan.catalog.remembered import RememberedGroups
from elasticscan.catalog.reports import ReportTx
from elasticscan.catalog.seal_keys import KEYS, OFFSETS, SecretTx
from elasticscan.catalog.server_clock import clock_of
from elasticscan.catalog.state import Identity, Reached, versions_digest
from elasticscan.catalog.tables import index_same_rows_at_servers, metadata, of_servers, store_state
from elasticscan.catalog.upkeep import UpkeepTx
from elasticscan.topology import Placement

# What an older catalog says of what was made since.
MADE_LATER = (NotFound,)

# What a transaction is known to ask, for catalogs that are waited for.
Asking = Callable[[], Sequence[Question]]


class Tx(MoveTx, SecretTx, UpkeepTx, ReportTx, DumpTx):
    """One catalog transaction: everything done through it becomes visible at once, or nothing."""


@dataclass(frozen=True, slots=True)
class NewStore:
    """The first contents of a store."""

    shards: tuple[tuple[str, str], ...]  # (name, root); they get the ids 1, 2, …
    placement: Placement
    hash: str
    retention_seconds: float


_STATE: Final = store_state.c
_VERSIONS: Final = select(
    _STATE.incarnation,
    _STATE.layout,
    _STATE.last_commit,
    _STATE.stable_since,
    _STATE.versions_digest,
    _STATE.store_id,
)

# The threads that are in writing transactions, as often as they are. Append and remove are atomic.
_WRITERS: list[int] = []


def is_writing() -> bool:
    """Return whether this thread is in a writing transaction; a second one would deadlock."""
    return get_ident() in _WRITERS


@contextmanager
def _noting_that_it_writes() -> Iterator[None]:
    writer = get_ident()
    _WRITERS.append(writer)
    try:
        yield
    finally:
        _WRITERS.remove(writer)


class Catalog:
    """Opens transactions. Safe to use from several threads and after a fork.

    Everything raises `CatalogOutdated` when the catalog has become older than this object has seen it.

    Attributes:
        read_only: why nothing can be written through it, or None.
        follows_progress: true unless it is a standby of a database server, which may show less than was seen.
        clock: what ends with time ends by it: the one handed in, or the server's.
        when_copied: is called before the first transaction that writes to a copy.
        before_writing: is called before every transaction that writes; what it returns is called with the
            catalog's identity as the transaction sees it, and raises when that cannot be the newest.
        when_missing: is called before `NotFound` errors are raised, and raises where the
            catalog may be an older one that does not know it.
        after_writing: is called after every such transaction that changed the versions, with what it made
            of the identity, and with the shards at which it entered files.
    """

    def __init__(self, url: str | Path, clock: Clock, where: str, read_only: bool = False) -> None:
        file = file_of(url)
        self.read_only = "it was opened with read_only=True" if read_only else None
        if file is not None and is_there(file):
            self.read_only = self.read_only or why_not_writable(file)
        self._file = file
        self._engine = make_engine(url, self.read_only is not None)
        finalize(self, self._engine.dispose).atexit = False  # drivers would warn of open connections
        self._is_far = is_postgres(self._engine)
        self._own_versions: dict[int, tuple[int, int]] = {}  # by the thread that is in a transaction
        self.clock = clock_of(self._engine, clock)
        try:
            check_format(self._engine, where)
            self.read_only = self.read_only or why_read_only(self._engine)
            if file is not None:  # a server mends what a crash tore
                with reading(self._engine, ()) as connection:
                    Tx(connection, self.clock.now()).check_sums()
        except BaseException as error:
            if isinstance(error, (StoreNotFound, StoreDamaged)):  # SQLite is about to remove its log
                self.keep_log("unread")
            close_idle(self._engine)
            raise
        # A copy of the file, in memory, does not show changes to the file: then each look is a transaction.
        watched = file is None or self.read_only is None
        self._watch = Watch(self._engine, _VERSIONS) if watched else None
        self._settled: Home | None = None
        self._remembered = RememberedGroups()
        self._store_id: str | None = None
        # A standby of a database server follows its server with a delay, so it may well show less again.
        self.follows_progress = file is not None or self.read_only is None
        self._newest: Reached | None = None
        self._noting = Lock()
        self.when_copied: Callable[[], None] = self._refuse_copy
        self.before_writing: Callable[[], Callable[[Identity], None]] = lambda: lambda _: None
        self.when_missing: Callable[[], None] = lambda: None
        self.after_writing: Callable[[Identity, frozenset[int]], None] = lambda _, __: None

    @staticmethod
    def create(
        url: str | Path,
        clock: Clock,
        where: str,
        new: NewStore,
        prepare: Callable[[Tx], None] = lambda _: None,
    ) -> None:
        """Make the tables and the first rows, or nothing; refuses a catalog that is there already.

        `prepare` is called before the commit; when it raises, there is no store.
        """

        def begin(tx: Tx, home: Home | None) -> None:
            tx.begin_store(new.hash, new.retention_seconds, new.placement, home)
            tx.add_secrets(OFFSETS, KEYS)
            tx.add_shards(new.shards)
            tx.replace_placement(Placement(()), new.placement)
            tx.append_topology("created")
            prepare(tx)

        Catalog._make(url, clock, where, begin)

    @staticmethod
    def create_from(
        url: str | Path,
        clock: Clock,
        where: str,
        dump: Dump,
        roots: Mapping[int, str],
        prepare: Callable[[Tx, Home | None], None],
    ) -> None:
        """As `create`, with what another catalog held, and roots for its shards by their ids.

        `prepare` is also told where the catalog lies: it has the identity of the other one until then.

        Raises:
            StoreDamaged: it is not what that catalog held.
        """

        def begin(tx: Tx, home: Home | None) -> None:
            tx.fill(dump, roots)
            tx.disown_moves()
            tx.forget_steps()
            prepare(tx, home)

        Catalog._make(url, clock, where, begin)

    @staticmethod
    def _make(url: str | Path, clock: Clock, where: str, begin: Callable[[Tx, Home | None], None]) -> None:
        if (file := file_of(url)) is not None:
            # The mode of a store's directory says who may read the store; other directories' modes do not.
            make_file(file, like_directory=isinstance(url, Path))
        engine = make_engine(url)
        clock = clock_of(engine, clock)
        writing_options: dict[str, Any] = {"writing": True}
        if is_postgres(engine):
            writing_options["isolation_level"] = "READ COMMITTED"
        try:
            with translate_errors(engine), transaction(engine, **writing_options) as sql:
                if is_sqlite(engine):
                    make_tables(sql)
                else:
                    index_same_rows_at_servers()
                    metadata.create_all(sql)
                    of_servers.create_all(sql)
                    sql.execute(text("LOCK TABLE store_state IN EXCLUSIVE MODE"))
                if sql.execute(select(store_state.c.format_version)).first():
                    raise AlreadyExists(
                        f"{where} already holds a store; open it, or choose another place", uri=where
                    )
                tx = Tx(sql, clock.now())
                begin(tx, home_of(engine))
                tx.finish()
        finally:
            close_idle(engine)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close_idle()
        close_idle(self._engine)

    @contextmanager
    def reading(self, ahead: Asking = list) -> Iterator[Tx]:
        """Begin a transaction that sees one state of the catalog and changes nothing.

        What a server is asked `ahead` is answered with its beginning: one wait less for each.
        """
        seen = self._newest
        with (
            self._doubting_what_is_missing(),
            reading(self._engine, ahead() if self._is_far else ()) as connection,
        ):
            tx = Tx(connection, self.clock.now(), self._store_id, self._remembered, seen)
            yield tx
            if tx.looked is not None:
                # A connection that is opened again may find another store at the same place.
                self._store_id = self._store_id or tx.store_seen
                if tx.looked != seen:
                    self._note(tx.looked)

    @contextmanager
    def writing(self, ahead: Asking = list) -> Iterator[Tx]:
        """Begin the writing transaction, one at a time over all processes; `ahead` as for `reading`.

        Ends in a commit, or in nothing at all when the block raises. A copy of a store becomes a store of
        its own before the first one. An older copy, put back, is noticed before anything is changed.

        Raises:
            ReadOnlyStore: the catalog cannot be written.
            WrongRoot: it has two names.
        """
        self.check_writable()
        self.settle()
        check = self.before_writing()  # outside of the transaction: it reads at the shards
        with self.leasing(ahead) as tx:
            if self.home != self._settled:  # another file since then: to settle it here would deadlock
                raise replaced_file()
            before = tx.identity()
            check(before)
            yield tx
            tx.number_changes()
            after, files_at = tx.identity(), tx.files_at
        if after != before:
            self.after_writing(after, files_at)

    @contextmanager
    def leasing(self, ahead: Asking = list, at_once: bool = False) -> Iterator[Tx]:
        """As `writing`, for what leaves a copy of a store equal to the original: leases.

        Raises:
            CatalogUnavailable: another transaction writes, and this one was to begin `at_once`.
        """
        self.check_writable()
        check_one_name(self._engine)
        seen = self._newest
        with (
            self._doubting_what_is_missing(),
            writing(self._engine, ahead() if self._is_far else (), at_once) as connection,
            _noting_that_it_writes(),
        ):
            tx = Tx(connection, self.clock.now(), self._store_id, seen=seen)
            tx.observe_time()
            with self._answering(tx):
                yield tx
            made = tx.progress
            tx.finish()
        self._note(made)

    @contextmanager
    def _doubting_what_is_missing(self) -> Iterator[None]:
        """Ask `when_missing` of what a transaction does not find: this catalog alone may not know it."""
        try:
            yield
        except MADE_LATER:
            self.when_missing()
            raise

    def _note(self, progress: Reached) -> None:
        """Remember the newest that was seen; of another incarnation, what was seen of that."""
        if not self.follows_progress or progress == self._newest:
            return
        with self._noting:
            before = self._newest
            if before is not None and before.incarnation == progress.incarnation:
                progress = Reached(before.incarnation, *map(max, before[1:], progress[1:]))
            self._newest = progress

    @property
    def progress(self) -> Reached | None:
        """The newest state that was seen, if states follow each other here."""
        return self._newest

    def forget_progress(self) -> None:
        """Take the catalog as it is, also where it is older than it was: the user decided so."""
        self._newest = None

    @contextmanager
    def _answering(self, tx: Tx) -> Iterator[None]:
        """Answer this thread's looks at the versions by its own transaction, which holds them still.

        At a server each would need a second connection: where a proxy has few, and others wait in all of them
        for this very transaction, neither would go on.
        """
        if not self._is_far:
            yield
            return
        self._own_versions[get_ident()] = tx.versions()
        try:
            yield
        finally:
            del self._own_versions[get_ident()]

    def look_afresh(self) -> None:
        """Forget what was read, in connections that are not in use, too: it may be damaged by now."""
        self._remembered.forget()
        if self._watch is not None:
            self._watch.close_idle()
        close_idle(self._engine)

    def check_whole(self, mend: bool = False) -> None:
        """Raise `StoreDamaged` unless the catalog is as it was written.

        Where it is to `mend`, statistics that are damaged are left out: no row depends on them.
        """
        self.look_afresh()
        try:
            with self.reading() as tx:
                tx.check_whole()
        except StoreDamaged:
            if not mend or not self._mends():
                raise
            self.check_whole()

    def _mends(self) -> bool:
        with self.writing() as tx:
            return tx.mend_statistics()

    def check_writable(self) -> None:
        """Raise `ReadOnlyStore` when nothing can be written; to be asked before work is begun."""
        if self.read_only is not None:
            raise ReadOnlyStore(
                f"the store is open for reading alone: {self.read_only}; nothing was changed, do this where "
                "the catalog can be written",
                why=self.read_only,
            )

    @property
    def home(self) -> Home | None:
        """Return where the catalog's file lies now."""
        return home_of(self._engine)

    @property
    def has_log(self) -> bool:
        """True if a part of it may be in a log that SQLite may remove or write over."""
        return self._file is not None and self.read_only is None and holds_anything(log_of(self._file))

    def keep_log(self, known: object) -> None:
        """Keep the log aside; see `kept_logs`."""
        if self._file is not None and self.has_log:
            keep_log(self._file, str(known))

    @property
    def kept_logs(self) -> Sequence[Path]:
        """Copies of logs that had lost commits."""
        return () if self._file is None else kept_logs(self._file)

    def settle(self) -> None:
        """Find out whether this catalog is a copy that was not written to yet; then `when_copied` is called.

        Raises:
            WrongRoot: there is no handler for that, or the catalog's file has two names.
        """
        check_one_name(self._engine)
        here = self.home
        if here is None or here == self._settled:
            return
        with self.reading() as tx:
            home = tx.identity().home
        if home is not None and not here.is_place_of(home):
            self.when_copied()
        self._settled = here

    def _refuse_copy(self) -> None:
        raise WrongRoot("the catalog is a copy, and not a store of its own yet; open it as a store")

    def versions(self) -> tuple[int, int]:
        """(layout, last commit), the cheapest look at whether anything changed."""
        if (own := self._own_versions.get(get_ident())) is not None:
            return own
        seen = self._newest
        return self._versions(None if self._watch is None else self._watch.row(), seen)

    @contextmanager
    def versions_asked(self) -> Iterator[Callable[[], tuple[int, int]] | None]:
        """Ask a server for them, and return a function that waits for the answer; None if none would."""
        if not self._is_far or self._watch is None or get_ident() in self._own_versions:
            yield None
            return
        seen = self._newest
        with self._watch.asked() as row:
            yield lambda: self._versions(row(), seen)

    def _versions(self, row: tuple[Any, ...] | None, seen: Reached | None) -> tuple[int, int]:
        """Read them from a row that was asked for when the newest that was known was `seen`."""
        if row is not None and row[5] == self._store_id:
            with decoding("the store's versions"):
                is_whole = versions_digest(*row[1:4]) == row[4]
            if not is_whole:
                raise damaged("the store's versions are not those that were written")
            if row[:4] == seen or not self.follows_progress:
                return row[1], row[2]
            progress = Reached(*row[:4])
            if seen is not None and seen.incarnation == progress.incarnation and seen.may_precede(progress):
                self._note(progress)
                return row[1], row[2]
        with self.reading() as tx:
            return tx.versions()
