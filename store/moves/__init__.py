"""Moves of tablets, carried out while readers and writers go on.

What this room promises:

- **A tablet is served from one place at every moment**: from its source until the switch, from its target
  after it. The switch is one transaction, and it checks that the copy has all that was committed.
- **A mover that dies breaks nothing.** The tablet stays at its source, the copy is a file that nothing refers
  to, and `resume_moves` finishes what was planned.
- **Two never carry out one move.** Each has an owner, of which there are signs of life; only what an owner
  that is gone has left is taken over.

How a move goes (the phases are a table, `elasticscan.topology`): planned, copying, caught up, and gone with
the switch. Copies are by commit number: first all up to a commit, then what came since, until little is left
for the transaction that switches.

The words: a *plan* is the moves that an expansion, a contraction or a rebalance needs; an *owner* is one
operation of one process; *undoing* a move leaves its tablet at the source.

balancing   splits, joins and moves by bytes, planned as pure functions
owners      moves and steps of upkeep as leases, each with an owner, and the signs that owners live
mover       one move: copy, catch up, switch
elasticity  plans carried out: expand, contract, move, resume; tablets split and joined, which copies nothing

It leaves out: plans by the number of tablets (`elasticscan.topology`), and when tablets are split, joined and
moved without being asked to (`elasticscan.store.upkeep`).
"""
