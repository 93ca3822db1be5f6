"""Division of a scan into few and large partitions, each at one shard. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elasticscan.protocol import Weights
from elasticscan.topology import Placement, SlotSet

BASE, VIRTUAL = "base-shard scan", "virtual scan"

# A part of fewer bytes, or an index scan of fewer entries, is read in less time than another task needs to
# begin.
LEAST_SPLIT_BYTES = 64 << 20
ENTRIES_PER_TASK = 250_000


@dataclass(frozen=True, slots=True)
class ScanPart:
    """Slots for one task to read; `size` is the estimated number of their bytes."""

    kind: str
    slots: SlotSet
    size: float


NOTHING = ScanPart(BASE, SlotSet(), 0.0)  # for a scan whose filter excludes all slots


def most_index_parts(shards: int, entries: float, most: int | None = None) -> int:
    """Return the number of tasks of an index scan that reads about `entries` entries; the user allows `most`.

    There is at most one task for each shard: two at one shard would search the same runs.
    """
    parts = max(1, min(shards, math.ceil(entries / ENTRIES_PER_TASK)))
    return parts if most is None else min(parts, most)


def cut(
    now: Placement,
    base: Placement,
    weights: Weights,
    split_bytes: int,
    most: int | None = None,
    slots: SlotSet | None = None,
    cores: int = 1,
) -> list[ScanPart]:
    """Return parts that cover each slot of `slots` once; without `slots` each slot of the store.

    A part is a base-shard scan (its slots are where the base topology has them) or a virtual scan (they have
    moved). A part has at most about `split_bytes`, and there are at least `cores` parts unless they would be
    small. If that is more than `most` parts, they grow beyond `split_bytes`. If there are more shards than
    `most`, a part has slots at several shards. Slots of both kinds make two parts, even if `most` is 1.
    """
    places = _places(now, base, weights, SlotSet.span(0, now.slot_count) if slots is None else slots)
    most = len(weights) if most is None else most
    if len(places) > most:
        kinds = {kind: [place for place in places if place.kind == kind] for kind in (BASE, VIRTUAL)}
        unions = {kind: SlotSet.union(place.slots for place in each) for kind, each in kinds.items()}
        places = [ScanPart(kind, slots, size_of(slots, weights)) for kind, slots in unions.items() if slots]
    counts = _counts(places, split_bytes, most, cores)
    return [
        part for place, count in zip(places, counts, strict=True) for part in _divide(place, count, weights)
    ]


def _places(now: Placement, base: Placement, weights: Weights, scanned: SlotSet) -> list[ScanPart]:
    places: list[ScanPart] = []
    for shard in now.shards:
        at_shard = now.at(shard) & scanned
        unmoved = at_shard & base.at(shard)
        for kind, slots in ((BASE, unmoved), (VIRTUAL, at_shard - unmoved)):
            if slots:
                places.append(ScanPart(kind, slots, size_of(slots, weights)))
    return places


def size_of(slots: SlotSet, weights: Weights) -> float:
    """Return the estimated number of bytes of some slots."""
    return float(sum(weights[start:end].sum() for start, end in slots))


def _counts(places: Sequence[ScanPart], split_bytes: int, most: int, cores: int) -> list[int]:
    """Return the number of parts of each place: adds a part where parts are largest, until all are small."""
    counts = [1] * len(places)
    while places and sum(counts) < most:
        sizes = [
            place.size / count if count < len(place.slots) else 0.0
            for place, count in zip(places, counts, strict=True)
        ]
        largest = max(sizes)
        i = sizes.index(largest)
        is_idle = sum(counts) < cores and largest * counts[i] / (counts[i] + 1) >= LEAST_SPLIT_BYTES
        if largest <= split_bytes and not is_idle:
            break
        counts[i] += 1
    return counts


def _divide(place: ScanPart, count: int, weights: Weights) -> list[ScanPart]:
    """Cut a place into `count` parts of about equal size, between slots."""
    if count == 1:
        return [place]
    slots = np.concatenate([np.arange(start, end) for start, end in place.slots])
    # Each slot costs a little, so that empty slots are spread over the parts and each part gets a slot.
    costs = weights[slots] + max(place.size, 1.0) * 1e-6
    ends = np.cumsum(costs)
    targets = ends[-1] * np.arange(1, count) / count
    cuts = [0, *(int(at) for at in np.searchsorted(ends - costs / 2, targets)), len(slots)]
    parts = []
    for start, end in itertools.pairwise(cuts):
        if start < end:
            part = place.slots & SlotSet.span(int(slots[start]), int(slots[end - 1]) + 1)
            parts.append(ScanPart(place.kind, part, size_of(part, weights)))
    return parts
