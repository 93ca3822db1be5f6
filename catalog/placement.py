"""Catalog transactions: shards and the placement of tablets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from elasticscan.base.errors import AlreadyExists, InvalidTopologyChange, NotFound
from elasticscan.base.suggestions import suggest
from elasticscan.catalog.failures import damaged, decoding
from elasticscan.catalog.home import Home
from elasticscan.catalog.state import StateTx
from elasticscan.catalog.tables import lost_commits, shards, tablets
from elasticscan.topology import Placement, Shard, Tablet

_MOST_ALONE = 16  # tablets that are looked up one by one


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
            layout=max(layout, at_least[0]),
            last_commit=max(commit, at_least[1]),
        )
        self.bump_layout()

    def moves_to(self, path: Path) -> None:
        """Note the path that the catalog's file will have: it is about to be renamed, and no copy by that."""
        home = self.identity().home
        if home is not None:
            self._set(home=replace(home, path=str(path.resolve())).pack())

    def lost_commits(self) -> tuple[tuple[int, int], ...]:
        """Return commits [first, last] that this catalog never knew."""
        rows = self._rows.all(lost_commits, order_by=lost_commits.c.first)
        return tuple((row.first, row.last) for row in rows)

    # Shards

    def shards(self, removed: bool = False) -> tuple[Shard, ...]:
        """Return the store's shards; with `removed`, all there ever were: their files may be in use."""
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
            names = [shard.name for shard in self.shards()]
            hint = suggest(name, names) or f"; it has {', '.join(names)}"
            raise NotFound(f"the store has no shard {name!r}{hint}", shard=name, kind="shard")
        return matches[0]

    def add_shards(self, new: Iterable[tuple[str, str]]) -> tuple[Shard, ...]:
        """Enter shards, each a name and a root, after one read of the existing ones.

        Raises:
            AlreadyExists: there is a shard of a name.
        """
        every = self._rows.all(shards, order_by=shards.c.id)
        taken = {row.name for row in every if row.removed_at is None}
        first, added = max((row.id for row in every), default=0) + 1, list[Shard]()
        for number, (name, root) in enumerate(new, first):
            if name in taken:
                raise AlreadyExists(
                    f"the store already has a shard {name!r}, with another root; choose another name",
                    shard=name,
                )
            taken.add(name)
            added.append(Shard(number, name, root))
        entered = ({"id": s.id, "name": s.name, "root": s.root, "draining": False} for s in added)
        self._rows.insert(shards, *entered)
        return tuple(added)

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
            raise NotFound(
                f"the store has no tablet {tablet_id}; `elasticscan status --tablets` lists them",
                tablet=tablet_id,
                kind="tablet",
            )
        return Tablet(row.id, row.slot_start, row.slot_end, row.shard_id, row.epoch)

    def replace_placement(self, before: Placement, after: Placement) -> None:
        """Write the difference between two placements; the layout grows."""
        gone, came = after.difference(before)
        new = {tablet.id: tablet for tablet in came}
        if len(gone) > _MOST_ALONE:
            every = {row.id: row for row in self._tablet_rows()}
            rows = {tablet.id: every.get(tablet.id) for tablet in gone}
        else:
            rows = {tablet.id: self._rows.one(tablets, id=tablet.id) for tablet in gone}
        if not all(rows.values()):
            raise damaged("tablets that are to change are not there")
        self._rows.delete(tablets, [rows[i] for i in sorted(rows.keys() - new.keys())])
        same = [tablet for tablet in gone if tablet.id in new]
        assert all(new[t.id].epoch > t.epoch for t in same), "an epoch must grow with every change"
        self._rows.update(tablets, [(rows[t.id], _tablet_values(new[t.id])) for t in same])
        added = sorted(new.keys() - rows.keys())
        self._rows.insert(tablets, *({"id": i} | _tablet_values(new[i]) for i in added))
        self.bump_layout()

    def new_tablet_ids(self, count: int) -> tuple[int, ...]:
        first = self._next("next_tablet", count)
        return tuple(range(first, first + count))


def _tablet_values(tablet: Tablet) -> dict[str, int]:
    return {
        "slot_start": tablet.start,
        "slot_end": tablet.end,
        "shard_id": tablet.shard,
        "epoch": tablet.epoch,
    }
