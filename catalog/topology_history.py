"""Catalog transactions: the topology history.

A topology is kept as its difference to the one before, so that a store of many tablets can change its
placement often. Every 64th is kept whole: no more rows than that are read for one of them, and what is older
than a whole one can be forgotten. A row is written with its record, whose entry in the log seals it. Entries
stay when rows are forgotten.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import msgpack

from elasticscan.base.errors import InvalidOption, NotFound, SnapshotExpired
from elasticscan.catalog import tables
from elasticscan.catalog.entries import TOPOLOGY, check_part, damaged_log, linked_entry
from elasticscan.catalog.moves import PlacementTx
from elasticscan.metadata import STORE, StoreCreated, TopologyEntered
from elasticscan.topology import Placement, Tablet, Topology, TopologyEntry

WHOLE_EVERY: Final = 64
_NOTHING: Final = Placement(())

_FOREIGN = """CREATE TABLE IF NOT EXISTS topology_history (cluster TEXT NOT NULL, number INTEGER NOT NULL,
    seen_at REAL NOT NULL, tablets TEXT NOT NULL, PRIMARY KEY (cluster, number))"""
_NEWEST = """SELECT cluster, CAST(number AS INTEGER), tablets FROM topology_history
    WHERE cluster IN (SELECT value FROM json_each(?)) ORDER BY number DESC LIMIT 1"""


class PackedTopology(NamedTuple):
    """A row of the history.

    Attributes:
        gone: ids of the tablets that the topology before had, and this one has not; none in a whole one.
        came: the fields of tablets that are others than before, or new; all in a whole one.
        shards: (id, name, how many tablets it held) of each shard.
    """

    number: int
    created_at: float
    reason: str
    published: bool
    gone: Sequence[int]
    came: Sequence[Sequence[int]]
    shards: Sequence[tuple[int, str, int]]


class TopologyTx(PlacementTx):
    """Reads and changes of the topology history."""

    def append_topology(
        self,
        reason: str,
        published: bool = True,
        placement: Placement | None = None,
        last: Topology | None = None,
    ) -> Topology:
        """Enter the placement as it is now as the newest topology.

        Where the placement is at hand, or the last topology that was published, they are handed in.

        At most the newest one is not published: what is entered next takes its row and its number. So
        the history has every placement that a scan may have begun with, and the one of now, however
        many tablets a plan moves.
        """
        newest, is_published = self.state.topology
        number = newest + int(is_published)
        names = tuple((shard.id, shard.name) for shard in self.shards())
        at = self.times.stamp  # clocks of several machines: it is compared with times of commits
        topology = Topology(number, placement or self.placement(), names, at, reason, published)
        before = _NOTHING
        if not is_whole(number):
            if last is None or last.number != number - 1:
                last = self._topology(number - 1)
            before = last.placement
        packed = pack_topology(topology, before)
        self.append(TopologyEntered(number, published), topology=(number, packed))
        return topology

    def newest_topology(self, cached: Topology | None = None) -> Topology:
        """Return the newest published topology: the base topology of scans that begin now.

        `cached` is returned if it is that one; its row is read all the same.
        """
        newest, is_published = self.state.topology
        number = newest if is_published else newest - 1
        if cached is not None and cached.number == number:
            (row,) = self._kept_topologies(number, number)
            if row.created_at == cached.created_at:
                return cached
        return self._topology(number)

    def is_topology_published(self) -> bool:
        """Return whether all moves that were made are in a published topology."""
        return self.state.topology[1]

    def topology(self, number: int) -> Topology:
        """Return one of the topologies that are kept.

        Raises:
            NotFound: there was none of this number.
            SnapshotExpired: it is not kept any more.
        """
        if not 1 <= number <= self.state.topology[0]:
            raise NotFound(
                f"the topology history holds no topology {number}", topology=number, kind="topology"
            )
        return self._topology(number)

    def base_topology(self, number: int) -> Topology:
        """Return the topology that a scan began with, or the oldest that is kept.

        No row depends on it, only which reads count as virtual ones. A snapshot that its table's next commit
        has not overtaken may be read on after any pause, so there is no time after which it is unused.
        """
        return self.topology(max(number, self.oldest_topology()))

    def topology_history(self, limit: int | None = None) -> tuple[TopologyEntry, ...]:
        """Return the history's entries, oldest first; the last one may not be published yet.

        Args:
            limit: the newest so many; all that are kept by default.
        """
        newest = self.state.topology[0]
        first = 1 if limit is None else max(1, newest - limit + 1)
        return tuple(map(_entry, self._kept_topologies(first, newest)))

    def newest_topologies(self, limit: int) -> tuple[Topology, ...]:
        """Return the newest so many kept topologies with their placements, oldest first."""
        newest = self.state.topology[0]
        first = max(1, newest - limit + 1)
        found = unpack_topologies(self._kept_topologies(_whole_before(first), newest))
        return tuple(topology for topology in found if topology.number >= first)

    def oldest_topology(self) -> int:
        """Return the number of the oldest that is kept: there are no gaps."""
        ((oldest,),) = self.execute(tables.OLDEST_TOPOLOGY)
        if oldest is None:
            raise damaged_log("the topology history is empty")
        return int(oldest)

    def first_topology_since(self, time: float) -> int:
        """Return the number of the first topology that has to be kept for those who began at a time or later.

        That is a whole one: what is kept of the next ones is the difference to it.
        """
        first = self.oldest_topology()
        while whole := self._topology_rows(first + WHOLE_EVERY, first + WHOLE_EVERY):
            if not whole[0].published or whole[0].created_at >= time:
                break
            first = whole[0].number
        return first

    def forget_topologies(self, before: int) -> int:
        """Forget topologies with numbers below that of a whole one; returns how many."""
        assert is_whole(before)
        oldest = self.oldest_topology()
        self.writing.execute(tables.FORGET_TOPOLOGIES, {"before": before})
        return max(0, before - oldest)

    def _topology(self, number: int) -> Topology:
        *_, topology = unpack_topologies(self._kept_topologies(_whole_before(number), number))
        return topology

    def _kept_topologies(self, first: int, last: int) -> list[PackedTopology]:
        """Return the rows of topologies, the first of which may be forgotten, up to a whole one."""
        rows = self._topology_rows(first, last)
        if not rows and first <= last < (oldest := self.oldest_topology()):
            raise SnapshotExpired(
                f"topology {last} is no longer kept, the oldest is {oldest}; begin a new scan",
                topology=last,
                oldest=oldest,
            )
        start = rows[0].number if rows and is_whole(rows[0].number) else first
        newest, is_published = self.state.topology
        published = [row.published for row in rows if row.number < newest or is_published]
        if [row.number for row in rows] != list(range(start, last + 1)) or not all(published):
            raise damaged_log(f"the topology history has not each number from {start} to {last} once")
        return rows

    def _topology_rows(self, first: int, last: int) -> list[PackedTopology]:
        """Return the rows that are there, each of which is the one that its record brought."""
        rows = list[PackedTopology]()
        for row in self.execute(tables.TOPOLOGIES, {"first": first, "last": last}):
            content = row[-2]
            check_part(linked_entry(row), (STORE, TOPOLOGY), content)
            rows.append(PackedTopology(*msgpack.unpackb(content)))
        return rows


def first_topology(record: StoreCreated) -> tuple[int, bytes]:
    """Return number and row of the first topology of a store, which its first record seals."""
    names = tuple((shard.id, shard.name) for shard in record.shards)
    topology = Topology(1, Placement.of(record.tablets), names, record.created_at, "created")
    return 1, pack_topology(topology, _NOTHING)


def is_whole(number: int) -> bool:
    """Return whether the topology with a number is kept as a whole placement."""
    return number == _whole_before(number)


def _whole_before(number: int) -> int:
    """Return the number of the topology that is kept whole, and to which this one is related."""
    return number - (number - 1) % WHOLE_EVERY


def pack_topology(topology: Topology, before: Placement) -> bytes:
    """Return the row of a topology: its difference to a placement, which is the empty one for a whole row."""
    gone, came = topology.placement.difference(before)
    counts = Counter(tablet.shard for tablet in topology.placement.tablets)
    row = PackedTopology(
        topology.number,
        topology.created_at,
        topology.reason,
        topology.published,
        sorted({t.id for t in gone} - {t.id for t in came}),
        [(t.id, t.start, t.end, t.shard, t.epoch) for t in came],
        [(shard, name, counts[shard]) for shard, name in topology.shard_names],
    )
    packed: bytes = msgpack.packb(row)
    return packed


def unpack_topologies(rows: Sequence[PackedTopology]) -> Iterator[Topology]:
    """Return the topologies of some rows, the first of which is whole."""
    held: dict[int, Tablet] = {}
    for row in rows:
        if is_whole(row.number):
            held.clear()
        try:
            for tablet in row.gone:
                del held[tablet]
            held |= {fields[0]: Tablet(*fields) for fields in row.came}
            placement = Placement.of(held.values())
        except (KeyError, AssertionError) as error:
            raise damaged_log(f"topology {row.number} does not fit the one before") from error
        names = tuple((shard, name) for shard, name, _ in row.shards)
        yield Topology(row.number, placement, names, row.created_at, row.reason, row.published)


def _entry(row: PackedTopology) -> TopologyEntry:
    held = tuple((name, count) for _, name, count in row.shards)
    return TopologyEntry(row.number, held, row.created_at, row.reason, row.published)


def enter_foreign_topology(path: str, nodes: Collection[str], tablets: str) -> str | None:
    """Append the placement of a cluster to its history in a SQLite file, if it is another than the newest.

    Returns the newest before. The history is that under the id of any of the cluster's nodes.
    """
    try:
        with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            connection.execute(_FOREIGN)
            connection.execute("BEGIN IMMEDIATE")
            row = connection.execute(_NEWEST, [json.dumps(list(nodes))]).fetchone()
            name, number, before = row or (min(nodes), 0, None)
            if tablets != before:
                entry = (name, number + 1, time.time(), tablets)
                connection.execute("INSERT INTO topology_history VALUES (?, ?, ?, ?)", entry)
            return None if row is None else str(before)
    except (sqlite3.Error, ValueError, OverflowError) as error:
        raise InvalidOption(
            f"topologyHistory={path!r} cannot be used ({error}); name a new SQLite file",
            option="topologyHistory",
        ) from None
