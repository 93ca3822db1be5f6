"""The store's own row: what is fixed, what grows with changes, and what time it is believed to be.

It is read once in a transaction and written once, at its end, however often it changes.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

import xxhash
from sqlalchemy import select

from elasticscan.base.errors import CatalogOutdated, StoreDamaged, StoreTooNew, TableChanged
from elasticscan.base.hashing import HASH
from elasticscan.base.limits import MAX_SLOTS
from elasticscan.catalog.believed_time import Belief, Times, observe
from elasticscan.catalog.failures import damaged, decoding
from elasticscan.catalog.home import Home
from elasticscan.catalog.near import AnyTransaction
from elasticscan.catalog.remembered import RememberedGroups, to_signed
from elasticscan.catalog.sealed import SealedRows
from elasticscan.catalog.tables import FORMAT_VERSION, PASSING, store_state
from elasticscan.topology import Placement


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """Facts that are fixed when a store is created."""

    store_id: str
    slots: int
    hash: str
    retention_seconds: float
    created_at: float


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a catalog: its store, which copy of it this is, and its newest commit.

    Attributes:
        incarnation: 32 hexadecimal digits; another one since a copy was written to, or adopted.
        home: where the catalog's file lay when the incarnation began; None for a database.
        layout, last_commit: as of `versions`.
    """

    store_id: str
    incarnation: str
    home: Home | None
    layout: int
    last_commit: int


class Reached(NamedTuple):
    """The progress of one copy of a store: within an incarnation no number goes back.

    Since the layout `stable_since` nothing has changed but commits, and the files where rows lie.
    """

    incarnation: str
    layout: int
    last_commit: int
    stable_since: int

    def may_precede(self, later: Reached) -> bool:
        """Return whether a later check may see that; else an older copy of the catalog was put back."""
        if self.incarnation != later.incarnation:  # another copy, with numbers of its own
            return True
        return all(before <= now for before, now in zip(self[1:], later[1:], strict=True))


def versions_digest(layout: int, last_commit: int, stable_since: int) -> int:
    versions = b"versions %d %d %d" % (layout, last_commit, stable_since)
    return to_signed(xxhash.xxh3_64_intdigest(versions))


class StateTx:
    """A transaction's look at the store's state.

    Args:
        connection: in a transaction.
        now: what this process's clock says. What rows are stamped with, and what decides that the time
            of something is over, is in `times`.
        store_id: of the store that must be there.
        remembered: see `SealedRows`.
        seen: what was seen before the transaction began, so that it must not see less.
    """

    def __init__(
        self,
        connection: AnyTransaction,
        now: float,
        store_id: str | None = None,
        remembered: RememberedGroups | None = None,
        seen: Reached | None = None,
    ) -> None:
        self._sql = connection
        self._expected = store_id
        self._seen_before = seen
        self.looked: Reached | None = None  # at the state, when this transaction first did
        self._rows = SealedRows(connection, remembered)
        self.now = now
        self._state_row: Any = None
        self._changed: dict[str, Any] = {}
        self.files_at = frozenset[int]()  # the shards at which it has entered files of a table

    def info(self) -> StoreInfo:
        names = ("store_id", "slots", "hash", "retention_seconds", "created_at")
        info = StoreInfo(*(self._state(name) for name in names))
        with decoding("the store's state"):
            _check_info(info)
        return info

    @property
    def store_seen(self) -> str | None:
        """The id of the store, if this transaction has looked at its state."""
        return None if self._state_row is None else str(self._state_row.store_id)

    @property
    def progress(self) -> Reached:
        return Reached(self._state("incarnation"), *self.versions(), self._state("stable_since"))

    def identity(self) -> Identity:
        home = self._state("home")
        with decoding("the store's identity"):
            recorded = None if home is None else Home.unpack(home)
        return Identity(self._state("store_id"), self._state("incarnation"), recorded, *self.versions())

    def versions(self) -> tuple[int, int]:
        """(layout, last commit): whatever was cached under an equal pair is still true."""
        return self._state("layout"), self._state("last_commit")

    def bump_layout(self, of_fragments: bool = False) -> None:
        """Let what was read of the store before be read again: something other than rows has changed.

        `of_fragments` says that it is nothing but the files where rows lie: these alone are read again.
        """
        layout = self._state("layout") + 1
        self._set(layout=layout, **({} if of_fragments else {"stable_since": layout}))

    def number_changes(self) -> None:
        """Let the layout grow if something changed that shards are to know of, and no version says so yet.

        Without that an older catalog would go unnoticed that lacks nothing but a tag, or still has a secret
        that was revoked.
        """
        if self._rows.changed - PASSING and not self._changed.keys() & {"layout", "last_commit"}:
            self.bump_layout()

    def begin_store(self, hash_name: str, retention: float, placement: Placement, home: Home | None) -> None:
        """Enter the state of a store that is being made."""
        state = {"id": 1, "format_version": FORMAT_VERSION, "hash": hash_name}
        state |= {"store_id": secrets.token_hex(16), "incarnation": secrets.token_hex(16)}
        state |= {"home": None if home is None else home.pack()}
        state |= {"slots": placement.slot_count, "retention_seconds": retention, "created_at": self.now}
        state |= {"layout": 1, "last_commit": 0, "stable_since": 1}
        state |= {"versions_digest": versions_digest(1, 0, 1)}
        state |= {f"next_{kind}": 1 for kind in ("table", "fragment", "index", "run")}
        state |= {"next_tablet": max(tablet.id for tablet in placement.tablets) + 1, "newest_topology": 0}
        state |= {"newest_commit_at": 0.0, "believed_at": self.now, "groups_total": 0}
        self._rows.insert(store_state, state)

    def check_sums(self) -> None:
        """Raise `StoreDamaged` unless the sums of all groups are those of the newest commit.

        Pages of two moments, as a torn write leaves them where its log is lost, may each be what was written
        once, rows and sums alike. One page alone tells that they do not belong together: that of the newest
        commit's number, which has the sum of the sums alongside it. Takes some 3 µs for each group.
        """
        written = self._rows.written_groups()
        total = to_signed(sum(self._rows.digest_of_group(*entry) for entry in written.items()))
        if total != self._state("groups_total"):
            raise damaged("the sums of groups are not those that were written")

    # Time

    @property
    def times(self) -> Times:
        """This process's clock alongside the time that the store believes."""
        return Times(self.now, observe(self._belief(), self.now).believed_at)

    def observe_time(self) -> None:
        """Let the store know what time it is here; every transaction that writes begins so."""
        before = self._belief()
        after = observe(before, self.now)
        if after != before:
            self._set(believed_at=after.believed_at, claimed_at=after.claimed_at)

    def _belief(self) -> Belief:
        return Belief(self._state("believed_at"), self._state("claimed_at"))

    # The row

    def _state(self, name: str) -> Any:
        if self._state_row is None:
            try:
                rows = self._rows.state()
            except StoreDamaged:
                self._check_format()  # a newer release may keep other digests
                raise
            if len(rows) != 1:
                raise damaged(f"the store's state has {len(rows)} rows")
            (self._state_row,) = rows
            row = self._state_row
            now = Reached(row.incarnation, row.layout, row.last_commit, row.stable_since)
            if row.versions_digest != versions_digest(*now[1:]):
                raise damaged("the store's versions are not those that were written")
            if self._expected not in (None, row.store_id):
                raise TableChanged(
                    "the store that was opened here is gone, and another one is in its place; open it again",
                    kind="store",
                )
            self._check_progress(now)
        return self._changed[name] if name in self._changed else getattr(self._state_row, name)

    def _check_progress(self, now: Reached) -> None:
        self.looked, before = now, self._seen_before
        if before is not None and before != now and not before.may_precede(now):
            raise CatalogOutdated(
                f"the catalog is older than it was: commit {before.last_commit} (layout {before.layout}) "
                f"was seen, it ends with {now.last_commit} (layout {now.layout}); put the newest back, or "
                "run `elasticscan adopt`",
                known=before.last_commit,
                found=now.last_commit,
            )

    def _check_format(self) -> None:
        version = self._sql.execute(select(store_state.c.format_version)).scalar()
        if isinstance(version, int) and version == FORMAT_VERSION + 1:
            raise StoreTooNew(
                "a newer release has brought the store to a newer format since it was opened; "
                "upgrade elasticscan",
                known=FORMAT_VERSION,
            )

    def _set(self, **new: Any) -> None:
        self._state("id")
        self._changed |= new

    def _next(self, name: str, count: int = 1) -> int:
        """Return the first of `count` new numbers of a kind: ids that were never used."""
        first: int = self._state(name)
        self._set(**{name: first + count})
        return first

    def finish(self) -> None:
        """Write sums and state down, at the end of a transaction that writes."""
        grown = self._rows.finish()
        if grown:
            self._set(groups_total=to_signed(self._state("groups_total") + grown))
        if not self._changed:
            return
        self._changed["versions_digest"] = versions_digest(*self.progress[1:])
        self._rows.update(store_state, [(self._state_row, self._changed)])
        self._state_row, self._changed = None, {}


def _check_info(info: StoreInfo) -> None:
    if not 1 <= info.slots <= MAX_SLOTS:
        raise damaged(f"{info.slots!r} is no number of slots")
    if info.hash != HASH:
        raise damaged(f"there is no hash {info.hash!r}")
