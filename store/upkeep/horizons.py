"""Horizons: the oldest snapshot of a table that can still be asked for, by retention, a lease or a tag.

Merges of fragments leave out what is older. While any lease is damaged, horizons are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticscan.catalog import Tx
from elasticscan.store.context.leases import holds_in


def oldest_held(tx: Tx, table: int) -> int | None:
    """Return the oldest snapshot of a table that some lease or tag holds."""
    return min([*_leased(tx, table), *_tagged(tx, table)], default=None)


def oldest_needed(tx: Tx, retentions: Iterable[float]) -> int | None:
    """Return the oldest snapshot that a lease, a tag or one of some retention periods may still ask for."""
    retained = (_retained(tx, seconds) for seconds in set(retentions))
    return min([*_leased(tx), *_tagged(tx), *retained], default=None)


def horizon_of(tx: Tx, table: int, retention_seconds: float) -> int:
    """Return the oldest snapshot that may still be asked for, or the oldest with the same rows.

    That is the table's own commit before it: commits of other tables take none of its snapshots away.
    """
    oldest, held, known = _retained(tx, retention_seconds), oldest_held(tx, table), tx.state.tables.get(table)
    oldest = oldest if held is None else min(oldest, held)
    if known is None:
        return oldest
    if oldest < known.info.created_commit:
        return known.info.oldest_snapshot
    own = known.newest if oldest >= known.newest else tx.newest_upto(table, oldest).number
    # Where retention was prolonged, what is gone stays gone.
    return max(known.info.oldest_snapshot, own)


def _leased(tx: Tx, table: int | None = None) -> list[int]:
    return [hold.value.snapshot for hold in holds_in(tx) if table in (None, hold.value.table)]


def _tagged(tx: Tx, table: int | None = None) -> list[int]:
    tables = tx.state.tables.items()
    return [tag.snapshot for number, own in tables if table in (None, number) for tag in own.tags]


def _retained(tx: Tx, seconds: float) -> int:
    """Return the oldest snapshot that a retention period keeps by itself."""
    return tx.state.commit if seconds <= 0 else tx.commit_before(tx.times.expiry - seconds)
