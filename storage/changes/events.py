"""Changes of rows, derived from the versions of each key: inserts, updates and deletes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.metadata import Bounds
from elasticscan.storage.changes.histories import Histories, OpenInterval, RowPlaces, versions_at
from elasticscan.storage.lookup import Mask, find

INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"
KINDS = (INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE)
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE = range(4)


@dataclass(frozen=True, slots=True)
class Events:
    """The rows of a change feed, in order.

    Attributes:
        versions: for each one a version of its key, by its number in the histories.
        places: where its values are.
        commits: what did it.
        kinds: what it was, as an index of `KINDS`; None when not requested.
    """

    versions: NDArray[np.int64]
    places: RowPlaces
    commits: NDArray[np.int64]
    kinds: NDArray[np.int8] | None


def new_rows(histories: Histories) -> Events:
    """Return the rows that inserts and updates wrote."""
    chosen = np.flatnonzero(~histories.deleted)
    return Events(chosen, histories.places.at(chosen), histories.commits[chosen], None)


def changes_of(opened: OpenInterval, histories: Histories, before: Bounds) -> Events:
    """Compare each version with the one before it, which for a key's first is looked up in `before`."""
    versions = np.arange(len(histories))
    first = np.flatnonzero(histories.first)
    keys = histories.keys.take(pa.array(first)).columns
    places, existed = newest_of(opened, histories.slots[first], keys, before)
    old, was_alive = histories.places.at(np.maximum(versions - 1, 0)), np.roll(~histories.deleted, 1)
    old.owners[first], old.rows[first], was_alive[first] = places.owners, places.rows, existed
    return _emit(_Changes(versions, histories.commits, histories.places, ~histories.deleted, old, was_alive))


def replacements_of(histories: Histories, commit: int) -> Events:
    """Return the changes of an overwrite: each key's last version was written by it, or removed by it."""
    last = np.flatnonzero(histories.last)
    written = histories.commits[last] == commit
    existed = ~(written & histories.first[last])
    before = np.maximum(np.where(written, last - 1, last), 0)
    return _emit(
        _Changes(
            last,
            np.full(len(last), commit, dtype=np.int64),
            histories.places.at(last),
            written & ~histories.deleted[last],
            histories.places.at(before),
            existed & ~histories.deleted[before],
        )
    )


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes of keys, in order: the place of the row after each change, and before it.

    A place has no meaning where the row is not `alive` then.
    """

    versions: NDArray[np.int64]
    commits: NDArray[np.int64]
    new: RowPlaces
    alive: Mask
    old: RowPlaces
    was_alive: Mask


def _emit(changes: _Changes) -> Events:
    """Return the events of changes.

    before   after    events
    no row   row      insert
    row      row      update preimage, update postimage
    row      no row   delete
    no row   no row   none: a tombstone for a key that was not there
    """
    counts = changes.alive.astype(np.int64) + changes.was_alive
    which = np.repeat(np.arange(len(counts)), counts)
    updated = counts[which] == 2
    second = np.zeros(len(which), dtype=bool)
    second[1:] = which[1:] == which[:-1]
    after = np.where(
        updated, second, changes.alive[which]
    )  # true where the event's row is the one after the change
    kinds = np.where(
        updated, np.where(after, _POSTIMAGE, _PREIMAGE), np.where(after, _INSERT, _DELETE)
    ).astype(np.int8)
    new, old = changes.new.at(which), changes.old.at(which)
    places = RowPlaces(np.where(after, new.owners, old.owners), np.where(after, new.rows, old.rows))
    return Events(changes.versions[which], places, changes.commits[which], kinds)


def newest_of(
    opened: OpenInterval, slots: NDArray[np.uint16], keys: Sequence[pa.Array], bounds: Bounds
) -> tuple[RowPlaces, Mask]:
    """Return the newest version of each key in `bounds`, and whether there is one that is no tombstone."""
    names = opened.table.primary_key
    commits = np.full(len(slots), -1, dtype=np.int64)
    places = RowPlaces(np.zeros(len(slots), dtype=np.intp), np.zeros(len(slots), dtype=np.int64))
    alive = np.zeros(len(slots), dtype=bool)
    fragments = [(n, f) for n, f in enumerate(opened.interval.fragments) if bounds.touch(f)]
    for owner, fragment in sorted(fragments, key=lambda item: item[1].max_commit, reverse=True):
        asked = np.flatnonzero(commits < fragment.max_commit)
        if not len(asked):
            break
        source = opened.input(owner)
        asked_keys = [key.take(pa.array(asked)) for key in keys]
        rows = find(source.reader, slots[asked], asked_keys, names, bounds.snapshot)
        asked, rows = asked[rows >= 0], rows[rows >= 0]
        if not len(asked):
            continue
        _, theirs, deleted = versions_at(source, rows, (), bounds.since)
        newer = (theirs >= bounds.floor) & (theirs > commits[asked])
        at = asked[newer]
        commits[at], alive[at] = theirs[newer], ~deleted[newer]
        places.owners[at], places.rows[at] = owner, rows[newer]
    return places, alive
