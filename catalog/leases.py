"""Leases: what ends by itself with time, or with its owner.

    kind          keeps
    scan          a snapshot of a table readable; so do streams, and writes that check keys
    report        nothing: it is what a scan says of itself
    move          a tablet on its way to one owner, until that is over (`moves`)
    step          a step of maintenance to one owner, until that is over (`upkeep`)
    done          what was done by such steps
    checkpoint    the writing of a checkpoint to one process at a time

A scan's lease is written first, and the horizon of its table read afterwards; a horizon is raised first, and
the leases are read afterwards, before anything is removed. So one of both sees the other. Leases are no
records: they change often, and of a lost one only follows that something starts again. Each row is sealed.
A damaged one might keep anything, so while there is one nothing is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeVar

import msgpack

from elasticscan.catalog import tables
from elasticscan.catalog.codec import unpack_value
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.home import LogHome, Row, Transaction
from elasticscan.catalog.retrying import retry

T = TypeVar("T")

ENDLESS: Final = 1 << 62  # the time of a lease that ends with its owner


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

    def take() -> bool:
        with home.writing() as transaction:
            before = find_lease(transaction, lease.id)
            if before is not None and before.owner != lease.owner and before.until > now:
                return False
            put_lease(transaction, lease)
        return True

    return retry(home, take)


def put_lease(transaction: Transaction, lease: LogLease) -> None:
    """Enter a lease, in the place of the one with its id."""
    values = {name: getattr(lease, name) for name in LogLease.__slots__}
    transaction.execute(tables.PUT_LEASE, values | {"digest": lease.digest})


def end_lease(home: LogHome, id: str, owner: str) -> None:  # noqa: A002
    """End a lease, if this owner has it."""

    def end() -> None:
        with home.writing() as transaction:
            lease = find_lease(transaction, id)
            if lease is not None and lease.owner == owner:
                transaction.execute(tables.DELETE_LEASE, {"id": id})

    retry(home, end)


def leases(transaction: Transaction) -> list[LogLease]:
    """Return all leases, ended ones included.

    Raises:
        StoreDamaged: one is not what was written.
    """
    return [_lease(row) for row in transaction.execute(tables.LEASES)]


def find_lease(transaction: Transaction, id: str) -> LogLease | None:  # noqa: A002
    """Return a lease, ended or not. Raises `StoreDamaged` where it is not what was written."""
    rows = transaction.execute(tables.LEASE, {"id": id})
    return _lease(rows[0]) if rows else None


def leases_of(transaction: Transaction, kind: str) -> list[LogLease]:
    """Return the leases of a kind; else as `find_lease`."""
    return [_lease(row) for row in transaction.execute(tables.LEASES_OF_KIND, {"kind": kind})]


def find_leases(transaction: Transaction, ids: Sequence[str]) -> dict[str, LogLease]:
    """Return the leases with some ids, as far as they are there, by these; else as `find_lease`."""
    asked = {f"id{number}": id for number, id in enumerate(ids)}  # noqa: A001
    rows = transaction.execute(tables.leases_named(len(asked)), asked) if asked else []
    return {lease.id: lease for lease in map(_lease, rows)}


def held_value(lease: LogLease, kind: type[T]) -> T:
    """Return the frozen value that is the payload of a lease."""
    try:
        return unpack_value(kind, lease.payload)
    except ValueError as error:
        raise damaged_log(f"lease {lease.id} cannot be decoded ({error})") from error


def _lease(row: Row) -> LogLease:
    *values, digest = row
    lease = LogLease(*values)
    if lease.digest != digest:
        raise damaged_log(f"lease {lease.id} is not what was written")
    return lease
