"""Plans of merges: which fragments of a table at a shard become one, for all their slots or for some.

Pure functions without clock, I/O or state. So tests simulate the whole life of a store in a second, and all
processes plan the same steps from the same catalog. `executor` carries them out.

Fragments are compared by their *density*, bytes per slot, because a merge may be cut by slots, and a tablet
that moved here has its own fragments. In each range of slots that the same fragments serve:

    fragments by density    0.1 0.1 0.1 0.1 0.5 | 9  40 300 5000       there are nine, and at most 8 allowed
                            └───── merged ────┘   the next one is more than `TIER_RATIO` times their sum

A merged fragment is denser than each of its sources, and the next larger one is denser than the merged ones
by the ratio. So a row is written again only after the fragments next to its own have grown by that ratio: a
number of times that grows with the logarithm of the data. The plans promise, tested with random histories:

- After all planned merges, a slot has at most `slot_fragments` fragments. Small fragments count for all
  slots, since each of them is one more file to open.
- A large fragment is never rewritten to merge a small one.
- No step reads much more than `step_bytes`. A larger merge is cut by slots, and each piece is useful even if
  the others are never merged.
- When nothing is written, the plan is empty after a few rounds.

An overwrite makes all older fragments history. No snapshot reads fragments from both before and after it, so
merging these would be useless. They are dropped when no snapshot needs them. Only small ones are merged
before, since their number costs more than their bytes.

Sources: size tiers as in LSM trees (O'Neil, Cheng, Gawlick, O'Neil, 1996) and in Cassandra. Here the tiers
are by bytes per slot, so that merges can be cut by slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from elasticscan.metadata import Fragment, IndexRun
from elasticscan.store.moves.balancing import Balance
from elasticscan.topology import SlotSet

SCATTERED_FRAGMENTS = 2  # small fragments without common slots that may stay after moves of tablets
# A merge includes the next larger fragment if that is at most so many times as large as all smaller ones
# together. A larger ratio means fewer merges with more bytes in each.
TIER_RATIO = 2.5
MOST_PIECES = 256  # of one merge; if it is larger, the pieces exceed `step_bytes`


@dataclass(frozen=True, slots=True)
class Policy:
    """The bounds of a store's upkeep.

    Attributes:
        slot_fragments: the most fragments of a slot after upkeep; at least 3, for a large one, a piece of a
            merge, and the next commit.
        history_fragments: the same for history, which only older snapshots, changes and moves read.
        small_bytes: a smaller fragment counts for every slot of its shard, since it is one more file to open.
        step_bytes: the most bytes that one step reads; a larger merge is cut by slots.
        tidy_share: if the newer fragments have this share of the bytes of the oldest layer, all fragments of
            a shard are merged, so that scans need not compare rows.
        balance: bounds of tablets.
    """

    slot_fragments: int = 8
    history_fragments: int = 16
    small_bytes: int = 32 << 20
    step_bytes: int = 64 << 20
    tidy_share: float = 1 / 3
    balance: Balance = field(default_factory=Balance)


@dataclass(frozen=True, slots=True)
class Part:
    """The slots and the size of a fragment, index runs included."""

    id: int
    slots: SlotSet
    bytes: int

    @property
    def density(self) -> float:
        return self.bytes / max(len(self.slots), 1)


@dataclass(frozen=True, slots=True)
class Merge:
    """A planned step: replace the rows of some slots in several fragments by one fragment.

    Attributes:
        fragments: the ids of the sources.
        slots: the slots to merge; sources continue to serve their other slots.
        bytes: an estimate of the bytes to read.
    """

    fragments: tuple[int, ...]
    slots: SlotSet
    bytes: int


def parts_of(fragments: Iterable[Fragment], runs: Iterable[IndexRun]) -> tuple[Part, ...]:
    """Return the parts of fragments, in order; index runs add to the size of their fragments."""
    run_bytes: dict[int, int] = {}
    for run in runs:
        run_bytes[run.fragment] = run_bytes.get(run.fragment, 0) + run.bytes
    return tuple(
        Part(f.id, f.slots, f.serving_bytes * (f.bytes + run_bytes.get(f.id, 0)) // max(f.bytes, 1))
        for f in fragments
    )


def is_current(fragment: Fragment, floor: int) -> bool:
    """Return whether scans of the newest snapshot read a fragment; `floor` is the newest overwrite."""
    return fragment.superseded_at is None and fragment.max_commit >= floor


@dataclass(frozen=True, slots=True)
class SiteState:
    """A table at a shard: the parts that the newest snapshot reads, and (fragment, part) of its history."""

    current: tuple[Part, ...]
    history: tuple[tuple[Fragment, Part], ...]

    @staticmethod
    def of(fragments: Sequence[Fragment], runs: Sequence[IndexRun], floor: int) -> SiteState:
        """Return the state of fragments; `floor` is the newest overwrite."""
        parts = [*zip(fragments, parts_of(fragments, runs), strict=True)]
        current = tuple(part for fragment, part in parts if is_current(fragment, floor))
        return SiteState(current, tuple(each for each in parts if not is_current(each[0], floor)))

    def is_pending(self, policy: Policy) -> bool:
        """Return whether there are so many fragments that merges may be pending."""
        most = policy.slot_fragments
        return len(self.history) > most or depth_of(self.current, policy) > most


def plan_site(
    state: SiteState, horizon: int, oldest: int, policy: Policy, tidy: bool = False
) -> tuple[Merge, ...]:
    """Plan the merges of a table at a shard: of current fragments and of history, and drops of history.

    Args:
        state: the fragments.
        horizon: the oldest snapshot that is kept, ...
        oldest: ... and the newest overwrite up to it. Older history is not needed.
        policy: the bounds.
        tidy: see `plan_merges`.
    """
    merges = plan_merges(state.current, policy, tidy)
    needed = {f.id: (f, p) for f, p in state.history if f.max_commit >= oldest and f.is_needed_at(horizon)}
    small = policy.small_bytes
    mergeable = [p for f, p in needed.values() if f.superseded_at is not None or p.bytes < small]
    # History has the same tiers, and its own bound.
    merges += plan_merges(mergeable, replace(policy, slot_fragments=policy.history_fragments))
    if unneeded := [f for f, _ in state.history if f.id not in needed]:  # a merge without rows drops them
        slots = SlotSet.union(fragment.slots for fragment in unneeded)
        merges += (Merge(tuple(fragment.id for fragment in unneeded), slots, 0),)
    return merges


def plan_merges(parts: Sequence[Part], policy: Policy, tidy: bool = False) -> tuple[Merge, ...]:
    """Plan the merges of parts of one table at one shard; none if all bounds hold.

    Args:
        parts: the current fragments, or the mergeable history.
        policy: the bounds.
        tidy: also plan useful merges if all bounds hold, for a keeper.
    """
    small, large = _by_size(parts, policy)
    deepest = _deepest(large)
    excess = len(small) + len(deepest) - policy.slot_fragments
    if (excess > 0 or tidy) and _is_worth_tidying(parts, policy):
        return _cut(parts, policy)
    if excess <= 0:
        return plan_scattered(parts, policy) if tidy else ()
    if len(small) > excess:  # not cut by slots: each would count until its last slot is merged
        return tuple(_packed(_sparsest(small, excess + 1, lambda part: part.bytes), policy))
    limit = _sparsest(deepest, excess + 1, lambda part: part.density)[-1].density
    return _cut([part for part in large if part.density <= limit], policy)


def plan_scattered(parts: Sequence[Part], policy: Policy) -> tuple[Merge, ...]:
    """Plan merges of the small fragments without common slots that moves of tablets have left."""
    small, _ = _by_size(parts, policy)
    slots = sum(len(part.slots) for part in small)
    if len(small) <= SCATTERED_FRAGMENTS or slots > len(SlotSet.union(part.slots for part in small)):
        return ()
    return tuple(_packed(small, policy))


def depth_of(parts: Sequence[Part], policy: Policy) -> int:
    """Return the largest number of parts of a slot; small ones count for all slots."""
    small, large = _by_size(parts, policy)
    return len(small) + len(_deepest(large))


def _by_size(parts: Sequence[Part], policy: Policy) -> tuple[list[Part], list[Part]]:
    """Return (small parts, large parts)."""
    small = [part for part in parts if part.bytes < policy.small_bytes]
    return small, [part for part in parts if part.bytes >= policy.small_bytes]


def _profile(parts: Sequence[Part]) -> npt.NDArray[np.float64]:
    """Return three arrays by slot: number of parts, bytes of all parts, bytes of the densest part."""
    count, size, densest = served = np.zeros((3, max(part.slots.edges[-1] for part in parts)))
    for part in parts:
        for start, end in part.slots:
            count[start:end] += 1
            size[start:end] += part.density
            densest[start:end] = np.maximum(densest[start:end], part.density)
    return served


def _deepest(parts: Sequence[Part]) -> list[Part]:
    """Return the parts of the slot that has the most parts."""
    slot = int(_profile(parts)[0].argmax()) if parts else 0
    return [part for part in parts if slot in part.slots]


def _sparsest(parts: Sequence[Part], least: int, size: Callable[[Part], float]) -> list[Part]:
    """Return the `least` smallest parts, and the next ones up to a gap of `TIER_RATIO`, by size."""
    ascending = sorted(parts, key=lambda part: (size(part), part.id))
    count = least
    while count < len(parts) and size(ascending[count]) <= TIER_RATIO * sum(map(size, ascending[:count])):
        count += 1
    return ascending[:count]


def _is_worth_tidying(parts: Sequence[Part], policy: Policy) -> bool:
    """Return True if parts that share slots have enough newer bytes for a merge of all (`tidy_share`)."""
    if len(parts) < 2:
        return False
    count, size, densest = _profile(parts)
    everything, oldest = float(size[count > 1].sum()), float(densest[count > 1].sum())
    return everything > 0 and everything - oldest >= policy.tidy_share * oldest


def _merge(parts: Sequence[Part], slots: SlotSet | None = None) -> Merge:
    """Return the merge of parts, for all their slots or the given ones."""
    slots = SlotSet.union(part.slots for part in parts) if slots is None else slots
    parts = [part for part in parts if not part.slots.isdisjoint(slots)]
    size = sum(part.density * len(part.slots & slots) for part in parts)
    return Merge(tuple(sorted(part.id for part in parts)), slots, round(size))


def _cut(parts: Sequence[Part], policy: Policy) -> tuple[Merge, ...]:
    """Return merges of bounded size for all slots that at least two of the parts share."""
    everything = sum(part.bytes for part in parts)
    most = max(policy.step_bytes, everything / MOST_PIECES)
    if everything <= most:
        return (_merge(parts),)
    count, size, _ = _profile(parts)
    slots = np.flatnonzero(count > 1)
    numbers = (size[slots].cumsum() - size[slots]) // most  # of each slot's piece, by the bytes before it
    pieces = np.split(slots, np.flatnonzero(np.diff(numbers)) + 1)
    ranges = (SlotSet.of((slot, slot + 1) for slot in piece.tolist()) for piece in pieces if len(piece))
    return tuple(_merge(parts, each) for each in ranges)


def _packed(parts: Iterable[Part], policy: Policy) -> Iterator[Merge]:
    """Yield merges of whole small parts, smallest first, as many in each as `step_bytes` allows."""
    group, size = list[Part](), 0
    for part in sorted(parts, key=lambda part: (part.bytes, part.id)):
        if len(group) > 1 and size + part.bytes > policy.step_bytes:
            yield _merge(group)
            group, size = [], 0
        group.append(part)
        size += part.bytes
    if len(group) > 1:
        yield _merge(group)
