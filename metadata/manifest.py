"""A file's description of itself: who staged it, for which table, and the state of the store at that time.

If the catalog is lost, the manifest tells a fragment or an index run apart from a file of another store or
shard, or from a file that a newer catalog refers to; and its rows can be restored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class Seal:
    """The checksum of a file: its length, the length of its tail, and the tail's xxh3-64 digest (signed)."""

    bytes: int
    tail: int
    digest: int


Epochs = tuple[tuple[int, int, int], ...]  # (start, end, epoch) of slots [start, end), ascending

FRAGMENT, INDEX_RUN = "fragment", "index_run"


@dataclass(frozen=True, slots=True)
class Origin:
    """The operation that stages files, and the state of the store when it began.

    Attributes:
        store: the store's id.
        store_slots, store_hash: the number of slots, and the hash function that maps rows to slots.
        operation: write, overwrite, delete, move, compact (a merge of fragments), flush or index.
        write: the id of the operation: 32 hexadecimal digits, the same in all its files.
        after_commit: the newest commit when it began.
        began_at: the time when it began, in seconds since 1970.
        epochs: the epochs of all slots, in the placement at that time.
        replaces: paths, below the same root, of the files that the new one replaces.
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
        """Return the epochs of these slots."""
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
    """A sealed file's description of itself, with its origin; `epochs` are only those of its slots.

    Attributes:
        kind: "fragment" or "index_run".
        path: the path below the shard's root where it was written; at another path it is not valid.
        min_commit, max_commit: bounds of its rows' commits; 0 in a file that a write staged before its
            commit.
        not_null: the columns that allow no nulls, by their names in the file.
        complete: together with the current file of the same write, it has all rows of its slots up to the
            newest commit of its rows, except history and rows that no snapshot needs.
        superseded_at: for history, the first snapshot that needs none of its rows.
        index: for an index run, its definition (name, kind, columns, include) and the path of its fragment.
        definition: the number of the table's definition by which it was written.
        columns: for later definitions than the first, the columns in order: (name in the file, name, number
            of the definition that added it).
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
