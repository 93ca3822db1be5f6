"""Leases of a process whose clock was ahead are cut; the ones that end with their owners stay without end."""

from __future__ import annotations

from pathlib import Path

from elasticscan.base.limits import STREAM_LEASE_SECONDS, TRUSTED_JUMP_SECONDS
from elasticscan.catalog.leases import ENDLESS
from elasticscan.store.context.leases import Hold
from tests.base.manual_clock import ManualClock
from tests.catalog.small_store import add_table, make


def test_only_leases_with_an_end_are_cut_to_what_may_have_been_meant(tmp_path: Path) -> None:
    clock = ManualClock(1e9)
    catalog = make(tmp_path / "catalog.db", clock)
    table = add_table(catalog)
    most = STREAM_LEASE_SECONDS + TRUSTED_JUMP_SECONDS
    asked = {"long": 10 * most, "longest allowed": most, "short": 60.0, "endless": None}
    with catalog.writing() as tx:
        for name, seconds in asked.items():
            tx.put_lease(name, Hold(table.id, 1, "scan"), seconds)
    with catalog.writing() as tx:
        assert tx.times.agreed
        assert tx.end_expired_leases() == 0
        left = {lease.name: lease.until for lease in tx.leases(Hold)}
    until = {name: (1e9 + seconds) * 1e6 for name, seconds in asked.items() if seconds is not None}
    assert left == until | {"long": until["longest allowed"], "endless": ENDLESS}
    catalog.close()
