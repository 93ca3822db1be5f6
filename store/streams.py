"""Streams that follow tables, as the catalog knows them: by the leases that they hold.

A stream with a name keeps a lease on the commit that it has reached, so that the changes after it
stay readable. What is told here comes from these leases alone: a stream without a name leaves no
trace in the catalog, and one that stopped is listed until its lease ends.

A stream writes down where it stands about once a minute while it runs, and when it ends by itself. So
`commit` may be that much older than what it delivered, and while it still reads the snapshot that it
began with, `commit` is that snapshot: rows of it that are not read yet are not in `behind_rows`.
"""

from __future__ import annotations

from typing import Any

from elasticscan.catalog import Tx
from elasticscan.store.context import Context
from elasticscan.store.leases import stream_of


def streams_of(context: Context) -> list[dict[str, Any]]:
    """Every named stream whose lease runs, by table and name, as plain values.

    Returns:
        For each `name`, `table`, `commit` (the newest that it surely delivered), `behind_commits` and
        `behind_rows` (of the table, after that commit), `behind_seconds` (the age of the oldest of
        these commits; 0.0 without any) and `expires_at` (when the lease ends if it is not renewed,
        in seconds since 1970).
    """
    with context.catalog.reading() as tx:
        return streams_in(tx)


def streams_in(tx: Tx) -> list[dict[str, Any]]:
    """As `streams_of`, in a transaction that is open already."""
    tables = {table.name: table for table in tx.tables()}
    found = []
    for lease in tx.leases():
        table = tables.get(lease["table"])
        # Before the table of this name was made: the lease is of one that was dropped.
        if table is None or lease["snapshot"] < table.created_commit:
            continue
        name = stream_of(lease["purpose"])
        if name is None:
            continue
        commits, rows, oldest = tx.behind(table.id, lease["snapshot"])
        found.append(
            {
                "name": name,
                "table": table.name,
                "commit": lease["snapshot"],
                "behind_commits": commits,
                "behind_rows": rows,
                "behind_seconds": 0.0 if oldest is None else round(max(tx.now - oldest, 0.0), 3),
                "expires_at": lease["expires_at"],
            }
        )
    return sorted(found, key=lambda stream: (stream["table"], stream["name"]))
