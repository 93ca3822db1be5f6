"""Catalog transactions: what keeps snapshots readable, and what scans say of themselves.

lease     keeps a snapshot of a table for some time; scans, streams and writes have one
tag       a name that keeps a snapshot until it is dropped, in the log
horizon   of a table: its oldest snapshot that can still be read; merges of fragments leave out what is older
report    the word of a scan about itself, a lease that keeps nothing

Leases and reports are rows of their own, not records: copies of a store stay equal, and of a lost one only
follows that something starts again. While one is damaged, horizons cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from elasticscan.base.errors import AlreadyExists, LimitExceeded, NotFound, TableChanged
from elasticscan.base.limits import MAX_TAGS, TRUSTED_JUMP_SECONDS
from elasticscan.base.suggestions import suggest
from elasticscan.catalog.codec import pack_value
from elasticscan.catalog.commits import CommitTx
from elasticscan.catalog.home import micros
from elasticscan.catalog.leases import LogLease, find_lease, held_value, leases
from elasticscan.catalog.table_state import NamedSnapshot
from elasticscan.metadata import HorizonRaised, TableInfo, TagChanged

_SCAN: Final = "scan"  # the kinds of leases
_REPORT: Final = "report"


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a snapshot of a table, which keeps it."""

    name: str
    snapshot: int
    created_at: float


@dataclass(frozen=True, slots=True)
class Report:
    """The word of a scan about itself.

    Attributes:
        table, snapshot: what it reads.
        said: its text.
        said_at: when, in seconds since 1970.
    """

    table: str
    snapshot: int
    said: str
    said_at: float


@dataclass(frozen=True, slots=True)
class _Hold:
    """The payload of a lease, or of a report, whose text is its purpose; it lasts for `seconds` each time."""

    table: int
    snapshot: int
    purpose: str
    seconds: float


class HoldTx(CommitTx):
    """Reads and changes of leases, tags, horizons and reports."""

    # Leases

    def take_lease(self, lease: str, table: TableInfo, snapshot: int, purpose: str, seconds: float) -> None:
        """Promise that a snapshot stays readable until `now + seconds`; takes one that ended again."""
        current = self.table_by_id(table.id)  # the caller's may be from before a compaction
        if current is None:
            raise TableChanged(f"table {table.name!r} was dropped; start a new scan", table=table.name)
        self.check_snapshot(current, snapshot)
        self._put(_SCAN, lease, _Hold(table.id, snapshot, purpose, float(seconds)))

    def renew_lease(self, lease: str, seconds: float) -> bool:
        """Prolong a lease; false when it is gone, or ended: then its snapshot may be gone too."""
        row = find_lease(self, _id(_SCAN, lease))
        if row is None or row.until < micros(self.times.stamp):
            return False
        self._put(_SCAN, lease, replace(held_value(row, _Hold), seconds=float(seconds)))
        return True

    def lease_end(self, lease: str) -> float:
        """Return the time at which a lease ends or ended; 0 when there is none."""
        row = find_lease(self, _id(_SCAN, lease))
        return 0.0 if row is None else row.until / 1e6

    def end_lease(self, lease: str) -> None:
        self.writing.remove_lease(_id(_SCAN, lease))

    def end_expired_leases(self) -> int:
        """Forget leases whose time is over; returns how many.

        One of a process whose clock was far ahead is cut to what it may have meant, as soon as the time
        here is beyond doubt: it must not hold a snapshot for years.
        """
        ended = 0
        for lease, hold in self._holds(_SCAN, _REPORT):
            most = micros(self.now + hold.seconds + TRUSTED_JUMP_SECONDS)
            if self._is_over(lease):
                self.writing.remove_lease(lease.id)
                ended += 1
            elif self.times.agreed and lease.until > most:
                self.writing.put_lease(replace(lease, until=most))
        return ended

    def leases(self) -> list[dict[str, Any]]:
        """Return the leases that last, as plain values."""
        names = self._names()
        return [
            {
                "id": lease.id.removeprefix(_id(_SCAN, "")),
                "table": names[hold.table],
                "snapshot": hold.snapshot,
                "purpose": hold.purpose,
                "expires_at": lease.until / 1e6,
            }
            for lease, hold in self._lasting(_SCAN)
            if hold.table in names  # it is newer than what this transaction sees
        ]

    def _put(self, kind: str, id: str, hold: _Hold) -> None:  # noqa: A002
        until = micros(self.times.stamp + hold.seconds)
        self.writing.put_lease(LogLease(_id(kind, id), kind, "", pack_value(hold), until))

    def _holds(self, *kinds: str) -> list[tuple[LogLease, _Hold]]:
        """Return the leases of some kinds. Raises `StoreDamaged` where any lease is damaged."""
        every = sorted(leases(self), key=lambda lease: lease.id)
        return [(lease, held_value(lease, _Hold)) for lease in every if lease.kind in kinds]

    def _lasting(self, kind: str) -> list[tuple[LogLease, _Hold]]:
        return [(lease, hold) for lease, hold in self._holds(kind) if not self._is_over(lease)]

    def _is_over(self, lease: LogLease) -> bool:
        return lease.until < micros(self.times.expiry)

    def _names(self) -> dict[int, str]:
        """Return the names of all tables there ever were."""
        dropped = {number: table.name for number, table in self.state.dropped.items()}
        return dropped | {table.id: table.name for table in self.tables()}

    # Horizons

    def oldest_held(self, table: int) -> int | None:
        """Return the oldest snapshot of a table that some lease or tag holds."""
        held = [hold.snapshot for _, hold in self._lasting(_SCAN) if hold.table == table]
        tagged = self._oldest_tagged(table)
        return min(held if tagged is None else [*held, tagged], default=None)

    def _oldest_tagged(self, table: int) -> int | None:
        return min((tag.snapshot for tag in self._tags(table)), default=None)

    def oldest_needed(self, table: int, retention_seconds: float) -> int:
        """Return the oldest snapshot that a lease, a tag or the retention period may still ask for."""
        oldest, held = self._retained(retention_seconds), self.oldest_held(table)
        return oldest if held is None else min(oldest, held)

    def oldest_needed_of_all(self, retention_seconds: Iterable[float]) -> int | None:
        """As `oldest_needed`, of all tables, whose retention periods are given; None if nothing is needed."""
        held = [tag.snapshot for tag in self.tags()] + [hold.snapshot for _, hold in self._lasting(_SCAN)]
        return min([*held, *map(self._retained, set(retention_seconds))], default=None)

    def horizon(self, table: int, retention_seconds: float) -> int:
        """As `oldest_needed`, or the oldest snapshot with the same rows: the table's own commit before it.

        Commits of other tables take none of its snapshots away.
        """
        oldest, known = self.oldest_needed(table, retention_seconds), self.state.tables.get(table)
        if known is None:
            return oldest
        if oldest < known.info.created_commit:
            return known.info.oldest_snapshot
        own = known.newest if oldest >= known.newest else self.newest_upto(table, oldest).number
        # Where retention was prolonged, what is gone stays gone.
        return max(known.info.oldest_snapshot, own)

    def _retained(self, seconds: float) -> int:
        """Return the oldest snapshot that a retention period keeps by itself."""
        return self.versions()[1] if seconds <= 0 else self.commit_before(self.times.expiry - seconds)

    def set_oldest_snapshot(self, table: int, snapshot: int) -> None:
        """Stop keeping snapshots before this one. Never goes back: a snapshot that is gone stays gone."""
        known = self.state.tables.get(table)
        if known is not None and known.info.oldest_snapshot < snapshot:
            self.append(HorizonRaised(table, snapshot))

    # Tags

    def tags(self, table: int | None = None) -> tuple[Tag, ...]:
        """Return the tags of a table, or of all, the oldest snapshot first."""
        of = self.state.tables if table is None else [table]
        return _sorted(tag for number in of for tag in self._tags(number))

    def tags_by_table(self) -> dict[int, list[Tag]]:
        """Return the tags of each table that has some, as `tags`."""
        every = self.state.tables.items()
        return {number: list(_sorted(table.tags)) for number, table in every if table.tags}

    def tag(self, table: TableInfo, name: str) -> Tag:
        """Return a tag by its name. Raises `NotFound`, with a suggestion."""
        tags = {tag.name: tag for tag in self._tags(table.id)}
        if name in tags:
            return _tag(tags[name])
        hint = suggest(name, tags) or "; Table.tags() lists them"
        raise NotFound(
            f"table {table.name!r} has no tag {name!r}{hint}", table=table.name, tag=name, kind="tag"
        )

    def add_tag(self, table: TableInfo, name: str, snapshot: int) -> Tag:
        """Name a snapshot; its caller has checked, in this transaction, that it can be read.

        A name that stands for this snapshot already is left as it is.
        """
        there = self._tags(table.id)
        taken = next((tag for tag in there if tag.name == name), None)
        if taken is not None and taken.snapshot == snapshot:
            return _tag(taken)
        if taken is not None:
            raise AlreadyExists(
                f"table {table.name!r} already has a tag {name!r}, of snapshot {taken.snapshot}; drop it "
                f"first, or choose another name for snapshot {snapshot}",
                table=table.name,
                tag=name,
                snapshot=taken.snapshot,
            )
        if len(there) >= MAX_TAGS:
            raise LimitExceeded(
                f"table {table.name!r} has {len(there):,} tags, and more are not kept; drop some",
                table=table.name,
                most=MAX_TAGS,
            )
        self.append(TagChanged(table.id, name, snapshot))
        return self.tag(table, name)

    def drop_tag(self, table: TableInfo, name: str) -> None:
        self.append(TagChanged(table.id, self.tag(table, name).name, None))

    def _tags(self, table: int) -> tuple[NamedSnapshot, ...]:
        known = self.state.tables.get(table)
        return () if known is None else known.tags

    # Reports

    def report(self, report: str, table: int, snapshot: int, said: str, seconds: float) -> None:
        """Say something of a scan, in the place of what `report` said before; it is forgotten after a time.

        The first one of a scan removes those whose time is over. Of a table that was dropped nothing is said.
        """
        before = find_lease(self, _id(_REPORT, report))
        if before is None:
            for ended, _ in self._holds(_REPORT):
                if self._is_over(ended):
                    self.writing.remove_lease(ended.id)
        if before is not None or self.table_by_id(table) is not None:
            self._put(_REPORT, report, _Hold(table, snapshot, said, float(seconds)))

    def end_report(self, report: str) -> None:
        """Forget what a scan said."""
        self.writing.remove_lease(_id(_REPORT, report))

    def reports(self) -> list[Report]:
        """Return the words of scans that count now, the oldest first."""
        names = self._names()
        said = [
            Report(names[hold.table], hold.snapshot, hold.purpose, lease.until / 1e6 - hold.seconds)
            for lease, hold in self._lasting(_REPORT)
            if hold.table in names
        ]
        return sorted(said, key=lambda report: report.said_at)


def _id(kind: str, name: str) -> str:
    """Return the id of a lease: kinds share no names."""
    return f"{kind}/{name}"


def _sorted(tags: Iterable[NamedSnapshot]) -> tuple[Tag, ...]:
    return tuple(map(_tag, sorted(tags, key=lambda tag: (tag.snapshot, tag.name))))


def _tag(tag: NamedSnapshot) -> Tag:
    return Tag(tag.name, tag.snapshot, tag.made_at / 1e6)
