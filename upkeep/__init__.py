"""Upkeep, planned: what keeps a store fast that is written in small pieces for years.

Values in, steps out: there is no clock, no I/O and no state here, so a whole life of a store can be simulated
in a second, and every keeper that looks at the same catalog plans the same steps. `elasticscan.store` carries
them out (`store/upkeep/keeper.py`).

step            one piece of work: a merge, a split, a join, a move, a collection of garbage
merge           fragments of one table at one shard become one, wholly or for some slots
amplification   of reads (fragments for each slot), of writes (bytes written for each byte committed) and of
                space

policy          the bounds, as numbers, in one place, and when garbage is collected (what is garbage is
                decided in `store/upkeep/garbage.py`)
merging         merges: which fragments, and of which slots
balancing       splits of large tablets, joins of small ones, moves that even out bytes, and then tablets
debt            what is due, and amplification

What the plans promise, each tested with random histories:

- Once the planned merges are carried out, no slot is read from more than `slot_fragments` fragments, and
  small fragments count for all slots, since each is a file to open.
- A row is written again a number of times that grows with the logarithm of the data. A large fragment is
  never rewritten for a small one.
- No step reads much more than `step_bytes`: a larger merge is cut by slots, and what was merged already
  stays merged when the rest is never done.
- Plans settle: when nothing is written, a few rounds of planning and carrying out lead to an empty plan.
- No plan undoes another: between a split and a join, and between a move and the move back, there is a margin.

Sources: size tiers as in LSM trees (O'Neil, Cheng, Gawlick, O'Neil, 1996) and in Cassandra; splits and joins
as of KDI's tablet server. Changed here: the tiers are by bytes per slot, so that merges can be cut by slots.
"""

from elasticscan.upkeep.balancing import (
    Join,
    Split,
    plan_even,
    plan_joins,
    plan_moves,
    plan_splits,
    tablet_bytes,
    tablet_depths,
)
from elasticscan.upkeep.debt import Debt, Written, debt_of
from elasticscan.upkeep.merging import Merge, Part, depth_of, parts_of, plan_history, plan_merges
from elasticscan.upkeep.policy import Policy, is_collection_due

__all__ = [
    "Debt",
    "Join",
    "Merge",
    "Part",
    "Policy",
    "Split",
    "Written",
    "debt_of",
    "depth_of",
    "is_collection_due",
    "parts_of",
    "plan_even",
    "plan_history",
    "plan_joins",
    "plan_merges",
    "plan_moves",
    "plan_splits",
    "tablet_bytes",
    "tablet_depths",
]
