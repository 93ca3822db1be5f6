"""Rows and keys that callers pass, as Python values or as files.

- **No value is changed.** If a column's type cannot store a value exactly, a column is missing or unknown, or
  a key has a null, an error names it and nothing is written. CSV values are parsed by Arrow.
- **Errors keep their types.** A scan or dataset is read through Python, so its errors are not converted.
- **Memory is one batch**: files are read in batches. Only lists of Python values are converted as a whole.

Python values become Arrow data in the table's types (`arrow_rows`, `arrow_keys`), files a stream of batches
(`read_file`). A write then converts the batches to the table's schema (`elasticscan.storage`).

conversion  Python lists and dicts as Arrow; primary keys; tombstones, the rows that delete keys
files       files of several formats: found by path, pattern or URI, and read

Writes are in `elasticscan.store.writing`, rows of Spark in `elasticscan.connector`.
"""
