"""Tablets, placement and topologies as frozen values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from elasticscan.topology.slot_map import SlotMap
from elasticscan.topology.slots import SlotSet


@dataclass(frozen=True, slots=True)
class Shard:
    """A named place that holds tablets. An id is never used again; a name may be."""

    id: int
    name: str
    root: str
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Tablet:
    """The slots `[start, end)` and the shard that owns them now.

    `epoch` grows whenever the owner or the bounds change. So if (shard, epoch) is equal in two
    placements, the slot did not move in between.
    """

    id: int
    start: int
    end: int
    shard: int
    epoch: int

    @property
    def slots(self) -> SlotSet:
        return SlotSet.span(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Placement:
    """The location of every slot at one moment: tablets that tile `[0, slot_count)`, with distinct ids.

    The constructor asserts this. Code that builds a placement from bytes of a disk or catalog checks them
    first and raises a typed error.

    Attributes:
        starts, owners: the first slot and the shard of each tablet, as arrays; do not change them.
        epochs: (start, end, epoch) of all slots; neighbouring tablets of equal epoch share a range.
    """

    tablets: tuple[Tablet, ...]
    starts: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)
    owners: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)
    epochs: tuple[tuple[int, int, int], ...] = field(init=False, repr=False, compare=False)
    _by_shard: dict[int, SlotSet] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert len({t.id for t in self.tablets}) == len(self.tablets), "tablet ids must differ"
        at = 0
        epochs: list[tuple[int, int, int]] = []
        by_shard: dict[int, list[tuple[int, int]]] = {}
        for tablet in self.tablets:
            assert tablet.start == at < tablet.end, f"tablets must tile the slots, at slot {at}: {tablet}"
            at = tablet.end
            by_shard.setdefault(tablet.shard, []).append((tablet.start, at))
            start = epochs.pop()[0] if epochs and epochs[-1][2] == tablet.epoch else tablet.start
            epochs.append((start, at, tablet.epoch))
        starts = np.fromiter((t.start for t in self.tablets), np.int64, len(self.tablets))
        owners = np.fromiter((t.shard for t in self.tablets), np.int64, len(self.tablets))
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "owners", owners)
        object.__setattr__(self, "epochs", tuple(epochs))
        object.__setattr__(
            self, "_by_shard", {shard: SlotSet.of(by_shard[shard]) for shard in sorted(by_shard)}
        )

    @classmethod
    def of(cls, tablets: Iterable[Tablet]) -> Placement:
        return cls(tuple(sorted(tablets, key=lambda t: t.start)))

    @property
    def slot_count(self) -> int:
        """The number of slots; 0 in the empty placement, the state before a store is created."""
        return self.tablets[-1].end if self.tablets else 0

    @property
    def shards(self) -> tuple[int, ...]:
        """The ids of the shards that hold at least one tablet."""
        return tuple(self._by_shard)

    def at(self, shard: int) -> SlotSet:
        """Return the slots that live at a shard."""
        return self._by_shard.get(shard, SlotSet())

    def tablet_of(self, slot: int) -> Tablet:
        assert 0 <= slot < self.slot_count, f"slot {slot} is not in [0, {self.slot_count})"
        return self.tablets[int(np.searchsorted(self.starts, slot, "right")) - 1]

    def tablet(self, tablet_id: int) -> Tablet | None:
        return next((t for t in self.tablets if t.id == tablet_id), None)

    def replaced(self, old: tuple[Tablet, ...], new: tuple[Tablet, ...]) -> Placement:
        """Return the placement with consecutive tablets replaced by `new` ones."""
        at = int(np.searchsorted(self.starts, old[0].start))
        assert self.tablets[at : at + len(old)] == old, f"the placement does not contain these tablets: {old}"
        return Placement(self.tablets[:at] + new + self.tablets[at + len(old) :])

    def split_by_shard(self, slots: SlotSet) -> dict[int, SlotSet]:
        """Return the slots by the shard that owns them. Every slot is in exactly one part."""
        # A slot beyond the end would be in no part: its rows would be lost without an error.
        assert slots <= SlotSet.span(0, self.slot_count), f"{slots} exceed [0, {self.slot_count})"
        parts = {shard: slots & owned for shard, owned in self._by_shard.items()}
        return {shard: part for shard, part in parts.items() if part}

    def changed_since(self, earlier: Placement, slots: SlotSet) -> SlotSet:
        """Return the part of `slots` whose (shard, epoch) differs from that in `earlier`."""
        if self is earlier or self.tablets == earlier.tablets:
            return SlotSet()
        assert self.slot_count == earlier.slot_count, "the number of slots never changes"
        moved: list[tuple[int, int]] = []
        i = j = at = 0
        while i < len(self.tablets) and j < len(earlier.tablets):
            now, then = self.tablets[i], earlier.tablets[j]
            end = min(now.end, then.end)
            if (now.shard, now.epoch) != (then.shard, then.epoch):
                moved.append((at, end))
            at = end
            i += now.end == end
            j += then.end == end
        return SlotSet.of(moved) & slots


@dataclass(frozen=True, slots=True)
class Topology:
    """A numbered placement, as the topology history keeps it.

    `created_at` is in seconds since 1970, UTC. A `published` topology never changes, and scans start from
    the newest one. Only the last can be unpublished: it follows the placement while a plan moves tablets.
    """

    number: int
    placement: Placement
    shard_names: tuple[tuple[int, str], ...]
    created_at: float
    reason: str
    published: bool = True

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {tablets}" for name, tablets in self.entry.tablets)
        return f"Topology({self.number}, {self.reason!r}; tablets at {held})"

    def _repr_html_(self) -> str:
        return SlotMap((self,)).svg

    @property
    def entry(self) -> TopologyEntry:
        """The topology as the history lists it."""
        counts = Counter(tablet.shard for tablet in self.placement.tablets)
        tablets = tuple((name, counts[shard]) for shard, name in self.shard_names)
        return TopologyEntry(self.number, tablets, self.created_at, self.reason, self.published)


@dataclass(frozen=True, slots=True)
class TopologyEntry:
    """An entry of the topology history: a topology without its placement.

    `tablets` are (shard name, number of tablets) of all shards at that time. The rest is as in `Topology`.
    """

    number: int
    tablets: tuple[tuple[str, int], ...]
    created_at: float
    reason: str
    published: bool = True
