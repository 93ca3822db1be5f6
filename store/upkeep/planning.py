"""Plans of merges: which fragments of a table become one at a shard, wholly or for some slots.

Values in, steps out: there is no clock, no I/O and no state here, so a whole life of a store is simulated in
a second, and every process that looks at the same catalog plans the same steps. `executor` carries them out.

Fragments are compared by their *density*, bytes per slot, because a merge may be cut by slots, and tablets
that arrived have fragments of their own. In each range of slots that the same fragments serve:

    fragments by density    0.1 0.1 0.1 0.5 | 9  40 300 5000       at most 8, and the ninth was committed
                            └─── merged ──┘   the next one is more than `TIER_RATIO` times their sum

What is merged leaves a fragment that is denser than all its sources, and the next one above it is denser by
the ratio: so rows are written again only when the fragments alongside them have grown by that ratio, a number
of times that grows with the logarithm of the data. What the plans promise, each tested with random histories:

- Once they are carried out, no slot is read from more than `slot_fragments` fragments, and small fragments
  count for all slots, since each is a file to open.
- A large fragment is never rewritten for a small one.
- No step reads much more than `step_bytes`: a larger merge is cut by slots, and what was merged already
  stays merged when the rest is never done.
- Plans settle: when nothing is written, a few rounds of planning and carrying out lead to an empty plan.

An overwrite makes all older fragments history at once. No snapshot reads fragments of before and after it, so
merging them would be work for nothing: they are dropped when no snapshot needs them; only small ones, whose
number costs more than their bytes, are merged before.

Sources: size tiers as in LSM trees (O'Neil, Cheng, Gawlick, O'Neil, 1996) and in Cassandra. Changed here: the
tiers are by bytes per slot, so that merges can be cut by slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from elasticscan.metadata import Fragment, IndexRun
from elasticscan.store.moves.balancing import Balance
from elasticscan.topology import SlotSet

SCATTERED_FRAGMENTS = 2  # most small ones that share no slots, once moves of tablets are over
# A merge takes the next larger fragment along while that is at most so many times as large as all smaller
# ones together. A larger ratio means fewer merges, and more bytes in each.
TIER_RATIO = 2.5
MOST_PIECES = 256  # into which a merge is cut; beyond that, steps grow


@dataclass(frozen=True, slots=True)
class Policy:
    """The bounds of a store's upkeep.

    Attributes:
        slot_fragments: most fragments that a slot is read from, once upkeep is done; at least 3: a merge in
            pieces and the next commit each leave one alongside the large one.
        history_fragments: the same of history, which only older snapshots, changes and moves read.
        small_bytes: fragments below this count for every slot of their shard, since each is a file to open.
        step_bytes: most bytes that one step reads; a larger merge is cut by slots.
        tidy_share: when newer fragments hold this share of what the oldest layer holds, a shard is merged
            wholly, so that scans meet rows that need not be compared.
        balance: of tablets.
    """

    slot_fragments: int = 8
    history_fragments: int = 16
    small_bytes: int = 32 << 20
    step_bytes: int = 64 << 20
    tidy_share: float = 1 / 3
    balance: Balance = field(default_factory=Balance)


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


def parts_of(fragments: Iterable[Fragment], runs: Iterable[IndexRun]) -> tuple[Part, ...]:
    """Return fragments as parts; index runs count with their fragments."""
    run_bytes: dict[int, int] = {}
    for run in runs:
        run_bytes[run.fragment] = run_bytes.get(run.fragment, 0) + run.bytes
    return tuple(
        Part(f.id, f.slots, f.serving_bytes * (f.bytes + run_bytes.get(f.id, 0)) // max(f.bytes, 1))
        for f in fragments
    )


def is_current(fragment: Fragment, floor: int) -> bool:
    """Return whether the newest rows are read from a fragment; `floor` is the newest overwrite."""
    return fragment.superseded_at is None and fragment.max_commit >= floor


@dataclass(frozen=True, slots=True)
class SiteState:
    """A table at a shard: the parts that its newest rows are read from, and its history, with its parts."""

    current: tuple[Part, ...]
    history: tuple[tuple[Fragment, Part], ...]

    @staticmethod
    def of(fragments: Sequence[Fragment], runs: Sequence[IndexRun], floor: int) -> SiteState:
        """Return what fragments are since the newest overwrite, `floor`."""
        parts = [*zip(fragments, parts_of(fragments, runs), strict=True)]
        current = tuple(part for fragment, part in parts if is_current(fragment, floor))
        return SiteState(current, tuple(each for each in parts if not is_current(each[0], floor)))

    def is_pending(self, policy: Policy) -> bool:
        """Return whether there are so many fragments that something may have to be merged or dropped."""
        most = policy.slot_fragments
        return len(self.history) > most or depth_of(self.current, policy) > most


def plan_site(
    state: SiteState, horizon: int, oldest: int, policy: Policy, tidy: bool = False
) -> tuple[Merge, ...]:
    """Plan the merges of a table at a shard: of its newest rows, of its history, and of what is over.

    Args:
        state: of the site.
        horizon: the oldest snapshot that is kept, ...
        oldest: ... and the newest overwrite that it sees: history from there on is needed.
        policy: the bounds.
        tidy: as for `plan_merges`.
    """
    merges = plan_merges(state.current, policy, tidy)
    needed = {f.id: (f, p) for f, p in state.history if f.max_commit >= oldest and f.is_needed_at(horizon)}
    few = policy.small_bytes
    mergeable = [p for f, p in needed.values() if f.superseded_at is not None or p.bytes < few]
    # By the same tiers, up to a bound of its own.
    merges += plan_merges(mergeable, replace(policy, slot_fragments=policy.history_fragments))
    if over := [f for f, _ in state.history if f.id not in needed]:  # there is nothing to copy
        slots = SlotSet.union(fragment.slots for fragment in over)
        merges += (Merge(tuple(fragment.id for fragment in over), slots, 0),)
    return merges


def plan_merges(parts: Sequence[Part], policy: Policy, tidy: bool = False) -> tuple[Merge, ...]:
    """Plan the merges that one table needs at one shard now; none when all bounds hold.

    Args:
        parts: the fragments that newest snapshots are read from.
        policy: the bounds.
        tidy: merge all that is worth it also where no bound is broken, as a keeper does.
    """
    small, large = _by_size(parts, policy)
    deepest = _deepest(large)
    excess = len(small) + len(deepest) - policy.slot_fragments
    if (excess > 0 or tidy) and _is_worth_tidying(parts, policy):
        return _cut(parts, policy)
    if excess <= 0:
        return plan_scattered(parts, policy) if tidy else ()
    if len(small) > excess:  # small ones are never cut: each would count until its last slot is merged
        return tuple(_packed(_sparsest(small, excess + 1, lambda part: part.bytes), policy))
    limit = _sparsest(deepest, excess + 1, lambda part: part.density)[-1].density
    return _cut([part for part in large if part.density <= limit], policy)


def plan_scattered(parts: Sequence[Part], policy: Policy) -> tuple[Merge, ...]:
    """Plan the merges of what moves of tablets have scattered: small fragments that share no slots."""
    small, _ = _by_size(parts, policy)
    slots = sum(len(part.slots) for part in small)
    if len(small) <= SCATTERED_FRAGMENTS or slots > len(SlotSet.union(part.slots for part in small)):
        return ()
    return tuple(_packed(small, policy))


def depth_of(parts: Sequence[Part], policy: Policy) -> int:
    """Return from how many fragments the worst slot is read; small ones count for all slots."""
    small, large = _by_size(parts, policy)
    return len(small) + len(_deepest(large))


def _by_size(parts: Sequence[Part], policy: Policy) -> tuple[list[Part], list[Part]]:
    """Return small and large parts."""
    small = [part for part in parts if part.bytes < policy.small_bytes]
    return small, [part for part in parts if part.bytes >= policy.small_bytes]


def _profile(parts: Sequence[Part]) -> npt.NDArray[np.float64]:
    """Return three rows by slot: numbers of parts, and the bytes of all of them and of the densest one."""
    count, size, densest = served = np.zeros((3, max(part.slots.edges[-1] for part in parts)))
    for part in parts:
        for start, end in part.slots:
            count[start:end] += 1
            size[start:end] += part.density
            densest[start:end] = np.maximum(densest[start:end], part.density)
    return served


def _deepest(parts: Sequence[Part]) -> list[Part]:
    """Return the parts that serve the slot which most parts serve."""
    slot = int(_profile(parts)[0].argmax()) if parts else 0
    return [part for part in parts if slot in part.slots]


def _sparsest(parts: Sequence[Part], least: int, size: Callable[[Part], float]) -> list[Part]:
    """Return at least so many parts, the smallest first, and those that belong to their tier."""
    ascending = sorted(parts, key=lambda part: (size(part), part.id))
    taken = least
    while taken < len(parts) and size(ascending[taken]) <= TIER_RATIO * sum(map(size, ascending[:taken])):
        taken += 1
    return ascending[:taken]


def _is_worth_tidying(parts: Sequence[Part], policy: Policy) -> bool:
    """Return True if scans gain enough from merging all, where several parts serve the same slots."""
    if len(parts) < 2:
        return False
    count, size, densest = _profile(parts)
    everything, oldest = float(size[count > 1].sum()), float(densest[count > 1].sum())
    return everything > 0 and everything - oldest >= policy.tidy_share * oldest


def _merge(parts: Sequence[Part], slots: SlotSet | None = None) -> Merge:
    """Return the merge of some parts, of all their slots or of some."""
    slots = SlotSet.union(part.slots for part in parts) if slots is None else slots
    parts = [part for part in parts if not part.slots.isdisjoint(slots)]
    size = sum(part.density * len(part.slots & slots) for part in parts)
    return Merge(tuple(sorted(part.id for part in parts)), slots, round(size))


def _cut(parts: Sequence[Part], policy: Policy) -> tuple[Merge, ...]:
    """Return merges of some parts wherever two of them meet, each of bounded size."""
    everything = sum(part.bytes for part in parts)
    most = max(policy.step_bytes, everything / MOST_PIECES)
    if everything <= most:
        return (_merge(parts),)
    count, size, _ = _profile(parts)
    slots = np.flatnonzero(count > 1)
    piece = (size[slots].cumsum() - size[slots]) // most  # by the bytes of the slots before
    pieces = np.split(slots, np.flatnonzero(np.diff(piece)) + 1)
    return tuple(
        _merge(parts, SlotSet.of((slot, slot + 1) for slot in own.tolist())) for own in pieces if len(own)
    )


def _packed(parts: Iterable[Part], policy: Policy) -> Iterator[Merge]:
    """Yield merges of small parts, whole ones, the smallest first: as many in each as a step may read."""
    group, size = list[Part](), 0
    for part in sorted(parts, key=lambda part: (part.bytes, part.id)):
        if len(group) > 1 and size + part.bytes > policy.step_bytes:
            yield _merge(group)
            group, size = [], 0
        group.append(part)
        size += part.bytes
    if len(group) > 1:
        yield _merge(group)
