"""The topology history: past placements. Each row is sealed by the log entry that added it.

Only the newest topology may be unpublished; the next one then replaces its row and takes its number. So the
history contains every placement with which a scan may have begun, and the present one, but not each step of a
plan that moves many tablets.
"""

from __future__ import annotations

import zlib
from dataclasses import astuple
from functools import lru_cache

import msgpack

from elasticscan.catalog import tables
from elasticscan.catalog.database import Row, micros
from elasticscan.catalog.entries import TOPOLOGY, Append, check_part, damaged_log, linked_entry
from elasticscan.catalog.transaction import Tx
from elasticscan.metadata import StoreCreated, TopologyEntered
from elasticscan.topology import Placement, SlotMap, Tablet, Topology, TopologyEntry


def append_topology(tx: Tx, reason: str, published: bool = True) -> Topology:
    """Append the present placement as the newest topology. Raises `StoreDamaged` if the newest is damaged."""
    state = tx.state
    newest, is_published = state.topology
    newest_topology(tx)
    names = tuple((shard.id, shard.name) for shard in state.shards.values())
    at = tx.times.stamp  # not earlier than commits of other machines, with which it is compared
    topology = Topology(newest + int(is_published), state.placement, names, at, reason, published)
    row = topology.number, pack_topology(topology)
    tx.append(Append(TopologyEntered(topology.number, published), topology=row))
    return topology


def first_topology(record: StoreCreated) -> tuple[int, bytes]:
    """Return (number, row) of a store's first topology, which its first record seals."""
    names = tuple((shard.id, shard.name) for shard in record.shards)
    return 1, pack_topology(Topology(1, Placement.of(record.tablets), names, record.created_at, "created"))


def newest_topology(tx: Tx) -> Topology:
    """Return the newest published topology: the base topology of scans that begin now."""
    newest, is_published = tx.state.topology
    number = newest - (not is_published)
    return _kept(tx, number, number)[0]


def topology_entries(tx: Tx, most: int | None = None) -> tuple[TopologyEntry, ...]:
    """Return the entries of the newest `most` topologies, oldest first, without their placements."""
    entries = (entry for entry, *_ in topology_rows(tx, *_newest(tx, most)))
    return tuple(TopologyEntry(number, tuple(map(tuple, shards)), *rest) for number, shards, *rest in entries)


def slot_map(tx: Tx, most: int) -> SlotMap:
    """Return the newest `most` topologies, oldest first, and the names of the present shards."""
    newest = _kept(tx, *_newest(tx, most))
    return SlotMap(tuple(newest), tuple((shard.id, shard.name) for shard in tx.state.shards.values()))


def _newest(tx: Tx, most: int | None) -> tuple[int, int]:
    """Return the first and the last number of the newest `most` topologies."""
    newest = tx.state.topology[0]
    return max(oldest_topology(tx), 1 if most is None else newest - most + 1), newest


def base_topology(tx: Tx, number: int) -> Topology:
    """Return the topology with which a scan began, or the nearest one that is kept.

    No row depends on it: it only decides which reads count as virtual. A scan of the newest snapshot may be
    resumed after any pause, so there is no time after which a topology is unused.
    """
    nearest = min(max(number, oldest_topology(tx)), tx.state.topology[0])
    return _kept(tx, nearest, nearest)[0]


def oldest_topology(tx: Tx) -> int:
    """Return the number of the oldest topology that is kept; numbers have no gaps."""
    ((oldest,),) = tx.execute(tables.OLDEST_TOPOLOGY)
    if oldest is None:
        raise damaged_log("the topology history is empty")
    return int(oldest)


def topology_at(tx: Tx, time: float) -> int:
    """Return the number of the base topology of a scan that began at a time, or of the oldest kept."""
    newest, is_published = tx.state.topology
    ((number,),) = tx.execute(tables.TOPOLOGY_AT, {"time": micros(time)})
    return min(number or oldest_topology(tx), newest if is_published else newest - 1)


def forget_topologies(tx: Tx, before: int) -> None:
    """Remove the topologies with numbers lower than `before`."""
    tx.execute(tables.FORGET_TOPOLOGIES, {"before": before})


def _kept(tx: Tx, first: int, last: int) -> list[Topology]:
    return [
        Topology(number, _placement(tablets), tuple(map(tuple, shards)), *rest)
        for (number, _, *rest), shards, tablets in topology_rows(tx, first, last)
    ]


def topology_rows(tx: Tx, first: int, last: int) -> list[tuple[Row, Row, bytes]]:
    """Return (entry, shards, packed tablets) of topologies, each checked against its log entry."""
    rows = list[tuple[Row, Row, bytes]]()
    for row in tx.execute(tables.TOPOLOGIES, {"first": first, "last": last}):
        check_part(linked_entry(row), TOPOLOGY, row[-2])
        rows.append(msgpack.unpackb(zlib.decompress(row[-2])))
    newest, is_published = tx.state.topology
    published = all(entry[-1] for entry, *_ in rows if entry[0] < newest or is_published)
    if [entry[0] for entry, *_ in rows] != list(range(first, last + 1)) or not published:
        raise damaged_log(f"the topology history has not each number from {first} to {last} once")
    return rows


def pack_topology(topology: Topology) -> bytes:
    """Return the row of a topology: its entry, the shards, and the tablets, packed separately.

    So a list of entries, or a placement in the cache, needs no unpacking of tablets.
    """
    tablets = [(t.id, t.start, t.end, t.shard, t.epoch) for t in topology.placement.tablets]
    content = astuple(topology.entry), topology.shard_names, msgpack.packb(tablets)
    return zlib.compress(msgpack.packb(content), 1)


@lru_cache(maxsize=8)
def _placement(tablets: bytes) -> Placement:
    """Return the placement of packed tablets. Cached, since it takes milliseconds for many tablets."""
    return Placement(tuple(Tablet(*fields) for fields in msgpack.unpackb(tablets)))
