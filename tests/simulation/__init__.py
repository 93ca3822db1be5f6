"""Whole stores under one scheduler: random programs of steps and faults, next to an oracle.

A program is a list of steps, drawn from one seed: writes, deletes, moves, splits, merges, flushes, garbage
collections, changes of columns and indexes, tags, restores, backups, pages of scans, reads by key, changes.
Wherever the store would let another process in between two of its own steps (before a page, between staging
and committing a write, at each phase of a move) it calls the world, which makes steps of others there, nested
up to three deep. Time is a clock that the program moves.

A fault is a step, too: a bit flips, a file is cut, a disk fails or is full, a mount vanishes, both processes
are killed and the log is torn, an older copy of the catalog is put back. From then on each step ends with
right rows or with a typed error, `verify` finds what is wrong, and no file that the catalog refers to goes.

The oracle is a dictionary of the rows of every snapshot, by table. It needs no knowledge of fragments, moves
or indexes, which is why it can be believed.

    tables       tables, indexes and columns, and how often each style of program makes which step
    conditions   random conditions, as SQL and as functions of a row
    oracle       what each table held after each of its commits
    world        the stores, the oracle, scans under way, and who is let in when
    writing, reading, definitions, elasticity, upkeep      steps
    faults       faults as steps
    damage       stores that faults befall: their life before, steps that examine them, what must hold
    checks       what must hold of a sound store when a program ends
    engine       how a seed's program is played, and cut down where it fails; programs of logs have it, too
    programs     how a seed makes a world and its steps

All that a step draws comes from the world's generator, whose state is kept with the step. So a program can be
played without some of its steps: `python -m tests.simulation SEED` prints the fewest that still fail.
"""
