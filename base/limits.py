"""The limits and defaults that users can meet, each with its unit in its name.

A constant that only tunes one module is in that module.
"""

from __future__ import annotations

import re
from typing import Final

from elasticscan.base.errors import InvalidOption
from elasticscan.base.formatting import brief

# How finely a store is cut. The number of slots is fixed when the store is created; tablets split
# and join later, but never below one slot.
DEFAULT_SLOTS: Final = 4_096
MAX_SLOTS: Final = 65_536  # a slot fits two bytes
DEFAULT_TABLETS: Final = 64

# What one request for a page may return; whichever limit is met first ends the page. A page is a record batch
# of a fragment as it stands, also with the rows that later commits added to it: half as many more, at most.
DEFAULT_PAGE_ROWS: Final = 196_608
DEFAULT_PAGE_BYTES: Final = 16 << 20
MAX_PAGE_ROWS: Final = 1 << 24
MAX_PAGE_BYTES: Final = 1 << 40

# About how much one task of Spark reads.
DEFAULT_SPLIT_BYTES: Final = 512 << 20

# Numbers of commits and versions, as the catalog keeps them.
MAX_NUMBER: Final = 2**63 - 1

# How many tablets are moved at a time. The owner of a move renews its heartbeat; on another machine it is
# presumed dead after a silence. A contraction waits so long for the moves of other processes.
PARALLEL_MOVES: Final = 2
BEAT_SECONDS: Final = 120.0
SILENT_SECONDS: Final = 600.0
DRAIN_WAIT_SECONDS: Final = 600.0

# How long things stay. A lease keeps a snapshot readable; without one, retention does. A file that
# nothing refers to waits for the grace period, because a reader may have just opened it; one that the log
# does not know waits longer, because its writer may still commit it, or the log may be an older copy.
LEASE_SECONDS: Final = 3_600
RETENTION_SECONDS: Final = 7 * 86_400
GC_GRACE_SECONDS: Final = 3_600
STREAM_LEASE_SECONDS: Final = 7 * 86_400  # what a named stream has not read stays so long after it ran
ORPHAN_SECONDS: Final = 7 * 86_400

# Garbage that the catalog never knew is a small part of a shard, or something is wrong with the
# catalog. Few files are no part worth counting.
GC_SHARE: Final = 0.5
GC_FEW_FILES: Final = 20

# A row's encoded primary key, and its key in an index (`key_encoding`). A scan's positions are made of them.
MAX_KEY_BYTES: Final = 16 << 10

# A continuation key: room for 2,048 positions of the longest primary keys, alongside columns and filter. A
# scan has as many positions as it has slots that were left half-read, and then moved: few.
MAX_KEY_CHARS: Final = 64 << 20

# How long a continuation key can be used after its page was given out, or for as long as any table keeps its
# snapshots, if that is longer. A secret that was replaced opens keys for the same time, and for twice
# SECRETS_SECONDS more: another process may have sealed with it until it saw the state with the new one.
KEY_SECONDS: Final = 30 * 86_400
SECRETS_SECONDS: Final = 60

# Clocks are trusted up to a day beyond the newest time that the store has seen; a later time only
# when it is still claimed an hour later.
TRUSTED_JUMP_SECONDS: Final = 86_400
CLAIM_SECONDS: Final = 3_600
CLOCK_SLACK_SECONDS: Final = 60  # a snapshot's time may be so far ahead: clocks differ

# How data is written.
BATCH_ROWS: Final = 131_072  # rows of one Arrow batch in a fragment
BATCH_BYTES: Final = 32 << 20
FAR_BATCH_BYTES: Final = 512 << 10  # in object storage, where batches are read whole
WRITE_BUFFER_BYTES: Final = 128 << 20

# Rows of small commits stay in the log until a flush: at so many bytes or commits of a table, after so long;
# of the largest table where all nearly reach the last limit. Beyond the last two, commits write files.
INLINE_BYTES: int = 64 << 10  # of a commit; tests of files set it to 0
FLUSH_BYTES: Final = 2 << 20
FLUSH_COMMITS: Final = 1_000
FLUSH_SECONDS: Final = 300.0
MEMORY_TABLE_BYTES: Final = 8 << 20
MEMORY_STORE_BYTES: Final = 32 << 20

# To how many shards in object storage one write, or look at them, goes at a time.
SHARDS_AT_ONCE: Final = 6

# How long a transaction waits for the catalog's writer.
BUSY_SECONDS: Final = 120.0

# How long a lost connection to a database server is made again before an error tells of it; and how long for
# the first one of a process, whose address may be wrong.
RECONNECT_SECONDS: Final = 60.0
FIRST_CONNECT_SECONDS: Final = 10.0

# How long a placement check may be reused by the next page of a scan.
LOOK_SECONDS: Final = 1.0

# How long a database server may be silent during an answer before its connection counts as lost; and how long
# a client during a transaction that writes, for whose lock others wait.
ANSWER_SECONDS: Final = 60.0

# Files that a process keeps open to read from; others are opened again when they are read.
OPEN_FILES: Final = 64

# What a process keeps in memory of the objects that it read, those of all its stores together.
BLOCK_CACHE_BYTES: Final = 128 << 20

# Record batches that were read are kept for a while, those of all scans of an open store together.
BATCH_CACHE_BYTES: Final = 128 << 20

# One index run covers at most this much of a fragment, because building it sorts all of it at once.
RUN_ROWS: Final = 4 << 20
RUN_BYTES: Final = 512 << 20

# How large a definition may be. Arrow itself reads no type that is nested 64 deep, and what every process
# reads with the catalog, and every file begins with, must stay small. A write into more columns than this
# takes a time that grows with their square; Spark plans some thousands, and not tens of thousands, of them.
MAX_NESTING: Final = 32  # levels of lists and structs (a map is two) around a value; a plain column has none
MAX_COLUMNS: Final = 4_096  # including dropped ones
MAX_RENAMES: Final = 1_000
MAX_COLUMN_NAME_BYTES: Final = 255  # in UTF-8; of parts of types too
MAX_SCHEMA_BYTES: Final = 4 << 20  # as the catalog and every file hold it
MAX_FIXED_BYTES: Final = 16 << 20  # what a row of nulls takes: fixed-size binaries and lists
MAX_KEY_COLUMNS: Final = 32  # of a primary key, and of an index
MAX_INDEXES: Final = 64  # of a table: each is written with every write

# What a writer may say of its commit: a small dict of texts, as JSON.
MAX_USER_METADATA_BYTES: Final = 4 << 10

# The name in `txn`, `txnAppId` and a load's `job`: it is in an index, where PostgreSQL takes some 2.7 KB.
MAX_APPLICATION_BYTES: Final = 1 << 10

MAX_TAGS: Final = 1_024  # of a table: each merge looks at all of them

# How large a filter may be: a continuation key repeats it.
MAX_FILTER_BYTES: Final = 64 << 10
MAX_FILTER_DEPTH: Final = 100
MAX_FILTER_PARTS: Final = 20_000
MAX_KEYS: Final = 10_000_000  # that are looked up at once: all of them, and their rows, are in memory

# Digits of a decimal, in Spark as in Arrow's decimal128.
MAX_DECIMAL_DIGITS: Final = 38

# How large a row may be: Arrow's plain texts and binaries end at 2 GiB a batch.
MAX_ROW_BYTES: Final = 256 << 20

# Names become parts of file names, SQL and Spark options: this is what all of them take unquoted.
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
