"""A file's own account of itself: who staged it, for which table, and what was known then.

A fragment or an index run that lost its catalog can still be distinguished from a file of
another store or another shard, and from one that a newer catalog knows; and its rows can be brought back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class Seal:
    """The proof of a file: its length, the length of its tail, and the tail's digest (xxh3-64, signed)."""

    bytes: int
    tail: int
    digest: int


Epochs = tuple[tuple[int, int, int], ...]  # (start, end, epoch) of slots [start, end), ascending

FRAGMENT, INDEX_RUN = "fragment", "index_run"


@dataclass(frozen=True, slots=True)
class Origin:
    """The process that stages files, and its view of the store meanwhile.

    Attributes:
        store: the store's id.
        store_slots, store_hash: how the store maps rows to slots.
        operation: write, overwrite, delete, move, compact (a merge of fragments), flush or index.
        write: 32 hexadecimal digits, the same in all files of one operation.
        after_commit: the newest commit when it began.
        began_at: when it began, in seconds since the epoch.
        epochs: of all slots, by the placement then.
        replaces: paths, below the same root, of the files whose place the new one takes.
    """

    store: str
    store_slots: int
    store_hash: str
    operation: str
    write: str
    after_commit: int
    began_at: float
    epochs: Epochs
    replaces: tuple[str, ...] = ()

    def epochs_of(self, slots: SlotSet) -> Epochs:
        """Return the epochs of some slots."""
        pieces: list[tuple[int, int, int]] = []
        for start, end in slots:
            at = bisect_right(self.epochs, start, key=itemgetter(1))
            while at < len(self.epochs) and self.epochs[at][0] < end:
                first, last, epoch = self.epochs[at]
                pieces.append((max(first, start), min(last, end), epoch))
                at += 1
        return tuple(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Origin):
    """A sealed file's description of itself, with its origin, whose epochs are those of the file's slots.

    Attributes:
        kind: "fragment" or "index_run".
        path: below the shard's root; a file under another name is not where it was written.
        min_commit, max_commit: bounds of its rows' commits; 0 for what a write staged, whose commit
            was not made yet.
        not_null: the columns that allow no nulls, by their names in the file.
        complete: it, with the current file of the same write, has all rows of its slots up to the newest
            commit of its rows, except history and rows that no snapshot needs.
        superseded_at: of history: the snapshot from which on none needs a row of it.
        index: of an index run its definition (name, kind, columns, include) and its fragment's path.
        definition: the number of the table's definition by which it was written.
        columns: of a definition that is not the first, the columns in order: name in the file, name, and the
            number of the definition that made it.
    """

    kind: str
    shard: int
    table: int
    table_name: str
    primary_key: tuple[str, ...]
    shard_key: tuple[str, ...]
    compression: str | None
    not_null: tuple[str, ...]
    path: str
    min_commit: int
    max_commit: int
    slots: SlotSet
    rows: int
    unique: bool
    tombstones: int
    complete: bool = False
    superseded_at: int | None = None
    index: tuple[str, str, Sequence[str], Sequence[str], str] | None = None
    definition: int = 1
    columns: Sequence[tuple[str, str, int]] = ()
