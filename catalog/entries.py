"""The rows of a log, and the chain of their digests.

    digest(n) = sha256(digest(n - 1) ++ number ++ time ++ sha256(all other columns))

with number and time as eight bytes each, big-endian. A database server can compute this, so one statement
can assign a commit's number and digest. The column `hashes` has the digests of the record's parts in other
tables. A process that starts from a digest that it trusts therefore finds any later entry or part that was
altered, lost, repeated or exchanged. A process that has seen a higher number finds that the newest entries
are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_bytes
from typing import Any, Final, NamedTuple

import msgpack

from elasticscan.base.errors import RESTORE, StoreDamaged, StoreTooNew
from elasticscan.catalog.codec import pack_value, unpack_value
from elasticscan.metadata import FORMATS, Record, file_statistics, table_of

GENESIS: Final = bytes(32)  # the digest before the first entry, whose number is 0

# The parts of a record that are stored apart from its entry.
VALUE, ROWS, STATISTICS, TOPOLOGY = "value", "rows", "statistics", "topology"

_MOST_BYTES = 64 << 10  # the rows of a larger commit are written to files


class LogRow(NamedTuple):
    """The columns of an entry that its writer knows before the entry has a number.

    Attributes:
        id: 16 random bytes, by which a writer finds its append after a lost answer.
        format: the format number of the record's kind.
        operation: the kind of a commit in the table's history, else None. Stored here since the record's
            value may be dropped.
        clock: the writer's time in microseconds; 0 if the database assigns the time.
        table: the id of the record's table; 0 if the record is about the store.
        rows, size: number and bytes of the rows of a commit, else 0.
        app_id, app_version: the idempotency key of a write.
        metadata: the user's metadata of a write, as JSON.
        hashes: msgpack of the sha256 of each part, by name.
    """

    id: bytes
    kind: str
    format: int
    operation: str | None
    clock: int
    table: int
    rows: int
    size: int
    app_id: str | None
    app_version: int | None
    metadata: str | None
    hashes: bytes


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One row of the log. `time` is in microseconds since the epoch, UTC, and grows with the number."""

    number: int
    time: int
    row: LogRow
    digest: bytes

    def follows(self, digest: bytes) -> bool:
        """Return True if this entry was appended directly after the entry with a digest."""
        try:
            return chained(digest, self.number, self.time, row_digest(self.row)) == self.digest
        except (AttributeError, TypeError, OverflowError):  # a damaged row may have a value of any type
            return False


@dataclass(frozen=True, slots=True)
class Append:
    """A record to append to the log.

    Attributes:
        rows: the rows of a small commit, as a record batch message.
        app: (application, version), the idempotency key.
        metadata: the user's metadata, as JSON.
        topology: (number, bytes) of a row of the topology history, which the entry seals.
        beyond: the record's number will be greater than this.
    """

    record: Record
    rows: bytes | None = None
    app: tuple[str, int] | None = None
    metadata: str | None = None
    topology: tuple[int, bytes] | None = None
    beyond: int | None = None


def drafted(what: Append, clock: int) -> tuple[LogRow, dict[str, bytes]]:
    """Return the row of a record's entry, and the parts that are stored apart from it.

    `clock` is `LogRow.clock`. The row of the topology history is sealed, but is not among the parts.
    """
    assert what.rows is None or len(what.rows) <= _MOST_BYTES, "larger commits are written to files"
    record, statistics = what.record, file_statistics(what.record)
    parts = {VALUE: pack_value(record)}
    if what.rows is not None:
        parts[ROWS] = what.rows
    if statistics:
        parts[STATISTICS] = msgpack.packb(statistics)
    sealed = parts if what.topology is None else parts | {TOPOLOGY: what.topology[1]}
    hashes = {name: sha256(content).digest() for name, content in sealed.items()}
    kind, (app_id, app_version) = type(record).__name__, what.app or (None, None)
    row = LogRow(
        token_bytes(16),
        kind,
        FORMATS[kind][1],
        getattr(record, "operation", None),
        clock,
        table_of(record),
        getattr(record, "rows", 0),
        getattr(record, "bytes", 0),
        app_id,
        app_version,
        what.metadata,
        msgpack.packb(hashes),
    )
    return row, parts


def chained(digest: bytes, number: int, time: int, seal: bytes) -> bytes:
    """Return the digest of an entry from the digest before it and its row digest (`seal`)."""
    return sha256(digest + number.to_bytes(8, "big") + time.to_bytes(8, "big") + seal).digest()


def row_digest(values: Sequence[Any]) -> bytes:
    """Return the sha256 of the values of a row."""
    return sha256(msgpack.packb(values)).digest()


def entry_of(row: Sequence[Any]) -> LogEntry:
    """Return the unchecked entry of a row of the tables."""
    number, time, digest, *values = row[:15]
    return LogEntry(number, time, LogRow(*values), digest)


def linked_entry(row: Sequence[Any]) -> LogEntry:
    """Return the entry of a row whose last column is the digest before it; raise unless it follows."""
    entry = entry_of(row)
    check_chain(GENESIS if entry.number == 0 else row[-1], [entry])
    return entry


def record_of(entry: LogEntry, value: bytes) -> Record:
    """Return the record of an entry.

    Raises:
        StoreTooNew: this release does not know its kind, or its format.
        StoreDamaged: the value is not the one that was appended.
    """
    row = entry.row
    kind, known = FORMATS.get(row.kind, (None, 0))
    if kind is None or row.format > known:
        raise StoreTooNew(
            f"record {entry.number} of the log is a {row.kind} of format {row.format}, which this release "
            "does not know; upgrade elasticscan",
            known=known,
        )
    check_part(entry, VALUE, value)
    return unpack_value(kind, value)


def part_hashes(entry: LogEntry) -> dict[str, bytes]:
    """Return the digests of the parts of a checked entry, by name."""
    hashes: dict[str, bytes] = msgpack.unpackb(entry.row.hashes)
    return hashes


def check_part(entry: LogEntry, part: str, content: object) -> None:
    """Raise `StoreDamaged` unless the content is what was appended as this part of an entry."""
    if not is_sealed(content, part_hashes(entry).get(part)):
        raise damaged_log(f"the {part} of record {entry.number} are not what was written")


def is_sealed(content: object, digest: object) -> bool:
    """Return True if a value is bytes with this digest; a damaged row may contain any type."""
    return isinstance(content, bytes) and sha256(content).digest() == digest


def check_chain(digest: bytes, entries: Iterable[LogEntry]) -> None:
    """Raise `StoreDamaged` unless the entries directly follow the entry with a digest, and each other."""
    for entry in entries:
        if not entry.follows(digest):
            raise damaged_log(f"record {entry.number} is not the one that was appended there")
        digest = entry.digest


def damaged_log(why: str) -> StoreDamaged:
    return StoreDamaged(
        f"the catalog cannot be read: {why} (`elasticscan verify` checks all of it); {RESTORE}", detail=why
    )
