"""The topology history in the log's database: one row for each change of the placement.

A row is the difference to the placement before; every 64th holds a whole placement, so reading one takes at
most 64 rows. It is written in the transaction of its record, whose entry seals it. The record's number is the
topology's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgpack

from elasticscan.catalog.log import tables
from elasticscan.catalog.log.entries import TOPOLOGY, check_part, damaged_log, linked_entry, part_hashes
from elasticscan.catalog.log.home import LogHome, Transaction
from elasticscan.catalog.log.state import StoreState
from elasticscan.metadata import (
    STORE,
    MoveSwitched,
    Record,
    StoreCreated,
    TabletsChanged,
    moved_tablet,
)
from elasticscan.topology import Placement, Tablet

_WHOLE_EVERY: Final = 64
_PART: Final = (STORE, TOPOLOGY)

TabletRow = tuple[int, int, int, int, int]


def topology_row(
    transaction: Transaction, state: StoreState | None, record: Record, time: int
) -> tuple[bool, bytes] | None:
    """Return (whole, bytes) of the row for a record that changes the placement; None for others."""
    before: tuple[Tablet, ...]
    after: tuple[Tablet, ...]
    if isinstance(record, StoreCreated):
        return True, _packed((), record.tablets, time)
    if isinstance(record, MoveSwitched):
        before, after = (record.tablet,), (moved_tablet(record),)
    elif isinstance(record, TabletsChanged):
        before, after = record.before, record.after
    else:
        return None
    assert state is not None
    ((since_whole,),) = transaction.execute(tables.SINCE_WHOLE_TOPOLOGY)
    if since_whole + 1 >= _WHOLE_EVERY:
        return True, _packed((), state.placement.replaced(before, after).tablets, time)
    return False, _packed(before, after, time)


def _packed(before: Sequence[Tablet], after: Sequence[Tablet], time: int) -> bytes:
    content = [time, [tablet.id for tablet in before], [_plain(tablet) for tablet in after]]
    packed: bytes = msgpack.packb(content)
    return packed


def _plain(tablet: Tablet) -> TabletRow:
    return tablet.id, tablet.start, tablet.end, tablet.shard, tablet.epoch


def placement_at(home: LogHome, number: int) -> Placement:
    """Return the placement as of a number, from rows that are those that its records brought."""
    ((whole,),) = home.execute(tables.WHOLE_TOPOLOGY, {"number": number})
    if whole is None:
        raise damaged_log(f"the topology history has no whole placement up to {number}")
    span = {"first": whole, "last": number}
    contents = {at: content for at, _, content in home.execute(tables.TOPOLOGIES, span)}
    logged = home.execute(tables.ENTRIES_OF_TABLE, span | {"table": STORE, "most": 1 << 62})
    entries = [entry for row in reversed(logged) if _PART in part_hashes(entry := linked_entry(row))]
    tablets: dict[int, Tablet] = {}
    try:
        for entry in entries:
            content = contents.pop(entry.number)
            check_part(entry, _PART, content)
            _, gone, came = msgpack.unpackb(content)
            if not gone:  # a whole placement
                tablets.clear()
            for id in gone:  # noqa: A001
                del tablets[id]
            tablets |= {row[0]: Tablet(*row) for row in came}
        assert not contents, "rows without a record"
        return Placement.of(tablets.values())
    except (KeyError, AssertionError) as error:
        raise damaged_log(f"the topology history has no placement of {number}") from error
