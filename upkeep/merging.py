"""Merges of some of the fragments that a table has at a shard: size tiers, cut by slots where they are large.

Fragments are compared by their *density*, bytes per slot, because a merge may be cut by slots, and tablets
that arrived have fragments of their own. In each band of slots that the same fragments serve:

    fragments by density    0.1 0.1 0.1 0.5 | 9  40 300 5000       at most 8, and the ninth was committed
                            └─── merged ──┘   the next one is more than `tier_ratio` times their sum

What is merged leaves a fragment that is denser than all its sources, and the next one above it is denser by
the ratio: so rows are written again only when the fragments alongside them have grown by that ratio, a
number of times that grows with the logarithm of the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from elasticscan.metadata import Fragment, IndexRun
from elasticscan.topology import SlotSet
from elasticscan.upkeep.policy import Policy


@dataclass(frozen=True, slots=True)
class Part:
    """A fragment with its index runs, as far as upkeep looks at it."""

    id: int
    slots: SlotSet
    bytes: int

    @property
    def density(self) -> float:
        return self.bytes / max(len(self.slots), 1)


@dataclass(frozen=True, slots=True)
class Merge:
    """A step: put one fragment in for the rows of some slots in some fragments.

    Attributes:
        fragments: ids of the sources.
        slots: what is merged; sources that serve others too go on with them.
        bytes: about how much is read.
    """

    fragments: tuple[int, ...]
    slots: SlotSet
    bytes: int


@dataclass(frozen=True, slots=True)
class _Band:
    """Slots `[start, end)` that the same parts serve."""

    start: int
    end: int
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> float:
        return sum(part.density for part in self.parts) * (self.end - self.start)


def parts_of(fragments: Iterable[Fragment], runs: Iterable[IndexRun]) -> tuple[Part, ...]:
    """Return fragments as parts; index runs count with their fragments."""
    run_bytes: dict[int, int] = {}
    for run in runs:
        run_bytes[run.fragment] = run_bytes.get(run.fragment, 0) + run.bytes
    return tuple(
        Part(f.id, f.slots, f.serving_bytes * (f.bytes + run_bytes.get(f.id, 0)) // max(f.bytes, 1))
        for f in fragments
    )


def depth_of(parts: Sequence[Part], policy: Policy) -> int:
    """Return from how many fragments the worst slot is read; small ones count for all slots."""
    small, large = _by_size(parts, policy)
    return len(small) + max((len(some) for some, _ in _together(large)), default=0)


def mean_depth(parts: Sequence[Part]) -> float:
    """Return from how many fragments a slot is read, on average."""
    slots = _slots_of(parts)
    return sum(len(part.slots) for part in parts) / max(len(slots), 1)


def plan_merges(
    parts: Sequence[Part], policy: Policy, credit_bytes: float = 0, tidy: bool = False
) -> tuple[Merge, ...]:
    """Plan the merges that one table needs at one shard now; none when all bounds hold.

    Args:
        parts: the fragments that newest snapshots are read from.
        policy: the bounds.
        credit_bytes: what may be written beyond what the bounds need, so that scans need not compare rows.
        tidy: spend the credit also where no bound is broken, as a keeper does that has nothing else to do.
    """
    due = _due(parts, policy)
    if (due or tidy) and _is_worth_tidying(parts, policy, credit_bytes):
        return _cut(parts, parts, policy)
    if not due:
        return ()
    if sum(part.bytes for part in due) <= policy.step_bytes:
        return (_merge(due),)
    # Small ones are never cut: each would count until its last slot is merged.
    small, large = _by_size(due, policy)
    pieces = _cut(large, parts, policy)
    return (*pieces, _merge(small)) if len(small) > 1 else pieces


def plan_history(parts: Sequence[Part], policy: Policy) -> tuple[Merge, ...]:
    """Plan the merges of history: by the same tiers, up to a bound of its own, never for scans' sake."""
    return plan_merges(parts, replace(policy, slot_fragments=policy.history_fragments))


def _merge(parts: Sequence[Part]) -> Merge:
    ids = tuple(sorted(part.id for part in parts))
    return Merge(ids, _slots_of(parts), sum(part.bytes for part in parts))


def _slots_of(parts: Iterable[Part]) -> SlotSet:
    return SlotSet.union(part.slots for part in parts)


def _due(parts: Sequence[Part], policy: Policy) -> list[Part]:
    """Return the fragments that have to become fewer; none when no slot has too many."""
    small, large = _by_size(parts, policy)
    deepest = max((some for some, _ in _together(large)), key=len, default=())
    excess = len(small) + len(deepest) - policy.slot_fragments
    if excess <= 0:
        return []
    every_slot = max(len(_slots_of(parts)), 1)

    def density(part: Part) -> float:
        return part.bytes / every_slot if part.bytes < policy.small_bytes else part.density

    sparsest = sorted((*small, *deepest), key=lambda part: (density(part), part.id))
    least = excess + 1
    if sum(part.bytes for part in sparsest[:least]) > policy.step_bytes and len(small) <= excess:
        # The merge will be cut, and small fragments stay out of it: so it takes more large ones.
        least = max(least, _end_of_large(sparsest, excess + 1, policy))
    taken, together = least, sum(density(part) for part in sparsest[:least])
    while taken < len(sparsest):
        is_small = together * every_slot < policy.small_tier_bytes
        ratio = policy.small_tier_ratio if is_small else policy.tier_ratio
        if density(sparsest[taken]) > ratio * together:
            break
        together += density(sparsest[taken])
        taken += 1
    limit = density(sparsest[taken - 1])
    chosen = {part.id for part in sparsest[:taken]}
    alike = large if chosen & {part.id for part in large} else ()
    return [part for part in parts if part.id in chosen or (part in alike and part.density <= limit)]


def _end_of_large(parts: Sequence[Part], count: int, policy: Policy) -> int:
    """Return the length of the shortest beginning that holds so many large parts."""
    large = [at for at, part in enumerate(parts, 1) if part.bytes >= policy.small_bytes]
    return large[count - 1] if len(large) >= count else len(parts)


def _is_worth_tidying(parts: Sequence[Part], policy: Policy, credit_bytes: float) -> bool:
    """Return True if scans gain enough from merging all, and it may be written."""
    everything, densest = _met(parts) if parts else (0.0, 0.0)
    newer = everything - densest
    return everything > 0 and newer >= policy.tidy_share * densest and everything <= credit_bytes


def _met(parts: Sequence[Part]) -> tuple[float, float]:
    """Return the bytes of all slots that several parts serve, and those of the densest part of each."""
    edges = np.unique(np.concatenate([part.slots.edges for part in parts]))
    count, everything, densest = np.zeros((3, len(edges)))
    for part in parts:
        inside = part.slots.mask(edges)
        count[inside] += 1
        everything[inside] += part.density
        densest[inside] = np.maximum(densest[inside], part.density)
    slots = np.diff(edges, append=edges[-1:]) * (count > 1)
    return float(slots @ everything), float(slots @ densest)


def _cut(chosen: Sequence[Part], parts: Sequence[Part], policy: Policy) -> tuple[Merge, ...]:
    """Return merges of the chosen parts wherever two of them meet, each of bounded size."""
    total = sum(part.bytes for part in parts)
    most = max(policy.step_bytes, total / policy.most_pieces)
    if sum(part.bytes for part in chosen) <= most and len(chosen) > 1:
        return (_merge(chosen),)
    met = (band for band in _bands(chosen) if len(band.parts) > 1)
    pieces: list[list[_Band]] = []
    filled = most
    for band in (small for large in met for small in _cut_band(large, most)):
        if filled + band.bytes > most:
            pieces.append([])
            filled = 0.0
        pieces[-1].append(band)
        filled += band.bytes
    return tuple(
        Merge(
            tuple(sorted({part.id for band in bands for part in band.parts})),
            SlotSet.of((band.start, band.end) for band in bands),
            int(sum(band.bytes for band in bands)),
        )
        for bands in pieces
    )


def _cut_band(band: _Band, most: float) -> Iterator[_Band]:
    slots = band.end - band.start
    count = max(1, min(slots, -int(-band.bytes // most)))
    for start, end in pairwise(band.start + slots * number // count for number in range(count + 1)):
        yield _Band(start, end, band.parts)


def _by_size(parts: Sequence[Part], policy: Policy) -> tuple[list[Part], list[Part]]:
    """Return small and large parts."""
    small = [part for part in parts if part.bytes < policy.small_bytes]
    return small, [part for part in parts if part.bytes >= policy.small_bytes]


def _together(parts: Sequence[Part]) -> Iterator[tuple[tuple[Part, ...], int]]:
    """Yield parts that serve the same slots, and how many slots these are; the same ones may come again."""
    if parts and all(part.slots == parts[0].slots for part in parts):  # where no tablet came or went
        yield tuple(parts), len(parts[0].slots)
        return
    for band in _bands(parts):
        yield band.parts, band.end - band.start


def _bands(parts: Iterable[Part]) -> Iterator[_Band]:
    """Yield the slots that some part serves, cut wherever a part begins or ends."""
    begins: dict[int, list[Part]] = {}
    ends: dict[int, list[Part]] = {}
    for part in parts:
        for start, end in part.slots:
            begins.setdefault(start, []).append(part)
            ends.setdefault(end, []).append(part)
    serving: dict[int, Part] = {}
    previous = 0
    for at in sorted({*begins, *ends}):
        if serving:
            yield _Band(previous, at, tuple(serving.values()))
        for part in ends.get(at, ()):
            del serving[part.id]
        for part in begins.get(at, ()):
            serving[part.id] = part
        previous = at
