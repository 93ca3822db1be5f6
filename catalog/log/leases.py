"""Leases: what ends by itself with time.

    kind          keeps
    scan          a snapshot of a table readable; so do streams and backups
    write         files that are staged for longer than a few minutes from being collected
    step          a step of maintenance, a move, a checkpoint to one owner at a time

A scan's lease is written first, and the horizon of its table read afterwards; a horizon is raised first, and
the leases are read afterwards, before anything is removed. So one of both sees the other. Leases are no
records: they change often, and of a lost one only follows that something starts again. Each row is sealed.
A damaged one might keep anything, so while there is one nothing is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import msgpack

from elasticscan.catalog.log import tables
from elasticscan.catalog.log.entries import damaged_log
from elasticscan.catalog.log.home import LogHome, Row, Transaction, retry


@dataclass(frozen=True, slots=True)
class LogLease:
    """A lease until a time in microseconds; what its payload means is up to its kind."""

    id: str
    kind: str
    owner: str
    payload: bytes
    until: int

    @property
    def digest(self) -> bytes:
        values = [self.id, self.kind, self.owner, self.payload, self.until]
        return sha256(msgpack.packb(values)).digest()


def take_lease(home: LogHome, lease: LogLease, now: int) -> bool:
    """Take or prolong a lease; False if another owner has it, and its time is not over.

    The payload replaces the one before.
    """
    values = {name: getattr(lease, name) for name in LogLease.__slots__}

    def take() -> bool:
        with home.writing() as transaction:
            before = _one(transaction, lease.id)
            if before is not None and before.owner != lease.owner and before.until > now:
                return False
            transaction.execute(tables.DELETE_LEASE, {"id": lease.id})
            transaction.execute(tables.INSERT_LEASE, values | {"digest": lease.digest})
        return True

    return retry(home, take)


def end_lease(home: LogHome, id: str, owner: str) -> None:  # noqa: A002
    """End a lease, if this owner has it."""
    _end(home, id, lambda lease: lease.owner == owner)


def leases(home: LogHome) -> list[LogLease]:
    """Return all leases, ended ones included.

    Raises:
        StoreDamaged: one is not what was written.
    """
    return [_lease(row) for row in home.execute(tables.LEASES)]


def forget_ended(home: LogHome, before: int) -> int:
    """Remove the leases that ended before a time; returns how many."""
    ended = [lease for lease in leases(home) if lease.until < before]
    for lease in ended:
        _end(home, lease.id, lambda found: found.until < before)  # it may have been prolonged
    return len(ended)


def _end(home: LogHome, id: str, condition: Callable[[LogLease], bool]) -> None:  # noqa: A002
    def end() -> None:
        with home.writing() as transaction:
            lease = _one(transaction, id)
            if lease is not None and condition(lease):
                transaction.execute(tables.DELETE_LEASE, {"id": id})

    retry(home, end)


def _one(transaction: Transaction, id: str) -> LogLease | None:  # noqa: A002
    rows = transaction.execute(tables.LEASE, {"id": id})
    return _lease(rows[0]) if rows else None


def _lease(row: Row) -> LogLease:
    *values, digest = row
    lease = LogLease(*values)
    if lease.digest != digest:
        raise damaged_log(f"lease {lease.id} is not what was written")
    return lease
