"""The bounds that upkeep keeps, as numbers; those of tablets are in `store/moves/balancing.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticscan.store.moves.balancing import Balance


@dataclass(frozen=True, slots=True)
class Policy:
    """The bounds of a store's upkeep.

    Attributes:
        slot_fragments: most fragments that a slot is read from, once upkeep is done.
        history_fragments: the same of history, which only older snapshots, changes and moves read.
        tier_ratio: a merge takes the next larger fragment along while that is at most so many times as
            large as all smaller ones together. A larger ratio means fewer merges, and more bytes in each.
        small_tier_ratio, small_tier_bytes: the ratio while these are below so many bytes: there it is the
            number of merges that costs, not their size.
        small_bytes: fragments below this count for every slot of their shard, since each is a file to open.
        scattered_fragments: most small fragments that share no slots, once moves of tablets are over.
        step_bytes: most bytes that one step reads; a larger merge is cut by slots.
        most_pieces: into how many steps a merge is cut at most; beyond that, steps grow.
        tidy_share: when newer fragments hold this share of what the oldest layer holds, a shard is merged
            wholly, so that scans meet rows that need not be compared.
        garbage_files: garbage is collected when so many files wait for it, ...
        garbage_seconds: ... or any, and the last collection was so long ago; ...
        orphan_seconds: ... or none that the catalog knows of, and it was so long ago.
        balance: of tablets.
    """

    slot_fragments: int = 8
    history_fragments: int = 16
    tier_ratio: float = 2.0
    small_tier_ratio: float = 4.0
    small_tier_bytes: int = 8 << 20
    small_bytes: int = 32 << 20
    scattered_fragments: int = 2
    step_bytes: int = 64 << 20
    most_pieces: int = 256
    tidy_share: float = 1 / 3
    garbage_files: int = 1_000
    garbage_seconds: float = 600
    orphan_seconds: float = 86_400
    balance: Balance = field(default_factory=Balance)

    def __post_init__(self) -> None:
        # A merge in pieces and the next commit each leave one alongside the large one.
        assert min(self.slot_fragments, self.history_fragments) >= 3, self
        assert min(self.tier_ratio, self.small_tier_ratio) >= 1, "no two equal fragments are merged"
        assert min(self.step_bytes, self.small_bytes, self.tidy_share) > 0, self
        assert self.scattered_fragments >= 1, "one is left"
