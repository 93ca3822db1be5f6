"""The check of a whole log: its tables contain what was appended, and all checkpoints lead to one state.

It reads one snapshot, so others may append meanwhile. Statistics are not checked: no row depends on them, and
a reader ignores damaged ones.
"""

from __future__ import annotations

from typing import Final

from elasticscan.catalog import checkpoints, tables
from elasticscan.catalog.checkpoints import KEPT, replay
from elasticscan.catalog.codec import pack_value
from elasticscan.catalog.database import LogHome
from elasticscan.catalog.entries import (
    GENESIS,
    ROWS,
    STATISTICS,
    check_chain,
    check_part,
    damaged_log,
    entry_of,
)
from elasticscan.catalog.leases import lease_rows
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.topology_history import oldest_topology, topology_rows
from elasticscan.catalog.transaction import Tx

_BATCH: Final = 500  # entries, with their parts
_ALL: Final = (1 << 63) - 1


def check_log(home: LogHome) -> None:
    """Raise `StoreDamaged` unless chain, parts of records, checkpoints, topologies and leases are whole."""
    with home.reading():
        rows = _check_entries(home)
        state = _state_of_all(home)
        in_log = {commit.number for table in state.tables.values() for commit in table.memory}
        if not in_log <= rows:
            raise damaged_log(f"the rows of record {min(in_log - rows)} are missing")
        tx = Tx(home, state)
        topology_rows(tx, oldest_topology(tx), state.topology[0])
        lease_rows(home)


def _state_of_all(home: LogHome) -> StoreState:
    """Return the state to which all checkpoints lead, and the whole log if no value was dropped yet."""
    kept = checkpoints.all_checkpoints(home)[:KEPT]
    newest = replay(home, None) if len(kept) < KEPT else None
    for checkpoint in kept:
        state = replay(home, checkpoints.read_state(home, checkpoint))
        newest = newest or state
        if pack_value(state) != pack_value(newest):
            raise damaged_log(f"checkpoint {checkpoint.number} does not lead to the newest state")
    assert newest is not None, "without checkpoints nothing was dropped"
    return newest


def _check_entries(home: LogHome) -> set[int]:
    """Check entries and their parts; return the numbers of the commits whose rows are in the log."""
    last, digest, rows, is_end = -1, GENESIS, set[int](), False
    while not is_end:
        found = home.execute(tables.CHAIN, {"after": last, "most": _BATCH})
        entries, is_end = {row[0]: entry_of(row) for row in found}, len(found) < _BATCH
        check_chain(digest, entries.values())
        upto = _ALL if is_end else max(entries)
        for number, part, content in home.execute(tables.PARTS_BETWEEN, {"after": last, "upto": upto}):
            if number not in entries:
                raise damaged_log(f"it has the part {part!r} of record {number}, but no such record")
            if part != STATISTICS:
                check_part(entries[number], part, content)
            if part == ROWS:
                rows.add(number)
        if entries:
            last = max(entries)
            digest = entries[last].digest
    return rows
