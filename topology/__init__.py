"""Slots, tablets, shards and placements, and how they change while scans run.

Everything here is a frozen value or a function from values to values. There is no clock, no randomness, no
thread and no I/O, so one seed replays the life of a whole cluster, and processes that read the same
placement decide the same. Other layers carry out these decisions.

Each term has one meaning:

slot              the hash bucket of a row. The number of slots is fixed when a store is created.
tablet            a contiguous range of slots `[start, end)`; the unit that moves, splits and joins.
shard             a named place that holds tablets, with its own storage root.
placement         the current location of each tablet: tablet -> (shard, epoch). Tablets tile the slots.
epoch             a number that grows whenever the owner or the bounds of a tablet change. Both halves of a
                  split get the next number; a join gets a number above both. So the epoch of a slot
                  never decreases.
topology          a numbered placement. A published topology never changes.
topology history  the topologies of the store's retention, written by the transactions that change the
                  placement. The newest one stays unpublished while a plan moves tablets, so a plan adds one
                  topology, however many tablets it moves. A scan starts from the newest published topology,
                  its base topology, and stores only its number.

A scan that runs while tablets move returns every row exactly once because of three invariants. Other layers
keep them:

(a) The order key is the same at every shard: a position reached at one shard means the same at
    any other. `base` (order keys and hashing) keeps it; all shards use the same code.
(b) The rows of a slot at a snapshot are the same wherever the slot lives: a move copies every
    version that a lease or the retention may still need. `store` keeps it, with its moves and
    compaction, and the files of `storage`.
(c) A slot's epoch changes before its rows stop being readable at the source. `catalog` keeps it by
    switching owner and epoch in one transaction, and `store` by deleting files only after that
    transaction and a grace period. Readers detect the change with `Placement.changed_since`.

`split_tablet` and `join_tablets` check their conditions and return the tablets before and after. The phases
of a `Move` are a table (`TRANSITIONS`), and every change of phase uses it (`Move.after`). In each phase
exactly one shard serves the tablet. If the owner of a move dies before the target serves, the move is undone.

The slot map (`SlotMap`) is a picture of the topologies in a history: slots across, time down.

slots     sets of slots
values    tablets, placement and topologies
moves     a move, and its phases as a table
planner   the first placement, splits and joins
slot_map  the picture

Not here: permission for changes (the catalog serializes them), copying (the store), and the decision when
tablets move, split and join (`elasticscan.store.moves.balancing`). Nothing balances by load.

The design follows Oracle NoSQL Database's for queries during elasticity: base topology, topology
history, virtual scans. There, a query ends with an error if a partition migrates more than once during
the query. Here this limit is gone: a cursor never stores where its slots live. Each page reads the
placement, so a tablet that moves again, returns or fails to move is no special case.
"""

from elasticscan.topology.moves import Event, Move, Phase
from elasticscan.topology.planner import initial_placement, join_tablets, split_tablet
from elasticscan.topology.slot_map import SlotMap
from elasticscan.topology.slots import SlotSet
from elasticscan.topology.values import Placement, Shard, Tablet, Topology, TopologyEntry
