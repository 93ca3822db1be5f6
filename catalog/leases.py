"""Leases: rows that end with time, or with their owner.

A lease is a frozen value with an id: the name of its class, and its own name. A lease of a scan, a stream or
a write that checks keys keeps a snapshot readable. A lease of a mover or keeper owns a tablet or a step of
upkeep.

A scan writes its lease first, and then reads the horizon of its table. Upkeep raises the horizon first, and
then reads the leases, before it removes anything. So at least one of them sees the other. Leases are not
records of the log: they change often, and after the loss of one some work only starts again. Each row is
sealed. A damaged lease could keep any snapshot, so nothing is removed while there is one.
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
    """A value with a name. It expires at `until`, in microseconds since 1970."""

    name: str
    value: T
    until: int = ENDLESS


def lease_id(kind: type, name: str) -> str:
    """Return the id of a lease, which is unique over all kinds."""
    return f"{kind.__name__}/{name}"


def put_lease(home: LogHome, row: Row) -> None:
    """Insert or replace a lease; `row` is (id, payload, until)."""
    values = dict(zip(("id", "payload", "until"), row, strict=True))
    home.execute(tables.PUT_LEASE, values | {"digest": row_digest(row)})


def lease_rows(home: LogHome, id: str | None = None) -> list[Row]:  # noqa: A002
    """Return (id, payload, until) of all leases, expired ones included, or of the one with an id.

    Raises `StoreDamaged` if one of them is damaged.
    """
    rows = home.execute(tables.LEASES) if id is None else home.execute(tables.LEASE, {"id": id})
    for *row, digest in rows:
        if row_digest(tuple(row)) != digest:
            raise damaged_log(f"lease {row[0]} is not what was written")
    return [tuple(row[:-1]) for row in rows]


def lease_of(kind: type[T], row: Row) -> Lease[T]:
    """Return the lease of a row. Raises `StoreDamaged` if its class had other fields in another release."""
    try:
        return Lease(row[0].partition("/")[2], unpack_value(kind, row[1]), row[2])
    except (TypeError, ValueError) as error:
        raise damaged_log(f"lease {row[0]} cannot be decoded ({error})") from error
