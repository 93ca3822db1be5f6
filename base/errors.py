"""The errors of elasticscan, sorted by what the caller should do about it.

    ElasticScanError
    ├── UsageError                  mend the call
    │   ├── InvalidOption           ES_INVALID_OPTION
    │   │   └── WrongArguments      the same
    │   ├── InvalidName             ES_INVALID_NAME
    │   ├── InvalidKey              ES_INVALID_KEY
    │   ├── KeysExist               ES_KEYS_EXIST
    │   ├── UnknownName             ES_UNKNOWN_NAME
    │   ├── NotPicklable            ES_NOT_PICKLABLE
    │   ├── LimitExceeded           ES_LIMIT_EXCEEDED
    │   ├── SchemaMismatch          ES_SCHEMA_MISMATCH
    │   ├── UnsupportedType         ES_UNSUPPORTED_TYPE
    │   ├── UnsupportedStatement    ES_UNSUPPORTED_STATEMENT
    │   ├── FilterError             ES_INVALID_FILTER
    │   ├── ScanFinished            ES_SCAN_FINISHED
    │   ├── ScanInUse               ES_SCAN_IN_USE
    │   ├── ContinuationKeyError    ES_INVALID_CONTINUATION_KEY
    │   ├── KeyTooLong              ES_CONTINUATION_KEY_TOO_LONG
    │   ├── InvalidOffset           ES_INVALID_OFFSET
    │   ├── StoreNotFound           ES_STORE_NOT_FOUND
    │   ├── TableNotFound           ES_TABLE_NOT_FOUND
    │   ├── ColumnNotFound          ES_COLUMN_NOT_FOUND
    │   ├── IndexNotFound           ES_INDEX_NOT_FOUND
    │   ├── ShardNotFound           ES_SHARD_NOT_FOUND
    │   ├── TabletNotFound          ES_TABLET_NOT_FOUND
    │   ├── SnapshotNotFound        ES_SNAPSHOT_NOT_FOUND
    │   ├── TagNotFound             ES_TAG_NOT_FOUND
    │   ├── AlreadyExists           ES_ALREADY_EXISTS
    │   ├── ReadOnlyStore           ES_READ_ONLY
    │   ├── InvalidTopologyChange   ES_INVALID_TOPOLOGY_CHANGE
    │   └── UnsafeFork              ES_UNSAFE_FORK
    ├── TryAgain                    the same call may succeed later
    │   ├── CatalogUnavailable      ES_CATALOG_UNAVAILABLE
    │   ├── CommitUnknown           ES_COMMIT_UNKNOWN
    │   ├── IndexNotReady           ES_INDEX_NOT_READY
    │   ├── MoveInProgress          ES_MOVE_IN_PROGRESS
    │   ├── OutOfResources          ES_OUT_OF_RESOURCES
    │   └── WriteConflict           ES_WRITE_CONFLICT
    ├── StartAgain                  the same call cannot succeed; a new scan can
    │   ├── SnapshotExpired         ES_SNAPSHOT_EXPIRED
    │   ├── ContinuationKeyExpired  ES_CONTINUATION_KEY_EXPIRED
    │   ├── ChangesExpired          ES_CHANGES_EXPIRED
    │   ├── RowsChanged             ES_ROWS_CHANGED
    │   ├── StoreReplaced           ES_STORE_REPLACED
    │   ├── TableChanged            ES_TABLE_CHANGED
    │   └── IndexChanged            ES_INDEX_CHANGED
    └── OperatorNeeded              somebody has to look at the store or its disks
        ├── StoreTooNew             ES_STORE_TOO_NEW
        ├── StoreDamaged            ES_STORE_DAMAGED
        ├── ShardUnavailable        ES_SHARD_UNAVAILABLE
        ├── WrongRoot               ES_WRONG_ROOT
        ├── StoreCopied             ES_STORE_COPIED
        ├── CatalogOutdated         ES_CATALOG_OUTDATED
        ├── GarbageRefused          ES_GARBAGE_REFUSED
        ├── DiskFull                ES_DISK_FULL
        ├── FragmentDamaged         ES_FRAGMENT_DAMAGED
        │   └── FragmentMissing     the same
        └── CoverageBroken          ES_COVERAGE_BROKEN

The first line of a class's docstring says when it is met, the second what to do: docs/errors.md is
made of them (`python scripts/errors_page.py`).

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
from elasticscan.base.showing import printable

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
    "WrongArguments",
    "WrongRoot",
]


class ElasticScanError(Exception):
    """Base of all errors; `fields` holds the details that the message mentions."""

    code: ClassVar[str] = "ES_ERROR"
    names_its_host: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Any) -> None:
        # Whoever made the text: no URI's password gets into a log by way of an error.
        message = _shortened(printable(redact(message)))
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
    """An argument or option that is not there, has no such value, or does not go with another one.
    Write it as the message says; it names the nearest right one."""

    code = "ES_INVALID_OPTION"


class WrongArguments(InvalidOption, TypeError):
    """A call with an argument that the method does not take, with too many or too few; a `TypeError`, too.
    Write what the message names; words of Polars, pandas, DuckDB, Delta, Kafka and the like are known."""


class InvalidName(UsageError):
    """A name of a table, shard, index or tag that none can have.
    Choose another; the message says of what it may be made."""

    code = "ES_INVALID_NAME"


class InvalidKey(UsageError):
    """A primary key that is null, repeated within a write, too long, or of other columns.
    Mend the rows that the message names."""

    code = "ES_INVALID_KEY"


class UnknownName(UsageError, AttributeError, TypeError):
    """A method, attribute or `[…]` that has another name here; an `AttributeError` and a `TypeError`, too.
    Use the one that the message names; many names of Polars, pandas, DuckDB and Delta are known."""

    code = "ES_UNKNOWN_NAME"


class NotPicklable(UsageError, TypeError):
    """A Store, Table or Scan that is sent to another process; a `TypeError`, too.
    Send its URI, or the key of a page, and open it there."""

    code = "ES_NOT_PICKLABLE"


class KeysExist(UsageError):
    """An insert of rows whose keys are there already.
    Use `upsert`, or leave these rows out; the fields name some `keys`."""

    code = "ES_KEYS_EXIST"


class LimitExceeded(UsageError):
    """A definition or row that is larger than what can be read, moved and dropped again.
    Make it smaller: docs/limits.md has the bounds."""

    code = "ES_LIMIT_EXCEEDED"


class SchemaMismatch(UsageError):
    """Rows, a file or a change whose columns or types are not those of the table.
    Bring the columns, cast the values, or change the table first."""

    code = "ES_SCHEMA_MISMATCH"


class UnsupportedType(UsageError):
    """A column of a type that no file here keeps, or none that Spark has.
    Cast it to another type before it is written, or leave it out."""

    code = "ES_UNSUPPORTED_TYPE"


class UnsupportedStatement(UsageError):
    """A SQL statement that would change a table as none can be changed.
    Use what the message names in its place."""

    code = "ES_UNSUPPORTED_STATEMENT"


class FilterError(UsageError):
    """A condition or expression that cannot be read, is too long, or compares what has no order together.
    Mend it at the place that the message shows; docs/filters.md says what it may be made of."""

    code = "ES_INVALID_FILTER"


class ScanFinished(UsageError):
    """A scan that is read after its end, or after it was closed.
    Begin another one, or go on from a page's key with `Store.resume`."""

    code = "ES_SCAN_FINISHED"


class ScanInUse(UsageError):
    """A scan that gives its rows to another reader already.
    Begin a scan for each reader."""

    code = "ES_SCAN_IN_USE"


class ContinuationKeyError(UsageError):
    """A key of a page that was altered, cut, or made by another store or secret.
    Use the key as it was given out, at its store; else start a new scan."""

    code = "ES_INVALID_CONTINUATION_KEY"


class KeyTooLong(UsageError):
    """A scan whose keys would be too long, of very many columns or with a very long filter.
    Name fewer columns, or read it without asking for keys."""

    code = "ES_CONTINUATION_KEY_TOO_LONG"


class InvalidOffset(UsageError):
    """An offset of a stream that was altered, is another stream's, or goes back.
    Put its checkpoint right, or start the stream with a new one."""

    code = "ES_INVALID_OFFSET"


class StoreNotFound(UsageError):
    """A place where there is no store, as this user at this host sees it.
    Look at the path or URL, the mount and the permissions; `create` makes a store."""

    code = "ES_STORE_NOT_FOUND"
    names_its_host = True


class TableNotFound(UsageError):
    """A table that is not there.
    Use the nearest name, which the message tells."""

    code = "ES_TABLE_NOT_FOUND"


class ColumnNotFound(UsageError):
    """A column that is not there.
    Use the nearest name, which the message tells."""

    code = "ES_COLUMN_NOT_FOUND"


class IndexNotFound(UsageError):
    """An index that is not there.
    Use the nearest name, or `create_index`."""

    code = "ES_INDEX_NOT_FOUND"


class ShardNotFound(UsageError):
    """A shard that is not there.
    Use the nearest name; `status` lists them."""

    code = "ES_SHARD_NOT_FOUND"


class TabletNotFound(UsageError):
    """A tablet that is not there, or not any more.
    Look at `status --tablets`: splits and joins give new numbers."""

    code = "ES_TABLET_NOT_FOUND"


class SnapshotNotFound(UsageError):
    """A snapshot, topology or time that never was, or is still to come.
    Give one that `history` lists, or leave it out for the newest."""

    code = "ES_SNAPSHOT_NOT_FOUND"


class TagNotFound(UsageError):
    """A tag that is not there.
    Use the nearest name; `tag list` has them."""

    code = "ES_TAG_NOT_FOUND"


class AlreadyExists(UsageError):
    """A store, table, column, index, shard, tag or directory that is there already.
    Choose another name, or open what is there."""

    code = "ES_ALREADY_EXISTS"


class ReadOnlyStore(UsageError):
    """A change of a store that was opened for reading, or cannot be written by this user at this host.
    Open it without `read_only`, or as a user who may write; the message says why it is so."""

    code = "ES_READ_ONLY"
    names_its_host = True


class InvalidTopologyChange(UsageError):
    """A move, split, join or change of shards that does not fit where tablets are by now.
    Look at `status` and plan it again."""

    code = "ES_INVALID_TOPOLOGY_CHANGE"


class UnsafeFork(UsageError):
    """A process that was forked during its parent's transaction, write or move.
    Fork while the parent rests, or start processes with `spawn`."""

    code = "ES_UNSAFE_FORK"


class TryAgain(ElasticScanError):
    """Nothing is wrong with the call; the same call may succeed later."""


class CatalogUnavailable(TryAgain):
    """A catalog that cannot be reached, or is locked, for longer than calls wait.
    Try again; look at the server, the mount and the network of the host that is named."""

    code = "ES_CATALOG_UNAVAILABLE"
    names_its_host = True


class CommitUnknown(TryAgain):
    """A commit whose answer was lost: all of it was done, or nothing.
    Look at `history` before you do it again; a write with `txn` is done once however often it is repeated."""

    code = "ES_COMMIT_UNKNOWN"


class IndexNotReady(TryAgain):
    """An index that is still being built.
    Wait, or call `create_index` again if its builder was killed."""

    code = "ES_INDEX_NOT_READY"


class MoveInProgress(TryAgain):
    """A tablet that another process is moving.
    Try again when it has arrived, or `move --resume` if that process is gone."""

    code = "ES_MOVE_IN_PROGRESS"


class OutOfResources(TryAgain):
    """A process or machine without free file handles, memory or threads; the store is well.
    Allow more (`ulimit -n`, `ulimit -u`), or run less at once."""

    code = "ES_OUT_OF_RESOURCES"
    names_its_host = True


class WriteConflict(TryAgain):
    """A write that others came before, ten times in a row, or whose files were collected meanwhile.
    Do it again: nothing was committed."""

    code = "ES_WRITE_CONFLICT"


class StartAgain(ElasticScanError):
    """The scan cannot go on; a new one can be started."""


class SnapshotExpired(StartAgain):
    """A snapshot that is no longer kept.
    Begin a new scan; longer retention, or a tag, keeps snapshots."""

    code = "ES_SNAPSHOT_EXPIRED"


class ContinuationKeyExpired(StartAgain):
    """A key, or a planned read of Spark, that is older than keys live.
    Begin a new scan, or load the DataFrame again."""

    code = "ES_CONTINUATION_KEY_EXPIRED"


class ChangesExpired(StartAgain):
    """Changes that are no longer kept: a gap between a stream or reader and what there is.
    Read a snapshot and go on from there; `streamName` keeps what a stream needs."""

    code = "ES_CHANGES_EXPIRED"


class RowsChanged(StartAgain):
    """Rows that others wrote or deleted since they were read; the fields name some, and the `newest` commit.
    Read them again, and write what follows from that."""

    code = "ES_ROWS_CHANGED"


class StoreReplaced(StartAgain):
    """A store that was removed while it was open, with another one in its place.
    Open it again."""

    code = "ES_STORE_REPLACED"


class TableChanged(StartAgain):
    """A table that was dropped, made again, or whose columns changed in a way that a reader cannot follow.
    Begin again with the table as it is now."""

    code = "ES_TABLE_CHANGED"


class IndexChanged(StartAgain):
    """An index that was dropped, or dropped and made again, below a scan that used it.
    Begin a new scan."""

    code = "ES_INDEX_CHANGED"


class OperatorNeeded(ElasticScanError):
    """The store or one of its disks needs somebody's attention."""


class StoreTooNew(OperatorNeeded):
    """A store or file that a newer version of elasticscan has written.
    Install that version here, too."""

    code = "ES_STORE_TOO_NEW"


class StoreDamaged(OperatorNeeded):
    """A catalog whose bytes are not what was written.
    Run `verify`; restore a backup, or `repair OLD NEW`."""

    code = "ES_STORE_DAMAGED"


class ShardUnavailable(OperatorNeeded):
    """A shard's directory or bucket that this user at this host cannot reach or use.
    Mount it, or mend the permission, the network or the device; then try again."""

    code = "ES_SHARD_UNAVAILABLE"
    names_its_host = True


class WrongRoot(OperatorNeeded):
    """A directory or bucket that belongs to another shard, store or copy.
    Mount each disk where it belongs, or `adopt` if this copy shall take over."""

    code = "ES_WRONG_ROOT"
    names_its_host = True


class StoreCopied(OperatorNeeded):
    """A write through a copy of a catalog whose shards are the original's; of `verify`: one that was cut off.
    Use the original, or `adopt` the shards for the copy; of `verify`: write again."""

    code = "ES_STORE_COPIED"


class CatalogOutdated(OperatorNeeded):
    """A catalog that is older than its shards: an old backup was put back, or a log was cut.
    Put the newest one back, or `adopt`, which loses what it does not know."""

    code = "ES_CATALOG_OUTDATED"


class GarbageRefused(OperatorNeeded):
    """A garbage collection that would remove too much at once of what the catalog does not know.
    Look at `gc --dry-run` first; then `gc --share 1`."""

    code = "ES_GARBAGE_REFUSED"


class DiskFull(OperatorNeeded):
    """A disk, bucket or temporary directory without room; nothing was committed.
    Make room (`gc --trash 0s`, another `TMPDIR`), and do it again."""

    code = "ES_DISK_FULL"
    names_its_host = True


class FragmentDamaged(OperatorNeeded):
    """A file of rows whose bytes are not what was written, or that is gone.
    Run `verify`; restore a backup, or `repair OLD NEW`."""

    code = "ES_FRAGMENT_DAMAGED"
    names_its_host = True


class FragmentMissing(FragmentDamaged):
    """A file of rows that is gone.
    A writer that staged it, or a scan longer than a grace period, may try again; else as above."""


class CoverageBroken(OperatorNeeded):
    """A scan that could not prove that it read each slot once: a defect of ours.
    Do not use its rows; run it again, and report it."""

    code = "ES_COVERAGE_BROKEN"
