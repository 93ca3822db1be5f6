"""The places of rows: slots, tablets, shards, and their changes while scans go on.

Everything here is a frozen value or a function from values to values. There is no clock, no randomness, no
thread and no I/O, so one seed replays the life of a whole cluster, and every process that looks at the same
placement draws the same conclusions. Other layers carry out what is decided here.

The words, each with one meaning:

slot              the hash bucket of a row. The number of slots is fixed when a store is created.
tablet            a contiguous range of slots `[start, end)`; what moves, splits and joins.
shard             a named place with a storage root of its own, where tablets live.
placement         where each tablet is now: tablet -> (shard, epoch). Tablets tile the slots.
epoch             a tablet's count of changes. It grows whenever the owner or the bounds change
                  (both halves of a split get the next one, a join the one beyond both), so for
                  each single slot it only ever grows.
topology          a numbered placement. Once it is published, it never changes again.
topology history  all of them, written by the transactions that change the placement. The newest one is not
                  published while a plan moves tablets, so a plan adds one topology, however many
                  tablets it moves, and no placement is missing. A scan begins with the newest that is
                  published, its base topology, and remembers its number and nothing else about where
                  things were.

A scan that goes on while tablets move returns every row exactly once because of three invariants.
This layer supplies the words for them; each is kept by another:

(a) The order key is the same at every shard: a position reached at one shard means the same at
    any other. Kept by `base` (order keys and hashing), from which no shard may deviate.
(b) The rows of a slot at a snapshot are the same wherever the slot lives: a move carries every
    version that a lease or the retention may still need. Kept by `store`, which carries out
    moves and compaction, with the files of `storage`.
(c) A slot's epoch changes before its rows stop being readable at the source. Kept by `catalog`,
    which switches owner and epoch in one transaction, and by `store`, which deletes files only
    after it and after a grace period. `Placement.changed_since` is how a reader notices.

Changes of tablets (`split_tablet`, `join_tablets`) check what they require and
return the tablets before and after. The phases of a `Move` are a table (`TRANSITIONS`), and
every change of one goes through it (`Move.after`); in each, exactly one shard serves the tablet, and
a move whose owner died before the target served is undone.

The slot map (`SlotMap`) is a picture of the topologies that a history keeps: slots across, time down.

slots     sets of slots, as few ranges as possible
values    tablets, placement and topologies
moves     a move, and its phases as a table
planner   the first placement, splits and joins
slot_map  the picture

Left out: who may change what (the catalog serializes), copying (the store), and when tablets move, split and
join (`elasticscan.store.moves.balancing`). Nothing balances by load.

The design follows Oracle NoSQL Database's for queries during elasticity: base topology, topology
history, virtual scans. Theirs ends a query when a partition migrates more than once in its
lifetime. That limit is gone here, because a cursor never stores where its slots live: it is looked
up for each page, so a tablet that moves again, returns or fails to move is no special case.
"""

from elasticscan.topology.moves import Event, Move, Phase
from elasticscan.topology.planner import initial_placement, join_tablets, split_tablet
from elasticscan.topology.slot_map import SlotMap
from elasticscan.topology.slots import SlotSet
from elasticscan.topology.values import Placement, Shard, Tablet, Topology, TopologyEntry
