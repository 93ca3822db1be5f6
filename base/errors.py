"""Every error a user can meet, sorted by what the caller should do about it.

    ElasticScanError
    ├── UsageError                  mend the call
    │   ├── InvalidOption           ES_INVALID_OPTION
    │   ├── InvalidName             ES_INVALID_NAME
    │   ├── InvalidKey              ES_INVALID_KEY           a primary key that is null, repeated or too long
    │   ├── KeysExist               ES_KEYS_EXIST            of rows that were to be inserted
    │   ├── UnknownName             ES_UNKNOWN_NAME          a method of another name; an AttributeError, too
    │   ├── NotPicklable            ES_NOT_PICKLABLE         open the store there; a TypeError, too
    │   ├── LimitExceeded           ES_LIMIT_EXCEEDED        a definition or a row that is too large
    │   ├── SchemaMismatch          ES_SCHEMA_MISMATCH
    │   ├── UnsupportedType         ES_UNSUPPORTED_TYPE
    │   ├── UnsupportedStatement    ES_UNSUPPORTED_STATEMENT SQL that would change a table as none can be
    │   ├── FilterError             ES_INVALID_FILTER
    │   ├── ScanFinished            ES_SCAN_FINISHED         a scan that is read after its end, or closed
    │   ├── ScanInUse               ES_SCAN_IN_USE           a scan that gives its rows to another reader
    │   ├── ContinuationKeyError    ES_INVALID_CONTINUATION_KEY
    │   ├── KeyTooLong              ES_CONTINUATION_KEY_TOO_LONG   read without keys
    │   ├── InvalidOffset           ES_INVALID_OFFSET        of a stream: altered, foreign or going back
    │   ├── StoreNotFound           ES_STORE_NOT_FOUND
    │   ├── TableNotFound           ES_TABLE_NOT_FOUND
    │   ├── ColumnNotFound          ES_COLUMN_NOT_FOUND
    │   ├── IndexNotFound           ES_INDEX_NOT_FOUND
    │   ├── ShardNotFound           ES_SHARD_NOT_FOUND
    │   ├── TabletNotFound          ES_TABLET_NOT_FOUND
    │   ├── SnapshotNotFound        ES_SNAPSHOT_NOT_FOUND
    │   ├── TagNotFound             ES_TAG_NOT_FOUND
    │   ├── AlreadyExists           ES_ALREADY_EXISTS
    │   ├── ReadOnlyStore           ES_READ_ONLY             opened so, or its catalog cannot be written
    │   ├── InvalidTopologyChange   ES_INVALID_TOPOLOGY_CHANGE
    │   └── UnsafeFork              ES_UNSAFE_FORK           a child amid a transaction, write or move
    ├── TryAgain                    the same call may succeed later
    │   ├── CatalogUnavailable      ES_CATALOG_UNAVAILABLE
    │   ├── CommitUnknown           ES_COMMIT_UNKNOWN        done or not: look before you repeat
    │   ├── IndexNotReady           ES_INDEX_NOT_READY       its build has not ended
    │   ├── MoveInProgress          ES_MOVE_IN_PROGRESS
    │   ├── OutOfResources          ES_OUT_OF_RESOURCES      files, memory, threads of this process or machine
    │   └── WriteConflict           ES_WRITE_CONFLICT
    ├── StartAgain                  the same call cannot succeed; a new scan can
    │   ├── SnapshotExpired         ES_SNAPSHOT_EXPIRED
    │   ├── ContinuationKeyExpired  ES_CONTINUATION_KEY_EXPIRED
    │   ├── ChangesExpired          ES_CHANGES_EXPIRED       a gap between a stream and what is kept
    │   ├── RowsChanged             ES_ROWS_CHANGED          since they were read: read them again
    │   ├── TableChanged            ES_TABLE_CHANGED
    │   └── IndexChanged            ES_INDEX_CHANGED         dropped, or dropped and made again
    └── OperatorNeeded              somebody has to look at the store or its disks
        ├── StoreTooNew             ES_STORE_TOO_NEW
        ├── StoreDamaged            ES_STORE_DAMAGED
        ├── ShardUnavailable        ES_SHARD_UNAVAILABLE
        ├── WrongRoot               ES_WRONG_ROOT            a shard's root that is another one's
        ├── StoreCopied             ES_STORE_COPIED          a copy whose shards are the original's
        ├── CatalogOutdated         ES_CATALOG_OUTDATED      older than what its shards know
        ├── GarbageRefused          ES_GARBAGE_REFUSED       too much at once
        ├── DiskFull                ES_DISK_FULL
        ├── FragmentDamaged         ES_FRAGMENT_DAMAGED
        │   └── FragmentMissing     the same             its file is gone
        └── CoverageBroken          ES_COVERAGE_BROKEN

The text of an error begins with its code in brackets because Spark keeps only the text of an
exception that crosses from a Python worker to the driver. Errors carry their details as fields
too, and survive pickling.

Where a mount, a permission or a network decides, another machine or user might fare otherwise. Such
an error ends with the user and the host that met it: of many executors one may lack a mount.
"""

from __future__ import annotations

import os
import pwd
from typing import Any, ClassVar

from elasticscan.base.redaction import redact, redacted

# What one line of a log may take: messages quote filters, names and values, of whatever size they are.
_MESSAGE_CHARACTERS = 4_000

# The next step when a catalog or a file is damaged or gone.
RESTORE = "restore it from a backup, or make a new store of what is left with `elasticscan repair OLD NEW`"
__all__ = [
    "AlreadyExists",
    "CatalogOutdated",
    "CatalogUnavailable",
    "ChangesExpired",
    "ColumnNotFound",
    "CommitUnknown",
    "ContinuationKeyError",
    "ContinuationKeyExpired",
    "CoverageBroken",
    "DiskFull",
    "ElasticScanError",
    "FilterError",
    "FragmentDamaged",
    "FragmentMissing",
    "GarbageRefused",
    "IndexChanged",
    "IndexNotFound",
    "IndexNotReady",
    "InvalidKey",
    "InvalidName",
    "InvalidOffset",
    "InvalidOption",
    "InvalidTopologyChange",
    "KeyTooLong",
    "KeysExist",
    "LimitExceeded",
    "MoveInProgress",
    "NotPicklable",
    "OperatorNeeded",
    "OutOfResources",
    "ReadOnlyStore",
    "RowsChanged",
    "ScanFinished",
    "ScanInUse",
    "SchemaMismatch",
    "ShardNotFound",
    "ShardUnavailable",
    "SnapshotExpired",
    "SnapshotNotFound",
    "StartAgain",
    "StoreCopied",
    "StoreDamaged",
    "StoreNotFound",
    "StoreReadableByAll",
    "StoreReplaced",
    "StoreTooNew",
    "TableChanged",
    "TableNotFound",
    "TabletNotFound",
    "TagNotFound",
    "TryAgain",
    "UnknownName",
    "UnsafeFork",
    "UnsupportedStatement",
    "UnsupportedType",
    "UsageError",
    "WriteConflict",
    "WrongRoot",
]


class ElasticScanError(Exception):
    """Base of all errors; `fields` holds the details that the message mentions."""

    code: ClassVar[str] = "ES_ERROR"
    names_its_host: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Any) -> None:
        # Whoever made the text: no URI's password gets into a log by way of an error.
        message = _shortened(redact(message))
        if self.names_its_host and "host" not in fields:  # one that was sent here keeps its own
            fields |= {"host": os.uname().nodename, "user": _user()}
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = {name: redacted(value) for name, value in fields.items()}

    def __str__(self) -> str:
        if not self.names_its_host:
            return f"[{self.code}] {self.message}"
        return f"[{self.code}] {self.message} (user {self.fields['user']} at {self.fields['host']})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


def _shortened(message: str) -> str:
    """A text without its middle where it is too long for a log: it quotes what it was given."""
    if len(message) <= _MESSAGE_CHARACTERS:
        return message
    end = _MESSAGE_CHARACTERS // 4  # what to do stands there
    mark = f" [… {len(message) - _MESSAGE_CHARACTERS:,} characters more …] "
    return message[: _MESSAGE_CHARACTERS - end - len(mark)] + mark + message[-end:]


def _user() -> str:
    """Name the user whose permissions count; in a container he may have none but a number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


class StoreReadableByAll(UserWarning):
    """A store whose catalog every user of the machine can read; filter it where that is meant."""


def _rebuild(kind: type[ElasticScanError], message: str, fields: dict[str, Any]) -> ElasticScanError:
    return kind(message, **fields)


class UsageError(ElasticScanError):
    """The call cannot be carried out as it stands."""


class InvalidOption(UsageError):
    code = "ES_INVALID_OPTION"


class InvalidName(UsageError):
    code = "ES_INVALID_NAME"


class InvalidKey(UsageError):
    code = "ES_INVALID_KEY"


class UnknownName(UsageError, AttributeError):
    code = "ES_UNKNOWN_NAME"


class NotPicklable(UsageError, TypeError):
    code = "ES_NOT_PICKLABLE"


class KeysExist(UsageError):
    code = "ES_KEYS_EXIST"


class LimitExceeded(UsageError):
    code = "ES_LIMIT_EXCEEDED"


class SchemaMismatch(UsageError):
    code = "ES_SCHEMA_MISMATCH"


class UnsupportedType(UsageError):
    code = "ES_UNSUPPORTED_TYPE"


class UnsupportedStatement(UsageError):
    code = "ES_UNSUPPORTED_STATEMENT"


class FilterError(UsageError):
    code = "ES_INVALID_FILTER"


class ScanFinished(UsageError):
    code = "ES_SCAN_FINISHED"


class ScanInUse(UsageError):
    code = "ES_SCAN_IN_USE"


class ContinuationKeyError(UsageError):
    code = "ES_INVALID_CONTINUATION_KEY"


class KeyTooLong(UsageError):
    code = "ES_CONTINUATION_KEY_TOO_LONG"


class InvalidOffset(UsageError):
    code = "ES_INVALID_OFFSET"


class StoreNotFound(UsageError):
    code = "ES_STORE_NOT_FOUND"
    names_its_host = True


class TableNotFound(UsageError):
    code = "ES_TABLE_NOT_FOUND"


class ColumnNotFound(UsageError):
    code = "ES_COLUMN_NOT_FOUND"


class IndexNotFound(UsageError):
    code = "ES_INDEX_NOT_FOUND"


class ShardNotFound(UsageError):
    code = "ES_SHARD_NOT_FOUND"


class TabletNotFound(UsageError):
    code = "ES_TABLET_NOT_FOUND"


class SnapshotNotFound(UsageError):
    code = "ES_SNAPSHOT_NOT_FOUND"


class TagNotFound(UsageError):
    code = "ES_TAG_NOT_FOUND"


class AlreadyExists(UsageError):
    code = "ES_ALREADY_EXISTS"


class ReadOnlyStore(UsageError):
    code = "ES_READ_ONLY"
    names_its_host = True


class InvalidTopologyChange(UsageError):
    code = "ES_INVALID_TOPOLOGY_CHANGE"


class UnsafeFork(UsageError):
    code = "ES_UNSAFE_FORK"


class TryAgain(ElasticScanError):
    """Nothing is wrong with the call; the same call may succeed later."""


class CatalogUnavailable(TryAgain):
    code = "ES_CATALOG_UNAVAILABLE"
    names_its_host = True


class CommitUnknown(TryAgain):
    """The answer to a commit was lost: all of it was done, or nothing."""

    code = "ES_COMMIT_UNKNOWN"


class IndexNotReady(TryAgain):
    code = "ES_INDEX_NOT_READY"


class MoveInProgress(TryAgain):
    code = "ES_MOVE_IN_PROGRESS"


class OutOfResources(TryAgain):
    code = "ES_OUT_OF_RESOURCES"
    names_its_host = True


class WriteConflict(TryAgain):
    code = "ES_WRITE_CONFLICT"


class StartAgain(ElasticScanError):
    """The scan cannot go on; a new one can be started."""


class SnapshotExpired(StartAgain):
    code = "ES_SNAPSHOT_EXPIRED"


class ContinuationKeyExpired(StartAgain):
    code = "ES_CONTINUATION_KEY_EXPIRED"


class ChangesExpired(StartAgain):
    code = "ES_CHANGES_EXPIRED"


class RowsChanged(StartAgain):
    """Others wrote or deleted rows since they were read; the fields name some, and the newest commit."""

    code = "ES_ROWS_CHANGED"


class StoreReplaced(StartAgain):
    code = "ES_STORE_REPLACED"


class TableChanged(StartAgain):
    code = "ES_TABLE_CHANGED"


class IndexChanged(StartAgain):
    code = "ES_INDEX_CHANGED"


class OperatorNeeded(ElasticScanError):
    """The store or one of its disks needs somebody's attention."""


class StoreTooNew(OperatorNeeded):
    code = "ES_STORE_TOO_NEW"


class StoreDamaged(OperatorNeeded):
    code = "ES_STORE_DAMAGED"


class ShardUnavailable(OperatorNeeded):
    code = "ES_SHARD_UNAVAILABLE"
    names_its_host = True


class WrongRoot(OperatorNeeded):
    code = "ES_WRONG_ROOT"
    names_its_host = True


class StoreCopied(OperatorNeeded):
    code = "ES_STORE_COPIED"


class CatalogOutdated(OperatorNeeded):
    code = "ES_CATALOG_OUTDATED"


class GarbageRefused(OperatorNeeded):
    code = "ES_GARBAGE_REFUSED"


class DiskFull(OperatorNeeded):
    code = "ES_DISK_FULL"
    names_its_host = True


class FragmentDamaged(OperatorNeeded):
    code = "ES_FRAGMENT_DAMAGED"
    names_its_host = True


class FragmentMissing(FragmentDamaged):
    """The file is gone, so whoever staged it, or read it for longer than a grace period, may try again."""


class CoverageBroken(OperatorNeeded):
    code = "ES_COVERAGE_BROKEN"
