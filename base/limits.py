"""Every limit and default, with its unit in its name."""

from __future__ import annotations

import re
from typing import Final

from elasticscan.base.errors import InvalidName

# How finely a store is cut. The number of slots is fixed when the store is created; tablets split
# and join later, but never below one slot.
DEFAULT_SLOTS: Final = 4_096
MAX_SLOTS: Final = 65_536  # a slot fits two bytes
DEFAULT_TABLETS: Final = 64

# What one request for a page may return; whichever limit is met first ends the page.
DEFAULT_PAGE_ROWS: Final = 65_536
DEFAULT_PAGE_BYTES: Final = 16 << 20
MAX_PAGE_ROWS: Final = 1 << 24

# How long things stay. A lease keeps a snapshot readable; without one, retention does. A file that
# nothing refers to waits for the grace period, because a reader may have just opened it.
LEASE_SECONDS: Final = 3_600
RETENTION_SECONDS: Final = 7 * 86_400
GC_GRACE_SECONDS: Final = 3_600
TRASH_SECONDS: Final = 7 * 86_400

# Garbage that the catalog never knew is a small part of a shard, or something is wrong with the
# catalog. Few files are no part worth counting.
GC_SHARE: Final = 0.5
GC_FEW_FILES: Final = 20

# How data is written.
BATCH_ROWS: Final = 131_072  # rows of one Arrow batch in a fragment, and of one that Spark gets
BATCH_BYTES = 32 << 20
WRITE_BUFFER_BYTES: Final = 128 << 20

# Record batches that were read are kept for a while, those of all scans of an open store together.
BATCH_CACHE_BYTES: Final = 128 << 20

# One index run covers at most this much of a fragment, because building it sorts all of it at once.
RUN_ROWS = 4 << 20
RUN_BYTES = 512 << 20

# Names become parts of file names, SQL and Spark options: this is what all of them take unquoted.
NAME_PATTERN: Final = r"[a-z0-9_]{1,64}"

_NAME = re.compile(NAME_PATTERN)


def check_name(kind: str, name: object) -> str:
    """The name itself, if it is a good one for a `kind` ("table", "shard", "index").

    Raises:
        InvalidName: it is not 1 to 64 lower-case letters, digits and underscores.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            f"the {kind} name {name!r} is not allowed: use 1 to 64 lower-case letters (a-z), digits and "
            "underscores",
            kind=kind,
            name=name,
        )
    return name
