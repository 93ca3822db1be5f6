"""A store that is nothing but sizes: what merges do to fragments, so that a life of one takes a second."""

from __future__ import annotations

from collections.abc import Sequence

from elasticscan.metadata import Fragment
from elasticscan.store.upkeep.planning import Merge, Part, Policy, plan_merges
from elasticscan.topology import SlotSet

FILE_BYTES, ROW_BYTES = 3_500, 48  # as measured: a fragment with one index run, and each of its rows


def fragment(number: int, slots: SlotSet, size: int, shard: int = 1) -> Fragment:
    """A fragment of which nothing matters but its slots and its size."""
    facts = {"unique": True, "tombstones": 0, "versioned": False, "tail": 0, "digest": 0}
    place = {"id": number, "table": 1, "shard": shard, "path": f"t1/{number}.arrow"}
    commits = {"min_commit": number, "max_commit": number}
    return Fragment(**place, **facts, **commits, slots=slots, rows=size // ROW_BYTES, bytes=size)


class World:
    """The fragments of one table at one shard."""

    def __init__(self, policy: Policy, slots: int = 2_048) -> None:
        self.policy, self.every_slot = policy, SlotSet.span(0, slots)
        self.parts: dict[int, Part] = {}
        self.committed = self.merged = self.steps = 0
        self._ids = 0

    @property
    def amplification(self) -> float:
        return (self.committed + self.merged) / self.committed

    def commit(self, rows: int, slots: SlotSet | None = None) -> None:
        self.committed += self._enter(FILE_BYTES + ROW_BYTES * rows, slots or self.every_slot)

    def plan(self, tidy: bool = False) -> tuple[Merge, ...]:
        return plan_merges(tuple(self.parts.values()), self.policy, tidy)

    def carry_out(self, merge: Merge) -> None:
        size = FILE_BYTES
        for number in merge.fragments:
            part = self.parts.pop(number)
            share = part.bytes * len(part.slots & merge.slots) // len(part.slots)
            size += max(share - FILE_BYTES, 0)
            if left := part.slots - merge.slots:
                self.parts[number] = Part(number, left, part.bytes - share)
        self.merged += self._enter(size, merge.slots)
        self.steps += 1

    def settle(self, tidy: bool = False, most_rounds: int = 12) -> None:
        """Plan and carry out until nothing is left to do."""
        for _ in range(most_rounds):
            merges = self.plan(tidy)
            if not merges:
                return
            for merge in merges:
                self.carry_out(merge)
        raise AssertionError(f"after {most_rounds} rounds there is still something to do: {self.plan(tidy)}")

    def depths(self) -> Sequence[int]:
        """Return from how many fragments each slot is read."""
        counts = [0] * len(self.every_slot)
        for part in self.parts.values():
            for start, end in part.slots:
                for slot in range(start, end):
                    counts[slot] += 1
        return counts

    def _enter(self, size: int, slots: SlotSet) -> int:
        self._ids += 1
        self.parts[self._ids] = Part(self._ids, slots, size)
        return size
