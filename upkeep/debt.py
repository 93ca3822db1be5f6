"""The debt of a store's upkeep, and amplification of reads, writes and space, as numbers for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elasticscan.upkeep.merging import Merge, Part, depth_of, mean_depth, plan_merges
from elasticscan.upkeep.policy import Policy


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes of a table's life: what commits brought, what merges wrote."""

    committed: int = 0
    merged: int = 0

    def credit(self, policy: Policy) -> float:
        """Return how much may be written to make scans faster."""
        return (policy.write_amplification - 1) * self.committed - self.merged

    @property
    def amplification(self) -> float:
        """Return how many bytes were written for each that was committed."""
        return (self.committed + self.merged) / self.committed if self.committed else 1.0


@dataclass(frozen=True, slots=True)
class Debt:
    """The work that is due for one table, over all its shards.

    Attributes:
        merges: how many.
        bytes: about how much they read.
        slot_fragments: from how many fragments the worst slot is read.
        reads: the same on average: the amplification of reads.
    """

    merges: int
    bytes: int
    slot_fragments: int
    reads: float


def debt_of(shards: Iterable[Sequence[Part]], policy: Policy) -> Debt:
    """Return a table's debt from its fragments, shard by shard."""
    looked = [parts for parts in shards if parts]
    merges: list[Merge] = [merge for parts in looked for merge in plan_merges(parts, policy)]
    fragments = sum(len(parts) * mean_depth(parts) for parts in looked)
    return Debt(
        merges=len(merges),
        bytes=sum(merge.bytes for merge in merges),
        slot_fragments=max((depth_of(parts, policy) for parts in looked), default=0),
        reads=fragments / sum(map(len, looked)) if looked else 1.0,
    )
