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
from elasticscan.catalog.log.entries import damaged_log
from elasticscan.catalog.log.home import LogHome, Transaction
from elasticscan.catalog.log.state import StoreState
from elasticscan.metadata import (
    MoveSwitched,
    Record,
    StoreCreated,
    TabletsChanged,
    moved_tablet,
)
from elasticscan.topology import Placement, Tablet

_WHOLE_EVERY: Final = 64

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
    """Return the placement as of a number."""
    ((whole,),) = home.execute(tables.WHOLE_TOPOLOGY, {"number": number})
    if whole is None:
        raise damaged_log(f"the topology history has no whole placement up to {number}")
    tablets: dict[int, Tablet] = {}
    for _, is_whole, content in home.execute(tables.TOPOLOGIES, {"first": whole, "last": number}):
        try:
            _, gone, came = msgpack.unpackb(content)
            if is_whole:
                tablets.clear()
            for id in gone:  # noqa: A001
                del tablets[id]
            tablets |= {row[0]: Tablet(*row) for row in came}
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise damaged_log("the topology history cannot be decoded") from error
    return Placement.of(tablets.values())
