"""Rows and keys as callers give them: typed, or in files.

- **No value is changed.** A value that its column does not hold as it is, a missing or unknown column, or a
  null in a key is an error that names it, and nothing is written. CSV has the values that Arrow reads in it.
- **Errors keep their types.** A scan of a table is read as a stream of Python; its errors arrive as they are.
- **Memory holds a batch**: files are read in batches. Only lists of Python values are converted as a whole.

Rows that are typed become batches of the table's types (`arrow_rows`, `arrow_keys`), files a stream of
batches (`read_file`). A write brings the batches to the table's schema (`elasticscan.storage`).

conversion  lists and dicts of Python as Arrow; primary keys, and tombstones, the rows that delete them
files  files of several formats: found by path, pattern or URI, and read

It leaves out where rows go (`elasticscan.store.writing`), and rows of Spark (`elasticscan.connector`).
"""
