"""Leases: what ends by itself with time, or with its owner.

A lease is a frozen value under an id, which is the name of its class and a name of its own. Scans, streams
and writes that check keys hold a snapshot with one; movers and keepers own a tablet or a step of maintenance.

A scan's lease is written first, and the horizon of its table read afterwards; a horizon is raised first, and
the leases are read afterwards, before anything is removed. So one of both sees the other. Leases are no
records: they change often, and of a lost one only follows that something starts again. Each row is sealed.
A damaged one might keep anything, so while there is one nothing is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from elasticscan.catalog import tables
from elasticscan.catalog.codec import unpack_value
from elasticscan.catalog.database import LogHome, Row
from elasticscan.catalog.entries import damaged_log, row_digest

T = TypeVar("T")

ENDLESS: Final = 1 << 62  # the time of a lease that ends with its owner


@dataclass(frozen=True, slots=True)
class Lease(Generic[T]):
    """A value under a name, until a time in microseconds."""

    name: str
    value: T
    until: int = ENDLESS


def lease_id(kind: type, name: str) -> str:
    """Return the id of a lease: kinds share no names."""
    return f"{kind.__name__}/{name}"


def put_lease(home: LogHome, row: Row) -> None:
    """Enter a lease by its row without the digest, in the place of that with its id."""
    values = dict(zip(("id", "payload", "until"), row, strict=True))
    home.execute(tables.PUT_LEASE, values | {"digest": row_digest(row)})


def lease_rows(home: LogHome, id: str | None = None) -> list[Row]:  # noqa: A002
    """Return the rows of all leases, ended ones included, or of that with an id, without their digests.

    Raises:
        StoreDamaged: one is not what was written.
    """
    rows = home.execute(tables.LEASES) if id is None else home.execute(tables.LEASE, {"id": id})
    for *row, digest in rows:
        if row_digest(tuple(row)) != digest:
            raise damaged_log(f"lease {row[0]} is not what was written")
    return [tuple(row[:-1]) for row in rows]


def lease_of(kind: type[T], row: Row) -> Lease[T]:
    """Return the lease of a row. Raises `StoreDamaged` where another release gave its class other fields."""
    try:
        return Lease(row[0].partition("/")[2], unpack_value(kind, row[1]), row[2])
    except (TypeError, ValueError) as error:
        raise damaged_log(f"lease {row[0]} cannot be decoded ({error})") from error
