"""Moves of tablets, while readers and writers continue.

What this folder promises:

- **A tablet is served from exactly one shard at every moment**: by its source until the switch, by its target
  after it. The switch is one transaction, which copies the last commits, so the target has all of them.
- **A mover that dies breaks nothing.** The tablet stays at its source, no record names the unfinished copy,
  and `resume_moves` repeats the move.
- **Two processes never carry out the same move.** A move has one owner. Another process takes it over only
  after it has detected that the owner is gone.

The phases of a move (a table in `elasticscan.topology`) are planned, copying, caught up and, with the switch,
target serves. The mover copies by commit number: first all rows up to a commit, then those of later commits,
until few are left for the transaction that switches.

A *plan* is the moves of an expansion, a contraction or a rebalance. An *owner* is one operation of one
process. *Undoing* a move leaves its tablet at the source.

balancing   plans of splits, joins and moves by bytes, as pure functions
owners      leases of moves and steps of upkeep, their owners, and whether an owner is gone
mover       one move: copy, catch up, switch
elasticity  operations: expand, contract, move, resume; split and join, which copy no rows

Upkeep that splits, joins and moves tablets automatically is in `elasticscan.store.upkeep`.
"""
