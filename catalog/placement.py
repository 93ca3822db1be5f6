"""Catalog transactions, part one: the store's state, shards, placement and the topology history."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgpack
from sqlalchemy import Connection, delete, func, insert, select, update

from elasticscan.base.errors import (
    AlreadyExists,
    InvalidTopologyChange,
    ShardNotFound,
    SnapshotNotFound,
    StoreDamaged,
    TabletNotFound,
)
from elasticscan.base.hashing import HASHES
from elasticscan.base.limits import MAX_SLOTS
from elasticscan.catalog.home import Home
from elasticscan.catalog.tables import lost_commits, seal_keys, shards, store_state, tablets, topologies
from elasticscan.topology import Placement, Shard, Tablet, Topology

SECRET_BYTES = 32
MAX_SECRET = 2**16 - 1  # its number takes two bytes of every sealed scan


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What is fixed when a store is created."""

    store_id: str
    slots: int
    hash: str
    retention_seconds: float
    created_at: float


@dataclass(frozen=True, slots=True)
class Identity:
    """Which store a catalog is of, which of its copies it is, and how far it got.

    Attributes:
        incarnation: 32 hexadecimal digits; another one since a copy was written to, or adopted.
        home: where the catalog's file lay when the incarnation began; None for a database.
        layout, last_commit: as of `versions`.
    """

    store_id: str
    incarnation: str
    home: Home | None
    layout: int
    last_commit: int


class PlacementTx:
    """Reads and changes of where things are. `now` is the time that new rows are stamped with."""

    def __init__(self, connection: Connection, now: float) -> None:
        self._sql = connection
        self.now = now

    # The store's state

    def info(self) -> StoreInfo:
        s = store_state.c
        row = self._sql.execute(select(s.store_id, s.slots, s.hash, s.retention_seconds, s.created_at)).one()
        with decoding("the store's state"):
            _check_state(row)
        return StoreInfo(*row)

    def identity(self) -> Identity:
        s = store_state.c
        row = self._sql.execute(select(s.store_id, s.incarnation, s.home, s.layout, s.last_commit)).one()
        with decoding("the store's identity"):
            home = None if row.home is None else Home.unpack(row.home)
            return Identity(str(row.store_id), str(row.incarnation), home, row.layout, row.last_commit)

    def take_incarnation(self, incarnation: str, home: Home | None, at_least: tuple[int, int]) -> None:
        """Become another copy of the store than all others; a new secret makes keys of theirs be refused.

        Layout and commit numbers go on beyond `at_least`, so that none means two things.
        """
        layout, commit = self.versions()
        if at_least[1] > commit:
            self._sql.execute(insert(lost_commits).values(first=commit + 1, last=at_least[1]))
        self._sql.execute(
            update(store_state).values(
                incarnation=incarnation,
                home=None if home is None else home.pack(),
                layout=max(layout, at_least[0]) + 1,
                last_commit=max(commit, at_least[1]),
            )
        )
        self.replace_seal_keys()

    def lost_commits(self) -> tuple[tuple[int, int], ...]:
        """Commits [first, last] that this catalog never knew."""
        rows = self._sql.execute(select(lost_commits).order_by(lost_commits.c.first))
        return tuple((row.first, row.last) for row in rows)

    def replace_seal_keys(self) -> None:
        """One fresh secret in the place of all others; what they sealed is refused."""
        newest = self._sql.execute(select(func.max(seal_keys.c.id))).scalar() or 0
        self._sql.execute(delete(seal_keys))
        number = newest % MAX_SECRET + 1
        secret = secrets.token_bytes(SECRET_BYTES)
        self._sql.execute(insert(seal_keys).values(id=number, secret=secret, created_at=self.now))

    def seal_keys(self) -> dict[int, bytes]:
        rows = self._sql.execute(select(seal_keys.c.id, seal_keys.c.secret))
        with decoding("the key that seals scans"):
            found = {row.id: bytes(row.secret) for row in rows}
            for number, secret in found.items():
                if len(secret) != SECRET_BYTES or not 0 <= number <= MAX_SECRET:
                    raise ValueError(f"key {number} has {len(secret)} bytes instead of {SECRET_BYTES}")
        if not found:
            raise StoreDamaged("the catalog holds no key to seal scans with; restore it from a backup")
        return found

    def versions(self) -> tuple[int, int]:
        """(layout, last commit): whatever was cached under an equal pair is still true."""
        row = self._sql.execute(select(store_state.c.layout, store_state.c.last_commit)).one()
        return row.layout, row.last_commit

    def bump_layout(self) -> None:
        self._sql.execute(update(store_state).values(layout=store_state.c.layout + 1))

    # Shards

    def shards(self, removed: bool = False) -> tuple[Shard, ...]:
        """The store's shards; with `removed`, all there ever were: files of those may still be in use."""
        query = select(shards).order_by(shards.c.id)
        if not removed:
            query = query.where(shards.c.removed_at.is_(None))
        return tuple(Shard(r.id, r.name, r.root, bool(r.draining)) for r in self._sql.execute(query))

    def shard_named(self, name: str) -> Shard:
        found = [shard for shard in self.shards() if shard.name == name]
        if not found:
            known = ", ".join(shard.name for shard in self.shards())
            raise ShardNotFound(f"the store has no shard {name!r}; it has {known}", shard=name)
        return found[0]

    def add_shard(self, name: str, root: str) -> Shard:
        for shard in self.shards():
            if shard.name == name:
                raise AlreadyExists(
                    f"the store already has a shard {name!r}; choose another name", shard=name
                )
        newest = self._sql.execute(select(func.max(shards.c.id))).scalar()
        shard = Shard((newest or 0) + 1, name, root)
        self._sql.execute(insert(shards).values(id=shard.id, name=name, root=root, draining=False))
        return shard

    def set_draining(self, shard: int, draining: bool) -> None:
        self._sql.execute(update(shards).where(shards.c.id == shard).values(draining=draining))

    def remove_shard(self, shard: int) -> None:
        held = self._sql.execute(select(func.count()).where(tablets.c.shard_id == shard)).scalar_one()
        if held:
            raise InvalidTopologyChange(
                f"shard {shard} still holds {held} tablets; move them away first", shard=shard, tablets=held
            )
        self._sql.execute(update(shards).where(shards.c.id == shard).values(removed_at=self.now))

    # Placement

    def placement(self) -> Placement:
        rows = self._sql.execute(select(tablets).order_by(tablets.c.slot_start)).all()
        at, slots = 0, self._sql.execute(select(store_state.c.slots)).scalar_one()
        with decoding("the placement of tablets"):
            for row in rows:
                if not row.slot_start == at < row.slot_end:
                    break
                at = row.slot_end
        if at != slots:
            raise StoreDamaged(
                f"the tablets in the catalog do not hold slot {at} of {slots} exactly once; "
                "restore the catalog from a backup",
                slot=at,
            )
        return Placement(tuple(Tablet(r.id, r.slot_start, r.slot_end, r.shard_id, r.epoch) for r in rows))

    def tablet(self, tablet_id: int) -> Tablet:
        row = self._sql.execute(select(tablets).where(tablets.c.id == tablet_id)).one_or_none()
        if row is None:
            raise TabletNotFound(
                f"the store has no tablet {tablet_id}; `elasticscan status` lists them", tablet=tablet_id
            )
        return Tablet(row.id, row.slot_start, row.slot_end, row.shard_id, row.epoch)

    def replace_placement(self, before: Placement, after: Placement) -> None:
        """Write the difference between two placements; the layout grows."""
        old = {t.id: t for t in before.tablets}
        new = {t.id: t for t in after.tablets}
        for gone in old.keys() - new.keys():
            self._sql.execute(delete(tablets).where(tablets.c.id == gone))
        for tablet in new.values():
            if old.get(tablet.id) == tablet:
                continue
            values = {
                "slot_start": tablet.start,
                "slot_end": tablet.end,
                "shard_id": tablet.shard,
                "epoch": tablet.epoch,
            }
            if tablet.id in old:
                assert tablet.epoch > old[tablet.id].epoch, "an epoch must grow with every change"
                self._sql.execute(update(tablets).where(tablets.c.id == tablet.id).values(**values))
            else:
                self._sql.execute(insert(tablets).values(id=tablet.id, **values))
        self.bump_layout()

    def new_tablet_ids(self, count: int) -> tuple[int, ...]:
        first = self._sql.execute(select(store_state.c.next_tablet)).scalar_one()
        self._sql.execute(update(store_state).values(next_tablet=first + count))
        return tuple(range(first, first + count))

    # Topology history

    def append_topology(self, reason: str) -> Topology:
        """Publish the placement as it is now as the next topology."""
        newest = self._sql.execute(select(func.max(topologies.c.number))).scalar() or 0
        placement = self.placement()
        names = tuple((shard.id, shard.name) for shard in self.shards())
        topology = Topology(newest + 1, placement, names, self.now, reason)
        self._sql.execute(
            insert(topologies).values(
                number=topology.number, created_at=self.now, reason=reason, body=_pack_topology(topology)
            )
        )
        return topology

    def newest_topology_number(self) -> int:
        return int(self._sql.execute(select(func.max(topologies.c.number))).scalar_one())

    def newest_topology(self) -> Topology:
        query = select(topologies).order_by(topologies.c.number.desc()).limit(1)
        return _unpack_topology(self._sql.execute(query).one())

    def topology(self, number: int) -> Topology:
        row = self._sql.execute(select(topologies).where(topologies.c.number == number)).one_or_none()
        if row is None:
            raise SnapshotNotFound(f"the topology history holds no topology {number}", topology=number)
        return _unpack_topology(row)

    def topologies(self) -> tuple[Topology, ...]:
        query = select(topologies).order_by(topologies.c.number)
        return tuple(_unpack_topology(row) for row in self._sql.execute(query))


def _check_state(row: Any) -> None:
    """SQLite keeps whatever is put into a column, of any type."""
    if not isinstance(row.store_id, str):
        raise ValueError(f"{row.store_id!r} is no id of a store")
    if not isinstance(row.slots, int) or not 1 <= row.slots <= MAX_SLOTS:
        raise ValueError(f"{row.slots!r} is no number of slots")
    if row.hash not in HASHES:
        raise ValueError(f"there is no hash {row.hash!r}")
    for seconds in (row.retention_seconds, row.created_at):
        if not isinstance(seconds, (int, float)):
            raise ValueError(f"{seconds!r} is no time in seconds")


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
            row.number, placement, tuple((i, name) for i, name in names), row.created_at, row.reason
        )


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """What is stored as bytes or text comes back as a value, or the store is damaged."""
    try:
        yield
    except (ValueError, TypeError, AssertionError, OSError, msgpack.UnpackException) as error:
        raise StoreDamaged(
            f"{what} cannot be read from the catalog: {error}; restore the catalog from a backup", what=what
        ) from error
