"""Catalog transactions: the topology history.

A topology is kept as its difference to the one before, so that a store of many tablets can change its
placement often. Every `_WHOLE_EVERY`th is kept whole: no more rows than that are read for one of them, and
what is older than a whole one can be forgotten.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import Any

import msgpack
from sqlalchemy import bindparam

from elasticscan.base.errors import InvalidOption, NotFound, SnapshotExpired
from elasticscan.catalog.failures import damaged, decoding
from elasticscan.catalog.pipeline import Question
from elasticscan.catalog.placement import PlacementTx
from elasticscan.catalog.sealed import RowQuery, ask_group
from elasticscan.catalog.tables import topologies
from elasticscan.topology import Placement, Tablet, Topology, TopologyEntry

_WHOLE_EVERY = 64
_FOREIGN = """CREATE TABLE IF NOT EXISTS topology_history (cluster TEXT NOT NULL, number INTEGER NOT NULL,
    seen_at REAL NOT NULL, tablets TEXT NOT NULL, PRIMARY KEY (cluster, number))"""
_NEWEST = """SELECT cluster, CAST(number AS INTEGER), tablets FROM topology_history
    WHERE cluster IN (SELECT value FROM json_each(?)) ORDER BY number DESC LIMIT 1"""

_BETWEEN = RowQuery(
    topologies,
    topologies.c.number >= bindparam("first"),
    topologies.c.number <= bindparam("last"),
    order_by=topologies.c.number,
)


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
        newest = self._newest_topology_row() if self._state("newest_topology") else None
        number = 1 if newest is None else newest.number + int(newest.published)
        names = tuple((shard.id, shard.name) for shard in self.shards())
        at = self.times.stamp  # clocks of several machines: it is compared with times of commits
        topology = Topology(number, placement or self.placement(), names, at, reason, published)
        before = None
        if number != _whole_before(number):
            if last is None or last.number != number - 1:
                last = self._topology(number - 1)
            before = last.placement
        made = {"created_at": at, "reason": reason, "published": published}
        made["body"] = _pack_topology(topology, before)
        if newest is not None and newest.number == number:
            self._rows.update(topologies, [(newest, made)])
        else:
            self._rows.insert(topologies, made | {"number": number})
            self._set(newest_topology=number)
        return topology

    def _newest_topology_row(self) -> Any:
        return self._topology_row(int(self._state("newest_topology")))

    def _topology_row(self, number: int) -> Any:
        row = self._row_of(number)
        if row is None:
            raise _missing(number)
        return row

    def _row_of(self, number: int) -> Any | None:
        return self._rows.one(topologies, missing_is_checked=False, number=number)

    def _topology(self, number: int) -> Topology:
        rows = self._rows.ask(_BETWEEN, first=_whole_before(number), last=number)
        if [row.number for row in rows] != list(range(_whole_before(number), number + 1)):
            raise _missing(number)
        return _unpack_topology(rows)

    def newest_topology(self, cached: Topology | None = None) -> Topology:
        """Return the newest published topology: the base topology of scans that begin now.

        `cached` is returned if it is that one; its row is read all the same.
        """
        row = self._newest_topology_row()
        if not row.published:
            row = self._topology_row(row.number - 1)
        if cached is not None and (cached.number, cached.created_at) == (row.number, row.created_at):
            return cached
        return self._topology(row.number)

    def is_topology_published(self) -> bool:
        """Return whether all moves that were made are in a published topology."""
        return bool(self._newest_topology_row().published)

    def topology(self, number: int) -> Topology:
        """One of the topologies that are kept.

        Raises:
            NotFound: there was none of this number.
            SnapshotExpired: it is not kept any more.
        """
        if not 1 <= number <= self._state("newest_topology"):
            raise NotFound(
                f"the topology history holds no topology {number}", topology=number, kind="topology"
            )
        oldest = self.oldest_topology()
        if number < oldest:
            raise SnapshotExpired(
                f"topology {number} is no longer kept, the oldest is {oldest}; begin a new scan",
                topology=number,
                oldest=oldest,
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
        newest, oldest = int(self._state("newest_topology")), self.oldest_topology()
        first = oldest if limit is None else max(oldest, newest - limit + 1)
        return tuple(map(_entry, self._kept(first, newest)))

    def newest_topologies(self, limit: int) -> tuple[Topology, ...]:
        """Return the newest so many kept topologies with their placements, oldest first."""
        newest = int(self._state("newest_topology"))
        first = max(self.oldest_topology(), newest - limit + 1)
        states = _states(self._kept(_whole_before(first), newest))
        return tuple(_made(*state) for state in states if state[0].number >= first)

    def _kept(self, first: int, last: int) -> Sequence[Any]:
        """Return the rows of topologies that have to be there."""
        rows = self._rows.ask(_BETWEEN, first=first, last=last)
        if [row.number for row in rows] != list(range(first, last + 1)):
            raise damaged(f"the topology history has not each number from {first} to {last} once")
        return rows

    def oldest_topology(self) -> int:
        """Return the number of the oldest that is kept: there are no gaps."""
        kept = self._rows.count(topologies.info["groups"][0], 0)
        if not kept:
            raise damaged("the topology history is empty")
        return int(self._state("newest_topology")) - kept + 1

    def first_topology_since(self, time: float) -> int:
        """Return the number of the first topology that has to be kept for those who began at a time or later.

        That is a whole one: what is kept of the next ones is the difference to it.
        """
        first = self.oldest_topology()
        while (whole := self._row_of(first + _WHOLE_EVERY)) and whole.published and whole.created_at < time:
            first = whole.number
        return first

    def forget_topologies(self, before: int) -> int:
        """Forget topologies with numbers below that of a whole one; returns how many."""
        assert before == _whole_before(before)
        return self._rows.delete(topologies, self._rows.ask(_BETWEEN, first=1, last=before - 1))


def ask_topology(newest: int) -> list[Question]:
    """Return the question of `TopologyTx.newest_topology`, if that is still the newest number."""
    return [ask_group(topologies, {"number": newest}, None)]


def _whole_before(number: int) -> int:
    """Return the number of the topology that is kept whole, and to which this one is related."""
    return number - (number - 1) % _WHOLE_EVERY


def _missing(number: int) -> Exception:
    return damaged(f"topology {number} is not in the topology history")


def _pack_topology(topology: Topology, before: Placement | None) -> bytes:
    """Return the difference to `before`; everything where that is None."""
    gone, came = topology.placement.difference(Placement(()) if before is None else before)
    changed = [[t.id, t.start, t.end, t.shard, t.epoch] for t in came]
    lost = sorted({t.id for t in gone} - {t.id for t in came})
    counts = Counter(tablet.shard for tablet in topology.placement.tablets)
    shards = [[shard, name, counts[shard]] for shard, name in topology.shard_names]
    packed = msgpack.packb([lost, changed, shards])
    assert isinstance(packed, bytes)
    return packed


def _unpack_topology(rows: Sequence[Any]) -> Topology:
    """Return the topology of the last of some rows, the first of which is whole."""
    [(last, tablets, names)] = deque(_states(rows), maxlen=1)
    return _made(last, tablets, names)


def _states(rows: Sequence[Any]) -> Iterator[tuple[Any, dict[int, Tablet], tuple[tuple[int, str], ...]]]:
    """Each row with the tablets (one dictionary, which changes on the way) and the names of shards at it."""
    tablets: dict[int, Tablet] = {}
    for row in rows:
        if row.number == _whole_before(row.number):
            tablets.clear()
        with decoding(f"topology {row.number} in the topology history"):
            gone, changed, shards = msgpack.unpackb(row.body)
            for tablet in gone:
                del tablets[tablet]
            tablets |= {fields[0]: Tablet(*fields) for fields in changed}
            names = tuple((shard, name) for shard, name, _ in shards)
        yield row, tablets, names


def _made(row: Any, tablets: dict[int, Tablet], names: tuple[tuple[int, str], ...]) -> Topology:
    with decoding(f"topology {row.number} in the topology history"):
        placement = Placement.of(tablets.values())
    return Topology(
        number=row.number,
        placement=placement,
        shard_names=names,
        created_at=row.created_at,
        reason=row.reason,
        published=bool(row.published),
    )


def _entry(row: Any) -> TopologyEntry:
    with decoding(f"topology {row.number} in the topology history"):
        _, _, shards = msgpack.unpackb(row.body)
        tablets = tuple((name, count) for _, name, count in shards)
    return TopologyEntry(row.number, tablets, row.created_at, row.reason, bool(row.published))


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
