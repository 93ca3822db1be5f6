"""The limits and defaults that users can reach, each with its unit in its name.

A constant that only tunes one module is in that module.
"""

from __future__ import annotations

import re
from typing import Final

from elasticscan.base.errors import InvalidOption
from elasticscan.base.formatting import brief

# How finely a store is divided. The number of slots is fixed when the store is created; tablets can be split
# and joined later, but have at least one slot.
DEFAULT_SLOTS: Final = 4_096
MAX_SLOTS: Final = 65_536  # a slot fits two bytes
DEFAULT_TABLETS: Final = 64

# The size of a page; the first limit that is reached ends it. By default a page fits one record batch of a
# fragment, and half as many rows of later commits.
DEFAULT_PAGE_ROWS: Final = 196_608
DEFAULT_PAGE_BYTES: Final = 16 << 20
MAX_PAGE_ROWS: Final = 1 << 24
MAX_PAGE_BYTES: Final = 1 << 40

# The approximate size of the input of one Spark task.
DEFAULT_SPLIT_BYTES: Final = 512 << 20

# Numbers of commits and versions, as the catalog keeps them.
MAX_NUMBER: Final = 2**63 - 1

# Tablets that are moved at a time; the interval of heartbeats by a move's owner; the time without a heartbeat
# after which an owner on another machine counts as dead; how long a contraction waits for others' moves.
PARALLEL_MOVES: Final = 2
BEAT_SECONDS: Final = 120.0
SILENT_SECONDS: Final = 600.0
DRAIN_WAIT_SECONDS: Final = 600.0

# How long snapshots and files are kept. A lease keeps a snapshot readable; without a lease, retention does.
# An unreferenced file is kept for the grace period, because a reader may have just opened it. A file that the
# log does not know is kept longer, because its writer may still commit it, or the log may be an older copy.
LEASE_SECONDS: Final = 3_600
RETENTION_SECONDS: Final = 7 * 86_400
GC_GRACE_SECONDS: Final = 3_600
STREAM_LEASE_SECONDS: Final = 7 * 86_400  # keeps unread changes of a named stream after its last run
ORPHAN_SECONDS: Final = 7 * 86_400

# Garbage collection deletes nothing if more than this share of a shard's files, and more than the second
# number, are unknown to the catalog, because the catalog may be wrong.
GC_SHARE: Final = 0.5
GC_FEW_FILES: Final = 20

# A row's encoded primary key, and its key in an index (`key_encoding`). A scan's positions are made of them.
MAX_KEY_BYTES: Final = 16 << 10

# A continuation key fits 2,048 positions of the longest primary keys, and columns and filter. A scan has
# only few positions: one for each slot that moved while it was partly read.
MAX_KEY_CHARS: Final = 64 << 20

# How long a continuation key is valid after its page was returned (or as long as any table keeps its
# snapshots, if that is longer). A replaced secret opens keys for the same time, plus twice
# SECRETS_SECONDS, because another process may use it until it reads the state with the new secret.
KEY_SECONDS: Final = 30 * 86_400
SECRETS_SECONDS: Final = 60

# Clocks are trusted up to a day beyond the newest time that the store has seen; a later time is trusted only
# if it is confirmed an hour later.
TRUSTED_JUMP_SECONDS: Final = 86_400
CLAIM_SECONDS: Final = 3_600
CLOCK_SLACK_SECONDS: Final = 60  # a snapshot's time may be this far in the future, because clocks differ

# How data is written.
BATCH_ROWS: Final = 131_072  # rows of one Arrow batch in a fragment
BATCH_BYTES: Final = 32 << 20
FAR_BATCH_BYTES: Final = 512 << 10  # in object storage, where batches are read whole
WRITE_BUFFER_BYTES: Final = 128 << 20

# Rows of small commits stay in the log until a flush: when a table has FLUSH_BYTES or FLUSH_COMMITS, after
# FLUSH_SECONDS, or for the largest table near the store's limit. Beyond the last two, commits write files.
INLINE_BYTES: int = 64 << 10  # of a commit; tests of files set it to 0
FLUSH_BYTES: Final = 2 << 20
FLUSH_COMMITS: Final = 1_000
FLUSH_SECONDS: Final = 300.0
MEMORY_TABLE_BYTES: Final = 8 << 20
MEMORY_STORE_BYTES: Final = 32 << 20

# Shards in object storage that an operation accesses in parallel.
SHARDS_AT_ONCE: Final = 6

# How long a transaction waits for the catalog's writer.
BUSY_SECONDS: Final = 120.0

# How long a process tries to reconnect to a database server before it raises an error; and how long it tries
# its first connection, whose address may be wrong.
RECONNECT_SECONDS: Final = 60.0
FIRST_CONNECT_SECONDS: Final = 10.0

# How long a placement check may be reused by the next page of a scan.
LOOK_SECONDS: Final = 1.0

# How long a database server may be silent during an answer before its connection counts as lost; also how
# long a client may be silent during a writing transaction, because others wait for its lock.
ANSWER_SECONDS: Final = 60.0

# Files that a process keeps open for reads; others are opened again.
OPEN_FILES: Final = 64

# Cache of blocks of objects, for all stores of a process together.
BLOCK_CACHE_BYTES: Final = 128 << 20

# Cache of record batches, for all scans of an open store together.
BATCH_CACHE_BYTES: Final = 128 << 20

# One index run covers at most this much of a fragment, because building it sorts all of it at once.
RUN_ROWS: Final = 4 << 20
RUN_BYTES: Final = 512 << 20

# How large a definition may be. Arrow reads no type with 64 levels. Definitions must be small, because
# every process reads them with the catalog, and every file begins with one. The time of a write grows with
# the square of the number of columns; Spark can plan thousands of columns, but not tens of thousands.
MAX_NESTING: Final = 32  # levels of lists and structs (a map is two) around a value; a plain column has none
MAX_COLUMNS: Final = 4_096  # including dropped ones
MAX_RENAMES: Final = 1_000
MAX_COLUMN_NAME_BYTES: Final = 255  # in UTF-8; also for names within types
MAX_SCHEMA_BYTES: Final = 4 << 20  # as stored in the catalog and in every file
MAX_FIXED_BYTES: Final = 16 << 20  # the size of a row of nulls: fixed-size binaries and lists
MAX_KEY_COLUMNS: Final = 32  # of a primary key, and of an index
MAX_INDEXES: Final = 64  # of a table: each write writes to all of them

# A writer's metadata of its commit: a small dict of texts, as JSON.
MAX_USER_METADATA_BYTES: Final = 4 << 10

# The name in `txn`, `txnAppId` and a load's `job`: it is in an index, where PostgreSQL allows about 2.7 KB.
MAX_APPLICATION_BYTES: Final = 1 << 10

MAX_TAGS: Final = 1_024  # of a table: each merge reads all of them

# How large a filter may be: a continuation key repeats it.
MAX_FILTER_BYTES: Final = 64 << 10
MAX_FILTER_DEPTH: Final = 100
MAX_FILTER_PARTS: Final = 20_000
MAX_KEYS: Final = 10_000_000  # of one lookup: all keys and their rows are in memory

# Digits of a decimal, in Spark as in Arrow's decimal128.
MAX_DECIMAL_DIGITS: Final = 38

# How large a row may be: Arrow's plain texts and binaries are limited to 2 GiB for each batch.
MAX_ROW_BYTES: Final = 256 << 20

# Names become parts of file names, SQL and Spark options: all of these accept such names unquoted.
NAME_PATTERN: Final = r"[a-z0-9_]{1,64}"

_NAME = re.compile(NAME_PATTERN)


def check_name(kind: str, name: object) -> str:
    """Return the name itself if it is valid for a `kind` ("table", "shard", "index").

    Raises:
        InvalidOption: it is not 1 to 64 lower-case letters, digits and underscores.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(
            f"the {kind} name {brief(name)} is not allowed: use 1 to 64 lower-case letters (a-z), digits and "
            "underscores",
            kind=kind,
            name=name,
        )
    return name
