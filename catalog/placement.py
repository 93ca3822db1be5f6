"""Catalog transactions, part one: secrets, shards, placement and the topology history."""

from __future__ import annotations

from typing import Any

import msgpack

from elasticscan.base.errors import (
    AlreadyExists,
    InvalidTopologyChange,
    ShardNotFound,
    SnapshotNotFound,
    TabletNotFound,
)
from elasticscan.catalog.failures import damaged, decoding
from elasticscan.catalog.home import Home
from elasticscan.catalog.state import StateTx
from elasticscan.catalog.tables import lost_commits, shards, tablets, topologies
from elasticscan.topology import Placement, Shard, Tablet, Topology


class PlacementTx(StateTx):
    """Reads and changes of where things are."""

    # Incarnations

    def _become(self, incarnation: str, home: Home | None, at_least: tuple[int, int]) -> None:
        layout, commit = self.versions()
        if at_least[1] > commit:
            self._rows.insert(lost_commits, {"first": commit + 1, "last": at_least[1]})
        self._set(
            incarnation=incarnation,
            home=None if home is None else home.pack(),
            layout=max(layout, at_least[0]) + 1,
            last_commit=max(commit, at_least[1]),
        )

    def lost_commits(self) -> tuple[tuple[int, int], ...]:
        """Commits [first, last] that this catalog never knew."""
        rows = self._rows.all(lost_commits, order_by=lost_commits.c.first)
        return tuple((row.first, row.last) for row in rows)

    # Shards

    def shards(self, removed: bool = False) -> tuple[Shard, ...]:
        """The store's shards; with `removed`, all there ever were: files of those may still be in use."""
        rows = self._rows.all(shards, order_by=shards.c.id)
        return tuple(
            Shard(r.id, r.name, r.root, bool(r.draining)) for r in rows if removed or r.removed_at is None
        )

    def shard_roots(self) -> dict[int, str]:
        """Roots of all shards there ever were."""
        return {row.id: row.root for row in self._rows.all(shards)}

    def shard_named(self, name: str) -> Shard:
        matches = [shard for shard in self.shards() if shard.name == name]
        if not matches:
            names = ", ".join(shard.name for shard in self.shards())
            raise ShardNotFound(f"the store has no shard {name!r}; it has {names}", shard=name)
        return matches[0]

    def add_shard(self, name: str, root: str) -> Shard:
        for shard in self.shards():
            if shard.name == name:
                raise AlreadyExists(
                    f"the store already has a shard {name!r}; choose another name", shard=name
                )
        shard = Shard(max(self.shard_roots(), default=0) + 1, name, root)
        self._rows.insert(shards, {"id": shard.id, "name": name, "root": root, "draining": False})
        return shard

    def set_draining(self, shard: int, draining: bool) -> None:
        self._change_shard(shard, draining=draining)

    def remove_shard(self, shard: int) -> None:
        held = sum(tablet.shard == shard for tablet in self.placement().tablets)
        if held:
            raise InvalidTopologyChange(
                f"shard {shard} still holds {held} tablets; move them away first", shard=shard, tablets=held
            )
        self._change_shard(shard, removed_at=self.times.stamp)

    def _change_shard(self, shard: int, **new: Any) -> None:
        row = self._rows.one(shards, id=shard)
        if row is not None:
            self._rows.update(shards, [(row, new)])

    # Placement

    def placement(self) -> Placement:
        rows = self._tablet_rows()
        at, slots = 0, self._state("slots")
        with decoding("the placement of tablets"):
            for row in rows:
                if not row.slot_start == at < row.slot_end:
                    break
                at = row.slot_end
        if at != slots:
            raise damaged(f"its tablets do not hold slot {at} of {slots} exactly once")
        return Placement(tuple(Tablet(r.id, r.slot_start, r.slot_end, r.shard_id, r.epoch) for r in rows))

    def _tablet_rows(self) -> list[Any]:
        """All of them; read once in a transaction until it changes one."""
        return self._rows.all(tablets, order_by=tablets.c.slot_start)

    def tablet(self, tablet_id: int) -> Tablet:
        row = self._rows.one(tablets, id=tablet_id)
        if row is None:
            raise TabletNotFound(
                f"the store has no tablet {tablet_id}; `elasticscan status --tablets` lists them",
                tablet=tablet_id,
            )
        return Tablet(row.id, row.slot_start, row.slot_end, row.shard_id, row.epoch)

    def replace_placement(self, before: Placement, after: Placement) -> None:
        """Write the difference between two placements; the layout grows."""
        old = {t.id: t for t in before.tablets}
        new = {t.id: t for t in after.tablets}
        changed = {i for i in old.keys() | new.keys() if old.get(i) != new.get(i)}
        rows = {row.id: row for row in self._tablet_rows() if row.id in changed} if old else {}
        if rows.keys() != old.keys() & changed:
            raise damaged("tablets that are to change are not there")
        self._rows.delete(tablets, [rows[i] for i in sorted(changed - new.keys())])
        same = sorted(changed & old.keys() & new.keys())
        assert all(new[i].epoch > old[i].epoch for i in same), "an epoch must grow with every change"
        self._rows.update(tablets, [(rows[i], _tablet_values(new[i])) for i in same])
        added = sorted(changed - old.keys())
        self._rows.insert(tablets, *({"id": i} | _tablet_values(new[i]) for i in added))
        self.bump_layout()

    def new_tablet_ids(self, count: int) -> tuple[int, ...]:
        first = self._next("next_tablet", count)
        return tuple(range(first, first + count))

    # Topology history

    def append_topology(
        self, reason: str, published: bool = True, placement: Placement | None = None
    ) -> Topology:
        """Enter the placement as it is now (where it is at hand, it is handed in) as the newest topology.

        At most the newest one is not published: what is entered next takes its row and its number. So
        the history has every placement that a scan may have begun with, and the one of now, however
        many tablets a plan moves.
        """
        newest = self._newest_topology_row() if self._state("newest_topology") else None
        number = 1 if newest is None else newest.number + int(newest.published)
        names = tuple((shard.id, shard.name) for shard in self.shards())
        topology = Topology(number, placement or self.placement(), names, self.now, reason, published)
        made = {"created_at": self.now, "reason": reason, "published": published}
        made["body"] = _pack_topology(topology)
        if newest is not None and newest.number == number:
            self._rows.update(topologies, [(newest, made)])
        else:
            self._rows.insert(topologies, made | {"number": number})
            self._set(newest_topology=number)
        return topology

    def _newest_topology_row(self) -> Any:
        return self._topology_row(int(self._state("newest_topology")))

    def _topology_row(self, number: int) -> Any:
        row = self._rows.one(topologies, missing_is_checked=False, number=number)
        if row is None:
            raise damaged(f"topology {number} is not in the topology history")
        return row

    def newest_topology(self, cached: Topology | None = None) -> Topology:
        """The newest published topology: the base topology of scans that begin now.

        `cached` is returned if it is that one; its row is read all the same.
        """
        row = self._newest_topology_row()
        if not row.published:
            row = self._topology_row(row.number - 1)
        if cached is not None and (cached.number, cached.created_at) == (row.number, row.created_at):
            return cached
        return _unpack_topology(row)

    def is_topology_published(self) -> bool:
        """True if all moves that were made are in a published topology."""
        return bool(self._newest_topology_row().published)

    def topology(self, number: int) -> Topology:
        if not 1 <= number <= self._state("newest_topology"):
            raise SnapshotNotFound(f"the topology history holds no topology {number}", topology=number)
        return _unpack_topology(self._topology_row(number))

    def topologies(self) -> tuple[Topology, ...]:
        """All of them, oldest first; the last one may not be published yet."""
        rows = self._rows.all(topologies, order_by=topologies.c.number)
        newest = self._state("newest_topology")
        if [row.number for row in rows] != list(range(1, newest + 1)):
            raise damaged(f"the topology history has not each number up to {newest} once")
        return tuple(map(_unpack_topology, rows))


def _tablet_values(tablet: Tablet) -> dict[str, int]:
    return {
        "slot_start": tablet.start,
        "slot_end": tablet.end,
        "shard_id": tablet.shard,
        "epoch": tablet.epoch,
    }


def _pack_topology(topology: Topology) -> bytes:
    rows = [[t.id, t.start, t.end, t.shard, t.epoch] for t in topology.placement.tablets]
    packed = msgpack.packb([rows, [list(pair) for pair in topology.shard_names]])
    assert isinstance(packed, bytes)
    return packed


def _unpack_topology(row: Any) -> Topology:
    with decoding(f"topology {row.number} in the topology history"):
        rows, names = msgpack.unpackb(row.body)
        placement = Placement.of(Tablet(*fields) for fields in rows)
        return Topology(
            number=row.number,
            placement=placement,
            shard_names=tuple((i, name) for i, name in names),
            created_at=row.created_at,
            reason=row.reason,
            published=bool(row.published),
        )
