"""The errors of elasticscan, sorted by what the caller should do about it.

    UsageError        correct the call
    TryAgain          the same call may succeed later
    StartAgain        the same call cannot succeed; a new scan can
    OperatorNeeded    an operator must look at the store or its disks

The first line of a class's docstring says when the error is raised, the others what to do: docs/errors.md is
made of them (`python scripts/errors_page.py`).

The text of an error begins with its code in brackets because Spark keeps only the text of an exception that
crosses from a Python worker to the driver. Errors carry their details as fields too, and survive pickling.

If an error depends on a mount, a permission or a network, its text ends with the user and the host, because
another machine or user may not have the problem: for example, one of many executors may lack a mount.
"""

from __future__ import annotations

import os
import pwd
import re
from functools import partial
from typing import Any, ClassVar

from elasticscan.base.redaction import redact

# Messages quote filters, names and values, which may be long; a message must fit in a line of a log.
_MOST, _BEGIN, _END = 4_000, 3_000, 900

# The next step when a catalog or a file is damaged or gone.
RESTORE = "restore it from a backup, or make a new store of what is left with `elasticscan repair OLD NEW`"


class ElasticScanError(Exception):
    """Base of all errors; `fields` holds the details that the message mentions.

    The code of a class is made of its name (ES_NOT_FOUND for `NotFound`), unless the class gives another one.
    """

    code: ClassVar[str] = "ES_ERROR"
    names_its_host: ClassVar[bool] = False

    def __init_subclass__(cls, code: str = "", names_its_host: bool = False) -> None:
        cls.code = code or "ES_" + re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()
        cls.names_its_host |= names_its_host

    def __init__(self, message: str, **fields: Any) -> None:
        # Every text is redacted here, so no password of a URI reaches a log through an error.
        message = redact(message)
        if len(message) > _MOST:  # the next step, at its end, stays
            message = (
                f"{message[:_BEGIN]} [… {len(message) - _BEGIN - _END:,} characters more …] {message[-_END:]}"
            )
        names_its_host = self.names_its_host or fields.get("kind") == "store"
        if names_its_host and "host" not in fields:  # one from another process keeps its own
            fields |= {"host": os.uname().nodename, "user": _user()}
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = redact(fields)

    def __str__(self) -> str:
        if "host" not in self.fields:
            return f"[{self.code}] {self.message}"
        return f"[{self.code}] {self.message} (user {self.fields['user']} at {self.fields['host']})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.message, **self.fields), ()


def _user() -> str:
    """Return the name of the effective user, or the number of a user without a name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


class UsageError(ElasticScanError):
    """Call that cannot be carried out as it stands."""


class InvalidOption(UsageError):
    """An argument, option or name that does not exist, or a value that is not allowed.
    Correct it as the message says; it suggests the nearest name."""


class LimitExceeded(UsageError):
    """A definition, row, key or continuation key that is larger than its bound.
    Make it smaller: docs/limits.md lists the bounds."""


class SchemaMismatch(UsageError):
    """Rows, a file or a change that do not fit a table: columns, types, or keys that are null or repeated.
    Correct the rows that the message names, cast their values, or change the table first."""


class InvalidCall(UsageError):
    """A call or statement that does not fit its subject: a scan that was read, a placement, a Redis cluster.
    Use the alternative in the message: begin a scan for each reader or after a fork, plan a move again."""


class FilterError(UsageError, code="ES_INVALID_FILTER"):
    """A condition or expression that cannot be parsed, is too long, or compares types without a common order.
    Correct it where the message points; docs/filters.md has the grammar."""


class ContinuationKeyError(UsageError, code="ES_INVALID_CONTINUATION_KEY"):
    """A page's key or a stream's offset that was altered, cut, or made by another store, stream or secret.
    Use the unchanged key at its own store, or start a new scan, or the stream with a new checkpoint."""


class NotFound(UsageError):
    """A store, table, column, index, shard, tablet, topology, snapshot or tag that does not exist (`kind`).
    Use the nearest name, which the message suggests, or see `status`; for a store, check the path."""


class AlreadyExists(UsageError):
    """A store, table, index, shard, tag or directory that exists, or an insert of existing keys.
    Choose another name, or open the existing one; for rows, use `upsert` (the field `keys` has examples)."""


class ReadOnlyStore(UsageError, code="ES_READ_ONLY", names_its_host=True):
    """A change of a store that was opened for reading, or cannot be written by this user at this host.
    Open it without `read_only`, or as a user who may write; the message gives the reason."""


class TryAgain(ElasticScanError):
    """Failure of a correct call; the same call may succeed later."""


class CatalogUnavailable(TryAgain, names_its_host=True):
    """A catalog that cannot be reached, or that is locked for too long.
    Try again; check the server, the mount and the network of the host in the message."""


class CommitUnknown(TryAgain):
    """A commit whose answer was lost: it was committed completely, or not at all.
    Check `history` before you repeat it; a write with `txn` is done once, however often you repeat it."""


class OutOfResources(TryAgain, names_its_host=True):
    """A process or machine without free file handles, memory or threads; the store is not affected.
    Raise the limit (`ulimit -n`, `ulimit -u`), or run less at once."""


class Busy(TryAgain):
    """A call that others prevent: repeated writes, a move, a build of an index, a garbage collection.
    Repeat it: nothing was committed. After a killed process, call `create_index` or `move --resume`."""


class StartAgain(ElasticScanError):
    """Scan that cannot continue; a new one can be started."""


class SnapshotExpired(StartAgain):
    """A snapshot, changes (field `kind`: `changes`) or a continuation key (`key`) that are no longer kept.
    Begin a new scan; longer retention or a tag keeps snapshots, `streamName` the changes for a stream."""


class RowsChanged(StartAgain):
    """Rows that were changed or deleted since they were read; fields have examples and the `newest` commit.
    Read them again, and write the new result."""


class TableChanged(StartAgain):
    """A table, index or store (field `kind`) that was dropped, replaced or changed during a read.
    Open it again, and begin a new scan."""


class OperatorNeeded(ElasticScanError):
    """Store or disk that needs an operator's attention."""


class StoreTooNew(OperatorNeeded):
    """A store or file that a newer version of elasticscan has written.
    Install that version here, too."""


class StoreDamaged(OperatorNeeded):
    """A catalog with damaged bytes.
    Run `verify`; restore a backup, or `repair OLD NEW`."""


class ShardUnavailable(OperatorNeeded, names_its_host=True):
    """A shard's directory or bucket that this user at this host cannot reach or use.
    Mount it, or correct the permission, the network or the device; then try again."""


class ShardMismatch(OperatorNeeded, names_its_host=True):
    """A shard and a catalog that do not belong together: another disk, a copy, a catalog that is older.
    Mount each disk at its place, use the newest catalog, or `adopt`, which loses the missing commits."""


class DiskFull(OperatorNeeded, names_its_host=True):
    """A disk, bucket or temporary directory without free space; nothing was committed.
    Free space (`gc --orphans 0s`, another `TMPDIR`), and repeat it."""


class FragmentDamaged(OperatorNeeded, names_its_host=True):
    """A file of rows that is missing or damaged.
    Run `verify`; restore a backup, or `repair OLD NEW`."""


class CoverageBroken(OperatorNeeded):
    """A scan that could not prove that it read each slot once: a defect of elasticscan.
    Do not use its rows; run it again, and report it."""


__all__ = [
    name
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, ElasticScanError)
]
