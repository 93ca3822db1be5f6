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
    """A named place that holds tablets. Ids are never used twice, names may be."""

    id: int
    name: str
    root: str
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Tablet:
    """The slots `[start, end)` and where they live now.

    `epoch` grows whenever the owner or the bounds change, so (shard, epoch) shows whether
    anything happened to a slot between two looks.
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
    """The place of every slot at one moment: tablets that tile `[0, slot_count)`, each with an id of its own.

    Tiling is asserted: code that builds a placement from the bytes of a disk or catalog checks it
    first and raises a typed error.

    Attributes:
        starts, owners: the first slot of each tablet, and its shard, as arrays that are not to be changed.
        epochs: (start, end, epoch) of all slots; neighbouring tablets of one epoch make one range.
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
        """0 in the empty placement, from which a new store's first one is a change like any other."""
        return self.tablets[-1].end if self.tablets else 0

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards that hold at least one tablet, by id."""
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
        """Return the placement with `new` tablets in the place of some that follow one another."""
        at = int(np.searchsorted(self.starts, old[0].start))
        assert self.tablets[at : at + len(old)] == old, f"these tablets are not there: {old}"
        return Placement(self.tablets[:at] + new + self.tablets[at + len(old) :])

    def split_by_shard(self, slots: SlotSet) -> dict[int, SlotSet]:
        """Return the slots, by the shard where they live. Every slot is in exactly one part."""
        # A slot beyond the end would be in no part, and its rows lost without a word.
        assert slots <= SlotSet.span(0, self.slot_count), f"{slots} exceed [0, {self.slot_count})"
        parts = {shard: slots & here for shard, here in self._by_shard.items()}
        return {shard: part for shard, part in parts.items() if part}

    def changed_since(self, earlier: Placement, slots: SlotSet) -> SlotSet:
        """Return the part of `slots` whose (shard, epoch) is not what it was in `earlier`."""
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

    `created_at` is in seconds since the epoch, UTC. What is `published` never changes again, and scans begin
    with it. The newest one may not be: it follows the placement while a plan moves tablets.
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

    `tablets` has the name of each shard that there was, and how many tablets it held; else as `Topology`.
    """

    number: int
    tablets: tuple[tuple[str, int], ...]
    created_at: float
    reason: str
    published: bool = True
