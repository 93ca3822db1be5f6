"""Whole stores under one scheduler: random programs of steps and faults, next to an oracle.

A program is a list of steps, drawn from one seed: writes, deletes, moves, splits, merges, flushes, garbage
collections, changes of columns and indexes, tags, restores, backups, pages of scans, reads by key, changes.
At each point where another process could act between two steps of the store (before a page, between staging
and committing a write, at each phase of a move), the store calls the world. The world makes steps of other
processes there, nested up to three deep. Time is a clock that the program sets.

A fault is a step, too: a bit flips, a file is cut, a disk fails or is full, a mount vanishes, both processes
are killed and the log is torn, an older copy of the catalog is restored. After a fault each step ends with
right rows or with a typed error, `verify` finds the damage, and no file of the catalog is removed.

The oracle is a dictionary of the rows of every snapshot, by table. It knows nothing of fragments, moves and
indexes, so it cannot have the same bug as they.

    tables       tables, indexes and columns, and how often each style of program makes which step
    conditions   random conditions, as SQL and as functions of a row
    oracle       what each table held after each of its commits
    world        the stores, the oracle, scans in progress, and when other processes may act
    writing, reading, definitions, elasticity, upkeep      steps
    faults       faults as steps
    damage       stores with faults: their steps before the fault, steps that examine them, their rules
    checks       the rules of a sound store at the end of a program
    engine       runs a seed's program, and reduces one that fails; programs of logs use it, too
    programs     how a seed makes a world and its steps

A step draws only from the world's generator, whose state is stored with the step. So a program can be
played without some of its steps: `python -m tests.simulation SEED` prints the fewest that still fail.
"""
