"""Cutting a scan into partitions: few and large, each at one place. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elasticscan.protocol import Weights
from elasticscan.topology import Placement, SlotSet

BASE, VIRTUAL = "base-shard scan", "virtual scan"

LEAST_SPLIT_BYTES = 64 << 20  # less is read before a further task has begun

# An index scan that looks at fewer entries is done before a second task has begun.
ENTRIES_PER_TASK = 250_000


@dataclass(frozen=True, slots=True)
class ScanPart:
    """Slots for one task to read; `size` is about how many bytes they hold."""

    kind: str
    slots: SlotSet
    size: float


NOTHING = ScanPart(BASE, SlotSet(), 0.0)  # of a scan whose filter leaves no slot


def most_index_parts(shards: int, entries: float, most: int | None = None) -> int:
    """Count the tasks of an index scan that looks at about so many entries; `most` is the user's bound.

    At most one for each shard: every further one would search the same runs again.
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
    """Parts that cover every slot once, or every one of `slots`.

    Each is a base-shard scan (slots where they were in the base topology) or a virtual scan
    (slots elsewhere), of at most about `split_bytes`. There are as many as `cores`, unless they would be
    small. With fewer than that allowed, parts grow first; with fewer than there are shards, a part has slots
    at several. There is at least one of each kind that there is to read, even if `most` is 1.
    """
    places = _places(now, base, weights, SlotSet.span(0, now.slot_count) if slots is None else slots)
    most = len(weights) if most is None else most
    if len(places) > most:
        kinds = {kind: [place for place in places if place.kind == kind] for kind in (BASE, VIRTUAL)}
        unions = {kind: SlotSet.union(place.slots for place in found) for kind, found in kinds.items()}
        places = [ScanPart(kind, slots, size_of(slots, weights)) for kind, slots in unions.items() if slots]
    counts = _counts(places, split_bytes, most, cores)
    return [
        part for place, count in zip(places, counts, strict=True) for part in _divide(place, count, weights)
    ]


def _places(now: Placement, base: Placement, weights: Weights, scanned: SlotSet) -> list[ScanPart]:
    places: list[ScanPart] = []
    for shard in now.shards:
        here = now.at(shard) & scanned
        home = here & base.at(shard)
        for kind, slots in ((BASE, home), (VIRTUAL, here - home)):
            if slots:
                places.append(ScanPart(kind, slots, size_of(slots, weights)))
    return places


def size_of(slots: SlotSet, weights: Weights) -> float:
    """Return about how many bytes some slots hold."""
    return float(sum(weights[start:end].sum() for start, end in slots))


def _counts(places: Sequence[ScanPart], split_bytes: int, most: int, cores: int) -> list[int]:
    """Return the parts of each place: one more where they are largest, until there are enough."""
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
    # Every slot costs a little, so that empty slots are spread over the parts and no part has none.
    costs = weights[slots] + max(place.size, 1.0) * 1e-6
    ends = np.cumsum(costs)
    targets = ends[-1] * np.arange(1, count) / count
    cuts = [0, *(int(at) for at in np.searchsorted(ends - costs / 2, targets)), len(slots)]
    parts = []
    for start, end in itertools.pairwise(cuts):
        if start < end:
            mine = place.slots & SlotSet.span(int(slots[start]), int(slots[end - 1]) + 1)
            parts.append(ScanPart(place.kind, mine, size_of(mine, weights)))
    return parts
