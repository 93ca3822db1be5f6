"""The lowest layer: definitions that every other folder uses.

They must be the same everywhere, because two parts of a store with different definitions would lose
rows without an error:

errors      Every error, sorted by what the caller should do: correct the call, try again, start
            again, or call an operator. Each has a code and its details as fields, and can be sent
            from a worker process to the driver.
hashing     The slot of a row. It is Spark's own hash, so a DataFrame that was repartitioned by the shard
            key and the store agree on the slot of each row. It can never change for an existing store,
            because its rows are stored by slot.
key_encoding  Values as bytes whose plain comparison is the order of the values. A scan's position is such
            a key, and is the same at every shard. So a position that was reached at one shard means the
            same at any other; scans across moves depend on this. Keys of indexes and bounds of statistics
            have the same encoding.
limits      Every default and bound, with its unit in its name, and the one rule for names.
redaction   URIs without their passwords; applied to the text and fields of every error.
permissions  Modes of new files, derived from their directories.
clock       Time behind a protocol of two methods; tests use a clock that they set.
concurrency  Parallel work on several items, cached properties, and locks of modules that are not locked in a
            forked child.
file_locks  Locks of files and directories, with a limit of the wait.
resources   The error for too many open files or no memory.
formatting  Values as text: short in messages, as JSON for the command line.
suggestions  The most similar name, for errors about a name that does not exist.
drawing     Pictures as SVG: the slot map, bars.
user_files  Errors of users' files, with the name of the file.

Promises:

* Nothing here depends on shards, files, catalogs or Spark, and nothing here imports another layer.
* Errors, hashing, order keys and limits are pure: the same input gives the same output in every
  process, on every machine, in every version that can open the same store. Clock and concurrency are
  the exceptions; a clock is always an argument.
* Hashes and order keys are formats: they are part of stores and of users' continuation keys. Tests compare
  their bytes with known values.

Not here: configuration files, logging set-up, retry policies. They are next to the code that uses them.

Import from the module itself (`from elasticscan.base.errors import InvalidOption`): the modules are
independent, and importing one of them must be fast.
"""
