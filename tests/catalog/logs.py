"""Logs without a catalog: begun, and appended to one record at a time, as often as it takes."""

from __future__ import annotations

from elasticscan.catalog import tables
from elasticscan.catalog.appending import Append
from elasticscan.catalog.database import LogHome
from elasticscan.catalog.log import Log
from elasticscan.catalog.retrying import retry
from elasticscan.catalog.topology_history import first_topology
from elasticscan.metadata import StoreCreated, table_of


def begin(home: LogHome, record: StoreCreated) -> Log:
    """Begin a log with its first record and topology."""
    with Log(home).beginning() as transaction:
        transaction.append(Append(record, topology=first_topology(record)))
    return Log(home)


def earlier(home: LogHome, what: Append) -> int | None:
    if what.app is None:
        return None
    asked = {"table": table_of(what.record), "app_id": what.app[0], "app_version": what.app[1]}
    found = home.execute(tables.BY_APP, asked)
    return int(found[0][0]) if found else None


def append(log: Log, what: Append) -> int:
    """Append a record, once the state as of the head allows it; a small commit at once, where that is so.

    The commit that an application has made under the same version is returned in its place.
    """
    inline = None if log.known is None else log.append_at_once(what, log.known)
    if inline is not None:
        return inline

    def attempt() -> int:
        with log.writing() as transaction:
            made = earlier(log.home, what)
            return transaction.append(what) if made is None else made

    return retry(log.home, attempt)
