"""Rows and keys as they come from outside: typed, in files, in tables of others.

What this room promises:

- **Nothing is guessed.** A value that a column does not hold as it is, a forgotten column, an unknown one, a
  null in a key: each is an error that names it, and nothing was written.
- **Errors stay what they are.** Rows of a table of ours are read as a stream of Python's, so that an error on
  the way is the scan's own, and no text of Arrow's.
- **Memory follows the batch**: what comes in files is read piece by piece. Only what people type is a list.

How rows come: typed ones become batches of the table's types (`arrow_rows`, `arrow_keys`), files a stream of
batches (`read_files`). What is handed in as Arrow passes by here. Whatever came, a write conforms the batches
to the table's schema (`elasticscan.storage`).

typed        lists and dicts of Python's, as Arrow
keys         primary keys in a table's types, and tombstones, the rows that delete them
sources      files of many kinds: found by path, pattern or URI, and read
json_lines   lines of JSON, in the types of the table
kinds        the kind of a file by its name
faults       the line of JSON that Arrow refuses, and why
directories  columns that names of directories give
iceberg      tables of Iceberg, planned and read by their own library

It leaves out: where rows go (`elasticscan.store.writing`), and rows of Spark (`elasticscan.connector`).
"""
