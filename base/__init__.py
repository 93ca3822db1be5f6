"""The lowest layer: definitions that every other folder uses.

They must be the same everywhere, because two parts of a store that disagree about one of them would lose
rows without noticing:

errors      Every error, sorted by what the caller should do about it: correct the call, try
            again, start again, or call an operator. Each carries a code, its details as
            fields, and survives the trip from a worker process to the driver.
hashing     The way from a row to its slot. It is Spark's own hash, so a DataFrame
            repartitioned by the shard key and the store that receives it agree on where each row
            belongs. It can never change for a store that exists: its rows are filed by it.
key_encoding  Values as bytes whose plain comparison is the order of the values. A scan's position
            is such a key. It is the same at every shard, so a position that was reached at one
            shard means the same at any other: on this, scanning across moves rests. Keys of indexes and
            bounds of statistics are encoded likewise.
limits      Every default and bound, with its unit in its name, and the one rule for names.
redaction   URIs without their passwords; every error's text and fields go through it.
permissions  Modes of files, of the directories that they are made in.
clock       Time behind a protocol of two methods, with a twin that tests turn by hand.
concurrency  Work on several items at a time, cached properties, and locks of modules that a forked child
            finds unlocked.
file_locks  Locks of files and directories, with an end to the wait.
resources   The error for too many open files or no memory.
formatting  Values as text: short in messages, as JSON for the command line.
suggestions  The name that was probably meant, for errors about a name that does not exist.
drawing     Pictures as SVG: the slot map, bars.
user_files  Errors of users' files, with the name of the file.

Promises:

* Nothing here knows of shards, files, catalogs or Spark, and nothing here imports another layer.
* Errors, hashing, order keys and limits are pure: the same input gives the same output in every
  process, on every machine, in every version that can open the same store. Clock and concurrency are
  the exceptions; a clock is always an argument.
* Hashes and order keys are formats: they are part of stores and of continuation keys that users
  hold. Their bytes are pinned by tests against known values.

Not here: configuration files, logging set-up, retry policies. They are next to the code that uses them.

Import from the module that has the thing (`from elasticscan.base.errors import InvalidOption`):
these modules have little to do with each other, and some that import them should stay light.
"""
